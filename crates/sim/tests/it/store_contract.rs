//! The model satisfies the contract of the real store, and the differential test finds injected faults.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use grasp_core::admission::io::{
    EventLookups, EventSummary, NeededLookups, PullRequestPage, RestoredItem, StoreWrite, Todo, Tombstone,
    TombstoneKind,
};
use grasp_core::nostr::event::{EventId, EventVersion};
use grasp_core::nostr::{Filter, SignedEvent, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{PackManifest, Refs, RepoId, RepoPath};
use grasp_core::time::Timestamp;
use grasp_sim::differential::run_differential;
use grasp_sim::store_contract::{StoreUnderTest, run_contract};
use grasp_sim::store_model::ModelStore;

#[test]
fn model_satisfies_the_contract() {
    run_contract(|| Box::new(ModelStore::new()));
}

/// Trivially true, but it shows that a history is deterministic and that the generator does not panic.
#[test]
fn model_agrees_with_itself() {
    let compared: u64 = (0..20).map(|seed| run_differential(seed, 150, &mut ModelStore::new())).sum();
    assert!(compared >= 9_000, "{compared}");
}

/// Faults that a store could have.
#[derive(Clone, Copy, Debug)]
enum Fault {
    AbortCommits,
    AbortedRemovalsReported,
    WithdrawalForgotten,
    CountLimited,
    RemoveTodoIgnored,
    RemoveRefsIgnored,
    SetRefsForgetsDegraded,
    DueEarly,
    EmptyTagListMatchesAll,
    ExceptionMarkKept,
    ExpiredVisible,
    ExtendHoldIgnored,
    ForeignDeletionApplied,
    HeldEventCountsAsReference,
    HeldEventUnknown,
    LimitIgnored,
    PullRequestTargetsForgotten,
    StatusAlwaysServed,
    RemoveIgnored,
    RemovalsNotReported,
    RestartForgetsUploads,
    ShortCoordinateIgnored,
    RepoPathKindsConfused,
    AddUploadKeepsFirst,
    TargetsUnsorted,
    TiesByHighestId,
    UncommittedVisible,
    UntilExclusive,
    VanishKeepsGiftWraps,
    VanishRemovesRequests,
    PullRequestTodosConfused,
}

const FAULTS: &[Fault] = &[
    Fault::AbortCommits,
    Fault::AbortedRemovalsReported,
    Fault::WithdrawalForgotten,
    Fault::CountLimited,
    Fault::RemoveTodoIgnored,
    Fault::RemoveRefsIgnored,
    Fault::SetRefsForgetsDegraded,
    Fault::DueEarly,
    Fault::EmptyTagListMatchesAll,
    Fault::ExceptionMarkKept,
    Fault::ExpiredVisible,
    Fault::ExtendHoldIgnored,
    Fault::ForeignDeletionApplied,
    Fault::HeldEventCountsAsReference,
    Fault::HeldEventUnknown,
    Fault::LimitIgnored,
    Fault::PullRequestTargetsForgotten,
    Fault::StatusAlwaysServed,
    Fault::RemoveIgnored,
    Fault::RemovalsNotReported,
    Fault::RestartForgetsUploads,
    Fault::ShortCoordinateIgnored,
    Fault::RepoPathKindsConfused,
    Fault::AddUploadKeepsFirst,
    Fault::TargetsUnsorted,
    Fault::TiesByHighestId,
    Fault::UncommittedVisible,
    Fault::UntilExclusive,
    Fault::VanishKeepsGiftWraps,
    Fault::VanishRemovesRequests,
    Fault::PullRequestTodosConfused,
];

/// The model with one fault.
struct FaultyStore {
    model: ModelStore,
    fault: Fault,
    /// Announcements that were ever marked as an exception.
    exceptions: BTreeSet<EventId>,
    /// Pull requests that were removed in aborted batches.
    never_removed: Vec<EventSummary>,
}

impl FaultyStore {
    fn new(fault: Fault) -> Self {
        Self { model: ModelStore::new(), fault, exceptions: BTreeSet::new(), never_removed: Vec::new() }
    }

    fn summary(&self, summary: EventSummary) -> EventSummary {
        match self.fault {
            Fault::PullRequestTargetsForgotten => EventSummary { targets: Vec::new(), ..summary },
            _ => summary,
        }
    }

    fn uploads(&self) -> Vec<(RepoPath, EventId)> {
        let staged = self.model.restored().into_iter().filter_map(|restored| match restored {
            RestoredItem::Upload(upload) => Some((upload.repo_path, upload.event)),
            _ => None,
        });
        staged.collect()
    }
}

/// The path of the same repository of the other kind.
fn sibling(repo_path: &RepoPath) -> RepoPath {
    match repo_path.clone() {
        RepoPath::Announced(repo) => RepoPath::PullRequests(repo),
        RepoPath::PullRequests(repo) => RepoPath::Announced(repo),
    }
}

impl StoreUnderTest for FaultyStore {
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        let mut lookups = self.model.lookups(event, needed);
        match self.fault {
            Fault::HeldEventCountsAsReference if needed.links => {
                let id = event.id.to_string();
                lookups.referenced_by_served |=
                    self.model.held_events().any(|held| held.values("e").any(|value| value == id));
            }
            Fault::ShortCoordinateIgnored if kinds::class(event.kind) == kinds::KindClass::Replaceable => {
                lookups.referenced_by_served = false
            }
            Fault::TargetsUnsorted => lookups.targets.reverse(),
            Fault::PullRequestTargetsForgotten => lookups.targets.iter_mut().for_each(|target| target.event.tip = None),
            Fault::WithdrawalForgotten if lookups.tombstone == Some(TombstoneKind::Withdrawn) => {
                lookups.tombstone = None
            }
            _ => {}
        }
        lookups
    }

    fn write(&mut self, write: &StoreWrite) {
        match (self.fault, write) {
            (Fault::RemoveIgnored, StoreWrite::Remove(_)) => {}
            (Fault::ForeignDeletionApplied, StoreWrite::AddTombstone(Tombstone::Event(_, id))) => {
                for author in 1..=4 {
                    let author = grasp_core::nostr::PublicKey([author; 32]);
                    self.model.write(&StoreWrite::AddTombstone(Tombstone::Event(author, *id)));
                }
            }
            (Fault::VanishKeepsGiftWraps, StoreWrite::AddTombstone(Tombstone::Author(author, up_to))) => {
                let wraps: Vec<_> =
                    self.model.served_events().filter(|event| event.kind == kinds::GIFT_WRAP).cloned().collect();
                self.model.write(write);
                for wrap in wraps.into_iter().filter(|wrap| wrap.pubkey != *author || wrap.created_at > *up_to) {
                    self.model.write(&StoreWrite::Remove(wrap.id));
                    self.model.write(&StoreWrite::Put(wrap));
                }
            }
            (Fault::VanishRemovesRequests, StoreWrite::AddTombstone(Tombstone::Author(author, up_to))) => {
                let requests = self.model.served_events().filter(|event| {
                    event.kind == kinds::VANISH && event.pubkey == *author && event.created_at <= *up_to
                });
                for id in requests.map(|event| event.id).collect::<Vec<_>>() {
                    self.model.write(&StoreWrite::Remove(id));
                }
                self.model.write(write);
            }
            (Fault::RemoveTodoIgnored, StoreWrite::RemoveTodo(_))
            | (Fault::RemoveRefsIgnored, StoreWrite::RemoveRefs(_))
            | (Fault::ExtendHoldIgnored, StoreWrite::ExtendHold(..)) => {}
            (Fault::AddUploadKeepsFirst, StoreWrite::AddUpload(upload))
                if self.uploads().contains(&(upload.repo_path.clone(), upload.event)) => {}
            (Fault::SetRefsForgetsDegraded, StoreWrite::SetRefs(repo_path, _)) => {
                self.model.write(write);
                self.model.write(&StoreWrite::SetDegraded(repo_path.clone(), None));
            }
            (Fault::RepoPathKindsConfused, StoreWrite::RemoveUpload(repo_path, event)) => {
                self.model.write(write);
                self.model.write(&StoreWrite::RemoveUpload(sibling(repo_path), *event));
            }
            (Fault::PullRequestTodosConfused, StoreWrite::RemoveTodo(todo)) => {
                self.model.write(write);
                self.model
                    .write(&StoreWrite::RemoveTodo(Todo { repo_path: todo.repo_path.clone(), pull_request: None }));
            }
            _ => self.model.write(write),
        }
        if let StoreWrite::MarkException(id) = write {
            self.exceptions.insert(*id);
        }
        if matches!(self.fault, Fault::UncommittedVisible) {
            self.model.commit();
        }
    }

    fn pull_requests_for(
        &mut self,
        repo: &RepoId,
        page: PullRequestPage,
    ) -> (Vec<Arc<SignedEvent>>, Option<EventVersion>) {
        self.model.pull_requests_for(repo, page)
    }

    fn packs(&mut self, repo_path: &RepoPath) -> Option<PackManifest> {
        self.model.packs(repo_path)
    }

    fn repo(&mut self, repo_path: &RepoPath) -> Option<(Arc<Refs>, Option<String>)> {
        self.model.repo(repo_path)
    }

    fn commit(&mut self) {
        self.model.commit();
    }

    fn abort(&mut self) {
        match self.fault {
            Fault::AbortCommits => self.model.commit(),
            Fault::AbortedRemovalsReported => {
                self.never_removed.extend(self.model.removed_pulls());
                self.model.abort();
            }
            _ => self.model.abort(),
        }
    }

    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)> {
        let (event, status) = self.model.event(id)?;
        Some((event, if matches!(self.fault, Fault::StatusAlwaysServed) { EventStatus::Served } else { status }))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        match self.fault {
            Fault::HeldEventUnknown => self.model.event(id).is_some_and(|(_, status)| status == EventStatus::Served),
            _ => self.model.is_known(id),
        }
    }

    fn removed_pulls(&mut self) -> Vec<EventSummary> {
        let mut removed = std::mem::take(&mut self.never_removed);
        removed.extend(self.model.removed_pulls());
        if matches!(self.fault, Fault::RemovalsNotReported) { Vec::new() } else { removed }
    }

    fn restored(&mut self) -> Vec<RestoredItem> {
        let as_remembered = |restored| match restored {
            RestoredItem::Served(event)
                if matches!(self.fault, Fault::ExceptionMarkKept) && self.exceptions.contains(&event.id) =>
            {
                RestoredItem::Exception(event)
            }
            other => other,
        };
        self.model.restored().into_iter().map(as_remembered).collect()
    }

    fn restart(&mut self) {
        self.model.restart();
        if matches!(self.fault, Fault::RestartForgetsUploads) {
            for (repo_path, event) in self.uploads() {
                self.model.write(&StoreWrite::RemoveUpload(repo_path, event));
            }
            self.model.commit();
        }
    }

    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId> {
        let mut filters = filters.to_vec();
        let mut now = now;
        for filter in &mut filters {
            match self.fault {
                Fault::LimitIgnored => filter.limit = None,
                Fault::UntilExclusive => filter.until = filter.until.map(|until| Timestamp(until.0 - 1)),
                Fault::EmptyTagListMatchesAll => filter.tags.retain(|(_, values)| !values.is_empty()),
                Fault::ExpiredVisible => now = Timestamp(0),
                _ => {}
            }
        }
        let mut found = self.model.query(&filters, default_limit, now);
        if matches!(self.fault, Fault::TiesByHighestId) {
            let time =
                |id: &EventId| self.model.served_events().find(|event| event.id == *id).map(|event| event.created_at);
            found.sort_by_key(|id| (std::cmp::Reverse(time(id)), std::cmp::Reverse(*id)));
        }
        found
    }

    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64 {
        match self.fault {
            Fault::CountLimited => self.model.query(filters, 10_000, now).len() as u64,
            _ => self.model.count(filters, now),
        }
    }

    fn due(&mut self, now: Timestamp) -> Vec<EventSummary> {
        let now = if matches!(self.fault, Fault::DueEarly) { now.plus_secs(1) } else { now };
        self.model.due(now).into_iter().map(|summary| self.summary(summary)).collect()
    }

    fn served(&mut self) -> Vec<EventId> {
        self.model.served()
    }

    fn held(&mut self) -> Vec<(EventId, Timestamp)> {
        self.model.held()
    }
}

/// The number of histories that the real store is compared with is enough to find each of these faults.
#[test]
fn comparison_finds_every_injected_fault() {
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<Fault> = FAULTS
        .iter()
        .copied()
        .filter(|fault| {
            let passes = |seed| {
                let mut store = FaultyStore::new(*fault);
                catch_unwind(AssertUnwindSafe(|| run_differential(seed, 150, &mut store))).is_ok()
            };
            (0..20).all(passes)
        })
        .collect();
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
