//! Where the registrar's desk leaves what the hunt must hear.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::fetch::io::{ServedRepo, WantedGitData};
use grasp_core::repo::{Identifier, RepoPath};
use tokio::sync::Notify;

/// What the hunt must hear, in this order.
#[derive(Debug, Default)]
pub(crate) struct FetchUpdate {
    /// What is sought, by name: the latest value of each name, in whole.
    pub(crate) sought: BTreeMap<Identifier, Vec<WantedGitData>>,
    /// What is served, in the same way.
    pub(crate) kept: BTreeMap<Identifier, Vec<ServedRepo>>,
    /// Repositories whose branches or tags have changed.
    pub(crate) moved: BTreeSet<RepoPath>,
}

/// The mailbox. It cannot overflow: every value stands for events that wait or for a repository that is served. Its lock is
/// held for moves.
#[derive(Debug, Default)]
pub(crate) struct FetchFeed {
    mail: Mutex<FetchUpdate>,
    bell: Notify,
}

impl FetchFeed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Leaves something.
    pub(crate) fn send(&self, mut news: FetchUpdate) {
        if !news.sought.is_empty() || !news.kept.is_empty() || !news.moved.is_empty() {
            let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
            mail.sought.append(&mut news.sought);
            mail.kept.append(&mut news.kept);
            mail.moved.append(&mut news.moved);
            self.bell.notify_one();
        }
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> FetchUpdate {
        std::mem::take(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something was left since the last wait.
    pub(crate) async fn posted(&self) {
        self.bell.notified().await;
    }
}
