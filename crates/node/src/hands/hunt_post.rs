//! Where the registrar's desk leaves what the hunt must hear: what is sought, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::hunt::io::Quarry;
use grasp_core::repo::Identifier;
use tokio::sync::Notify;

/// The latest value of each name, in whole: it cannot overflow, because every value stands for events that wait. Its lock is
/// held for moves.
#[derive(Debug, Default)]
pub(crate) struct HuntPost {
    sought: Mutex<BTreeMap<Identifier, Vec<Quarry>>>,
    bell: Notify,
}

impl HuntPost {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Leaves something.
    pub(crate) fn send(&self, mut sought: BTreeMap<Identifier, Vec<Quarry>>) {
        if !sought.is_empty() {
            self.sought.lock().unwrap_or_else(PoisonError::into_inner).append(&mut sought);
            self.bell.notify_one();
        }
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> BTreeMap<Identifier, Vec<Quarry>> {
        std::mem::take(&mut *self.sought.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something was left since the last wait.
    pub(crate) async fn posted(&self) {
        self.bell.notified().await;
    }
}
