//! A counter of work, in units that take about the same time.
//!
//! The work of one turn of the writer, that is one transaction, is bounded in these units and not in milliseconds, so that a
//! decision does not depend on a clock ([`limits::WORK_PER_TURN`](crate::limits::WORK_PER_TURN)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of work units. Clones share it. One unit is about the time of a lookup in a large map.
#[derive(Clone, Debug, Default)]
pub struct WorkCounter(Arc<AtomicU64>);

impl WorkCounter {
    /// Adds units.
    pub fn add(&self, units: usize) {
        self.0.fetch_add(units as u64, Ordering::Relaxed);
    }

    /// Returns the units since the last [`reset`](Self::reset).
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the number of units to zero.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
