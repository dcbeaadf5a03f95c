//! Locks for changes of repositories: one lock per repository identifier.
//!
//! A lock covers the repositories of all owners with the same identifier, because these may read each other's pools. It
//! is held while a git job runs, for the last step of maintenance, and while a snapshot links the repositories of that
//! identifier. The writer starts one git job per identifier at a time, so jobs never wait for each other here.
//! Maintenance does its long work without the lock and takes it only to move files.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::repo::Identifier;

use crate::layout::identifier_file_name;

/// The identifiers that are locked.
#[derive(Debug, Default)]
pub(crate) struct RepoLocks {
    /// The file names of the locked identifiers. The mutex is held only to change the set.
    locked: Mutex<BTreeSet<String>>,
    released: Condvar,
}

/// A held lock. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct RepoLock<'t> {
    locks: &'t RepoLocks,
    file_name: String,
}

impl RepoLocks {
    /// Waits for the lock of an identifier.
    pub(crate) fn lock(&self, identifier: &Identifier) -> RepoLock<'_> {
        self.lock_file_name(&identifier_file_name(identifier))
    }

    /// Waits for the lock of an identifier that is given by its file name.
    pub(crate) fn lock_file_name(&self, file_name: &str) -> RepoLock<'_> {
        let mut locked = self.locked();
        while !locked.insert(file_name.to_owned()) {
            locked = self.released.wait(locked).unwrap_or_else(PoisonError::into_inner);
        }
        RepoLock { locks: self, file_name: file_name.to_owned() }
    }

    /// Waits for the lock of an identifier; `None` if it is not free within `timeout`.
    pub(crate) fn lock_within(&self, identifier: &Identifier, timeout: Duration) -> Option<RepoLock<'_>> {
        let deadline = Instant::now() + timeout;
        let file_name = identifier_file_name(identifier);
        let mut locked = self.locked();
        while !locked.insert(file_name.clone()) {
            let left = deadline.checked_duration_since(Instant::now())?;
            locked = self.released.wait_timeout(locked, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(RepoLock { locks: self, file_name })
    }

    fn locked(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RepoLock<'_> {
    fn drop(&mut self) {
        self.locks.locked().remove(&self.file_name);
        self.locks.released.notify_all();
    }
}
