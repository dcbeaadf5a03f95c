//! A house as part of a larger world, whose clock is not its own.

use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::nostr::{Decision, Rejection, SignedEvent};
use grasp_core::time::Now;

use super::House;
use super::transaction::Batch;
use crate::git_model::Git;
use crate::store_model::Memory;

impl House {
    /// Sets both clocks. What is due is done by [`advance`](Self::advance).
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Offers several events in one batch.
    pub fn submit_all(&mut self, offers: &[(Arc<SignedEvent>, EventSource)]) -> Vec<Decision> {
        let mut batch = Batch::default();
        let judged = offers.iter().map(|(event, source)| self.judge(&mut batch, event, source.clone()));
        let verdicts: Vec<Decision> = judged.collect();
        let committed = self.conclude(batch).expect("no end was planned");
        self.rest().expect("no end was planned");
        if committed { verdicts } else { verdicts.iter().map(|_| Decision::Reject(Rejection::StoreFailed)).collect() }
    }

    /// Another house with the same disk: what it does has no consequences here.
    #[must_use]
    pub fn fork(&self) -> Self {
        let (memory, git): (Memory, Git) = (self.memory.clone(), self.git.clone());
        let rules = self.admission.policy().clone();
        let mut fork = Self { memory, git, now: self.now, lawless: true, ..Self::new(rules) };
        fork.authors.clone_from(&self.authors);
        fork.rebuild().expect("no end was planned");
        fork.rest().expect("no end was planned");
        fork
    }
}
