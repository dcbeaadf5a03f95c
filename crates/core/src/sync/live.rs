//! Live sync with one connected relay: live subscriptions, their consolidation, and polling of scopes for which no
//! subscription is free.
//!
//! Batches of historic sync wait until the live set of their scope is confirmed. The methods here return the batches
//! that need not wait any longer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::BatchId;
use super::filters::{FilterSize, ID_BYTES, SyncScope, pack_requests};
use super::io::{OutgoingMessage, SubscriptionId};
use super::rejection_text::RelayRejection;
use super::relay_limits::{ConnectionLimits, RelayLimits};
use super::relay_record::LiveFilterForm;
use super::session::{Session, SubscriptionPurpose};
use super::targets::RepoKey;
use super::{SyncContext, limits};
use crate::nostr::filter::Filter;
use crate::time::{MonoTime, Timestamp};

/// Id of a live set. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LiveSetId(u64);

/// Live subscriptions of one connection.
#[derive(Debug, Default)]
pub(super) struct LiveSync {
    sets: BTreeMap<LiveSetId, LiveSet>,
    /// Live sets that are to be opened, in order.
    pending: VecDeque<PendingLiveSet>,
    /// The live set without tags that follows everything, if there is one.
    wide: Option<LiveSetId>,
    /// Number of events from the wide live set, and how many of them were useful.
    wide_deliveries: (u32, u32),
    /// Scopes for which there is no free live subscription.
    polled: VecDeque<PolledScope>,
    poll_at: Option<MonoTime>,
    /// Whether a merged live subscription found no free slot or was refused. Reset when a live set is closed.
    cannot_merge: bool,
}

/// Live subscriptions of one scope. More than one if the relay accepts few filters per request.
#[derive(Debug)]
struct LiveSet {
    scope: SyncScope,
    size: FilterSize,
    subscriptions: BTreeSet<SubscriptionId>,
    /// Subscriptions whose EOSE has not arrived.
    awaiting_eose: BTreeSet<SubscriptionId>,
    deadline: MonoTime,
    /// Whether EOSE did not arrive in time. It is unknown whether the relay follows the set.
    timed_out: bool,
    /// Number of filters.
    filters: usize,
    /// Batches that wait for its confirmation.
    batches: Vec<BatchId>,
    /// Live sets that it replaces. They are closed when it is confirmed.
    replaces: Vec<LiveSetId>,
}

/// A live set that is still to be opened.
#[derive(Debug)]
struct PendingLiveSet {
    key: LiveSetId,
    scope: SyncScope,
    batches: Vec<BatchId>,
    replaces: Vec<LiveSetId>,
}

/// A scope without a free live subscription, which is requested periodically instead.
#[derive(Clone, Debug)]
struct PolledScope {
    scope: SyncScope,
    /// When it was last requested.
    requested_at: Timestamp,
}

/// A polled scope that is due.
#[derive(Debug)]
pub(super) struct DuePoll {
    pub(super) scope: SyncScope,
    /// When it was last requested.
    pub(super) requested_at: Timestamp,
    /// Whether a live subscription has become free for it. Otherwise it is polled again later.
    pub(super) has_free_slot: bool,
}

/// Consequence of a live set that the relay did not confirm in time, or that it rejected or ended.
#[derive(Debug)]
pub(super) enum LiveFailure {
    /// Historic sync has nothing to do: the set is tried again, or it was a merge and the subscriptions that it should have
    /// replaced are still open.
    Handled,
    /// The wide live set failed, so the connection must end. The next one does not use it.
    Wide,
    /// These batches go on without it. Its scope is not followed.
    Batches(SyncScope, Vec<BatchId>),
}

impl LiveSync {
    /// Adds the live set that a batch with this scope waits for. Returns `false` if it has nothing to wait for.
    pub(super) fn subscribe(&mut self, ctx: &mut SyncContext<'_>, scope: &SyncScope, batch: BatchId) -> bool {
        let Some(key) = self.wide else {
            // Layer 1 may request other identifiers than before; its new live set replaces the old one.
            let is_old = |set: &LiveSet| set.scope.announcements.is_some() && scope.announcements.is_some();
            let old = self.sets.iter().filter(|(_, set)| is_old(set)).map(|(key, _)| *key).collect();
            self.queue(ctx, scope.clone(), batch, old);
            return true;
        };
        match self.sets.get_mut(&key) {
            Some(set) if set.awaiting_eose.is_empty() => return false,
            Some(set) => set.batches.push(batch),
            None => match self.pending.iter_mut().find(|pending| pending.key == key) {
                Some(pending) => pending.batches.push(batch),
                None => return false,
            },
        }
        true
    }

    /// Adds a live set for a batch that replaces one which the relay did not confirm.
    pub(super) fn resubscribe(&mut self, ctx: &mut SyncContext<'_>, scope: SyncScope, batch: BatchId, old: LiveSetId) {
        self.queue(ctx, scope, batch, vec![old]);
    }

    fn queue(&mut self, ctx: &mut SyncContext<'_>, scope: SyncScope, batch: BatchId, replaces: Vec<LiveSetId>) {
        let key = LiveSetId(ctx.new_id());
        self.pending.push_back(PendingLiveSet { key, scope, batches: vec![batch], replaces });
    }

    /// Queues a live set without tags that replaces all others.
    pub(super) fn follow_widely(&mut self, ctx: &mut SyncContext<'_>) {
        let key = LiveSetId(ctx.new_id());
        self.wide = Some(key);
        let batches = std::mem::take(&mut self.pending).into_iter().flat_map(|pending| pending.batches).collect();
        let replaces = self.sets.keys().copied().collect();
        self.polled.clear();
        self.poll_at = None;
        self.pending.push_back(PendingLiveSet { key, scope: SyncScope::wide(), batches, replaces });
    }

    /// Opens the first queued live set. If it does not fit, merges others or polls its scope. Returns `None` if nothing
    /// can be done now, and otherwise the batches that need not wait any longer.
    pub(super) fn open_next(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        limits: &RelayLimits,
        values_per_filter: usize,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> Option<Vec<BatchId>> {
        let pending = self.pending.front()?;
        let relay_limits = limits.current();
        let size = pending.scope.size(ctx.repo_index);
        let filters = pending.scope.filters(ctx.repo_index, values_per_filter);
        let filters: Vec<Filter> =
            filters.into_iter().map(|filter| live_form(filter, limits.live_form(), ctx.now.wall)).collect();
        let count = filters.len();
        let requests = pack_requests(filters, relay_limits);
        let max_open = if !pending.replaces.is_empty() || pending.scope.wide {
            relay_limits.max_subscriptions
        } else {
            relay_limits.max_live_subscriptions
        } as usize;
        let freed: usize = pending.replaces.iter().filter_map(|key| self.sets.get(key)).map(|set| set.size.bytes).sum();
        let fits = self.open_count() + requests.len() <= max_open
            && (self.bytes() + size.bytes).saturating_sub(freed) <= relay_limits.live_bytes;
        if count == 0 || !fits {
            return self.merge_or_poll(ctx, session, relay_limits, count == 0, is_followed);
        }
        if session.slot_count() + requests.len() > relay_limits.max_subscriptions as usize {
            // Historic requests, which end soon, occupy the slots.
            return None;
        }
        let PendingLiveSet { key, scope, batches, replaces } = self.pending.pop_front()?;
        let purpose = SubscriptionPurpose::Live(key);
        let subscriptions: BTreeSet<SubscriptionId> = requests
            .into_iter()
            .map(|filters| session.open(ctx, purpose, |sub| OutgoingMessage::Req(sub, filters)))
            .collect();
        let deadline = ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS);
        let awaiting_eose = subscriptions.clone();
        self.sets.insert(
            key,
            LiveSet {
                scope,
                size,
                subscriptions,
                awaiting_eose,
                deadline,
                timed_out: false,
                filters: count,
                batches,
                replaces,
            },
        );
        Some(Vec::new())
    }

    /// Handles the first queued live set if it does not fit: merges other live sets, or polls its scope.
    fn merge_or_poll(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        relay_limits: &ConnectionLimits,
        is_empty: bool,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> Option<Vec<BatchId>> {
        if self.is_merging() {
            return None;
        }
        let is_merge = self.pending.front().is_some_and(|pending| !pending.replaces.is_empty());
        if !is_empty && !is_merge && self.merge(ctx, session, relay_limits, is_followed) {
            return Some(Vec::new());
        }
        let pending = self.pending.pop_front()?;
        // If a merged set does not fit, trying again would not help.
        self.cannot_merge |= is_merge;
        if !is_empty && !is_merge {
            self.polled.push_back(PolledScope { scope: pending.scope, requested_at: ctx.now.wall });
            self.poll_at.get_or_insert(ctx.now.mono.plus_secs(limits::SYNC_POLL_INTERVAL_SECS));
        }
        Some(pending.batches)
    }

    /// Whether a live set waits to replace others.
    fn is_merging(&self) -> bool {
        self.sets.values().any(|set| !set.replaces.is_empty())
    }

    /// Merges the smallest live sets into one, if at least two fit. The merged set is opened in the reserved slots, and
    /// the old ones are closed when it is confirmed, so that no event is missed in between.
    fn merge(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        relay_limits: &ConnectionLimits,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> bool {
        let has_free_slot = self.open_count() < relay_limits.max_subscriptions as usize;
        if !has_free_slot || self.cannot_merge || self.wide.is_some() || self.is_merging() {
            return false;
        }
        let max_values = max_values(relay_limits);
        let max_bytes = relay_limits.req_bytes.saturating_sub(512);
        let mut sets: Vec<_> = self
            .sets
            .iter()
            .filter(|(_, set)| set.awaiting_eose.is_empty() && set.scope.announcements.is_none())
            .map(|(key, set)| (set.size.bytes, *key))
            .collect();
        sets.sort_unstable();
        let mut scope = SyncScope::default();
        let mut size = FilterSize::default();
        let mut merged = Vec::new();
        for (_, key) in sets {
            let Some(set) = self.sets.get(&key) else { continue };
            let sum = size.plus(set.size);
            if sum.bytes > max_bytes || sum.roots > max_values || sum.repos > max_values {
                break;
            }
            size = sum;
            scope.merge(&set.scope);
            merged.push(key);
        }
        scope.retain(is_followed);
        if merged.len() < 2 {
            return false;
        }
        if scope.is_empty() {
            for key in merged {
                self.close(ctx, session, key);
            }
            return true;
        }
        let key = LiveSetId(ctx.new_id());
        self.pending.push_front(PendingLiveSet { key, scope, batches: Vec::new(), replaces: merged });
        true
    }

    /// Consolidation: merges live sets if they have many more filters than the same scopes would need in one set.
    pub(super) fn consolidate(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        relay_limits: &ConnectionLimits,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> bool {
        let filters = self.filter_count();
        if filters <= limits::CONSOLIDATION_SPARE_FILTERS {
            return false;
        }
        let size = self.sets.values().fold(FilterSize::default(), |sum, set| sum.plus(set.size));
        filters > limits::CONSOLIDATION_SPARE_FILTERS + size.filters(max_values(relay_limits)) + 1
            && self.merge(ctx, session, relay_limits, is_followed)
    }

    /// Handles EOSE of a subscription. Returns the batches that need not wait any longer.
    pub(super) fn on_eose(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        key: LiveSetId,
        sub: SubscriptionId,
        is_first: bool,
    ) -> Vec<BatchId> {
        let Some(set) = self.sets.get_mut(&key) else { return Vec::new() };
        set.awaiting_eose.remove(&sub);
        set.timed_out &= !is_first;
        session.record_answer();
        if set.awaiting_eose.is_empty() { self.confirm(ctx, session, key) } else { Vec::new() }
    }

    /// Closes what a confirmed live set replaces. Returns the batches that waited for it.
    fn confirm(&mut self, ctx: &mut SyncContext<'_>, session: &mut Session, key: LiveSetId) -> Vec<BatchId> {
        let Some(set) = self.sets.get_mut(&key) else { return Vec::new() };
        let batches = std::mem::take(&mut set.batches);
        for old in std::mem::take(&mut set.replaces) {
            self.close(ctx, session, old);
        }
        batches
    }

    /// Returns the live sets that were not confirmed in time.
    pub(super) fn unconfirmed(&self, now: MonoTime) -> Vec<LiveSetId> {
        let is_late = |set: &LiveSet| !set.awaiting_eose.is_empty() && set.deadline <= now;
        self.sets.iter().filter(|(_, set)| is_late(set)).map(|(key, _)| *key).collect()
    }

    /// Handles a live set that was not confirmed in time, so that it is unknown whether the relay follows it. The
    /// batches of the result have been waiting for it.
    pub(super) fn on_unconfirmed(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        key: LiveSetId,
    ) -> LiveFailure {
        let Some(set) = self.sets.get_mut(&key) else { return LiveFailure::Handled };
        set.awaiting_eose.clear();
        set.timed_out = true;
        if self.wide == Some(key) {
            return LiveFailure::Wide;
        }
        if set.batches.is_empty() && !set.replaces.is_empty() {
            // Only a merge failed. The subscriptions that it would have replaced are still open.
            self.close(ctx, session, key);
            self.cannot_merge = true;
            return LiveFailure::Handled;
        }
        let scope = set.scope.clone();
        LiveFailure::Batches(scope, self.confirm(ctx, session, key))
    }

    /// Handles a live subscription that the relay rejected or ended.
    pub(super) fn on_closed(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        (key, sub): (LiveSetId, SubscriptionId),
        rejection: RelayRejection,
    ) -> LiveFailure {
        let Some(set) = self.sets.get_mut(&key) else { return LiveFailure::Handled };
        set.subscriptions.remove(&sub);
        let was_confirmed = set.awaiting_eose.is_empty();
        let (scope, batches) = (set.scope.clone(), std::mem::take(&mut set.batches));
        let replaces = std::mem::take(&mut set.replaces);
        let is_wide = self.wide == Some(key);
        self.close(ctx, session, key);
        if !replaces.is_empty() && batches.is_empty() && !is_wide {
            // A consolidation failed. The subscriptions that it would have replaced are still open.
            self.cannot_merge = true;
            return LiveFailure::Handled;
        }
        let can_try_again = matches!(
            rejection,
            RelayRejection::LimitZeroRejected
                | RelayRejection::TooManyFilters
                | RelayRejection::AuthRequired
                | RelayRejection::RateLimited
                | RelayRejection::TooManySubscriptions
                | RelayRejection::SubscriptionBytes(_)
        );
        if !was_confirmed && can_try_again {
            self.pending.push_front(PendingLiveSet { key, scope, batches, replaces });
            return LiveFailure::Handled;
        }
        if is_wide { LiveFailure::Wide } else { LiveFailure::Batches(scope, batches) }
    }

    /// Closes the smallest live set if the live subscriptions are above the limits of the relay. Returns its scope.
    pub(super) fn shrink(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        relay_limits: &ConnectionLimits,
    ) -> Option<SyncScope> {
        if self.open_count() <= relay_limits.max_live_subscriptions as usize && self.bytes() <= relay_limits.live_bytes
        {
            return None;
        }
        let can_close = |set: &LiveSet| {
            set.scope.announcements.is_none()
                && !set.scope.wide
                && set.awaiting_eose.is_empty()
                && set.replaces.is_empty()
        };
        let smallest = self.sets.iter().filter(|(_, set)| can_close(set)).min_by_key(|(_, set)| set.size.bytes);
        let (key, scope) = smallest.map(|(key, set)| (*key, set.scope.clone()))?;
        self.close(ctx, session, key);
        Some(scope)
    }

    fn close(&mut self, ctx: &mut SyncContext<'_>, session: &mut Session, key: LiveSetId) {
        let Some(set) = self.sets.remove(&key) else { return };
        self.cannot_merge = false;
        for sub in set.subscriptions {
            session.close(ctx, sub, false);
        }
    }

    /// Takes the next polled scope that is due. Without a free slot it stays polled. Scopes without followed
    /// repositories are dropped and returned empty.
    pub(super) fn next_poll(
        &mut self,
        ctx: &SyncContext<'_>,
        relay_limits: &ConnectionLimits,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> Option<DuePoll> {
        if self.poll_at.is_none_or(|at| at > ctx.now.mono) {
            return None;
        }
        let Some(PolledScope { mut scope, requested_at }) = self.polled.pop_front() else {
            self.poll_at = None;
            return None;
        };
        self.poll_at = Some(ctx.now.mono.plus_secs(limits::SYNC_POLL_INTERVAL_SECS));
        scope.retain(is_followed);
        let has_free_slot = self.open_count() < relay_limits.max_live_subscriptions as usize;
        if !has_free_slot && !scope.is_empty() {
            self.polled.push_back(PolledScope { scope: scope.clone(), requested_at: ctx.now.wall });
        }
        Some(DuePoll { scope, requested_at, has_free_slot })
    }

    /// Counts an event of the wide live set. Returns whether few of them are useful, so that the relay should be
    /// followed with tags instead.
    pub(super) fn record_wide_delivery(&mut self, is_useful: bool, sample_events: u32) -> bool {
        self.wide_deliveries.0 += 1;
        self.wide_deliveries.1 += u32::from(is_useful);
        let (seen, useful) = self.wide_deliveries;
        if seen < sample_events {
            return false;
        }
        self.reset_wide_deliveries();
        useful * 2 < seen
    }

    /// Starts to count the events of the wide live set anew.
    pub(super) fn reset_wide_deliveries(&mut self) {
        self.wide_deliveries = (0, 0);
    }

    /// Returns the times at which live sets or polled scopes are due.
    pub(super) fn wake_times(&self, now: MonoTime) -> impl Iterator<Item = MonoTime> {
        let sets = self.sets.values().filter(|set| !set.awaiting_eose.is_empty()).map(|set| set.deadline);
        sets.chain(self.poll_at.filter(|at| *at > now))
    }

    /// Returns the earliest time since which polled scopes have not been requested.
    pub(super) fn missed_since(&self, overlap_secs: u64) -> Option<Timestamp> {
        self.polled.iter().map(|polled| Timestamp(polled.requested_at.0.saturating_sub(overlap_secs))).min()
    }

    /// Whether a live set was not confirmed in time and still is not.
    pub(super) fn has_timed_out(&self, key: LiveSetId) -> bool {
        self.sets.get(&key).is_some_and(|set| set.timed_out)
    }

    /// Whether live sets are still to be opened.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the relay is followed with one subscription without tags.
    pub(super) fn is_wide(&self) -> bool {
        self.wide.is_some()
    }

    /// Whether a live set is the one without tags.
    pub(super) fn is_wide_set(&self, key: LiveSetId) -> bool {
        self.wide == Some(key)
    }

    /// Returns the number of filters.
    pub(super) fn filter_count(&self) -> usize {
        self.sets.values().map(|set| set.filters).sum()
    }

    /// Whether part of a scope is polled.
    pub(super) fn is_polled(&self, scope: &SyncScope) -> bool {
        self.polled.iter().any(|polled| polled.scope.overlaps(scope))
    }

    /// Returns the number of polled scopes.
    pub(super) fn polled_count(&self) -> usize {
        self.polled.len()
    }

    /// Returns the bytes of all filters.
    pub(super) fn bytes(&self) -> usize {
        self.sets.values().map(|set| set.size.bytes).sum()
    }

    /// Returns the number of subscriptions.
    fn open_count(&self) -> usize {
        self.sets.values().map(|set| set.subscriptions.len()).sum()
    }
}

/// Returns how many values fit into one filter.
fn max_values(relay_limits: &ConnectionLimits) -> usize {
    (relay_limits.filter_bytes / ID_BYTES).max(1)
}

/// Returns a filter in the form for live subscriptions that the relay accepts: `limit: 0`, or else `limit: 1`, or else
/// `since`.
fn live_form(mut filter: Filter, form: LiveFilterForm, now: Timestamp) -> Filter {
    match form {
        LiveFilterForm::Zero => filter.limit = Some(0),
        LiveFilterForm::One => filter.limit = Some(1),
        LiveFilterForm::Since => filter.since = Some(Timestamp(now.0.saturating_sub(limits::SYNC_GRASP_OVERLAP_SECS))),
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::super::filters::IdentifierSet;
    use super::super::io::SessionId;
    use super::super::tests::{at, sent, with_relay};
    use super::*;

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
}
