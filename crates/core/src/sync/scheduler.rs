//! What a connection does next: live subscriptions first, then requests of batches, then new batches.

use std::collections::BTreeSet;

use super::batch::{Ask, BatchId, Doing, End, Job, JobId, Origin, Stage};
use super::fault_injection::Flaw;
use super::filters::{ID_BYTES, Portion, is_states};
use super::io::{Output, Say, SubId};
use super::live::requests;
use super::pagination::Pages;
use super::relay::{AuthState, Link, Resume, State, Sub, Up, What};
use super::relay_limits::Budget;
use super::{Ctx, limits};
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

impl Link {
    /// Does whatever can be done now.
    pub(super) fn drive(&mut self, ctx: &mut Ctx<'_>) {
        let Some(up) = self.up_mut() else { return };
        up.said = 0;
        // Each turn says something or ends something, of which there is only so much; the bound is for a mistake of ours.
        for _ in 0..limits::SYNC_STEPS {
            self.free_slots(ctx);
            if self.may_speak(ctx) && self.start(ctx) {
                continue;
            }
            if !self.settle(ctx) {
                return;
            }
        }
    }

    pub(super) fn may_speak(&self, ctx: &Ctx<'_>) -> bool {
        let Some(up) = self.up() else { return false };
        let waiting = matches!(up.auth.state, AuthState::Wanted(_) | AuthState::Sent(_));
        !up.leaving
            && !self.is_quiet(ctx.now)
            && !waiting
            && up.unsent + up.said < limits::SYNC_MAX_UNSENT
            && up.hold_until <= ctx.now.mono
    }

    pub(super) fn free_slots(&mut self, ctx: &Ctx<'_>) {
        if let Some(up) = self.up_mut() {
            up.subs.retain(|_, sub| !matches!(sub.what, What::Closing(until) if until <= ctx.now.mono));
        }
    }

    /// Begins one thing. `false` if nothing can begin.
    pub(super) fn start(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.widen(ctx) || self.open_live(ctx) || self.start_ask(ctx) || self.next_batch(ctx) || self.consolidate(ctx)
    }

    pub(super) fn consolidate(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.is_scattered() && self.merge(ctx)
    }

    /// Begins the next request of a batch.
    pub(super) fn start_ask(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let State::Up(up) = &mut self.state else { return false };
        let reserve = if ctx.flawed(Flaw::ReserveIgnored) { 0 } else { up.budget.reserve as usize };
        let waiting = up.jobs.values().filter(|job| job.sub.is_none()).count();
        let free = (up.budget.slots as usize).saturating_sub(reserve + up.subs.len() + waiting);
        let most = up.pace.min(up.budget.transient) as usize;
        if free == 0 || up.jobs.len() >= most {
            return false;
        }
        let comparing = up.jobs.values().filter(|job| job.is_comparing()).count();
        let may_compare = comparing < up.budget.negs as usize && *ctx.negs < limits::SYNC_NEGS;
        let mut starved = false;
        let found = up.batches.iter_mut().find_map(|(id, batch)| {
            if batch.stage != Stage::History || (batch.is_serial() && (batch.jobs > 0 || batch.unjudged > 0)) {
                return None;
            }
            match batch.todo.front() {
                Some(Ask::Compare(_)) if !may_compare => {
                    starved |= *ctx.negs >= limits::SYNC_NEGS;
                    None
                }
                Some(_) => batch.todo.pop_front().map(|ask| (*id, ask)),
                None => None,
            }
        });
        if starved {
            ctx.starved.insert(self.id);
        }
        let Some((batch, ask)) = found else { return false };
        self.begin(ctx, batch, ask);
        true
    }

    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>, batch_id: BatchId, ask: Ask) {
        let negentropy = self.speaks_negentropy(ctx.now, ctx.config.negentropy);
        let overlap = self.overlap();
        let State::Up(up) = &mut self.state else { return };
        let Some(batch) = up.batches.get_mut(&batch_id) else { return };
        let id = JobId(ctx.next());
        let limit = up.budget.page as usize;
        let deadline = Some(ctx.now.mono.plus_secs(limits::SYNC_PROGRESS_SECS));
        let (doing, request, deadline) = match ask {
            Ask::Group(filters) => {
                let first = filters.iter().map(|filter| Filter { limit: Some(limit), ..filter.clone() }).collect();
                (Doing::Group(filters, 0), Some(first), deadline)
            }
            Ask::Page(mut pages) => {
                let key = plain(&pages.request());
                let resume = self
                    .resume
                    .remove(&key)
                    .filter(|old| ctx.now.mono.since(old.at).as_secs() < limits::SYNC_QUICK_SECS);
                if let Some(Resume { until, began, .. }) = resume
                    && pages.cursor().is_none()
                {
                    // What came since then stands above where the pages go on.
                    let since = Some(Timestamp(began.0.saturating_sub(overlap)).max(key.since.unwrap_or_default()));
                    batch.todo.push_back(page(Filter { since, ..key.clone() }, up.budget.page));
                    pages = Box::new(Pages::new(key, limit, Some(until)));
                }
                let filters = vec![pages.request()];
                (Doing::Page(pages), Some(filters), deadline)
            }
            Ask::Compare(filter) if !negentropy => {
                if is_one_second(&filter) {
                    self.overfull = true;
                } else {
                    batch.blank.push(filter);
                }
                return regroup(up, batch_id);
            }
            Ask::Compare(filter) => {
                let ask = ctx.ask(self.id, id);
                ctx.out.push_back(Output::AskIds(ask, filter.clone()));
                *ctx.negs += 1;
                (Doing::Comparing(filter), None, None)
            }
            Ask::Fetch(mut ids, round) => {
                // A relay cuts the answer to ids as it cuts a page.
                let most = (up.budget.filter_bytes / ID_BYTES).min(limit).clamp(1, limits::SYNC_FETCH_IDS);
                let left = ids.split_off(ids.len().min(most));
                let filter = Filter { ids: Some(ids.clone()), ..Filter::default() };
                let asked: BTreeSet<EventId> = ids.into_iter().collect();
                let count = asked.len();
                (Doing::Fetching { asked, count, left, round }, Some(vec![filter]), deadline)
            }
        };
        batch.jobs += 1;
        let sub = request.map(|filters| {
            let sub = ctx.sub();
            up.subs.insert(sub, Sub { what: What::Job(id), answered: false });
            ctx.say(up, Say::Req(sub, filters));
            sub
        });
        let end = End::Awaited;
        up.jobs.insert(id, Job { batch: batch_id, sub, doing, began: ctx.now.mono, deadline, end });
    }

    /// History of a batch may begin: its live subscription stands, or has no place.
    pub(super) fn begin_history(&mut self, ctx: &mut Ctx<'_>, id: BatchId) {
        let compare = self.speaks_negentropy(ctx.now, ctx.config.negentropy);
        let portion = self.portion(ctx);
        let State::Up(up) = &mut self.state else { return };
        let Some(batch) = up.batches.get_mut(&id) else { return };
        batch.stage = Stage::History;
        let since = batch.since;
        let with = |filter: Filter| Filter { since, ..filter };
        let filters: Vec<Filter> = batch.scope.filters(ctx.wants, portion.values).into_iter().map(with).collect();
        // What was never asked for is mostly not here, and what `since` brings is little: a page says it all. Otherwise the
        // two sides have nearly the same, and are compared.
        let whole = since.is_none() && matches!(batch.origin, Origin::Announcements | Origin::Pass | Origin::Again(_));
        let fresh = since.is_none() && batch.origin == Origin::New && batch.in_generation;
        if batch.is_serial() {
            // One after the other; what is not here is paged. Which of the states here a relay has is not remembered over
            // restarts.
            for filter in filters {
                batch.todo.push_back(if compare && whole {
                    Ask::Compare(filter)
                } else if compare && !self.stated && is_states(&filter) {
                    Ask::Compare(Filter { since: None, ..filter })
                } else {
                    page(filter, up.budget.page)
                });
            }
        } else if compare && (whole || fresh) {
            batch.todo.extend(filters.into_iter().map(Ask::Compare));
        } else {
            let groups = requests(filters, up.budget.filters as usize, up.budget.req_bytes);
            batch.todo.extend(groups.into_iter().map(Ask::Group));
        }
    }

    /// How large a batch may be.
    pub(super) fn portion(&self, ctx: &Ctx<'_>) -> Portion {
        let budget = self.up().map_or_else(|| Budget::of(None, &self.learned), |up| up.budget);
        Portion::of(&budget, ctx.config.values_per_filter, self.whole)
    }
}

impl Up {
    /// Ends a request of ours. Its slot is free at once if the relay had already ended it.
    pub(super) fn close(&mut self, ctx: &mut Ctx<'_>, id: SubId, negentropy: bool) {
        let Some(sub) = self.subs.get_mut(&id) else { return };
        let say = if negentropy { Say::NegClose(id) } else { Say::Close(id) };
        if sub.answered {
            self.subs.remove(&id);
        } else {
            sub.what = What::Closing(ctx.now.mono.plus_secs(limits::SYNC_CLOSING_SECS));
        }
        ctx.say(self, say);
    }
}

/// Filters of which nothing is here share requests.
pub(super) fn regroup(up: &mut Up, id: BatchId) {
    let (filters, bytes) = (up.budget.filters as usize, up.budget.req_bytes);
    let page = up.budget.page as usize;
    let Some(batch) = up.batches.get_mut(&id) else { return };
    let waiting = batch.todo.iter().any(|ask| matches!(ask, Ask::Compare(_)));
    if batch.is_serial() {
        let blank = std::mem::take(&mut batch.blank);
        for filter in blank.into_iter().rev() {
            batch.todo.push_front(Ask::Page(Box::new(Pages::new(filter, page, None))));
        }
    } else if !waiting {
        let blank = std::mem::take(&mut batch.blank);
        batch.todo.extend(requests(blank, filters, bytes).into_iter().map(Ask::Group));
    }
}

/// Whether a filter is about a single second: pages could not bring all of it, so it is compared or given up.
pub(super) fn is_one_second(filter: &Filter) -> bool {
    filter.since.is_some() && filter.since == filter.until
}

/// What is asked instead of a comparison that has failed: pages, except of a single second.
pub(super) fn instead(filter: Filter, limit: u32, overfull: &mut bool) -> Option<Ask> {
    let second = is_one_second(&filter);
    *overfull |= second;
    (!second).then(|| page(filter, limit))
}

/// Pages of a filter from the top.
pub(super) fn page(filter: Filter, limit: u32) -> Ask {
    Ask::Page(Box::new(Pages::new(filter, limit as usize, None)))
}

/// A filter without where its pages stand.
pub(super) fn plain(filter: &Filter) -> Filter {
    Filter { until: None, limit: None, ..filter.clone() }
}
