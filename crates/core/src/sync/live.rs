//! Live sync: opening, merging and closing live subscriptions, and polling of scopes for which none is free.

use std::collections::BTreeSet;

use super::batch::{BatchId, BatchPhase};
use super::filters::{BatchCapacity, FilterSize, ID_BYTES, SyncScope, json_len};
use super::io::{OutgoingMessage, SubscriptionId};
use super::relay::{Connection, ConnectionState, OpenSubscription, RelayState, SubscriptionPurpose};
use super::relay_record::LiveFilterForm;
use super::{SyncContext, limits};
use crate::nostr::filter::Filter;
use crate::time::{MonoTime, Timestamp};

/// Id of a live set. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LiveSetId(pub(super) u64);

/// Live subscriptions of one scope. More than one if the relay accepts few filters per request.
#[derive(Debug)]
pub(super) struct LiveSet {
    pub(super) scope: SyncScope,
    pub(super) size: FilterSize,
    pub(super) subscriptions: BTreeSet<SubscriptionId>,
    /// Subscriptions whose EOSE has not arrived.
    pub(super) awaiting_eose: BTreeSet<SubscriptionId>,
    pub(super) deadline: MonoTime,
    /// Whether EOSE did not arrive in time. It is unknown whether the relay follows the set.
    pub(super) timed_out: bool,
    /// Number of filters.
    pub(super) filters: usize,
    /// Batches that wait for its confirmation.
    pub(super) batches: Vec<BatchId>,
    /// Live sets that it replaces. They are closed when it is confirmed.
    pub(super) replaces: Vec<LiveSetId>,
}

/// A live set that is still to be opened.
#[derive(Debug)]
pub(super) struct PendingLiveSet {
    pub(super) key: LiveSetId,
    pub(super) scope: SyncScope,
    pub(super) batches: Vec<BatchId>,
    pub(super) replaces: Vec<LiveSetId>,
}

/// A scope without a free live subscription, which is requested periodically instead.
#[derive(Clone, Debug)]
pub(super) struct PolledScope {
    pub(super) scope: SyncScope,
    /// When it was last requested.
    pub(super) requested_at: Timestamp,
}

impl RelayState {
    /// Queues a live set to be opened.
    pub(super) fn queue_live_set(
        &mut self,
        ctx: &mut SyncContext<'_>,
        scope: SyncScope,
        batch: Option<BatchId>,
        replaces: Vec<LiveSetId>,
    ) -> LiveSetId {
        let key = LiveSetId(ctx.new_id());
        if let Some(connection) = self.connection_mut() {
            connection.pending_live_sets.push_back(PendingLiveSet {
                key,
                scope,
                batches: batch.into_iter().collect(),
                replaces,
            });
        }
        key
    }

    /// Opens the first queued live set. Returns `false` if nothing can be done now.
    pub(super) fn open_next_live_set(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let form = self.learned.live_form;
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(pending) = connection.pending_live_sets.front() else { return false };
        let size = pending.scope.size(ctx.repo_index);
        let capacity = BatchCapacity::new(&connection.relay_limits, ctx.config.values_per_filter, self.total_size);
        let filters = pending.scope.filters(ctx.repo_index, capacity.values);
        let filters: Vec<Filter> = filters.into_iter().map(|filter| live_form(filter, form, ctx.now.wall)).collect();
        let count = filters.len();
        let requests =
            pack_requests(filters, connection.relay_limits.max_filters as usize, connection.relay_limits.req_bytes);
        let is_replacing = !pending.replaces.is_empty();
        let open = connection.live.values().map(|set| set.subscriptions.len()).sum::<usize>();
        let max_open = if is_replacing || pending.scope.wide {
            connection.relay_limits.max_subscriptions
        } else {
            connection.relay_limits.max_live_subscriptions
        } as usize;
        let bytes: usize = connection.live.values().map(|set| set.size.bytes).sum();
        let freed: usize =
            pending.replaces.iter().filter_map(|key| connection.live.get(key)).map(|set| set.size.bytes).sum();
        let fits = open + requests.len() <= max_open
            && (bytes + size.bytes).saturating_sub(freed) <= connection.relay_limits.live_bytes;
        if count == 0 || !fits {
            return self.merge_or_poll(ctx, count == 0);
        }
        if connection.subscriptions.len() + requests.len() > connection.relay_limits.max_subscriptions as usize {
            // Historic requests, which end soon, occupy the slots.
            return false;
        }
        let Some(pending) = connection.pending_live_sets.pop_front() else { return false };
        let mut set = LiveSet {
            scope: pending.scope,
            size,
            subscriptions: BTreeSet::new(),
            awaiting_eose: BTreeSet::new(),
            deadline: ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS),
            timed_out: false,
            filters: count,
            batches: pending.batches,
            replaces: pending.replaces,
        };
        for filters in requests {
            let sub = ctx.next_subscription_id();
            connection
                .subscriptions
                .insert(sub, OpenSubscription { purpose: SubscriptionPurpose::Live(pending.key), is_answered: false });
            set.subscriptions.insert(sub);
            set.awaiting_eose.insert(sub);
            ctx.send(connection, OutgoingMessage::Req(sub, filters));
        }
        connection.live.insert(pending.key, set);
        true
    }

    /// Handles the first queued live set if it does not fit: merges other live sets, or polls its scope.
    fn merge_or_poll(&mut self, ctx: &mut SyncContext<'_>, is_empty: bool) -> bool {
        let is_merging =
            self.connection().is_some_and(|connection| connection.live.values().any(|set| !set.replaces.is_empty()));
        if is_merging {
            return false;
        }
        let is_merge = self
            .connection()
            .and_then(|connection| connection.pending_live_sets.front())
            .is_some_and(|pending| !pending.replaces.is_empty());
        if !is_empty && !is_merge && self.merge_live_sets(ctx) {
            return true;
        }
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(pending) = connection.pending_live_sets.pop_front() else { return false };
        // If a merged set does not fit, trying again would not help.
        connection.cannot_merge |= !pending.replaces.is_empty();
        for batch in &pending.batches {
            if let Some(batch) = connection.batches.get_mut(batch) {
                batch.phase = BatchPhase::Historic;
            }
        }
        let batches = pending.batches.clone();
        if !is_empty && pending.replaces.is_empty() {
            connection.polled.push_back(PolledScope { scope: pending.scope, requested_at: ctx.now.wall });
            connection.poll_at.get_or_insert(ctx.now.mono.plus_secs(limits::SYNC_POLL_INTERVAL_SECS));
        }
        for batch in batches {
            self.start_historic_requests(ctx, batch);
        }
        true
    }

    /// Handles the confirmation of a live set, or its timeout: closes what it replaces and starts historic requests.
    pub(super) fn on_live_confirmed(&mut self, ctx: &mut SyncContext<'_>, key: LiveSetId) {
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(set) = connection.live.get_mut(&key) else { return };
        let batches = std::mem::take(&mut set.batches);
        for old in std::mem::take(&mut set.replaces) {
            close_live_set(connection, ctx, old);
        }
        for batch in batches {
            self.start_historic_requests(ctx, batch);
        }
    }

    /// Merges the smallest live sets into one, if at least two fit. The merged set is opened in the reserved slots, and
    /// the old ones are closed when it is confirmed, so that no event is missed in between.
    pub(super) fn merge_live_sets(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let free_slots = (connection.relay_limits.max_subscriptions as usize)
            .saturating_sub(connection.live.values().map(|set| set.subscriptions.len()).sum());
        if free_slots == 0
            || connection.cannot_merge
            || connection.wide.is_some()
            || connection.live.values().any(|set| !set.replaces.is_empty())
        {
            return false;
        }
        let capacity = BatchCapacity {
            values: (connection.relay_limits.filter_bytes / ID_BYTES).max(1),
            bytes: connection.relay_limits.req_bytes.saturating_sub(512),
        };
        let mut sets: Vec<_> = connection
            .live
            .iter()
            .filter(|(_, set)| set.awaiting_eose.is_empty() && set.scope.announcements.is_none())
            .map(|(key, set)| (set.size.bytes, *key))
            .collect();
        sets.sort_unstable();
        let mut scope = SyncScope::default();
        let mut size = FilterSize::default();
        let mut merged = Vec::new();
        for (_, key) in sets {
            let Some(set) = connection.live.get(&key) else { continue };
            let sum = size.plus(set.size);
            let fits = sum.bytes <= capacity.bytes && sum.roots <= capacity.values && sum.repos <= capacity.values;
            if !fits {
                break;
            }
            size = sum;
            scope.merge(&set.scope);
            merged.push(key);
        }
        let is_followed = |repo| self.coverage.contains_key(&repo);
        scope.retain(is_followed);
        if merged.len() < 2 || (scope.is_empty() && merged.is_empty()) {
            return false;
        }
        if scope.is_empty() {
            for key in merged {
                close_live_set(connection, ctx, key);
            }
            return true;
        }
        let key = LiveSetId(ctx.new_id());
        connection.pending_live_sets.push_front(PendingLiveSet { key, scope, batches: Vec::new(), replaces: merged });
        true
    }

    /// Whether the live sets have many more filters than the same scopes would need in one set.
    pub(super) fn needs_consolidation(&self) -> bool {
        let Some(connection) = self.connection() else { return false };
        let filters: usize = connection.live.values().map(|set| set.filters).sum();
        if filters <= limits::CONSOLIDATION_SPARE_FILTERS {
            return false;
        }
        let size = connection.live.values().fold(FilterSize::default(), |sum, set| sum.plus(set.size));
        filters
            > limits::CONSOLIDATION_SPARE_FILTERS
                + size.filters((connection.relay_limits.filter_bytes / ID_BYTES).max(1))
                + 1
    }

    /// Queues a live set without tags if the filters for all needs of a GRASP server would be too large.
    pub(super) fn open_wide_live_set(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let is_useful = self.is_grasp()
            && !self.learned.wide_disabled
            && self.total_size.bytes > limits::WIDE_SUBSCRIPTION_FILTER_BYTES;
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        if !is_useful || connection.wide.is_some() {
            return false;
        }
        let key = LiveSetId(ctx.new_id());
        connection.wide = Some(key);
        let mut batches = Vec::new();
        for pending in std::mem::take(&mut connection.pending_live_sets) {
            for batch in &pending.batches {
                if let Some(batch) = connection.batches.get_mut(batch) {
                    batch.phase = BatchPhase::AwaitingLive(key);
                }
            }
            batches.extend(pending.batches);
        }
        let replaces = connection.live.keys().copied().collect();
        connection.polled.clear();
        connection.poll_at = None;
        connection.pending_live_sets.push_back(PendingLiveSet { key, scope: SyncScope::wide(), batches, replaces });
        true
    }
}

/// Closes a live set.
pub(super) fn close_live_set(connection: &mut Connection, ctx: &mut SyncContext<'_>, key: LiveSetId) {
    let Some(set) = connection.live.remove(&key) else { return };
    connection.cannot_merge = false;
    for sub in set.subscriptions {
        connection.close(ctx, sub, false);
    }
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

/// Packs filters into requests with at most `max_filters` filters and `max_bytes` bytes each.
pub(super) fn pack_requests(filters: Vec<Filter>, max_filters: usize, max_bytes: usize) -> Vec<Vec<Filter>> {
    let mut requests: Vec<Vec<Filter>> = Vec::new();
    let mut size = 0;
    for filter in filters {
        let length = json_bytes(&filter);
        match requests.last_mut() {
            Some(last) if last.len() < max_filters.max(1) && size + length <= max_bytes => {
                size += length;
                last.push(filter);
            }
            _ => {
                size = length;
                requests.push(vec![filter]);
            }
        }
    }
    requests
}

/// Returns the approximate size of a filter as JSON.
pub(super) fn json_bytes(filter: &Filter) -> usize {
    let tags: usize = filter.tags.iter().flat_map(|(_, values)| values).map(|value| json_len(value)).sum();
    let ids = filter.ids.as_ref().map_or(0, Vec::len) + filter.authors.as_ref().map_or(0, Vec::len);
    80 + tags + ids * ID_BYTES
}
