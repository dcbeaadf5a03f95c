//! Live subscriptions: which are open, which are merged, what finds no place.

use std::collections::BTreeSet;

use super::batch::{BatchId, Stage};
use super::fault_injection::Flaw;
use super::filters::{ID_BYTES, Portion, Scope, Size, text_len};
use super::io::{Say, SubId};
use super::relay::{Link, State, Sub, Up, What};
use super::relay_record::LiveForm;
use super::{Ctx, limits};
use crate::nostr::filter::Filter;
use crate::time::{Moment, Timestamp};

/// Names one live set within a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LiveKey(pub(super) u64);

/// Live subscriptions that follow one scope. More than one where a relay takes few filters in a request.
#[derive(Debug)]
pub(super) struct LiveSet {
    pub(super) scope: Scope,
    pub(super) size: Size,
    pub(super) subs: BTreeSet<SubId>,
    /// Those that have not said EOSE.
    pub(super) unconfirmed: BTreeSet<SubId>,
    pub(super) deadline: Moment,
    /// The deadline has passed: nobody knows whether the relay has taken it.
    pub(super) doubtful: bool,
    /// How many filters it has.
    pub(super) filters: usize,
    /// Batches that wait for it.
    pub(super) batches: Vec<BatchId>,
    /// Sets that it stands for; they are closed when it is confirmed.
    pub(super) replaces: Vec<LiveKey>,
}

/// A live set that is to be opened.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) key: LiveKey,
    pub(super) scope: Scope,
    pub(super) batches: Vec<BatchId>,
    pub(super) replaces: Vec<LiveKey>,
}

/// What found no place: asked for in turn.
#[derive(Clone, Debug)]
pub(super) struct Polled {
    pub(super) scope: Scope,
    /// When it was last asked for.
    pub(super) asked: Timestamp,
}

impl Link {
    /// Wishes for a live set.
    pub(super) fn wish(
        &mut self,
        ctx: &mut Ctx<'_>,
        scope: Scope,
        batch: Option<BatchId>,
        replaces: Vec<LiveKey>,
    ) -> LiveKey {
        let key = LiveKey(ctx.next());
        if let Some(up) = self.up_mut() {
            up.wishes.push_back(Wish { key, scope, batches: batch.into_iter().collect(), replaces });
        }
        key
    }

    /// Opens the first live set that is wished for. `false` if nothing can be done now.
    pub(super) fn open_live(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let form = self.learned.live;
        let State::Up(up) = &mut self.state else { return false };
        let Some(wish) = up.wishes.front() else { return false };
        let size = wish.scope.size(ctx.wants);
        let portion = Portion::of(&up.budget, ctx.config.values_per_filter, self.whole);
        let filters = wish.scope.filters(ctx.wants, portion.values);
        let filters: Vec<Filter> = filters.into_iter().map(|filter| live_form(filter, form, ctx.now.wall)).collect();
        let count = filters.len();
        let requests = requests(filters, up.budget.filters as usize, up.budget.req_bytes);
        let replacing = !wish.replaces.is_empty();
        let taken = up.live.values().map(|set| set.subs.len()).sum::<usize>();
        let most = if replacing || wish.scope.wide { up.budget.slots } else { up.budget.live } as usize;
        let bytes: usize = up.live.values().map(|set| set.size.bytes).sum();
        let freed: usize = wish.replaces.iter().filter_map(|key| up.live.get(key)).map(|set| set.size.bytes).sum();
        let fits = taken + requests.len() <= most && (bytes + size.bytes).saturating_sub(freed) <= up.budget.live_bytes;
        if count == 0 || (!fits && !ctx.flawed(Flaw::BudgetIgnored)) {
            return self.displace(ctx, count == 0);
        }
        if up.subs.len() + requests.len() > up.budget.slots as usize && !ctx.flawed(Flaw::BudgetIgnored) {
            // The slots are there, but requests that end soon have them.
            return false;
        }
        let Some(wish) = up.wishes.pop_front() else { return false };
        let mut set = LiveSet {
            scope: wish.scope,
            size,
            subs: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            deadline: ctx.now.mono.plus_secs(limits::SYNC_EOSE_SECS),
            doubtful: false,
            filters: count,
            batches: wish.batches,
            replaces: wish.replaces,
        };
        for filters in requests {
            let sub = ctx.sub();
            up.subs.insert(sub, Sub { what: What::Live(wish.key), answered: false });
            set.subs.insert(sub);
            set.unconfirmed.insert(sub);
            ctx.say(up, Say::Req(sub, filters));
        }
        let impatient = ctx.flawed(Flaw::EoseNotAwaited);
        up.live.insert(wish.key, set);
        if impatient {
            self.live_confirmed(ctx, wish.key);
        }
        true
    }

    /// There is no place for the live set that is wished for: others are merged, or it is asked for in turn.
    fn displace(&mut self, ctx: &mut Ctx<'_>, empty: bool) -> bool {
        let merging = self.up().is_some_and(|up| up.live.values().any(|set| !set.replaces.is_empty()));
        if merging {
            return false;
        }
        let wish_merges = self.up().and_then(|up| up.wishes.front()).is_some_and(|wish| !wish.replaces.is_empty());
        if !empty && !wish_merges && self.merge(ctx) {
            return true;
        }
        let State::Up(up) = &mut self.state else { return false };
        let Some(wish) = up.wishes.pop_front() else { return false };
        // A merger that finds no place would find none if it were tried again.
        up.unmergeable |= !wish.replaces.is_empty();
        for batch in &wish.batches {
            if let Some(batch) = up.batches.get_mut(batch) {
                batch.stage = Stage::History;
            }
        }
        let batches = wish.batches.clone();
        if !empty && wish.replaces.is_empty() {
            up.polled.push_back(Polled { scope: wish.scope, asked: ctx.now.wall });
            up.poll_at.get_or_insert(ctx.now.mono.plus_secs(limits::SYNC_POLL_SECS));
        }
        for batch in batches {
            self.begin_history(ctx, batch);
        }
        true
    }

    /// A live subscription has sent what is stored, or will not: history may begin.
    pub(super) fn live_confirmed(&mut self, ctx: &mut Ctx<'_>, key: LiveKey) {
        let State::Up(up) = &mut self.state else { return };
        let Some(set) = up.live.get_mut(&key) else { return };
        let batches = std::mem::take(&mut set.batches);
        for old in std::mem::take(&mut set.replaces) {
            close_live(up, ctx, old);
        }
        for batch in batches {
            self.begin_history(ctx, batch);
        }
    }

    /// Merges the smallest live sets into one, if at least two fit. The new one is opened through the reserve and the old
    /// ones are closed when it is confirmed, so that nothing is missed between.
    pub(super) fn merge(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let State::Up(up) = &mut self.state else { return false };
        let spare = (up.budget.slots as usize).saturating_sub(up.live.values().map(|set| set.subs.len()).sum());
        if spare == 0 || up.unmergeable || up.wide.is_some() || up.live.values().any(|set| !set.replaces.is_empty()) {
            return false;
        }
        let packed = Portion {
            values: (up.budget.filter_bytes / ID_BYTES).max(1),
            bytes: up.budget.req_bytes.saturating_sub(512),
        };
        let mut sets: Vec<_> = up
            .live
            .iter()
            .filter(|(_, set)| set.unconfirmed.is_empty() && set.scope.announcements.is_none())
            .map(|(key, set)| (set.size.bytes, *key))
            .collect();
        sets.sort_unstable();
        let mut scope = Scope::default();
        let mut size = Size::default();
        let mut merged = Vec::new();
        for (_, key) in sets {
            let Some(set) = up.live.get(&key) else { continue };
            let sum = size.plus(set.size);
            let fits = sum.bytes <= packed.bytes && sum.roots <= packed.values && sum.repos <= packed.values;
            if !fits {
                break;
            }
            size = sum;
            scope.join(&set.scope);
            merged.push(key);
        }
        let wanted = |repo| self.covers.contains_key(&repo);
        scope.retain(wanted);
        if merged.len() < 2 || (scope.is_empty() && merged.is_empty()) {
            return false;
        }
        if scope.is_empty() {
            for key in merged {
                close_live(up, ctx, key);
            }
            return true;
        }
        let key = LiveKey(ctx.next());
        up.wishes.push_front(Wish { key, scope, batches: Vec::new(), replaces: merged });
        true
    }

    /// Consolidation: whether there are many more filters than the same scopes would need if they were packed.
    pub(super) fn is_scattered(&self) -> bool {
        let Some(up) = self.up() else { return false };
        let filters: usize = up.live.values().map(|set| set.filters).sum();
        if filters <= limits::SYNC_SPARE_FILTERS {
            return false;
        }
        let size = up.live.values().fold(Size::default(), |sum, set| sum.plus(set.size));
        filters > limits::SYNC_SPARE_FILTERS + size.filters((up.budget.filter_bytes / ID_BYTES).max(1)) + 1
    }

    /// Follows everything without tags where that is less than the list of all that is followed.
    pub(super) fn widen(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let wanted = self.is_grasp() && !self.learned.not_wide && self.whole.bytes > limits::SYNC_WIDE_BYTES;
        let State::Up(up) = &mut self.state else { return false };
        if !wanted || up.wide.is_some() {
            return false;
        }
        let key = LiveKey(ctx.next());
        up.wide = Some(key);
        let mut batches = Vec::new();
        for wish in std::mem::take(&mut up.wishes) {
            for batch in &wish.batches {
                if let Some(batch) = up.batches.get_mut(batch) {
                    batch.stage = Stage::Live(key);
                }
            }
            batches.extend(wish.batches);
        }
        let replaces = up.live.keys().copied().collect();
        up.polled.clear();
        up.poll_at = None;
        up.wishes.push_back(Wish { key, scope: Scope::wide(), batches, replaces });
        true
    }
}

/// Closes a live set.
pub(super) fn close_live(up: &mut Up, ctx: &mut Ctx<'_>, key: LiveKey) {
    let Some(set) = up.live.remove(&key) else { return };
    up.unmergeable = false;
    for sub in set.subs {
        up.close(ctx, sub, false);
    }
}

/// How a filter is asked for live (rule M3).
fn live_form(mut filter: Filter, form: LiveForm, now: Timestamp) -> Filter {
    match form {
        LiveForm::Zero => filter.limit = Some(0),
        LiveForm::One => filter.limit = Some(1),
        LiveForm::Since => filter.since = Some(Timestamp(now.0.saturating_sub(limits::SYNC_OVERLAP_GRASP_SECS))),
    }
    filter
}

/// Puts filters into requests of at most so many and so many bytes.
pub(super) fn requests(filters: Vec<Filter>, most: usize, bytes: usize) -> Vec<Vec<Filter>> {
    let mut requests: Vec<Vec<Filter>> = Vec::new();
    let mut size = 0;
    for filter in filters {
        let length = text_bytes(&filter);
        match requests.last_mut() {
            Some(last) if last.len() < most.max(1) && size + length <= bytes => {
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

/// About how many bytes a filter takes as text.
pub(super) fn text_bytes(filter: &Filter) -> usize {
    let tags: usize = filter.tags.iter().flat_map(|(_, values)| values).map(|value| text_len(value)).sum();
    let ids = filter.ids.as_ref().map_or(0, Vec::len) + filter.authors.as_ref().map_or(0, Vec::len);
    80 + tags + ids * ID_BYTES
}
