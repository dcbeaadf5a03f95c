//! The model keeps the contract that the real store is held to, and the comparison with it sees what is wrong.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use grasp_core::admission::io::{
    EventLookups, EventSummary, NeededLookups, RestoredItem, StoreWrite, Todo, Tombstone, TombstoneKind,
};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{Filter, SignedEvent, kinds};
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::time::Timestamp;
use grasp_sim::differential::differential;
use grasp_sim::store_contract::{Shelf, suite};
use grasp_sim::store_model::Memory;

#[test]
fn the_model_keeps_every_promise() {
    suite(|| Box::new(Memory::new()));
}

/// Trivially true, but it shows that a history is deterministic and that the generator does not panic.
#[test]
fn the_model_agrees_with_itself() {
    let compared: u64 = (0..20).map(|seed| differential(seed, 150, &mut Memory::new())).sum();
    assert!(compared >= 9_000, "{compared}");
}

/// Mistakes that a store could make.
#[derive(Clone, Copy, Debug)]
enum Fault {
    AbortKeeps,
    AbortedPullsTold,
    BuryForgotten,
    CountLimited,
    DoneForgets,
    DueEarly,
    EmptyTagListMatchesAll,
    ExceptionSticks,
    ExpiredVisible,
    ExtendForgets,
    ForeignDeletion,
    HeldIsNamed,
    HeldUnknown,
    LimitIgnored,
    OfferForgotten,
    PlaceMistaken,
    RemoveIgnored,
    RemovedPullsUntold,
    RestartForgetsUploads,
    ShortCoordinate,
    SitesConfused,
    StageKeepsFirst,
    TargetsUnsorted,
    TiesByHighestId,
    UncommittedVisible,
    UntilExclusive,
    VanishSparesGiftWraps,
    VanishTakesRequests,
    WorkOfPullsConfused,
}

const FAULTS: &[Fault] = &[
    Fault::AbortKeeps,
    Fault::AbortedPullsTold,
    Fault::BuryForgotten,
    Fault::CountLimited,
    Fault::DoneForgets,
    Fault::DueEarly,
    Fault::EmptyTagListMatchesAll,
    Fault::ExceptionSticks,
    Fault::ExpiredVisible,
    Fault::ExtendForgets,
    Fault::ForeignDeletion,
    Fault::HeldIsNamed,
    Fault::HeldUnknown,
    Fault::LimitIgnored,
    Fault::OfferForgotten,
    Fault::PlaceMistaken,
    Fault::RemoveIgnored,
    Fault::RemovedPullsUntold,
    Fault::RestartForgetsUploads,
    Fault::ShortCoordinate,
    Fault::SitesConfused,
    Fault::StageKeepsFirst,
    Fault::TargetsUnsorted,
    Fault::TiesByHighestId,
    Fault::UncommittedVisible,
    Fault::UntilExclusive,
    Fault::VanishSparesGiftWraps,
    Fault::VanishTakesRequests,
    Fault::WorkOfPullsConfused,
];

/// The model with one mistake.
struct Faulty {
    memory: Memory,
    fault: Fault,
    /// Announcements that were ever an exception.
    exceptions: BTreeSet<EventId>,
    /// Pull requests that went in batches that were aborted.
    never_removed: Vec<EventSummary>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { memory: Memory::new(), fault, exceptions: BTreeSet::new(), never_removed: Vec::new() }
    }

    fn summary(&self, summary: EventSummary) -> EventSummary {
        match self.fault {
            Fault::OfferForgotten => EventSummary { targets: Vec::new(), ..summary },
            _ => summary,
        }
    }

    fn uploads(&self) -> Vec<(RepoPath, EventId)> {
        let staged = self.memory.restored().into_iter().filter_map(|restored| match restored {
            RestoredItem::Upload(upload) => Some((upload.repo_path, upload.event)),
            _ => None,
        });
        staged.collect()
    }
}

/// The site of the same name on the other side.
fn sibling(repo_path: &RepoPath) -> RepoPath {
    match repo_path.clone() {
        RepoPath::Announced(repo) => RepoPath::PullRequests(repo),
        RepoPath::PullRequests(repo) => RepoPath::Announced(repo),
    }
}

impl Shelf for Faulty {
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        let mut lookups = self.memory.lookups(event, needed);
        match self.fault {
            Fault::HeldIsNamed if needed.links => {
                let id = event.id.to_string();
                lookups.referenced_by_served |=
                    self.memory.held_events().any(|held| held.values("e").any(|value| value == id));
            }
            Fault::ShortCoordinate if kinds::class(event.kind) == kinds::KindClass::Replaceable => {
                lookups.referenced_by_served = false
            }
            Fault::TargetsUnsorted => lookups.targets.reverse(),
            Fault::OfferForgotten => lookups.targets.iter_mut().for_each(|target| target.event.tip = None),
            Fault::BuryForgotten if lookups.tombstone == Some(TombstoneKind::Withdrawn) => lookups.tombstone = None,
            _ => {}
        }
        lookups
    }

    fn write(&mut self, write: &StoreWrite) {
        match (self.fault, write) {
            (Fault::RemoveIgnored, StoreWrite::Remove(_)) => {}
            (Fault::ForeignDeletion, StoreWrite::AddTombstone(Tombstone::Event(_, id))) => {
                for author in 1..=4 {
                    let author = grasp_core::nostr::PublicKey([author; 32]);
                    self.memory.write(&StoreWrite::AddTombstone(Tombstone::Event(author, *id)));
                }
            }
            (Fault::VanishSparesGiftWraps, StoreWrite::AddTombstone(Tombstone::Author(author, up_to))) => {
                let wraps: Vec<_> =
                    self.memory.served_events().filter(|event| event.kind == kinds::GIFT_WRAP).cloned().collect();
                self.memory.write(write);
                for wrap in wraps.into_iter().filter(|wrap| wrap.pubkey != *author || wrap.created_at > *up_to) {
                    self.memory.write(&StoreWrite::Remove(wrap.id));
                    self.memory.write(&StoreWrite::Put(wrap));
                }
            }
            (Fault::VanishTakesRequests, StoreWrite::AddTombstone(Tombstone::Author(author, up_to))) => {
                let requests = self.memory.served_events().filter(|event| {
                    event.kind == kinds::VANISH && event.pubkey == *author && event.created_at <= *up_to
                });
                for id in requests.map(|event| event.id).collect::<Vec<_>>() {
                    self.memory.write(&StoreWrite::Remove(id));
                }
                self.memory.write(write);
            }
            (Fault::DoneForgets, StoreWrite::RemoveTodo(_)) | (Fault::ExtendForgets, StoreWrite::ExtendHold(..)) => {}
            (Fault::StageKeepsFirst, StoreWrite::AddUpload(upload))
                if self.uploads().contains(&(upload.repo_path.clone(), upload.event)) => {}
            (Fault::SitesConfused, StoreWrite::RemoveUpload(repo_path, event)) => {
                self.memory.write(write);
                self.memory.write(&StoreWrite::RemoveUpload(sibling(repo_path), *event));
            }
            (Fault::WorkOfPullsConfused, StoreWrite::RemoveTodo(todo)) => {
                self.memory.write(write);
                self.memory
                    .write(&StoreWrite::RemoveTodo(Todo { repo_path: todo.repo_path.clone(), pull_request: None }));
            }
            _ => self.memory.write(write),
        }
        if let StoreWrite::MarkException(id) = write {
            self.exceptions.insert(*id);
        }
        if matches!(self.fault, Fault::UncommittedVisible) {
            self.memory.commit();
        }
    }

    fn commit(&mut self) {
        self.memory.commit();
    }

    fn abort(&mut self) {
        match self.fault {
            Fault::AbortKeeps => self.memory.commit(),
            Fault::AbortedPullsTold => {
                self.never_removed.extend(self.memory.removed_pulls());
                self.memory.abort();
            }
            _ => self.memory.abort(),
        }
    }

    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)> {
        let (event, status) = self.memory.event(id)?;
        Some((event, if matches!(self.fault, Fault::PlaceMistaken) { EventStatus::Served } else { status }))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        match self.fault {
            Fault::HeldUnknown => self.memory.event(id).is_some_and(|(_, status)| status == EventStatus::Served),
            _ => self.memory.is_known(id),
        }
    }

    fn removed_pulls(&mut self) -> Vec<EventSummary> {
        let mut removed = std::mem::take(&mut self.never_removed);
        removed.extend(self.memory.removed_pulls());
        if matches!(self.fault, Fault::RemovedPullsUntold) { Vec::new() } else { removed }
    }

    fn restored(&mut self) -> Vec<RestoredItem> {
        let as_remembered = |restored| match restored {
            RestoredItem::Served(event)
                if matches!(self.fault, Fault::ExceptionSticks) && self.exceptions.contains(&event.id) =>
            {
                RestoredItem::Exception(event)
            }
            other => other,
        };
        self.memory.restored().into_iter().map(as_remembered).collect()
    }

    fn restart(&mut self) {
        self.memory.restart();
        if matches!(self.fault, Fault::RestartForgetsUploads) {
            for (repo_path, event) in self.uploads() {
                self.memory.write(&StoreWrite::RemoveUpload(repo_path, event));
            }
            self.memory.commit();
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
        let mut found = self.memory.query(&filters, default_limit, now);
        if matches!(self.fault, Fault::TiesByHighestId) {
            let time =
                |id: &EventId| self.memory.served_events().find(|event| event.id == *id).map(|event| event.created_at);
            found.sort_by_key(|id| (std::cmp::Reverse(time(id)), std::cmp::Reverse(*id)));
        }
        found
    }

    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64 {
        match self.fault {
            Fault::CountLimited => self.memory.query(filters, 10_000, now).len() as u64,
            _ => self.memory.count(filters, now),
        }
    }

    fn due(&mut self, now: Timestamp) -> Vec<EventSummary> {
        let now = if matches!(self.fault, Fault::DueEarly) { now.plus_secs(1) } else { now };
        self.memory.due(now).into_iter().map(|summary| self.summary(summary)).collect()
    }

    fn served(&mut self) -> Vec<EventId> {
        self.memory.served()
    }

    fn held(&mut self) -> Vec<(EventId, Timestamp)> {
        self.memory.held()
    }
}

/// As many histories as the real store is asked to live through find every one of these.
#[test]
fn the_comparison_finds_every_planted_fault() {
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<Fault> = FAULTS
        .iter()
        .copied()
        .filter(|fault| {
            let lives = |seed| {
                let mut shelf = Faulty::new(*fault);
                catch_unwind(AssertUnwindSafe(|| differential(seed, 150, &mut shelf))).is_ok()
            };
            (0..20).all(lives)
        })
        .collect();
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
