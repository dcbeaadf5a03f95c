//! The disk budget: what is used of it, and what is on its way in.
//!
//! Everything counts: repositories, uploads, answers that are kept, events, and packs that are being received. Folders are
//! walked through every few minutes only, so what comes meanwhile is counted here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::disk_budget;
use grasp_core::disk_budget::DiskLevel;

use crate::config::DiskSettings;

/// Bytes of answers that may be kept although there is no room: without them the slowest readers would hold up all others.
const KEPT_ANYWAY: u64 = 32 << 20;

/// How it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    /// Bytes that are used.
    pub(crate) used: u64,
    /// The marks.
    pub(crate) budget: disk_budget::DiskBudget,
    /// Which has been reached.
    pub(crate) mark: DiskLevel,
}

impl Standing {
    /// How much of it answers may take, which are now this large: as much as nothing else needs below the soft mark.
    pub(crate) fn room_for_answers(&self, kept: u64) -> u64 {
        self.budget.soft_bytes.saturating_sub(self.used.saturating_sub(kept)).max(KEPT_ANYWAY)
    }
}

/// The counters. Whoever receives a pack adds to them, the surveyor corrects them, the watchman looks at them.
#[derive(Debug)]
pub(crate) struct Budget {
    /// What the last walk found, without packs on their way.
    surveyed: AtomicU64,
    /// What has been taken in since that walk began.
    taken: AtomicU64,
    /// PackCache on their way.
    coming: AtomicU64,
    /// Answers that are kept, at the last look.
    kept: AtomicU64,
    /// Where the marks were at the last look; nowhere before the first.
    hard: AtomicU64,
    soft: AtomicU64,
}

impl Budget {
    /// One of which so much is used, as far as is known before the first walk.
    pub(crate) fn new(used: u64) -> Arc<Self> {
        Arc::new(Self {
            surveyed: AtomicU64::new(used),
            taken: AtomicU64::new(0),
            coming: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            hard: AtomicU64::new(u64::MAX),
            soft: AtomicU64::new(u64::MAX),
        })
    }

    /// Bytes that stay: without packs on their way and answers that are kept.
    pub(crate) fn stays(&self) -> u64 {
        self.surveyed.load(Ordering::Relaxed).saturating_add(self.taken.load(Ordering::Relaxed))
    }

    /// Bytes that are used, as far as is known.
    fn used(&self) -> u64 {
        let passing = [&self.coming, &self.kept].map(|part| part.load(Ordering::Relaxed));
        passing.iter().fold(self.stays(), |sum, part| sum.saturating_add(*part))
    }

    /// How it stands, given what is allowed, how much more the disk would take, and how large the answers are that are kept.
    pub(crate) fn look(&self, settings: DiskSettings, free: u64, kept: u64) -> Standing {
        self.kept.store(kept, Ordering::Relaxed);
        let used = self.used();
        let most = used.saturating_add(free);
        let bytes = settings.budget_bytes.map_or(most, |bytes| bytes.min(most));
        let budget = disk_budget::DiskBudget::new(bytes, settings.soft_percent);
        self.hard.store(budget.hard_bytes, Ordering::Relaxed);
        self.soft.store(budget.soft_bytes, Ordering::Relaxed);
        Standing { used, budget, mark: self.mark() }
    }

    /// Which mark is reached, by the marks of the last look.
    pub(crate) fn mark(&self) -> DiskLevel {
        let marks = [&self.hard, &self.soft].map(|mark| mark.load(Ordering::Relaxed));
        let budget = disk_budget::DiskBudget { hard_bytes: marks[0], soft_bytes: marks[1] };
        match budget.level(self.used()) {
            // Answers that are kept make way before anybody is refused for their sake.
            DiskLevel::Soft => budget.level(self.used().saturating_sub(self.kept.load(Ordering::Relaxed))),
            mark => mark,
        }
    }

    /// A walk begins: what is taken in from now on it may not see. Tell [`surveyed`](Self::surveyed) what this gives.
    pub(crate) fn survey(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A walk has found this.
    pub(crate) fn surveyed(&self, bytes: u64, began: u64) {
        self.surveyed.store(bytes, Ordering::Relaxed);
        self.taken.fetch_sub(began, Ordering::Relaxed);
    }

    /// A place for a pack that is to be received.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// What a pack on its way takes of the budget. It gives it back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    /// Takes more, or says that there is no more.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.budget.coming.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        self.budget.used() <= self.budget.hard.load(Ordering::Relaxed)
    }

    /// The pack stays.
    pub(crate) fn keep(self) {
        self.budget.taken.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.coming.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(bytes: Option<u64>) -> DiskSettings {
        DiskSettings { budget_bytes: bytes, soft_percent: 90 }
    }

    #[test]
    fn the_disk_is_the_budget_unless_it_is_smaller() {
        let (budget, all, some) = (Budget::new(100), allowed(None), allowed(Some(500)));
        assert_eq!(budget.look(all, 900, 0).budget.hard_bytes, 1_000);
        assert_eq!(budget.look(some, 900, 0).budget.hard_bytes, 500);
        assert_eq!(budget.look(some, 10, 0).budget.hard_bytes, 110, "there is no more, whatever was allowed");
        assert_eq!(budget.look(all, 0, 0).mark, DiskLevel::Hard);
    }

    #[test]
    fn packs_count_from_their_first_byte_and_are_counted_once() {
        let (budget, plenty) = (Budget::new(0), u64::MAX / 2);
        let used = || budget.look(allowed(Some(1_000)), plenty, 0).used;
        assert_eq!(used(), 0);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert!(first.grow(600) && second.grow(400) && !second.grow(1));
        drop(second);
        assert_eq!(used(), 600);
        let began = budget.survey();
        first.keep();
        // The walk may or may not have seen it.
        budget.surveyed(50, began);
        assert_eq!(used(), 650);
        let began = budget.survey();
        budget.surveyed(650, began);
        assert_eq!(used(), 650);
    }

    #[test]
    fn answers_make_way() {
        let budget = Budget::new(500 << 20);
        let look = |kept| budget.look(allowed(Some(1_000 << 20)), u64::MAX / 2, kept);
        assert_eq!(look(100 << 20).used, 600 << 20);
        assert_eq!(look(100 << 20).room_for_answers(100 << 20), look(0).budget.soft_bytes - (500 << 20));
        budget.surveyed(990 << 20, 0);
        assert_eq!(look(100 << 20).room_for_answers(100 << 20), KEPT_ANYWAY);
    }
}
