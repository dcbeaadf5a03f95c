//! Removal of events: deletion, vanishing, withdrawal and expiry (docs/design/admission.md#deletion-and-vanishing).

use std::collections::BTreeSet;

use super::io::{AdmissionOutput, DeletionTarget, EventSummary, StoreWrite, Todo, Tombstone};
use super::purgatory::HeldKind;
use super::{Admission, policy};
use crate::nostr::event::{Coordinate, Event, EventId, EventVersion};
use crate::nostr::rejection::{Decision, Rejection};
use crate::nostr::{PublicKey, kinds, supersedes};
use crate::repo::catalog::EventStatus;
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};

impl Admission {
    /// Applies a deletion request (kind 5): removes the author's own targets, served or held, and adds a tombstone for
    /// every target, so that unknown ones stay out, too.
    pub(super) fn apply_deletion(&mut self, event: &Event, targets: &[DeletionTarget]) {
        let ids: BTreeSet<EventId> = event.values("e").filter_map(EventId::from_hex).collect();
        for DeletionTarget { event: target, status } in targets {
            // The target is named by its id, or by its coordinate, which means all versions up to the request's own
            // time.
            let is_named = ids.contains(&target.id) || target.created_at <= event.created_at;
            let is_deletable = !matches!(target.kind, kinds::DELETION | kinds::VANISH);
            if is_named && is_deletable && target.author == event.pubkey {
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

    /// Removes the held announcement or states at a coordinate. The lookups contain only what is served there.
    fn remove_held_at(&mut self, coordinate: &Coordinate, event: &Event) {
        let Some(identifier) = Identifier::new(&coordinate.d) else { return };
        let removes_announcements = match coordinate.kind {
            kinds::ANNOUNCEMENT => true,
            kinds::STATE => false,
            _ => return,
        };
        for (id, status, is_announcement) in self.catalog.versions_until(event.pubkey, &identifier, event.created_at) {
            if status == EventStatus::Held && is_announcement == removes_announcements {
                self.drop_held(id);
            }
        }
    }

    /// Applies a request to vanish (kind 62): removes everything of the author up to the request's time from memory.
    /// The store deletes the events in slices, behind the tombstone.
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
                let version = EventVersion { id, created_at: event.created_at };
                let summary = EventSummary::versioned(event.pubkey, &identifier, kind, version);
                self.remove(&summary, EventStatus::Served);
            }
        }
        self.write(StoreWrite::AddTombstone(Tombstone::Author(event.pubkey, event.created_at)));
    }

    /// Removes the older versions of an announcement that withdraws its repository, and adds a tombstone that keeps
    /// them out.
    pub(super) fn withdraw_if_delisted(&mut self, new: &Announcement, decision: &Decision) {
        let is_current =
            matches!(decision, Decision::Accept | Decision::Hold(_) | Decision::Reject(Rejection::Delisted));
        if !is_current || !policy::withdraws(&self.catalog, new) {
            return;
        }
        let versions = self.catalog.announcement(&new.repo).cloned().unwrap_or_default();
        for (status, old) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            let is_ended =
                |old: &Announcement| policy::is_withdrawn(status, old) && supersedes(new.version, old.version);
            if let Some(old) = old.filter(is_ended) {
                let RepoId { owner, identifier } = &new.repo;
                self.remove(&EventSummary::versioned(*owner, identifier, kinds::ANNOUNCEMENT, old.version), status);
            }
        }
        self.write(StoreWrite::AddTombstone(Tombstone::Withdrawn(new.repo.clone(), new.version)));
    }

    /// Removes an event, served or held, and schedules what follows from it.
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
                // Repositories that followed it must follow another state.
                self.align_followers(&identifier, event.author, None);
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
            }
            _ => {}
        }
    }

    /// Schedules the removal of the refs of a pull request that is no longer served.
    pub(super) fn schedule_ref_removal(&mut self, event: &EventSummary) {
        if !kinds::is_pull_request(event.kind) {
            return;
        }
        let identifiers: BTreeSet<&Identifier> = event.targets.iter().map(|target| &target.identifier).collect();
        for identifier in identifiers {
            // It may have been pushed to the repository of any maintainer.
            let owners = self.catalog.group(identifier).into_iter().flat_map(|group| group.hosted_owners());
            let repo = |owner: PublicKey| RepoId { owner, identifier: identifier.clone() };
            let mut repo_paths: Vec<RepoPath> = owners.map(|owner| RepoPath::Announced(repo(owner))).collect();
            if self.policy.accepts_submissions {
                repo_paths.push(RepoPath::PullRequests(repo(event.author)));
            }
            for repo_path in repo_paths {
                self.add_todo(Todo { repo_path, pull_request: None });
            }
        }
    }

    /// Removes a held event.
    pub(super) fn drop_held(&mut self, id: EventId) {
        let Some(held_event) = self.purgatory.remove(id) else { return };
        self.write(StoreWrite::DropHeld(id));
        match held_event.kind {
            HeldKind::Announcement(repo) => {
                self.take_announcement(EventStatus::Held, &repo, id);
            }
            HeldKind::State(identifier) => {
                self.catalog.remove_state(held_event.author, &identifier, id);
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
            }
            HeldKind::PullRequest(_, repo_paths) => {
                for repo_path in repo_paths {
                    self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
                }
            }
        }
    }
}
