//! Alignment of the repositories that depend on a changed announcement or follow a changed state.
//!
//! One event may concern thousands of repositories, because any author can list any other as a maintainer. If there are
//! many, they are processed in slices, one per turn of the writer. The changed repository's todo is the durable record
//! meanwhile: it is kept until the last slice, and after a start the dependents of every repository with a todo are
//! processed. Authority does not wait for that, because maintainer sets are computed when they are needed. What follows
//! later are the alternates and refs of the dependents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Admission;
use super::io::{AdmissionOutput, Todo};
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::PublicKey;
use crate::repo::{Identifier, RepoId, RepoPath};

/// Repositories that are still to be aligned because something that they depend on has changed.
#[derive(Debug, Default)]
pub(super) struct DependentQueue {
    groups: BTreeMap<Identifier, DependentGroup>,
    /// The same identifiers. They take turns.
    order: VecDeque<Identifier>,
    /// Maintainers of such repositories. A repository may have the objects that their held states wait for. After a start
    /// all held states are checked, so that these need no record.
    authors: BTreeSet<(Identifier, PublicKey)>,
    /// Repositories whose deletion was put behind the slices of their identifier. That happens once, so that others cannot
    /// delay a deletion for ever.
    postponed: BTreeSet<RepoId>,
}

/// The dependent repositories of one identifier.
#[derive(Debug, Default)]
struct DependentGroup {
    /// Owners of the repositories whose change is the reason. Their todos are kept.
    changed: BTreeSet<PublicKey>,
    /// Owners of the repositories that are to be aligned.
    owners: BTreeSet<PublicKey>,
}

impl DependentQueue {
    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.authors.is_empty()
    }

    /// Whether repositories with this identifier are left.
    pub(super) fn contains(&self, identifier: &Identifier) -> bool {
        self.groups.contains_key(identifier)
    }

    /// Whether dependents of this repository are left.
    pub(super) fn has_dependents_of(&self, repo: &RepoId) -> bool {
        self.groups.get(&repo.identifier).is_some_and(|group| group.changed.contains(&repo.owner))
    }

    /// Puts the deletion of a repository behind the slices of its identifier, if there are any. Returns false if it need not
    /// wait, or has waited before.
    pub(super) fn postpone(&mut self, repo: &RepoId) -> bool {
        match self.groups.get_mut(&repo.identifier) {
            Some(group) if self.postponed.insert(repo.clone()) => {
                group.changed.insert(repo.owner);
                true
            }
            _ => {
                self.postponed.remove(repo);
                false
            }
        }
    }

    fn add(&mut self, identifier: &Identifier, changed: BTreeSet<PublicKey>, owners: BTreeSet<PublicKey>) {
        let group = self.groups.entry(identifier.clone()).or_insert_with(|| {
            self.order.push_back(identifier.clone());
            DependentGroup::default()
        });
        group.changed.extend(changed);
        group.owners.extend(owners);
    }

    /// Takes the next repository of the identifier whose turn it is.
    fn next(&mut self) -> Option<RepoId> {
        let identifier = self.order.front()?;
        let owner = self.groups.get_mut(identifier)?.owners.pop_first()?;
        Some(RepoId { owner, identifier: identifier.clone() })
    }

    /// Ends the slice of the identifier whose turn it is. If it was the last one, returns the changed repositories.
    fn end_slice(&mut self) -> Vec<RepoId> {
        let Some(identifier) = self.order.pop_front() else { return Vec::new() };
        if self.groups.get(&identifier).is_some_and(|group| !group.owners.is_empty()) {
            self.order.push_back(identifier);
            return Vec::new();
        }
        let changed = self.groups.remove(&identifier).map(|group| group.changed).unwrap_or_default();
        changed.into_iter().map(|owner| RepoId { owner, identifier: identifier.clone() }).collect()
    }
}

impl Admission {
    /// Handles the repositories that changed announcements affect: those whose own announcement changed at once, and the
    /// others in slices if there are many.
    pub(super) fn process_affected_repos(&mut self) {
        let affected = std::mem::take(&mut self.affected_repos);
        let touched = std::mem::take(&mut self.touched_repos);
        let (own, others): (BTreeSet<RepoId>, BTreeSet<RepoId>) =
            affected.into_iter().partition(|repo| touched.contains(repo));
        for repo in own {
            self.queue_maintainers(&repo);
            self.add_todo(Todo { repo_path: RepoPath::Announced(repo), pull_request: None });
        }
        // More than a slice of repositories may depend on several changed ones.
        for (nth, repo) in others.into_iter().enumerate() {
            let changed = touched.iter().find(|changed| changed.identifier == repo.identifier);
            match changed.filter(|_| nth >= limits::DEPENDENT_SLICE_REPOS || self.is_turn_used_up()) {
                Some(changed) => self.queue_dependents(changed, BTreeSet::from([repo.owner])),
                None => self.align_affected(&repo),
            }
        }
        self.recheck_maintainer_states();
        for repo in touched {
            self.schedule_scan(&repo);
            self.emit(AdmissionOutput::HostingChanged(repo));
        }
    }

    /// Schedules the alignment of the repositories that have this author as a maintainer, after one of its states was
    /// released or removed.
    pub(super) fn align_followers(&mut self, identifier: &Identifier, author: PublicKey, except: Option<&RepoId>) {
        let Some(group) = self.catalog.group(identifier) else { return };
        let repo = |owner: PublicKey| RepoId { owner, identifier: identifier.clone() };
        let reaching = group.keys_reaching(author).into_iter().filter(|owner| group.is_hosted(*owner));
        let reaching: Vec<PublicKey> =
            reaching.filter(|owner| except.is_none_or(|except| except.owner != *owner)).collect();
        if reaching.len() > limits::DEPENDENT_SLICE_REPOS || self.is_turn_used_up() {
            return self.queue_dependents(&repo(author), reaching.into_iter().collect());
        }
        let strict = self.policy.strict_maintainers;
        let followers: Vec<RepoId> =
            reaching.into_iter().filter(|owner| group.is_maintainer(*owner, author, strict)).map(repo).collect();
        for follower in followers {
            self.add_todo(Todo { repo_path: RepoPath::Announced(follower), pull_request: None });
        }
    }

    /// Queues repositories that depend on another one. Its todo is kept until all are aligned.
    pub(super) fn queue_dependents(&mut self, changed: &RepoId, owners: BTreeSet<PublicKey>) {
        if owners.is_empty() {
            return;
        }
        self.dependents.add(&changed.identifier, BTreeSet::from([changed.owner]), owners);
        self.record_todo(Todo { repo_path: RepoPath::Announced(changed.clone()), pull_request: None });
    }

    /// Continues after a start: the dependents of every repository with a todo may not have been aligned.
    pub(super) fn resume_dependents(&mut self) {
        let mut by_identifier: BTreeMap<Identifier, BTreeSet<PublicKey>> = BTreeMap::new();
        for todo in &self.todos {
            if let (RepoPath::Announced(RepoId { owner, identifier }), None) = (&todo.repo_path, todo.pull_request) {
                by_identifier.entry(identifier.clone()).or_default().insert(*owner);
            }
        }
        for (identifier, changed) in by_identifier {
            let Some(group) = self.catalog.group(&identifier) else { continue };
            let reaching = group.keys_reaching_any(changed.iter().copied());
            let is_dependent = |owner: &PublicKey| !changed.contains(owner) && group.is_hosted(*owner);
            let owners: BTreeSet<PublicKey> = reaching.into_iter().filter(is_dependent).collect();
            if !owners.is_empty() {
                self.dependents.add(&identifier, changed, owners);
            }
        }
    }

    /// Aligns the next slice of dependent repositories.
    pub(super) fn align_dependents(&mut self) {
        for _ in 0..limits::DEPENDENT_SLICE_REPOS {
            if self.is_turn_used_up() {
                break;
            }
            let Some(repo) = self.dependents.next() else { break };
            self.align_affected(&repo);
        }
        for repo in self.dependents.end_slice() {
            // The todo was kept for the dependents. It is removed if nothing else is left to do.
            let todo = Todo { repo_path: RepoPath::Announced(repo), pull_request: None };
            if self.todos.contains(&todo) {
                self.queues.add(RepoTask::Align(todo.repo_path));
            }
        }
        self.recheck_maintainer_states();
    }

    fn align_affected(&mut self, repo: &RepoId) {
        self.queue_maintainers(repo);
        self.add_todo(Todo { repo_path: RepoPath::Announced(repo.clone()), pull_request: None });
        self.schedule_scan(repo);
        self.emit(AdmissionOutput::HostingChanged(repo.clone()));
    }

    /// Queues the maintainers of a repository that have held states.
    fn queue_maintainers(&mut self, RepoId { owner, identifier }: &RepoId) {
        let Some(group) = self.catalog.group(identifier) else { return };
        let members = group.maintainers(*owner, self.policy.strict_maintainers);
        let has_held = |member: &&PublicKey| group.states(**member).is_some_and(|states| !states.held.is_empty());
        let with_held = members.iter().filter(has_held).map(|member| (identifier.clone(), *member));
        self.dependents.authors.extend(with_held);
    }

    /// Schedules a check of the held states of queued maintainers.
    fn recheck_maintainer_states(&mut self) {
        while !self.is_turn_used_up() {
            let Some((identifier, author)) = self.dependents.authors.pop_first() else { break };
            for repo_path in self.search_paths(&identifier, author) {
                self.queues.add(RepoTask::Align(repo_path));
            }
        }
    }
}
