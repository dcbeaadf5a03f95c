//! Unit tests of live sync.

use super::super::filters::{ArrivalRange, IdentifierSet};
use super::super::io::{Descendant, Descendants, RepoNeeds, SessionId};
use super::super::targets::RepoSyncIndex;
use super::super::tests::{at, sent, with_relay};
use super::*;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoId, ServiceAddress};

/// Runs a test with a connection, and a live set of announcements that is queued for a batch.
fn with_live(test: impl FnOnce(&mut LiveSync, &mut Session, &mut SyncContext<'_>)) {
    with_relay(|_, ctx| {
        let (mut live, mut session) = (LiveSync::default(), Session::new(SessionId(1), at(0).mono));
        assert!(live.subscribe(ctx, &SyncScope::announcements(IdentifierSet::All), BatchId(7)));
        test(&mut live, &mut session, ctx);
    });
}

fn open(live: &mut LiveSync, session: &mut Session, ctx: &mut SyncContext<'_>) -> (LiveSetId, SubscriptionId) {
    let batches = live.open_next(ctx, session, &RelayLimits::new(Default::default()), 100, |_| true);
    assert_eq!(batches, Some(Vec::new()));
    match sent(ctx).last() {
        Some(OutgoingMessage::Req(sub, _)) => (*live.sets.keys().last().expect("a set"), *sub),
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_wait_until_their_live_set_is_confirmed() {
    with_live(|live, session, ctx| {
        let (key, sub) = open(live, session, ctx);
        assert_eq!(live.on_eose(ctx, session, key, sub, true), [BatchId(7)]);
        assert_eq!(live.on_eose(ctx, session, key, sub, false), []);
    });
}

#[test]
fn unconfirmed_live_set_releases_its_batches() {
    with_live(|live, session, ctx| {
        let (key, _) = open(live, session, ctx);
        assert!(live.unconfirmed(at(limits::LIVE_EOSE_TIMEOUT_SECS - 1).mono).is_empty());
        assert_eq!(live.unconfirmed(at(limits::LIVE_EOSE_TIMEOUT_SECS).mono), [key]);
        let failure = live.on_unconfirmed(ctx, session, key);
        assert!(matches!(failure, LiveFailure::Batches(_, batches) if batches == [BatchId(7)]));
        assert!(live.has_timed_out(key) && live.unconfirmed(at(100_000).mono).is_empty());
    });
}

#[test]
fn rejected_live_set_is_opened_again_only_in_another_form() {
    with_live(|live, session, ctx| {
        let (key, sub) = open(live, session, ctx);
        let failure = live.on_closed(ctx, session, (key, sub), RelayRejection::LimitZeroRejected);
        assert!(matches!(failure, LiveFailure::Handled) && live.has_pending());
        let (key, sub) = open(live, session, ctx);
        let failure = live.on_closed(ctx, session, (key, sub), RelayRejection::NotAllowed);
        assert!(matches!(failure, LiveFailure::Batches(_, batches) if batches == [BatchId(7)]));
    });
}

#[test]
fn wide_live_set_replaces_all_others() {
    with_live(|live, session, ctx| {
        let (key, sub) = open(live, session, ctx);
        live.on_eose(ctx, session, key, sub, true);
        live.follow_widely(ctx);
        let (wide, sub) = open(live, session, ctx);
        assert_eq!(live.sets.len(), 2, "the old one stays open until the new one is confirmed");
        live.on_eose(ctx, session, wide, sub, true);
        assert_eq!(live.sets.keys().copied().collect::<Vec<_>>(), [wide]);
        assert!(!live.subscribe(ctx, &SyncScope::default(), BatchId(8)), "nothing to wait for");
        let deliveries = [true, false, false].map(|is_useful| live.record_wide_delivery(is_useful, 3));
        assert_eq!(deliveries, [false, false, true]);
    });
}

/// Returns a machine's index with one repository that has some descendants, and a scope of all of them.
fn descendants(count: u8) -> (RepoSyncIndex, SyncScope) {
    let mut index = RepoSyncIndex::default();
    let owner = PublicKey([1; 32]);
    let identifier = Identifier::new("thing").expect("valid identifier");
    let repo = RepoId { owner, identifier: identifier.clone() };
    let needs =
        RepoNeeds { repo: repo.clone(), status: EventStatus::Served, relays: Vec::new(), authors: Vec::new(), seq: 1 };
    index.update(&ServiceAddress::new("git.example", "").expect("valid address"), identifier, vec![needs]);
    let event = |number: u8| Descendant {
        seq: number.into(),
        id: EventId([number; 32]),
        coordinate: None,
        ancestor: number.into(),
    };
    let events = (1..=count).map(event).collect();
    index.add_root_events(&repo, Vec::new(), Descendants { events, authors: Vec::new() });
    let range = ArrivalRange { repo: index.key(&repo).expect("indexed"), after: 0, up_to: count.into() };
    (index, SyncScope { descendants: vec![range], ..SyncScope::default() })
}

/// Returns a context with another index and time.
fn with_index<'c>(ctx: &'c mut SyncContext<'_>, repo_index: &'c RepoSyncIndex, secs: u64) -> SyncContext<'c> {
    SyncContext {
        now: at(secs),
        repo_index,
        config: ctx.config,
        rejected: ctx.rejected,
        outputs: &mut *ctx.outputs,
        next_id: &mut *ctx.next_id,
        queries: &mut *ctx.queries,
        open_negentropy: &mut *ctx.open_negentropy,
        waiting_for_negentropy: &mut *ctx.waiting_for_negentropy,
        rng: &mut *ctx.rng,
    }
}

/// "One filter per relay per 5 s, 60 s between rounds."
#[test]
fn polled_descendants_are_requested_one_filter_at_a_time() {
    let (index, scope) = descendants(3);
    with_live(|live, _, ctx| {
        let relay_limits = RelayLimits::new(Default::default());
        // Each scope has three filters: #e, #E and #q.
        for _ in 0..2 {
            live.poll_scope(&with_index(ctx, &index, 0), scope.clone(), 0);
        }
        let mut requested = Vec::new();
        for secs in 0..=170 {
            let polling = with_index(ctx, &index, secs);
            let full = ConnectionLimits { max_live_subscriptions: 0, ..*relay_limits.current() };
            if let Some(due) = live.next_poll(&polling, &full, |_| true) {
                assert!(!due.has_free_slot);
                requested.push((secs, due.filter, due.requested_at));
            }
        }
        let times: Vec<(u64, Option<usize>)> = requested.iter().map(|(secs, filter, _)| (*secs, *filter)).collect();
        let round = |start: u64| (0..6).map(move |number| (start + 5 * number, Some(number as usize % 3)));
        assert_eq!(times, round(60).chain(round(145)).collect::<Vec<_>>());
        assert_eq!(requested.first().map(|first| first.2), Some(at(0).wall));
        assert_eq!(requested.last().map(|last| last.2), Some(at(75).wall), "since the last request of the scope");
    });
}

/// Descendants arrive one by one, and a request for each would take hours.
#[test]
fn polled_descendants_share_filters() {
    let (index, scope) = descendants(3);
    with_live(|live, _, ctx| {
        for up_to in 1..=3 {
            let range = ArrivalRange { after: up_to - 1, up_to, ..scope.descendants[0] };
            let part = SyncScope { descendants: vec![range], ..SyncScope::default() };
            live.poll_scope(&with_index(ctx, &index, 0), part, 10_000);
        }
        assert_eq!(live.descendants.scopes.len(), 1);
        assert_eq!(live.descendants.scopes[0].scope, scope);
    });
}
