//! The disk budget: bytes that are used, and bytes that are about to be used.
//!
//! Repositories, uploads, events, cached packs and packs that are being received all count. The data folders are walked
//! only every few minutes, so everything that is received between two scans is counted here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::disk_budget;
use grasp_core::disk_budget::DiskLevel;

use crate::config::DiskSettings;

/// Bytes that the pack cache may always use, even if the budget is used up: without a cache file, a git process would
/// be occupied for as long as the slowest client reads.
const MIN_CACHE_BYTES: u64 = 32 << 20;

/// Use of the disk budget at one point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DiskBudgetStatus {
    pub(crate) used_bytes: u64,
    /// The soft and the hard limit.
    pub(crate) budget: disk_budget::DiskBudget,
    /// The limit that has been reached.
    pub(crate) level: DiskLevel,
}

impl DiskBudgetStatus {
    /// Returns how many bytes the pack cache may use, given that it uses `cached` bytes now: what everything else
    /// leaves below the soft limit.
    pub(crate) fn allowed_cache_bytes(&self, cached: u64) -> u64 {
        self.budget.soft_bytes.saturating_sub(self.used_bytes.saturating_sub(cached)).max(MIN_CACHE_BYTES)
    }
}

/// Counters of the disk budget. Code that receives packs adds to them, the disk usage scanner corrects them, and the
/// health monitor reads them.
#[derive(Debug)]
pub(crate) struct DiskBudgetTracker {
    /// Bytes that the last scan found, without packs that are being received.
    scanned: AtomicU64,
    /// Bytes of packs that were kept since that scan began.
    committed: AtomicU64,
    /// Bytes of packs that are being received.
    reserved: AtomicU64,
    /// Bytes that the last scan may have counted although they are also in `committed` or `reserved`.
    maybe_twice: AtomicU64,
    /// Bytes of cached packs at the last update.
    cached: AtomicU64,
    /// Limits at the last update. `u64::MAX` before the first.
    hard: AtomicU64,
    soft: AtomicU64,
}

impl DiskBudgetTracker {
    /// Creates a tracker that assumes `used` bytes until the first scan.
    pub(crate) fn new(used: u64) -> Arc<Self> {
        Arc::new(Self {
            scanned: AtomicU64::new(used),
            committed: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            maybe_twice: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            hard: AtomicU64::new(u64::MAX),
            soft: AtomicU64::new(u64::MAX),
        })
    }

    /// Returns the used bytes without cached packs and without packs that are being received.
    pub(crate) fn persistent_bytes(&self) -> u64 {
        self.scanned.load(Ordering::Relaxed).saturating_add(self.committed.load(Ordering::Relaxed))
    }

    fn used_bytes(&self) -> u64 {
        let temporary = [&self.reserved, &self.cached].map(|bytes| bytes.load(Ordering::Relaxed));
        temporary.iter().fold(self.persistent_bytes(), |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Recomputes the limits from the settings, the free space of the disk and the size of the pack cache. Returns the
    /// new status.
    pub(crate) fn update(&self, settings: DiskSettings, free: u64, cached: u64) -> DiskBudgetStatus {
        self.cached.store(cached, Ordering::Relaxed);
        let used_bytes = self.used_bytes();
        let available = used_bytes.saturating_add(free);
        let bytes = settings.budget_bytes.map_or(available, |bytes| bytes.min(available));
        let budget = disk_budget::DiskBudget::new(bytes, settings.soft_percent);
        self.hard.store(budget.hard_bytes, Ordering::Relaxed);
        self.soft.store(budget.soft_bytes, Ordering::Relaxed);
        DiskBudgetStatus { used_bytes, budget, level: self.level() }
    }

    /// Returns which limit of the last update is reached now, without bytes that may be counted twice.
    pub(crate) fn level(&self) -> DiskLevel {
        let limits = [&self.hard, &self.soft].map(|limit| limit.load(Ordering::Relaxed));
        let budget = disk_budget::DiskBudget { hard_bytes: limits[0], soft_bytes: limits[1] };
        let used = self.used_bytes().saturating_sub(self.maybe_twice.load(Ordering::Relaxed));
        match budget.level(used) {
            // Cached packs are evicted before anything is rejected because of them.
            DiskLevel::Soft => budget.level(used.saturating_sub(self.cached.load(Ordering::Relaxed))),
            level => level,
        }
    }

    /// Begins a scan, which may miss packs that are kept from now on. The result must be passed to
    /// [`finish_scan`](Self::finish_scan).
    pub(crate) fn begin_scan(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Replaces the known use by the `bytes` that a scan found. `began` is the result of
    /// [`begin_scan`](Self::begin_scan).
    pub(crate) fn finish_scan(&self, bytes: u64, began: u64) {
        self.scanned.store(bytes, Ordering::Relaxed);
        let committed = self.committed.fetch_sub(began, Ordering::Relaxed).saturating_sub(began);
        // A pack is moved to its repository before it is committed, so the scan may have found both kinds.
        self.maybe_twice.store(committed.saturating_add(self.reserved.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Returns whether the last scan may have counted bytes that are also counted as received.
    pub(crate) fn is_inexact(&self) -> bool {
        self.maybe_twice.load(Ordering::Relaxed) > 0
    }

    /// Creates an empty reservation for a pack that is about to be received.
    pub(crate) fn reserve(self: &Arc<Self>) -> DiskReservation {
        DiskReservation { budget: self.clone(), bytes: 0 }
    }
}

/// Bytes of the disk budget that a pack uses while it is received. Dropping it returns them, unless they were
/// committed.
#[derive(Debug)]
pub(crate) struct DiskReservation {
    budget: Arc<DiskBudgetTracker>,
    bytes: u64,
}

impl DiskReservation {
    /// Adds bytes. Returns false if the budget is then exceeded.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.budget.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        self.budget.used_bytes() <= self.budget.hard.load(Ordering::Relaxed)
    }

    /// Counts the bytes as used for good: the pack is kept.
    pub(crate) fn commit(self) {
        self.budget.committed.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(bytes: Option<u64>) -> DiskSettings {
        DiskSettings { budget_bytes: bytes, soft_percent: 90 }
    }

    #[test]
    fn budget_is_the_whole_disk_or_a_smaller_setting() {
        let (budget, unlimited, limited) = (DiskBudgetTracker::new(100), settings(None), settings(Some(500)));
        assert_eq!(budget.update(unlimited, 900, 0).budget.hard_bytes, 1_000);
        assert_eq!(budget.update(limited, 900, 0).budget.hard_bytes, 500);
        assert_eq!(budget.update(limited, 10, 0).budget.hard_bytes, 110, "the disk is smaller than the setting");
        assert_eq!(budget.update(unlimited, 0, 0).level, DiskLevel::Hard);
    }

    #[test]
    fn received_packs_count_from_their_first_byte_and_only_once() {
        let (budget, plenty) = (DiskBudgetTracker::new(0), u64::MAX / 2);
        let used = || budget.update(settings(Some(1_000)), plenty, 0).used_bytes;
        assert_eq!(used(), 0);
        let (mut first, mut second) = (budget.reserve(), budget.reserve());
        assert!(first.grow(600) && second.grow(400) && !second.grow(1));
        drop(second);
        assert_eq!(used(), 600);
        let began = budget.begin_scan();
        first.commit();
        // The scan may or may not have seen the pack.
        budget.finish_scan(500, began);
        assert_eq!((used(), budget.level()), (1_100, DiskLevel::Free));
        assert!(budget.is_inexact());
        let began = budget.begin_scan();
        budget.finish_scan(650, began);
        assert_eq!(used(), 650);
        assert!(!budget.is_inexact());
    }

    #[test]
    fn cached_packs_yield_to_other_data() {
        let budget = DiskBudgetTracker::new(500 << 20);
        let update = |cached| budget.update(settings(Some(1_000 << 20)), u64::MAX / 2, cached);
        assert_eq!(update(100 << 20).used_bytes, 600 << 20);
        assert_eq!(update(100 << 20).allowed_cache_bytes(100 << 20), update(0).budget.soft_bytes - (500 << 20));
        budget.finish_scan(990 << 20, 0);
        assert_eq!(update(100 << 20).allowed_cache_bytes(100 << 20), MIN_CACHE_BYTES);
    }
}
