//! A server inside a larger simulated world that has its own clock.

use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::nostr::{Decision, Rejection, SignedEvent};
use grasp_core::time::Now;

use super::TestServer;
use super::transaction::Batch;
use crate::git_model::GitModel;
use crate::store_model::ModelStore;

impl TestServer {
    /// Sets both clocks. [`advance`](Self::advance) handles the timers that are due.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Submits several events in one batch.
    pub fn submit_all(&mut self, offers: &[(Arc<SignedEvent>, EventSource)]) -> Vec<Decision> {
        let mut batch = Batch::default();
        let decided = offers.iter().map(|(event, source)| self.decide(&mut batch, event, source.clone()));
        let decisions: Vec<Decision> = decided.collect();
        let committed = self.finish_batch(batch).expect("no crash is injected");
        self.settle().expect("no crash is injected");
        if committed { decisions } else { decisions.iter().map(|_| Decision::Reject(Rejection::StoreFailed)).collect() }
    }

    /// Creates another server with a copy of the disk.
    #[must_use]
    pub fn fork(&self) -> Self {
        let (store, git): (ModelStore, GitModel) = (self.store.clone(), self.git.clone());
        let policy = self.admission.policy().clone();
        let mut fork = Self { store, git, now: self.now, skips_invariants: true, ..Self::new(policy) };
        fork.authors.clone_from(&self.authors);
        fork.rebuild().expect("no crash is injected");
        fork.settle().expect("no crash is injected");
        fork
    }
}
