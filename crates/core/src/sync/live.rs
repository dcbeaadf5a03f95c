//! Live sync with one connected relay: live subscriptions, their consolidation, and polling of scopes for which no
//! subscription is free.
//!
//! Batches of historic sync wait until the live set of their scope is confirmed. The methods here return the batches
//! that need not wait any longer.

mod descendant_polling;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::descendant_polling::DescendantPolling;
use super::batch::BatchId;
use super::filters::{FILTER_OVERHEAD_BYTES, FilterSize, ID_BYTES, SyncScope, pack_requests};
use super::io::{OutgoingMessage, SubscriptionId};
use super::rejection_text::RelayRejection;
use super::relay_limits::{ConnectionLimits, RelayLimits};
use super::relay_record::LiveFilterForm;
use super::session::{Session, SubscriptionPurpose};
use super::targets::{RepoKey, RepoSyncIndex};
use super::{SyncContext, limits};
use crate::nostr::event::Event;
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
    /// Descendants for which there is no free live subscription.
    descendants: DescendantPolling,
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
    /// Its own scope, if that of an open live set was added.
    own_scope: Option<SyncScope>,
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
    /// The only filter of the scope that is requested now; `None` for all.
    pub(super) filter: Option<usize>,
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
            self.replace(ctx, scope.clone(), batch, old);
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
        self.replace(ctx, scope, batch, vec![old]);
    }

    /// Queues a live set that replaces others and includes their scopes, before the queued ones of descendants.
    fn replace(&mut self, ctx: &mut SyncContext<'_>, mut scope: SyncScope, batch: BatchId, replaces: Vec<LiveSetId>) {
        for old in replaces.iter().filter_map(|key| self.sets.get(key)) {
            scope.merge(&old.scope);
        }
        let key = LiveSetId(ctx.new_id());
        let is_first_descendants = |pending: &PendingLiveSet| pending.scope.is_descendants();
        let at = self.pending.iter().position(is_first_descendants).filter(|_| !scope.is_descendants());
        let pending = PendingLiveSet { key, scope, batches: vec![batch], replaces, own_scope: None };
        self.pending.insert(at.unwrap_or(self.pending.len()), pending);
    }

    /// Queues a live set without tags that replaces all others.
    pub(super) fn follow_widely(&mut self, ctx: &mut SyncContext<'_>) {
        let key = LiveSetId(ctx.new_id());
        self.wide = Some(key);
        let batches = std::mem::take(&mut self.pending).into_iter().flat_map(|pending| pending.batches).collect();
        let replaces = self.sets.keys().copied().collect();
        self.polled.clear();
        self.poll_at = None;
        self.descendants = DescendantPolling::default();
        self.pending.push_back(PendingLiveSet { key, scope: SyncScope::wide(), batches, replaces, own_scope: None });
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
        let values_per_filter =
            if pending.scope.is_descendants() { max_values(relay_limits) } else { values_per_filter };
        let max_open = if !pending.replaces.is_empty() || pending.scope.wide {
            relay_limits.max_subscriptions as usize
        } else {
            max_open_sets(&pending.scope, relay_limits)
        };
        let freed: usize = pending.replaces.iter().filter_map(|key| self.sets.get(key)).map(|set| set.size.bytes).sum();
        let has_bytes = (self.bytes() + size.bytes).saturating_sub(freed) <= relay_limits.live_bytes;
        if self.open_count() >= max_open || !has_bytes {
            return self.merge_or_poll(ctx, session, limits, values_per_filter, is_followed);
        }
        let filters = live_filters(&pending.scope, ctx, limits, values_per_filter);
        let count = filters.len();
        let requests = pack_requests(filters, relay_limits);
        // A joined set may need more subscriptions than the one that it replaces.
        let max_requests = match &pending.own_scope {
            Some(_) => relay_limits.max_live_subscriptions as usize + self.replaced_count(&pending.replaces),
            None => max_open,
        };
        if count == 0 || self.open_count() + requests.len() > max_open.min(max_requests) {
            return self.merge_or_poll(ctx, session, limits, values_per_filter, is_followed);
        }
        if session.slot_count() + requests.len() > relay_limits.max_subscriptions as usize {
            // Historic requests, which end soon, occupy the slots.
            return None;
        }
        let PendingLiveSet { key, scope, batches, replaces, .. } = self.pending.pop_front()?;
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

    /// Handles the first queued live set if it does not fit: merges other live sets, ends one of descendants, adds its
    /// scope to an open live set, or polls its scope.
    fn merge_or_poll(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        limits: &RelayLimits,
        values_per_filter: usize,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> Option<Vec<BatchId>> {
        if self.is_merging() {
            return None;
        }
        let pending = self.pending.front()?;
        let is_merge = !pending.replaces.is_empty();
        let is_descendants = pending.scope.is_descendants();
        let is_empty = !pending.scope.has_filters(ctx.repo_index);
        if !is_empty && !is_merge {
            if self.merge(ctx, session, limits.current(), is_descendants, is_followed) {
                return Some(Vec::new());
            }
            let max_bytes = limits.current().req_bytes;
            if !is_descendants
                && (self.end_descendants(ctx, session, max_bytes) || self.join(ctx, limits, values_per_filter))
            {
                return Some(Vec::new());
            }
        }
        let pending = self.pending.pop_front()?;
        // If a merged set does not fit, trying again would not help.
        self.cannot_merge |= is_merge && pending.own_scope.is_none();
        if !is_empty && !pending.batches.is_empty() {
            let scope = pending.own_scope.unwrap_or(pending.scope);
            self.poll_scope(ctx, scope, limits.current().req_bytes);
        }
        Some(pending.batches)
    }

    /// Polls a scope for which there is no live subscription. `max_bytes` bounds the filters of one polled scope of
    /// descendants.
    fn poll_scope(&mut self, ctx: &SyncContext<'_>, scope: SyncScope, max_bytes: usize) {
        let polled = PolledScope { scope, requested_at: ctx.now.wall };
        if polled.scope.is_descendants() {
            self.descendants.add(ctx, polled, max_bytes);
        } else {
            self.polled.push_back(polled);
            self.poll_at.get_or_insert(ctx.now.mono.plus_secs(limits::SYNC_POLL_INTERVAL_SECS));
        }
    }

    /// Closes a live set of descendants, which are polled from now on, to make space for the other layers. Returns
    /// `false` if there is none.
    fn end_descendants(&mut self, ctx: &mut SyncContext<'_>, session: &mut Session, max_bytes: usize) -> bool {
        let can_end = |set: &LiveSet| set.scope.is_descendants() && set.awaiting_eose.is_empty();
        let Some((key, set)) = self.sets.iter().rev().find(|(_, set)| can_end(set)) else { return false };
        let (key, scope) = (*key, set.scope.clone());
        self.close(ctx, session, key);
        self.poll_scope(ctx, scope, max_bytes);
        true
    }

    /// Adds the scope of the first queued live set to an open one, so that both share its subscriptions. The new set
    /// replaces the open one when it is confirmed. Returns `false` if there is none with enough space.
    fn join(&mut self, ctx: &mut SyncContext<'_>, limits: &RelayLimits, values_per_filter: usize) -> bool {
        let relay_limits = limits.current();
        let has_free_slot = self.open_count() < relay_limits.max_subscriptions as usize;
        let Some(pending) = self.pending.front() else { return false };
        if !has_free_slot || self.wide.is_some() {
            return false;
        }
        let mut sets: Vec<_> = self
            .sets
            .iter()
            .filter(|(_, set)| set.awaiting_eose.is_empty() && !set.scope.is_descendants())
            .map(|(key, set)| (set.size.bytes, *key))
            .collect();
        sets.sort_unstable();
        let pending_size = pending.scope.size(ctx.repo_index);
        let joined = sets.into_iter().map(|(_, key)| key).find(|key| {
            let Some(set) = self.sets.get(key) else { return false };
            // An estimate, because filters are built only to be sent: there may be many other live sets. All of it fits
            // into one message, so that the number of requests follows from that of the filters.
            let size = pending_size.plus(set.size);
            let layer_one = if set.scope.announcements.is_some() { limits::LAYER_ONE_FILTERS } else { 0 };
            let filters = size.filters(values_per_filter) + layer_one;
            let requests = filters.div_ceil(relay_limits.max_filters.max(1) as usize);
            size.bytes + filters * FILTER_OVERHEAD_BYTES <= relay_limits.req_bytes
                && self.open_count() - set.subscriptions.len() + requests
                    <= relay_limits.max_live_subscriptions as usize
                && self.open_count() + requests <= relay_limits.max_subscriptions as usize
                && self.bytes() + pending_size.bytes <= relay_limits.live_bytes
        });
        let Some((key, set)) = joined.and_then(|key| Some((key, self.sets.get(&key)?))) else { return false };
        let mut scope = pending.scope.clone();
        scope.merge(&set.scope);
        if let Some(pending) = self.pending.front_mut() {
            pending.own_scope = Some(std::mem::replace(&mut pending.scope, scope));
            pending.replaces.push(key);
        }
        true
    }

    /// Whether a live set waits to replace others.
    fn is_merging(&self) -> bool {
        self.sets.values().any(|set| !set.replaces.is_empty())
    }

    /// Merges the smallest live sets into one, if at least two fit: those of descendants, or the other ones. The merged
    /// set is opened in the reserved slots, and the old ones are closed when it is confirmed, so that no event is missed
    /// in between.
    fn merge(
        &mut self,
        ctx: &mut SyncContext<'_>,
        session: &mut Session,
        relay_limits: &ConnectionLimits,
        is_descendants: bool,
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
            .filter(|(_, set)| set.scope.is_descendants() == is_descendants)
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
        self.pending.push_front(PendingLiveSet { key, scope, batches: Vec::new(), replaces: merged, own_scope: None });
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
            && (self.merge(ctx, session, relay_limits, false, &is_followed)
                || self.merge(ctx, session, relay_limits, true, &is_followed))
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
            self.pending.push_front(PendingLiveSet { key, scope, batches, replaces, own_scope: None });
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
        let order = |set: &LiveSet| (!set.scope.is_descendants(), set.size.bytes);
        let smallest = self.sets.iter().filter(|(_, set)| can_close(set)).min_by_key(|(_, set)| order(set));
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
        let open_count = self.open_count();
        let can_follow = |scope: &SyncScope| open_count < max_open_sets(scope, relay_limits);
        if let Some(due) = self.descendants.next(ctx, max_values(relay_limits), can_follow, &is_followed) {
            return Some(due);
        }
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
        Some(DuePoll { scope, requested_at, has_free_slot, filter: None })
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
        sets.chain([self.poll_at, self.descendants.next_at].into_iter().flatten().filter(move |at| *at > now))
    }

    /// Returns the earliest time since which polled scopes have not been requested.
    pub(super) fn missed_since(&self, overlap_secs: u64) -> Option<Timestamp> {
        let polled = self.polled.iter().chain(&self.descendants.scopes);
        polled.map(|polled| Timestamp(polled.requested_at.0.saturating_sub(overlap_secs))).min()
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

    /// Whether an event matches the filters of a live set; of any, if `key` is `None`.
    pub(super) fn matches(&self, key: Option<LiveSetId>, repo_index: &RepoSyncIndex, event: &Event) -> bool {
        match key {
            Some(key) => self.sets.get(&key).is_some_and(|set| set.scope.matches(repo_index, event)),
            None => self.sets.values().any(|set| set.scope.matches(repo_index, event)),
        }
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
        self.polled.len() + self.descendants.scopes.len()
    }

    /// Returns the bytes of all filters.
    pub(super) fn bytes(&self) -> usize {
        self.sets.values().map(|set| set.size.bytes).sum()
    }

    /// Returns the number of subscriptions of some live sets.
    fn replaced_count(&self, keys: &[LiveSetId]) -> usize {
        keys.iter().filter_map(|key| self.sets.get(key)).map(|set| set.subscriptions.len()).sum()
    }

    /// Returns the number of subscriptions.
    fn open_count(&self) -> usize {
        self.sets.values().map(|set| set.subscriptions.len()).sum()
    }
}

/// Returns how many live subscriptions may be open if one for this scope is among them.
fn max_open_sets(scope: &SyncScope, relay_limits: &ConnectionLimits) -> usize {
    let max_live = relay_limits.max_live_subscriptions as usize;
    if scope.is_descendants() {
        max_live.saturating_sub(limits::LIVE_SUBSCRIPTIONS_BESIDE_DESCENDANTS)
    } else {
        max_live
    }
}

/// Returns the filters of a scope in the form for live subscriptions.
fn live_filters(
    scope: &SyncScope,
    ctx: &SyncContext<'_>,
    limits: &RelayLimits,
    values_per_filter: usize,
) -> Vec<Filter> {
    let filters = scope.filters(ctx.repo_index, values_per_filter).into_iter();
    filters.map(|filter| live_form(filter, limits.live_form(), ctx.now.wall)).collect()
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
mod tests;
