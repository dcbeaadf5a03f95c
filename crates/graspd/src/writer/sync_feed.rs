//! Updates from the writer to the sync driver.
//!
//! The writer adds the consequences of a batch after its commit and after the broadcast, all at once. The driver passes
//! them to the sync machine in this order: repository needs; events that the store serves since the last time; results
//! of submissions. So sync never receives the result of an event before the needs that follow from it. The feed also
//! wakes the driver for every newly served event, whatever its source; the events themselves are read from the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::repo::Identifier;
use grasp_core::sync::io::{RepoNeeds, Seq, SubmitResult, SyncPolicyChange, SyncSubmissionId};
use tokio::sync::Notify;

/// Changes for the sync machine.
#[derive(Debug, Default)]
pub(crate) struct SyncUpdate {
    /// The complete needs of each identifier for which they have changed.
    pub(crate) repo_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Results of events that sync has submitted, in the order of the decisions.
    pub(crate) results: Vec<(SyncSubmissionId, SubmitResult)>,
    /// A new policy, which is already in force.
    pub(crate) policy: Option<SyncPolicyChange>,
}

impl SyncUpdate {
    fn is_empty(&self) -> bool {
        self.repo_needs.is_empty() && self.results.is_empty() && self.policy.is_none()
    }
}

/// Coalesces updates until the driver takes them. Its size is bounded: there is one value per identifier and one result
/// per submitted event. The lock is held only to move entries.
#[derive(Debug, Default)]
pub(crate) struct SyncFeed {
    pending: Mutex<PendingSyncUpdate>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingSyncUpdate {
    update: SyncUpdate,
    /// Sequence number of the newest served event for which the driver has been woken.
    served: Seq,
}

impl SyncFeed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an update. `served` is the sequence number of the newest served event. Wakes the driver if the update is
    /// not empty or new events are served.
    pub(crate) fn send(&self, mut update: SyncUpdate, served: Seq) {
        let mut pending = self.lock();
        if update.is_empty() && served <= pending.served {
            return;
        }
        pending.served = pending.served.max(served);
        // The first update contains all identifiers: move it instead of inserting one by one.
        if pending.update.repo_needs.is_empty() {
            pending.update.repo_needs = update.repo_needs;
        } else {
            pending.update.repo_needs.append(&mut update.repo_needs);
        }
        pending.update.results.append(&mut update.results);
        drop(pending);
        self.notify.notify_one();
    }

    /// Adds a new policy and wakes the driver. If an earlier one is still pending and accepts more than its
    /// predecessor, the combined change does too.
    pub(crate) fn send_policy(&self, new: SyncPolicyChange) {
        let mut pending = self.lock();
        let accepts_more = pending.update.policy.as_ref().is_some_and(|policy| policy.accepts_more);
        pending.update.policy = Some(SyncPolicyChange { accepts_more: accepts_more || new.accepts_more, ..new });
        drop(pending);
        self.notify.notify_one();
    }

    /// Takes all pending updates.
    pub(crate) fn take(&self) -> SyncUpdate {
        std::mem::take(&mut self.lock().update)
    }

    /// Waits until the driver has been woken since the last wait.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, PendingSyncUpdate> {
        // A poisoned lock is safe to use: no step under it leaves the update half changed.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::RepoId;
    use grasp_core::repo::catalog::EventStatus;

    use super::*;

    fn identifier(text: &str) -> Identifier {
        Identifier::new(text).expect("valid identifier")
    }

    fn needs(text: &str, seq: u64) -> Vec<RepoNeeds> {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: identifier(text) };
        vec![RepoNeeds { repo, status: EventStatus::Served, relays: Vec::new(), authors: Vec::new(), seq }]
    }

    fn needs_by_identifier(values: &[(&str, u64)]) -> BTreeMap<Identifier, Vec<RepoNeeds>> {
        values.iter().map(|(text, seq)| (identifier(text), needs(text, *seq))).collect()
    }

    #[tokio::test]
    async fn latest_needs_and_all_results_are_taken_once() {
        let feed = SyncFeed::new();
        feed.send(SyncUpdate { repo_needs: needs_by_identifier(&[("a", 1), ("b", 1)]), ..SyncUpdate::default() }, 0);
        feed.send(
            SyncUpdate {
                repo_needs: needs_by_identifier(&[("b", 2)]),
                results: vec![(SyncSubmissionId(1), SubmitResult::Stored)],
                policy: None,
            },
            0,
        );
        feed.send(
            SyncUpdate {
                repo_needs: BTreeMap::from([(identifier("a"), Vec::new())]),
                results: vec![(SyncSubmissionId(2), SubmitResult::InvalidSignature)],
                policy: None,
            },
            0,
        );
        feed.changed().await;
        let update = feed.take();
        assert_eq!(
            update.repo_needs,
            BTreeMap::from([(identifier("a"), Vec::new()), (identifier("b"), needs("b", 2))])
        );
        assert_eq!(
            update.results,
            [(SyncSubmissionId(1), SubmitResult::Stored), (SyncSubmissionId(2), SubmitResult::InvalidSignature)]
        );
        assert!(feed.take().is_empty());
    }

    #[tokio::test]
    async fn update_wakes_the_driver_and_empty_update_does_not() {
        let feed = SyncFeed::new();
        feed.send(SyncUpdate::default(), 0);
        let driver = tokio::spawn({
            let feed = feed.clone();
            async move {
                feed.changed().await;
                feed.take()
            }
        });
        tokio::task::yield_now().await;
        feed.send(SyncUpdate { repo_needs: needs_by_identifier(&[("a", 1)]), ..SyncUpdate::default() }, 0);
        let update = driver.await.expect("the driver is woken");
        assert_eq!(update.repo_needs, needs_by_identifier(&[("a", 1)]));
    }

    #[tokio::test]
    async fn newly_served_events_wake_the_driver_once() {
        let feed = SyncFeed::new();
        let is_woken = || async {
            let is_woken = tokio::time::timeout(std::time::Duration::ZERO, feed.changed()).await.is_ok();
            assert!(feed.take().is_empty());
            is_woken
        };
        let mut woken = Vec::new();
        for served in [3, 3, 2, 4] {
            feed.send(SyncUpdate::default(), served);
            woken.push(is_woken().await);
        }
        assert_eq!(woken, [true, false, false, true]);
    }
}
