//! Places for connections: how many there may be can change while some are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::reload::Settings;

/// The places.
pub(crate) struct Places {
    taken: AtomicUsize,
    settings: Settings,
}

impl Places {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), settings })
    }

    /// How many are taken, and how many there may be. When that becomes less, those who are there stay.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.settings.borrow().max_connections)
    }

    /// A place, if there is one.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Taken> {
        let most = self.settings.borrow().max_connections;
        let one_more = |taken| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Taken(self.clone()))
    }
}

/// A place that is taken. It is free when this is dropped.
pub(crate) struct Taken(Arc<Places>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
