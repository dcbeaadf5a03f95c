//! Where the registrar's desk leaves what sync must hear.
//!
//! What a batch leads to is left here after its commit and after the live bell, all of it at once. Whoever takes it tells
//! sync in this order: what is followed; what the store says has arrived since the last time; the verdicts. Then sync never
//! hears of a verdict before it knows what the event has led to. The bell rings for everything that is served, too, whoever
//! brought it; that itself is in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::repo::Identifier;
use grasp_core::sync::io::{RepoNeeds, Seq, SubmitResult, SyncPolicyChange, SyncSubmissionId};
use tokio::sync::Notify;

/// What sync must hear.
#[derive(Debug, Default)]
pub(crate) struct SyncUpdate {
    /// What is followed, by name: the latest value of each name, in whole.
    pub(crate) interest: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Verdicts on what sync has submitted, in the order of judging.
    pub(crate) judged: Vec<(SyncSubmissionId, SubmitResult)>,
    /// Other rules, which hold already.
    pub(crate) rules: Option<SyncPolicyChange>,
}

impl SyncUpdate {
    fn is_empty(&self) -> bool {
        self.interest.is_empty() && self.judged.is_empty() && self.rules.is_none()
    }
}

/// The mailbox. It cannot overflow: there is one value for each name, and a verdict for each event that was submitted. Its
/// lock is held for moves.
#[derive(Debug, Default)]
pub(crate) struct SyncFeed {
    shelf: Mutex<Shelf>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Shelf {
    mail: SyncUpdate,
    /// Up to where the bell has rung for what is served.
    served: Seq,
}

impl SyncFeed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Leaves something, and says up to where events are served. The bell rings if there is news.
    pub(crate) fn send(&self, mut news: SyncUpdate, served: Seq) {
        let mut shelf = self.lock();
        if news.is_empty() && served <= shelf.served {
            return;
        }
        shelf.served = shelf.served.max(served);
        // The first value of all names is many.
        if shelf.mail.interest.is_empty() {
            shelf.mail.interest = news.interest;
        } else {
            shelf.mail.interest.append(&mut news.interest);
        }
        shelf.mail.judged.append(&mut news.judged);
        drop(shelf);
        self.bell.notify_one();
    }

    /// There are other rules. What wider ones mean is not forgotten when others follow at once.
    pub(crate) fn send_rules(&self, new: SyncPolicyChange) {
        let mut shelf = self.lock();
        let accepts_more = shelf.mail.rules.as_ref().is_some_and(|rules| rules.accepts_more);
        shelf.mail.rules = Some(SyncPolicyChange { accepts_more: accepts_more || new.accepts_more, ..new });
        drop(shelf);
        self.bell.notify_one();
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> SyncUpdate {
        std::mem::take(&mut self.lock().mail)
    }

    /// Waits until something was left since the last wait.
    pub(crate) async fn posted(&self) {
        self.bell.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        // Nothing here can panic half-way.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::RepoId;
    use grasp_core::repo::catalog::EventStatus;

    use super::*;

    fn name(text: &str) -> Identifier {
        Identifier::new(text).expect("names a repository")
    }

    fn followed(text: &str, seq: u64) -> Vec<RepoNeeds> {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: name(text) };
        vec![RepoNeeds { repo, status: EventStatus::Served, relays: Vec::new(), authors: Vec::new(), seq }]
    }

    fn interest(values: &[(&str, u64)]) -> BTreeMap<Identifier, Vec<RepoNeeds>> {
        values.iter().map(|(text, seq)| (name(text), followed(text, *seq))).collect()
    }

    #[tokio::test]
    async fn the_latest_value_of_a_name_and_all_verdicts_are_taken_once() {
        let post = SyncFeed::new();
        post.send(SyncUpdate { interest: interest(&[("a", 1), ("b", 1)]), ..SyncUpdate::default() }, 0);
        post.send(
            SyncUpdate {
                interest: interest(&[("b", 2)]),
                judged: vec![(SyncSubmissionId(1), SubmitResult::Stored)],
                rules: None,
            },
            0,
        );
        let gone = BTreeMap::from([(name("a"), Vec::new())]);
        post.send(
            SyncUpdate {
                interest: gone,
                judged: vec![(SyncSubmissionId(2), SubmitResult::InvalidSignature)],
                rules: None,
            },
            0,
        );
        post.posted().await;
        let mail = post.take();
        assert_eq!(mail.interest, BTreeMap::from([(name("a"), Vec::new()), (name("b"), followed("b", 2))]));
        assert_eq!(
            mail.judged,
            [(SyncSubmissionId(1), SubmitResult::Stored), (SyncSubmissionId(2), SubmitResult::InvalidSignature)]
        );
        assert!(post.take().is_empty());
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_and_nothing_rings_for_nothing() {
        let post = SyncFeed::new();
        post.send(SyncUpdate::default(), 0);
        let reader = tokio::spawn({
            let post = post.clone();
            async move {
                post.posted().await;
                post.take()
            }
        });
        tokio::task::yield_now().await;
        post.send(SyncUpdate { interest: interest(&[("a", 1)]), ..SyncUpdate::default() }, 0);
        let mail = reader.await.expect("it was woken");
        assert_eq!(mail.interest, interest(&[("a", 1)]));
    }

    #[tokio::test]
    async fn the_bell_rings_once_for_what_is_served() {
        let post = SyncFeed::new();
        let rings = || async {
            let rings = tokio::time::timeout(std::time::Duration::ZERO, post.posted()).await.is_ok();
            assert!(post.take().is_empty());
            rings
        };
        let mut heard = Vec::new();
        for served in [3, 3, 2, 4] {
            post.send(SyncUpdate::default(), served);
            heard.push(rings().await);
        }
        assert_eq!(heard, [true, false, false, true]);
    }
}
