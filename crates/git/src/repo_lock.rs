//! Who changes the repositories of a name: an order, or the last step of maintenance. Never both.
//!
//! The registrar gives one order per name at a time, so that orders never wait for each other here. Maintenance does its
//! long work aside and has a turn only for moving files.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::repo::Identifier;

use crate::layout::file_name;

/// The names that somebody has a turn at.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// By what the folders of a name are called. The lock guards the set for an instant.
    taken: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

/// A turn. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    name: String,
}

impl Turns {
    /// Waits for a turn.
    pub(crate) fn wait(&self, name: &Identifier) -> Turn<'_> {
        self.wait_at(&file_name(name))
    }

    /// The same for whoever knows only what the folders are called.
    pub(crate) fn wait_at(&self, name: &str) -> Turn<'_> {
        let mut taken = self.lock();
        while !taken.insert(name.to_owned()) {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { turns: self, name: name.to_owned() }
    }

    /// Waits for a turn, but not for ever.
    pub(crate) fn wait_within(&self, name: &Identifier, patience: Duration) -> Option<Turn<'_>> {
        let until = Instant::now() + patience;
        let name = file_name(name);
        let mut taken = self.lock();
        while !taken.insert(name.clone()) {
            let left = until.checked_duration_since(Instant::now())?;
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Turn { turns: self, name })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.name);
        self.turns.freed.notify_all();
    }
}
