//! Who changes the repositories of a name: an order, or the last step of maintenance. Never both.
//!
//! The registrar gives one order per name at a time, so that orders never wait for each other here. Maintenance does its
//! long work aside and has a turn only for moving files.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::repo::Identifier;

/// The names that somebody has a turn at.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The lock guards the set for an instant.
    taken: Mutex<BTreeSet<Identifier>>,
    freed: Condvar,
}

/// A turn. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    name: Identifier,
}

impl Turns {
    /// Waits for a turn.
    pub(crate) fn wait(&self, name: &Identifier) -> Turn<'_> {
        let mut taken = self.lock();
        while !taken.insert(name.clone()) {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { turns: self, name: name.clone() }
    }

    /// Waits for a turn, but not for ever.
    pub(crate) fn wait_within(&self, name: &Identifier, patience: Duration) -> Option<Turn<'_>> {
        let until = Instant::now() + patience;
        let mut taken = self.lock();
        while !taken.insert(name.clone()) {
            let left = until.checked_duration_since(Instant::now())?;
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Turn { turns: self, name: name.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Identifier>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.name);
        self.turns.freed.notify_all();
    }
}
