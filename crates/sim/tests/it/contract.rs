//! The model keeps the contract that the real store is held to, and the comparison with it sees what is wrong.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use grasp_core::admission::io::{Facts, Gone, Questions, Restored, Summary, Todo, Tombstone, Write};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{Filter, Signed, kinds};
use grasp_core::repo::Site;
use grasp_core::repo::catalog::Place;
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
    never_removed: Vec<Summary>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { memory: Memory::new(), fault, exceptions: BTreeSet::new(), never_removed: Vec::new() }
    }

    fn summary(&self, summary: Summary) -> Summary {
        match self.fault {
            Fault::OfferForgotten => Summary { targets: Vec::new(), ..summary },
            _ => summary,
        }
    }

    fn uploads(&self) -> Vec<(Site, EventId)> {
        let staged = self.memory.restored().into_iter().filter_map(|restored| match restored {
            Restored::Staged(upload) => Some((upload.site, upload.event)),
            _ => None,
        });
        staged.collect()
    }
}

/// The site of the same name on the other side.
fn sibling(site: &Site) -> Site {
    match site.clone() {
        Site::Announced(repo) => Site::Submitted(repo),
        Site::Submitted(repo) => Site::Announced(repo),
    }
}

impl Shelf for Faulty {
    fn facts(&mut self, event: &Signed, questions: Questions) -> Facts {
        let mut facts = self.memory.facts(event, questions);
        match self.fault {
            Fault::HeldIsNamed if questions.links => {
                let id = event.id.to_string();
                facts.named |= self.memory.held_events().any(|held| held.values("e").any(|value| value == id));
            }
            Fault::ShortCoordinate if kinds::class(event.kind) == kinds::Class::Replaceable => facts.named = false,
            Fault::TargetsUnsorted => facts.targets.reverse(),
            Fault::OfferForgotten => facts.targets.iter_mut().for_each(|target| target.event.tip = None),
            Fault::BuryForgotten if facts.gone == Some(Gone::Withdrawn) => facts.gone = None,
            _ => {}
        }
        facts
    }

    fn write(&mut self, write: &Write) {
        match (self.fault, write) {
            (Fault::RemoveIgnored, Write::Remove(_)) => {}
            (Fault::ForeignDeletion, Write::Bury(Tombstone::Event(_, id))) => {
                for author in 1..=4 {
                    let author = grasp_core::nostr::PublicKey([author; 32]);
                    self.memory.write(&Write::Bury(Tombstone::Event(author, *id)));
                }
            }
            (Fault::VanishSparesGiftWraps, Write::Bury(Tombstone::Author(author, up_to))) => {
                let wraps: Vec<_> =
                    self.memory.served_events().filter(|event| event.kind == kinds::GIFT_WRAP).cloned().collect();
                self.memory.write(write);
                for wrap in wraps.into_iter().filter(|wrap| wrap.pubkey != *author || wrap.created_at > *up_to) {
                    self.memory.write(&Write::Remove(wrap.id));
                    self.memory.write(&Write::Put(wrap));
                }
            }
            (Fault::VanishTakesRequests, Write::Bury(Tombstone::Author(author, up_to))) => {
                let requests = self.memory.served_events().filter(|event| {
                    event.kind == kinds::VANISH && event.pubkey == *author && event.created_at <= *up_to
                });
                for id in requests.map(|event| event.id).collect::<Vec<_>>() {
                    self.memory.write(&Write::Remove(id));
                }
                self.memory.write(write);
            }
            (Fault::DoneForgets, Write::Done(_)) | (Fault::ExtendForgets, Write::Extend(..)) => {}
            (Fault::StageKeepsFirst, Write::Stage(upload))
                if self.uploads().contains(&(upload.site.clone(), upload.event)) => {}
            (Fault::SitesConfused, Write::Unstage(site, event)) => {
                self.memory.write(write);
                self.memory.write(&Write::Unstage(sibling(site), *event));
            }
            (Fault::WorkOfPullsConfused, Write::Done(todo)) => {
                self.memory.write(write);
                self.memory.write(&Write::Done(Todo { site: todo.site.clone(), pull: None }));
            }
            _ => self.memory.write(write),
        }
        if let Write::Except(id) = write {
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

    fn event(&mut self, id: EventId) -> Option<(Arc<Signed>, Place)> {
        let (event, place) = self.memory.event(id)?;
        Some((event, if matches!(self.fault, Fault::PlaceMistaken) { Place::Served } else { place }))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        match self.fault {
            Fault::HeldUnknown => self.memory.event(id).is_some_and(|(_, place)| place == Place::Served),
            _ => self.memory.is_known(id),
        }
    }

    fn removed_pulls(&mut self) -> Vec<Summary> {
        let mut removed = std::mem::take(&mut self.never_removed);
        removed.extend(self.memory.removed_pulls());
        if matches!(self.fault, Fault::RemovedPullsUntold) { Vec::new() } else { removed }
    }

    fn restored(&mut self) -> Vec<Restored> {
        let as_remembered = |restored| match restored {
            Restored::Served(event)
                if matches!(self.fault, Fault::ExceptionSticks) && self.exceptions.contains(&event.id) =>
            {
                Restored::Exception(event)
            }
            other => other,
        };
        self.memory.restored().into_iter().map(as_remembered).collect()
    }

    fn restart(&mut self) {
        self.memory.restart();
        if matches!(self.fault, Fault::RestartForgetsUploads) {
            for (site, event) in self.uploads() {
                self.memory.write(&Write::Unstage(site, event));
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

    fn due(&mut self, now: Timestamp) -> Vec<Summary> {
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
