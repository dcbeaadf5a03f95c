//! What follows when the git data of a repository is no longer kept, or is kept again.
//!
//! An event is served only together with its git data. When hosting ends, the pull requests for the repository and the
//! states that apply to no other repository are held again, in the transaction that ends it: their git data is about to
//! be deleted. When hosting returns, their git data is fetched (docs/design/admission.md#end-of-hosting).
//!
//! The pull requests are found by lookups, a page at a time. Further pages follow in the next transactions; until the
//! last one the repository stays on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Admission;
use super::git_job_planner::LookupPurpose;
use super::io::{AdmissionOutput, EventSummary, PullRequestPage, RepoLookupResult, StoreWrite, Todo};
use super::policy::Submission;
use super::purgatory::{HeldKind, SearchStatus};
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::event::{EventId, EventVersion};
use crate::nostr::{PublicKey, SignedEvent, kinds};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Identifier, RepoId, RepoPath};
use crate::time::Now;

/// Changes of announcements during one input, whose consequences for other events are handled at its end.
#[derive(Debug, Default)]
pub(super) struct HostingChanges {
    /// Repositories whose announcements changed, as they were before.
    before: BTreeMap<RepoId, Hosting>,
    /// Authors whose states may apply to fewer repositories now.
    authors: BTreeSet<(Identifier, PublicKey)>,
}

/// Whether a repository is hosted, and whether its git data is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hosting {
    pub(super) is_hosted: bool,
    pub(super) is_kept: bool,
}

/// A served pull request, and the repositories that may have its ref and have not been looked up yet.
pub(super) type ReviewedPullRequest = (Arc<SignedEvent>, Vec<RepoPath>);

impl Admission {
    /// Returns whether a repository is hosted and its git data is kept.
    pub(super) fn hosting(&self, repo: &RepoId) -> Hosting {
        let group = self.catalog.group(&repo.identifier);
        Hosting {
            is_hosted: self.is_hosted(repo),
            is_kept: group.is_some_and(|group| group.keeps_git_data(repo.owner)),
        }
    }

    /// Records that the announcements of a repository changed. `old_members` are the maintainers that were listed before,
    /// and `dependents` the keys from which the owner can be reached along listings.
    pub(super) fn record_hosting_change(
        &mut self,
        repo: &RepoId,
        before: Hosting,
        old_members: &[PublicKey],
        dependents: &BTreeSet<PublicKey>,
    ) {
        self.hosting_changes.before.entry(repo.clone()).or_insert(before);
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let members = group.keys_reachable_from(old_members, limits::MAX_MAINTAINERS);
        // A maintainer's repository may have refs of pull requests for this one.
        let ended = before.is_kept && !group.keeps_git_data(repo.owner);
        let hosted = members.iter().filter(|owner| ended && group.is_hosted(**owner));
        let hosted: Vec<RepoId> =
            hosted.map(|owner| RepoId { owner: *owner, identifier: repo.identifier.clone() }).collect();
        let authors = members.iter().chain(dependents).filter(|author| group.states(**author).is_some());
        self.hosting_changes.authors.extend(authors.map(|author| (repo.identifier.clone(), *author)));
        for member in hosted {
            // After a crash, the todo of the ended repository would only lead to those that depend on it.
            self.record_todo(Todo { repo_path: RepoPath::Announced(member.clone()), pull_request: None });
            self.affected_repos.insert(member);
        }
    }

    /// Discards the recorded changes.
    pub(super) fn forget_hosting_changes(&mut self) {
        self.hosting_changes = HostingChanges::default();
    }

    /// Handles the recorded changes: looks up what must be held again, and wakes what can be fetched again.
    pub(super) fn process_hosting_changes(&mut self, now: Now) {
        let HostingChanges { before, authors } = std::mem::take(&mut self.hosting_changes);
        let mut states: BTreeMap<Identifier, Vec<(PublicKey, EventVersion)>> = BTreeMap::new();
        for (identifier, author) in authors {
            let group = self.catalog.group(&identifier);
            let served = group.and_then(|group| group.states(author)?.served);
            if let Some(version) = served.filter(|version| self.lacks_repo(&identifier, author, *version)) {
                states.entry(identifier).or_default().push((author, version));
            }
        }
        for (identifier, states) in states {
            let Some((owner, _)) = states.first() else { continue };
            let repo_path = RepoPath::Announced(RepoId { owner: *owner, identifier });
            self.lookup_queue.push_back(LookupPurpose::HoldStates(repo_path, states));
        }
        for (repo, before) in before {
            let after = self.hosting(&repo);
            // Events about a banned repository are found by the moderation scan; what it leaves is held afterwards.
            if before.is_kept && !after.is_kept && !self.is_banned_and_gone(&repo) {
                self.find_pull_requests(repo);
            } else if !before.is_hosted && after.is_hosted {
                self.wake_dependents(now, &repo);
            }
        }
    }

    /// Whether a state is served although it applies to no repository whose git data is kept.
    fn lacks_repo(&self, identifier: &Identifier, author: PublicKey, version: EventVersion) -> bool {
        let strict = self.policy.strict_maintainers;
        self.catalog.group(identifier).is_some_and(|group| {
            let is_served = group.states(author).is_some_and(|states| states.served == Some(version));
            is_served && !group.has_kept_repo(author, strict)
        })
    }

    /// Continues the search for pull requests after a start, if a crash interrupted it: the todo is still there.
    pub(super) fn resume_pull_request_searches(&mut self) {
        let with_todo = self.todos.iter().filter_map(|todo| match (&todo.repo_path, todo.pull_request) {
            (RepoPath::Announced(repo), None) => Some(repo.clone()),
            _ => None,
        });
        let ended: Vec<RepoId> =
            with_todo.filter(|repo| !self.hosting(repo).is_kept && !self.is_banned_and_gone(repo)).collect();
        for repo in ended {
            self.find_pull_requests(repo);
        }
    }

    /// Starts the search for the pull requests of a repository that is no longer kept.
    pub(super) fn find_pull_requests(&mut self, repo: RepoId) {
        self.ended_repos.insert(repo.clone());
        let purpose = LookupPurpose::FindPullRequests(RepoPath::Announced(repo), PullRequestPage::First);
        self.lookup_queue.push_back(purpose);
    }

    /// Continues unfinished searches for pull requests with their next pages.
    pub(super) fn continue_pull_request_searches(&mut self) {
        for (repo, after) in std::mem::take(&mut self.next_pages) {
            let page = PullRequestPage::After(after);
            self.lookup_queue.push_back(LookupPurpose::FindPullRequests(RepoPath::Announced(repo), page));
        }
    }

    /// Holds the states again that apply to no repository any more. One whose text could not be read is removed.
    pub(super) fn hold_states(
        &mut self,
        now: Now,
        identifier: &Identifier,
        states: &[(PublicKey, EventVersion)],
        lookup: &RepoLookupResult,
    ) {
        for (author, version) in states {
            // Another lookup may have come first.
            if !self.lacks_repo(identifier, *author, *version) {
                continue;
            }
            match lookup.events.get(&version.id) {
                Some(found) => self.hold_again(now, &found.event),
                None => {
                    let summary = EventSummary::versioned(*author, identifier, kinds::STATE, *version);
                    self.remove(&summary, EventStatus::Served);
                }
            }
        }
    }

    /// Handles a page of the pull requests for a repository that is no longer kept.
    pub(super) fn pull_requests_found(&mut self, now: Now, repo: &RepoId, lookup: &RepoLookupResult) {
        if self.hosting(repo).is_kept {
            return self.end_pull_request_search(repo);
        }
        let reviewed = lookup.pull_requests.iter().map(|event| (event.clone(), self.ref_paths(event)));
        let reviewed: Vec<ReviewedPullRequest> = reviewed.collect();
        self.review_pull_requests(now, reviewed);
        match lookup.next_pull_request {
            Some(next) => self.next_pages.push((repo.clone(), next)),
            None => self.end_pull_request_search(repo),
        }
    }

    /// Ends a search. The work on the repository's folder, which waited for it, starts.
    fn end_pull_request_search(&mut self, repo: &RepoId) {
        self.ended_repos.remove(repo);
        let todo = Todo { repo_path: RepoPath::Announced(repo.clone()), pull_request: None };
        if self.todos.contains(&todo) {
            self.queues.add(RepoTask::Align(todo.repo_path));
        }
    }

    /// Returns the repositories that may have the ref of a served pull request.
    fn ref_paths(&self, event: &SignedEvent) -> Vec<RepoPath> {
        let Some(request) = PullRequest::from_any_event(event) else { return Vec::new() };
        let mut repo_paths = self.pull_request_paths(event.pubkey, &request);
        let kept = request.targets.iter().filter(|target| self.hosting(target).is_kept);
        repo_paths.extend(kept.map(|target| RepoPath::Announced(target.clone())));
        let alternates: Vec<RepoPath> = repo_paths.iter().flat_map(|path| self.alternates_of(path)).collect();
        repo_paths.extend(alternates);
        repo_paths.sort_unstable();
        repo_paths.dedup();
        repo_paths.truncate(limits::MAX_PULL_REQUEST_TARGETS);
        repo_paths
    }

    /// Looks up whether one of the other repositories has the ref of a pull request; holds those that have none left.
    fn review_pull_requests(&mut self, now: Now, reviewed: Vec<ReviewedPullRequest>) {
        let mut by_path: BTreeMap<RepoPath, Vec<ReviewedPullRequest>> = BTreeMap::new();
        for (event, mut repo_paths) in reviewed {
            match repo_paths.pop() {
                Some(repo_path) => by_path.entry(repo_path).or_default().push((event, repo_paths)),
                None => self.hold_again(now, &event),
            }
        }
        for (repo_path, requests) in by_path {
            self.lookup_queue.push_back(LookupPurpose::CheckPullRequestRefs(repo_path, requests));
        }
    }

    /// Continues the review of pull requests with the refs of one repository. Pull requests that have a ref there stay
    /// served.
    pub(super) fn pull_request_refs_checked(
        &mut self,
        now: Now,
        reviewed: Vec<ReviewedPullRequest>,
        lookup: &RepoLookupResult,
    ) {
        let has_ref = |event: &SignedEvent| lookup.refs.get(&format!("refs/nostr/{}", event.id)).is_some();
        let without_ref = reviewed.into_iter().filter(|(event, _)| !has_ref(event)).collect();
        self.review_pull_requests(now, without_ref);
    }

    /// Holds a served event again because its git data is not kept. It is dormant, so that it takes no space from new
    /// events; without fetch, which wakes dormant events, it is held as if it had just arrived. It is removed if there
    /// is no space, or if it is banned or expired.
    pub(super) fn hold_again(&mut self, now: Now, event: &Arc<SignedEvent>) {
        let summary = EventSummary::new(event);
        let lists = &self.policy.lists;
        let is_expired = event.expires_at().is_some_and(|expires_at| expires_at <= now.wall);
        let is_banned = lists.is_event_banned(event.pubkey, event.id)
            || (!summary.targets.is_empty() && summary.targets.iter().all(|target| lists.is_repo_banned(target)));
        let (secs, search, has_capacity) = if self.policy.fetches_git_data {
            let has_capacity = self.purgatory.has_dormant_capacity(event.pubkey);
            (self.policy.dormant_secs, SearchStatus::Dormant, has_capacity)
        } else {
            let submission = Submission::new(&self.policy, event);
            let request = self.policy_context().hold_request(&submission);
            // No announcement is removed for it.
            let rejection = self.purgatory.rejection(&request, |_| true);
            (self.policy.purgatory_secs, SearchStatus::Pending(now.mono), rejection.is_none())
        };
        if is_banned || is_expired || !has_capacity {
            return self.remove(&summary, EventStatus::Served);
        }
        self.write(StoreWrite::HoldServed(event.id, now.wall.plus_secs(secs)));
        if let Some(identifier) = summary.identifier {
            self.catalog.remove_state(event.pubkey, &identifier, event.id);
            self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
        }
        self.track_held(now, Submission::new(&self.policy, event), now.mono.plus_secs(secs), search);
        self.check_git_data(event.id);
    }

    /// Fetches what is held for a repository that is hosted again.
    fn wake_dependents(&mut self, now: Now, repo: &RepoId) {
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let maintainers = group.maintainers(repo.owner, self.policy.strict_maintainers);
        let repo_path = RepoPath::Announced(repo.clone());
        let concerns = |author: &PublicKey, kind: &HeldKind| match kind {
            HeldKind::Announcement(_) => false,
            HeldKind::State(_) => maintainers.contains(author),
            HeldKind::PullRequest(_, repo_paths) => repo_paths.contains(&repo_path),
        };
        let held = self.purgatory.by_identifier(&repo.identifier);
        let dormant = held.filter(|(_, held)| held.is_dormant() && concerns(&held.author, &held.kind));
        let dormant: Vec<EventId> = dormant.map(|(id, _)| id).collect();
        for id in dormant {
            self.search_soon(now, id);
        }
    }

    /// Whether a held pull request may get its ref: one of its repositories is served. Until then a ref would be
    /// visible without its event, because events about a repository are released after its announcement.
    pub(super) fn has_served_path(&self, repo_paths: &[RepoPath]) -> bool {
        let is_served = |repo_path: &RepoPath| match repo_path {
            RepoPath::Announced(_) => self.is_served(repo_path),
            RepoPath::PullRequests(_) => self.is_available(repo_path),
        };
        repo_paths.iter().any(is_served)
    }
}
