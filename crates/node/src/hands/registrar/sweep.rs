//! Those who are unwanted, looked up in slices: whatever the store serves of them goes.
//!
//! It begins anew at every start and with every change of the rules, so that what a process leaves undone the next one
//! does. An author who has nothing here costs one lookup.

use grasp_core::limits;
use grasp_core::nostr::{EventId, PublicKey};
use grasp_core::registrar::io::Summary;
use grasp_core::registrar::policy::lists::Lists;
use grasp_store::{Batch, StoreError};

/// What is left to look up.
#[derive(Default)]
pub(super) struct Sweep {
    authors: Vec<PublicKey>,
    events: Vec<EventId>,
}

impl Sweep {
    /// Everybody and everything that is unwanted.
    pub(super) fn of(lists: &Lists) -> Self {
        let unwanted = &lists.unwanted;
        Self { authors: unwanted.authors.iter().copied().collect(), events: unwanted.events.iter().copied().collect() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.authors.is_empty() && self.events.is_empty()
    }

    /// The next few events that go. An author stays in line until nothing of it is left.
    pub(super) fn next(&mut self, txn: &Batch<'_>) -> Result<Vec<Summary>, StoreError> {
        let mut found = Vec::new();
        for _ in 0..limits::UNWANTED_SLICE {
            let room = limits::REMOVAL_SLICE.saturating_sub(found.len());
            if room == 0 {
                break;
            }
            if let Some(author) = self.authors.last() {
                let its = txn.served_of(*author, room)?;
                if its.len() < room {
                    self.authors.pop();
                }
                found.extend(its);
            } else if let Some(id) = self.events.pop() {
                found.extend(txn.served_summary(id)?);
            } else {
                break;
            }
        }
        Ok(found)
    }
}
