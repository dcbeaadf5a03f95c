//! Limit of all connections together. It follows the settings while connections are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::SettingsReceiver;

/// Counts the open connections.
pub(crate) struct ConnectionLimit {
    in_use: AtomicUsize,
    settings: SettingsReceiver,
}

impl ConnectionLimit {
    pub(crate) fn new(settings: SettingsReceiver) -> Arc<Self> {
        Arc::new(Self { in_use: AtomicUsize::new(0), settings })
    }

    /// Returns the number of open connections and the limit. Connections stay open when the limit is lowered.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.in_use.load(Ordering::Relaxed), self.settings.borrow().max_connections)
    }

    /// Claims a slot. `None` if the limit is reached.
    pub(crate) fn acquire(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let limit = self.settings.borrow().max_connections;
        let one_more = |in_use| (in_use < limit).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(ConnectionSlot(self.clone()))
    }
}

/// Slot of an open connection. Dropping it frees the slot.
pub(crate) struct ConnectionSlot(Arc<ConnectionLimit>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}
