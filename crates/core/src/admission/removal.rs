//! How things leave: deletion, vanishing, withdrawal, expiry, and announcements that lose their last anchor.

use std::collections::BTreeSet;

use super::io::{AdmissionOutput, DeletionTarget, EventSummary, StoreWrite, Todo, Tombstone};
use super::purgatory::HeldKind;
use super::repo_queue::RepoTask;
use super::{Admission, policy};
use crate::nostr::event::{Coordinate, Event, EventId, EventVersion};
use crate::nostr::rejection::{Decision, Rejection};
use crate::nostr::{PublicKey, kinds, supersedes};
use crate::repo::catalog::EventStatus;
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};

impl Admission {
    /// Kind 5: own targets go, wherever they stand, and every target is remembered so that it cannot come back (D-05).
    pub(super) fn apply_deletion(&mut self, event: &Event, targets: &[DeletionTarget]) {
        let ids: BTreeSet<EventId> = event.values("e").filter_map(EventId::from_hex).collect();
        for DeletionTarget { event: target, status } in targets {
            // Named by id, or by a coordinate whose versions are meant up to the request's own time (D-02).
            let meant = ids.contains(&target.id) || target.created_at <= event.created_at;
            let deletable = !matches!(target.kind, kinds::DELETION | kinds::VANISH);
            if meant && deletable && target.author == event.pubkey {
                self.remove(target, *status);
            }
        }
        for id in ids {
            self.write(StoreWrite::AddTombstone(Tombstone::Event(event.pubkey, id)));
        }
        for coordinate in
            event.values("a").filter_map(Coordinate::parse).filter(|coordinate| coordinate.pubkey == event.pubkey)
        {
            self.remove_held_at(&coordinate, event);
            self.write(StoreWrite::AddTombstone(Tombstone::Coordinate(coordinate, event.created_at)));
        }
    }

    /// The store names what is served at a coordinate; what is held there is in our own books.
    fn remove_held_at(&mut self, coordinate: &Coordinate, event: &Event) {
        let Some(identifier) = Identifier::new(&coordinate.d) else { return };
        let announcements = match coordinate.kind {
            kinds::ANNOUNCEMENT => true,
            kinds::STATE => false,
            _ => return,
        };
        for (id, status, is_announcement) in self.catalog.versions_until(event.pubkey, &identifier, event.created_at) {
            if status == EventStatus::Held && is_announcement == announcements {
                self.drop_held(id);
            }
        }
    }

    /// Kind 62: everything of the author up to now goes. The store empties itself behind a marker; our books at once.
    pub(super) fn apply_vanish(&mut self, event: &Event) {
        if !policy::is_own_relay_named(&self.policy.service, event) {
            return;
        }
        for id in self.purgatory.held_until(event.pubkey, event.created_at) {
            self.drop_held(id);
        }
        let identifiers: Vec<Identifier> = self.catalog.identifiers_of(event.pubkey).cloned().collect();
        for identifier in identifiers {
            for (id, _, is_announcement) in self.catalog.versions_until(event.pubkey, &identifier, event.created_at) {
                let kind = if is_announcement { kinds::ANNOUNCEMENT } else { kinds::STATE };
                let created_at = event.created_at;
                let identifier = Some(identifier.clone());
                let (author, targets) = (event.pubkey, Vec::new());
                let summary = EventSummary { id, author, kind, created_at, identifier, targets, tip: None };
                self.remove(&summary, EventStatus::Served);
            }
        }
        self.write(StoreWrite::AddTombstone(Tombstone::Author(event.pubkey, event.created_at)));
    }

    /// A newer announcement that no longer names this service ends hosting, and older ones cannot bring it back.
    pub(super) fn withdraw_if_delisted(&mut self, event: &Event, decision: &Decision) {
        if !matches!(decision, Decision::Accept | Decision::Reject(Rejection::Delisted)) {
            return;
        }
        let Some(new) = self.policy.announcement(event).filter(|new| policy::withdraws(&self.catalog, new)) else {
            return;
        };
        let versions = self.catalog.announcement(&new.repo).cloned().unwrap_or_default();
        for (status, old) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            let ends = |old: &Announcement| policy::is_withdrawn(status, old) && supersedes(new.version, old.version);
            if let Some(old) = old.filter(ends) {
                let summary = EventSummary {
                    id: old.version.id,
                    author: new.repo.owner,
                    kind: kinds::ANNOUNCEMENT,
                    created_at: old.version.created_at,
                    identifier: Some(new.repo.identifier.clone()),
                    targets: Vec::new(),
                    tip: None,
                };
                self.remove(&summary, status);
            }
        }
        self.write(StoreWrite::AddTombstone(Tombstone::Withdrawn(new.repo, new.version)));
    }

    /// Forgets an event, served or held, and whatever depends on it.
    pub(super) fn remove(&mut self, event: &EventSummary, status: EventStatus) {
        if status == EventStatus::Held {
            self.drop_held(event.id);
            return;
        }
        self.write(StoreWrite::Remove(event.id));
        self.schedule_ref_removal(event);
        let Some(identifier) = event.identifier.clone() else { return };
        match event.kind {
            kinds::ANNOUNCEMENT => {
                let repo = RepoId { owner: event.author, identifier };
                self.take_announcement(EventStatus::Served, &repo, event.id);
            }
            kinds::STATE => {
                self.catalog.remove_state(event.author, &identifier, event.id);
                // Whatever followed it looks for another state to follow.
                for repo in self.maintained_by(&identifier, event.author) {
                    self.add_todo(Todo { repo_path: RepoPath::Announced(repo), pull_request: None });
                }
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
            }
            _ => {}
        }
    }

    /// A pull request is served no more: its refs go, wherever they are.
    pub(super) fn schedule_ref_removal(&mut self, event: &EventSummary) {
        if !kinds::is_pull_request(event.kind) {
            return;
        }
        let identifiers: BTreeSet<&Identifier> = event.targets.iter().map(|target| &target.identifier).collect();
        for identifier in identifiers {
            // It may have been pushed to any maintainer's.
            let hosts = self.catalog.group(identifier).into_iter().flat_map(|group| group.hosted_owners());
            let repo = |owner: PublicKey| RepoId { owner, identifier: identifier.clone() };
            let mut repo_paths: Vec<RepoPath> = hosts.map(|owner| RepoPath::Announced(repo(owner))).collect();
            if self.policy.submissions {
                repo_paths.push(RepoPath::PullRequests(repo(event.author)));
            }
            for repo_path in repo_paths {
                self.add_todo(Todo { repo_path, pull_request: None });
            }
        }
    }

    /// Forgets a held event.
    pub(super) fn drop_held(&mut self, id: EventId) {
        let Some(held_event) = self.purgatory.remove(id) else { return };
        self.write(StoreWrite::DropHeld(id));
        match held_event.kind {
            HeldKind::Announcement(repo) => {
                self.take_announcement(EventStatus::Held, &repo, id);
            }
            HeldKind::State(identifier) => {
                self.catalog.remove_state(held_event.author, &identifier, id);
                self.recheck_running_jobs(&identifier);
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
            }
            HeldKind::PullRequest(_, repo_paths) => {
                for repo_path in repo_paths {
                    self.recheck_running_jobs(repo_path.identifier());
                    self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
                }
            }
        }
    }

    /// Something that waited has gone while git was perhaps giving it its refs: that is looked at again.
    fn recheck_running_jobs(&mut self, identifier: &Identifier) {
        for repo_path in self.queues.at_work(identifier) {
            self.add_todo(Todo { repo_path, pull_request: None });
        }
    }

    /// Whoever speaks for a repository may have a state that waits elsewhere for what is there.
    fn recheck_maintainer_states(&mut self) {
        let mut speakers = BTreeSet::new();
        for RepoId { owner, identifier } in &self.affected_repos {
            let Some(group) = self.catalog.group(identifier) else { continue };
            let members = group.maintainers(*owner, self.policy.strict_maintainers);
            let waits = |member: &&PublicKey| group.states(**member).is_some_and(|states| !states.held.is_empty());
            speakers.extend(members.iter().filter(waits).map(|member| (identifier.clone(), *member)));
        }
        for (identifier, speaker) in speakers {
            for repo_path in self.search_paths(&identifier, speaker) {
                self.queues.add(RepoTask::Align(repo_path));
            }
        }
    }

    /// At the end of a step, once for each name whose announcements changed: those that were accepted only because
    /// somebody named their author go with the last such name (F7), and sync and hunt are told.
    pub(super) fn process_changes(&mut self) {
        let strict = self.policy.strict_maintainers;
        for identifier in std::mem::take(&mut self.changed_identifiers) {
            // One that goes may have been another's reason to stay.
            while let Some(group) = self.catalog.group(&identifier) {
                let exceptions = group.announcements().filter_map(|(author, versions)| {
                    let served =
                        versions.served.as_ref().filter(|served| served.is_exception && !served.is_hosted())?;
                    (!group.is_invited(*author, strict)).then_some((*author, served.version))
                });
                let lost: Vec<(PublicKey, EventVersion)> = exceptions.collect();
                if lost.is_empty() {
                    break;
                }
                for (owner, version) in lost {
                    self.write(StoreWrite::Remove(version.id));
                    let repo = RepoId { owner, identifier: identifier.clone() };
                    self.take_announcement(EventStatus::Served, &repo, version.id);
                    // It said that the repository is not hosted here; its going does not say that it is again.
                    self.write(StoreWrite::AddTombstone(Tombstone::Withdrawn(repo, version)));
                }
            }
            self.changed_identifiers.remove(&identifier);
            // What was uploaded to a repository may be wanted there now.
            let wanted = self.uploads.by_identifier(&identifier).filter(|event| self.purgatory.get(*event).is_some());
            for event in wanted.collect::<BTreeSet<_>>() {
                self.check_git_data(event);
            }
            self.emit(AdmissionOutput::RepoNeedsChanged(identifier.clone()));
            self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
        }
        self.recheck_maintainer_states();
        for repo in std::mem::take(&mut self.affected_repos) {
            self.touched_repos.insert(repo.clone());
            self.add_todo(Todo { repo_path: RepoPath::Announced(repo), pull_request: None });
        }
        for repo in std::mem::take(&mut self.touched_repos) {
            self.schedule_scan(&repo);
            self.emit(AdmissionOutput::HostingChanged(repo));
        }
    }
}
