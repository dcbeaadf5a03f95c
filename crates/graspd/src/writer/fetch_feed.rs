//! Updates from the writer to the fetch driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::fetch::io::{ServedRepo, WantedGitData};
use grasp_core::repo::{Identifier, RepoPath};
use tokio::sync::Notify;

/// Changes for the fetch machine. The driver passes the fields to the fetch machine in this order.
#[derive(Debug, Default)]
pub(crate) struct FetchUpdate {
    /// The complete wanted git data of each identifier for which it has changed.
    pub(crate) wanted: BTreeMap<Identifier, Vec<WantedGitData>>,
    /// The complete list of served repositories of each identifier for which it has changed.
    pub(crate) served: BTreeMap<Identifier, Vec<ServedRepo>>,
    /// Repositories whose branches or tags have changed.
    pub(crate) changed_refs: BTreeSet<RepoPath>,
}

/// Coalesces updates until the driver takes them. Its size is bounded: every entry belongs to a held event or to a
/// hosted repository. The lock is held only to move entries.
#[derive(Debug, Default)]
pub(crate) struct FetchFeed {
    pending: Mutex<FetchUpdate>,
    notify: Notify,
}

impl FetchFeed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an update and wakes the driver. An empty update does nothing.
    pub(crate) fn send(&self, mut update: FetchUpdate) {
        if !update.wanted.is_empty() || !update.served.is_empty() || !update.changed_refs.is_empty() {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.wanted.append(&mut update.wanted);
            pending.served.append(&mut update.served);
            pending.changed_refs.append(&mut update.changed_refs);
            self.notify.notify_one();
        }
    }

    /// Takes all pending updates.
    pub(crate) fn take(&self) -> FetchUpdate {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until an update was added since the last wait.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}
