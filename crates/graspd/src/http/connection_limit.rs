//! ConnectionLimit for connections: how many there may be can change while some are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::SettingsReceiver;

/// The places.
pub(crate) struct ConnectionLimit {
    taken: AtomicUsize,
    settings: SettingsReceiver,
}

impl ConnectionLimit {
    pub(crate) fn new(settings: SettingsReceiver) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), settings })
    }

    /// How many are taken, and how many there may be. When that becomes less, those who are there stay.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.settings.borrow().max_connections)
    }

    /// A place, if there is one.
    pub(crate) fn take(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let most = self.settings.borrow().max_connections;
        let one_more = |taken| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(ConnectionSlot(self.clone()))
    }
}

/// A place that is taken. It is free when this is dropped.
pub(crate) struct ConnectionSlot(Arc<ConnectionLimit>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
