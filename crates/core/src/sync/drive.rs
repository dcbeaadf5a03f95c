//! What a connection does next: live subscriptions first, then history, then new batches. (`compute_actions` of earlier
//! designs: what is wished, less what is pending, less what is had.)

use std::collections::BTreeSet;

use super::batch::{Ask, Batch, BatchId, Doing, Job, JobId, Origin, Stage};
use super::chunk::{Gatherer, Names, Portion, Scope};
use super::flaw::Flaw;
use super::io::{Note, Output, Say, SubId, Via};
use super::link::{AuthState, Generation, Link, Owed, Pass, Resume, State, Step, Sub, Up, What};
use super::live::{Polled, requests};
use super::page::Pages;
use super::terms::Budget;
use super::wants::RepoKey;
use super::{Ctx, limits};
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::{Moment, Timestamp};

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

    fn may_speak(&self, ctx: &Ctx<'_>) -> bool {
        let Some(up) = self.up() else { return false };
        let waiting = matches!(up.auth.state, AuthState::Wanted(_) | AuthState::Sent(_));
        !up.leaving
            && !self.is_quiet(ctx.now)
            && !waiting
            && up.unsent + up.said < limits::SYNC_MAX_UNSENT
            && up.hold_until <= ctx.now.mono
    }

    fn free_slots(&mut self, ctx: &Ctx<'_>) {
        if let Some(up) = self.up_mut() {
            up.subs.retain(|_, sub| !matches!(sub.what, What::Closing(until) if until <= ctx.now.mono));
        }
    }

    /// Begins one thing. `false` if nothing can begin.
    fn start(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.widen(ctx) || self.open_live(ctx) || self.start_ask(ctx) || self.next_batch(ctx) || self.consolidate(ctx)
    }

    fn consolidate(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.is_scattered() && self.merge(ctx)
    }

    /// Begins the next request of a batch.
    fn start_ask(&mut self, ctx: &mut Ctx<'_>) -> bool {
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

    fn begin(&mut self, ctx: &mut Ctx<'_>, batch_id: BatchId, ask: Ask) {
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
                batch.blank.push(filter);
                return regroup(up, batch_id);
            }
            Ask::Compare(filter) => {
                let ask = ctx.ask(self.id, id);
                ctx.out.push_back(Output::AskIds(ask, filter.clone()));
                *ctx.negs += 1;
                (Doing::Comparing(filter), None, None)
            }
            Ask::Fetch(mut ids, round) => {
                let most = (up.budget.filter_bytes / 67).clamp(1, limits::SYNC_FETCH_IDS);
                let left = ids.split_off(ids.len().min(most));
                let filter = Filter { ids: Some(ids.clone()), ..Filter::default() };
                let asked = ids.into_iter().collect();
                (Doing::Fetching { asked, left, round }, Some(vec![filter]), deadline)
            }
        };
        batch.jobs += 1;
        let sub = request.map(|filters| {
            let sub = ctx.sub();
            up.subs.insert(sub, Sub { what: What::Job(id), answered: false });
            ctx.say(up, Say::Req(sub, filters));
            sub
        });
        up.jobs.insert(id, Job { batch: batch_id, sub, doing, began: ctx.now.mono, deadline });
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
            // One after the other; what is not here is paged.
            for filter in filters {
                batch.todo.push_back(if compare && whole {
                    Ask::Compare(filter)
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

    /// Makes the next batch. `false` if there is none, or enough are under way.
    fn next_batch(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some(up) = self.up() else { return false };
        let asking = up.batches.values().filter(|batch| batch.is_asking()).count();
        if asking >= limits::SYNC_BATCHES || up.layer_one == Step::Running {
            return false;
        }
        // A relay that only waiting repositories named may have others now.
        if up.layer_one == Step::Todo || up.named.as_ref() != Some(&self.names(ctx)) {
            return self.start_layer_one(ctx);
        }
        self.fetch_woken(ctx) || self.again(ctx) || self.pass_on(ctx) || self.cover_new(ctx) || self.poll(ctx)
    }

    fn start_layer_one(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let since = self.since.filter(|_| self.announced || ctx.flawed(Flaw::SinceBeforeComplete));
        let names = self.names(ctx);
        let State::Up(up) = &mut self.state else { return false };
        let again = up.named.replace(names.clone()).is_some();
        if up.wide.is_some() && (since.is_some() || again) {
            // The pass without tags has announcements, too.
            up.layer_one = Step::Done;
            return true;
        }
        up.layer_one = Step::Running;
        let mut batch = Batch::new(Scope::announcements(names), Origin::Announcements, Via::CatchUp, ctx.now.wall);
        batch.since = since;
        self.add(ctx, batch, true);
        true
    }

    /// Whose announcements are asked for here.
    pub(super) fn names(&self, ctx: &Ctx<'_>) -> Names {
        if self.bootstrap || !self.covers.is_empty() || ctx.flawed(Flaw::HeldSyncedInFull) {
            return Names::All;
        }
        let names = self.held.iter().filter_map(|key| ctx.wants.repo(*key)).map(|repo| repo.id.identifier.clone());
        Names::These(names.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Puts a batch to work, behind its live subscription if it needs one.
    fn add(&mut self, ctx: &mut Ctx<'_>, mut batch: Batch, live: bool) {
        let id = BatchId(ctx.next());
        let State::Up(up) = &mut self.state else { return };
        batch.in_generation = up.generation.is_some();
        let wide = up.wide;
        let confirmed = wide.and_then(|key| up.live.get(&key)).is_some_and(|set| set.unconfirmed.is_empty());
        match (live, wide) {
            (true, Some(key)) if !confirmed => {
                batch.stage = Stage::Live(key);
                up.batches.insert(id, batch);
                if let Some(set) = up.live.get_mut(&key) {
                    set.batches.push(id);
                } else if let Some(wish) = up.wishes.iter_mut().find(|wish| wish.key == key) {
                    wish.batches.push(id);
                } else {
                    self.begin_history(ctx, id);
                }
            }
            (true, None) => {
                let scope = batch.scope.clone();
                // Layer 1 asks for other names than before, perhaps.
                let old = up
                    .live
                    .iter()
                    .filter(|(_, set)| set.scope.announcements.is_some() && scope.announcements.is_some());
                let old = old.map(|(key, _)| *key).collect();
                up.batches.insert(id, batch);
                let key = self.wish(ctx, scope, Some(id), old);
                if let Some(batch) = self.up_mut().and_then(|up| up.batches.get_mut(&id)) {
                    batch.stage = Stage::Live(key);
                }
            }
            _ => {
                up.batches.insert(id, batch);
                self.begin_history(ctx, id);
            }
        }
    }

    /// Events whose dependency has come are fetched by id.
    fn fetch_woken(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.fetch.is_empty() {
            return false;
        }
        let ids: Vec<EventId> = std::mem::take(&mut self.fetch).into_iter().collect();
        let mut batch = Batch::new(Scope::default(), Origin::Ids, Via::CatchUp, ctx.now.wall);
        // Not everything that was offered once is offered for ever: what does not come is no failure.
        batch.todo.push_back(Ask::Fetch(ids, u8::MAX));
        self.add(ctx, batch, false);
        true
    }

    /// What failed is tried again when its time has come.
    fn again(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some(at) = self.owed.iter().position(|owed| owed.due <= ctx.now.mono) else { return false };
        let owed = self.owed.swap_remove(at);
        let mut batch = Batch::new(owed.scope, Origin::Again(owed.tries), owed.via, ctx.now.wall);
        batch.since = owed.since;
        if batch.scope.announcements.is_none() && !batch.scope.wide {
            batch.scope.retain(|repo| self.covers.contains_key(&repo));
            if batch.scope.is_empty() {
                return true;
            }
        }
        self.add(ctx, batch, owed.reopen);
        true
    }

    /// The next part of the walk over everything.
    fn pass_on(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let portion = self.portion(ctx);
        let State::Up(up) = &mut self.state else { return false };
        let Some(pass) = &mut up.pass else { return false };
        let Some((mut key, mut after)) = pass.at else { return false };
        let daily = pass.via == Via::Daily;
        let (via, since) = (pass.via, pass.since);
        if up.wide.is_some() && since.is_some() {
            pass.at = None;
            pass.open += 1;
            let mut batch = Batch::new(Scope::wide(), Origin::Pass, via, ctx.now.wall);
            batch.since = since;
            self.add(ctx, batch, true);
            return true;
        }
        let mut gatherer = Gatherer::new(ctx.wants, portion);
        let mut reached = None;
        for (repo, cover) in self.covers.range(key..) {
            if *repo != key {
                (key, after) = (*repo, 0);
            }
            if !cover.tags {
                continue;
            }
            if after == 0 && !gatherer.add_repo(key) {
                reached = Some((key, 0));
                break;
            }
            let came = gatherer.add_roots(key, after, cover.done);
            if came < cover.done && ctx.wants.repo(key).is_some_and(|repo| !repo.span(came, cover.done).is_empty()) {
                // A repository whose tags are in has at least that: it goes on behind them.
                reached = Some((key, came.max(1)));
                break;
            }
        }
        pass.at = reached;
        let scope = gatherer.scope;
        if scope.is_empty() {
            return true;
        }
        pass.open += 1;
        let mut batch = Batch::new(scope, Origin::Pass, via, ctx.now.wall);
        batch.since = since;
        self.add(ctx, batch, !daily);
        true
    }

    /// What was never asked for here.
    fn cover_new(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.dirty.is_empty() {
            return false;
        }
        let portion = self.portion(ctx);
        let Some(up) = self.up() else { return false };
        // A catch-up does not wait for the window: when nothing else of it is left, what its own events led to is its
        // business.
        let early = up.generation.is_some()
            && up.loose == 0
            && up.batches.values().all(|batch| !batch.in_generation || batch.is_over());
        let mut gatherer = Gatherer::new(ctx.wants, portion);
        let mut clean = Vec::new();
        for key in &self.dirty {
            let (Some(repo), Some(cover)) = (ctx.wants.repo(*key), self.covers.get_mut(key)) else {
                clean.push(*key);
                continue;
            };
            let gathering = ctx.wants.gathering.contains(key);
            if !repo.rooted || (gathering && !early) {
                continue;
            }
            if !cover.tags_planned {
                if !gatherer.add_repo(*key) {
                    break;
                }
                cover.tags_planned = true;
                cover.open += 1;
            }
            let head = repo.head();
            let before = cover.planned;
            let came = if head > before { gatherer.add_roots(*key, before, head) } else { head.max(before) };
            if came > before {
                if gatherer.scope.repos.last() != Some(key) {
                    cover.open += 1;
                }
                cover.planned = came;
            }
            if came < head {
                break;
            }
            clean.push(*key);
        }
        for key in clean {
            self.dirty.remove(&key);
        }
        let scope = gatherer.scope;
        if scope.is_empty() {
            return false;
        }
        let batch = Batch::new(scope, Origin::New, Via::CatchUp, ctx.now.wall);
        self.add(ctx, batch, true);
        true
    }

    /// What has no place among the live subscriptions is asked for in turn.
    fn poll(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let overlap = self.overlap();
        let State::Up(up) = &mut self.state else { return false };
        if up.poll_at.is_none_or(|at| at > ctx.now.mono) {
            return false;
        }
        let Some(mut polled) = up.polled.pop_front() else {
            up.poll_at = None;
            return false;
        };
        up.poll_at = Some(ctx.now.mono.plus_secs(limits::SYNC_POLL_SECS));
        polled.scope.retain(|repo| self.covers.contains_key(&repo));
        if polled.scope.is_empty() {
            return true;
        }
        let taken: usize = up.live.values().map(|set| set.subs.len()).sum();
        let place = taken < up.budget.live as usize;
        let mut batch = Batch::new(polled.scope.clone(), Origin::Poll, Via::CatchUp, ctx.now.wall);
        batch.since = Some(Timestamp(polled.asked.0.saturating_sub(overlap)));
        if !place {
            up.polled.push_back(Polled { scope: polled.scope, asked: ctx.now.wall });
        }
        self.add(ctx, batch, place);
        true
    }

    /// Ends one batch that is over, or the catch-up. `false` if there is nothing to end.
    fn settle(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let State::Up(up) = &mut self.state else { return false };
        let blank = up.batches.iter().find(|(_, batch)| {
            let compared = batch.is_serial() || !batch.todo.iter().any(|ask| matches!(ask, Ask::Compare(_)));
            !batch.blank.is_empty() && compared
        });
        if let Some(id) = blank.map(|(id, _)| *id)
            && !up.jobs.values().any(|job| job.batch == id && matches!(job.doing, Doing::Comparing(_)))
        {
            regroup(up, id);
            return true;
        }
        let over = |batch: &Batch| batch.is_over() || (ctx.flawed(Flaw::WatermarkEarly) && !batch.is_asking());
        let over = up.batches.iter().find(|(_, batch)| over(batch)).map(|(id, _)| *id);
        match over.and_then(|id| up.batches.remove(&id)) {
            Some(batch) => {
                self.end(ctx, batch);
                true
            }
            None => self.end_generation(ctx),
        }
    }

    fn end(&mut self, ctx: &mut Ctx<'_>, mut batch: Batch) {
        if ctx.flawed(Flaw::FailedCountsAsDone) {
            batch.trouble = None;
        }
        self.unsaved = true;
        if batch.gaps.0 > 0 {
            self.totals.gaps += batch.gaps.0;
            let (count, examples) = batch.gaps.clone();
            ctx.note(Note::Gaps { relay: self.url.clone(), via: batch.via, count, examples });
        }
        let State::Up(up) = &mut self.state else { return };
        if let Some(generation) = up.generation.as_mut().filter(|_| batch.in_generation) {
            generation.events += batch.events;
        }
        if batch.origin == Origin::Pass
            && let Some(pass) = &mut up.pass
        {
            pass.open = pass.open.saturating_sub(1);
        }
        if batch.scope.announcements.is_some() && batch.origin == Origin::Announcements {
            up.layer_one = Step::Done;
        }
        if let Some(what) = batch.trouble {
            ctx.note(Note::PassFailed(self.url.clone(), what));
            let tries = if let Origin::Again(tries) = batch.origin { tries + 1 } else { 1 };
            if batch.origin == Origin::Ids {
                return;
            }
            let wait = limits::SYNC_OWED_SECS
                .saturating_mul(1 << tries.saturating_sub(1).min(8))
                .min(limits::SYNC_OWED_MAX_SECS);
            let Batch { scope, since, via, origin, .. } = batch;
            if tries > limits::SYNC_OWED_TRIES {
                // The daily pass will see to it.
                self.overfull = true;
                return self.covered(ctx, &scope);
            }
            // Whoever it belongs to stays open until it succeeds.
            if matches!(origin, Origin::Pass | Origin::Poll) {
                for repo in repos_of(&scope) {
                    self.covers.entry(repo).and_modify(|cover| cover.open += 1);
                }
            }
            let due = ctx.now.mono.plus_secs(ctx.jitter(wait));
            self.owed.push(Owed { scope, since, via, due, tries, reopen: false });
            return;
        }
        if matches!(batch.origin, Origin::New | Origin::Again(_)) {
            self.covered(ctx, &batch.scope);
        }
        if matches!(batch.origin, Origin::Again(_)) {
            self.forget_since();
        }
        if batch.since.is_none()
            && let Some(Names::All) = batch.scope.announcements
        {
            self.announced = true;
        }
    }

    /// A scope has been had.
    fn covered(&mut self, ctx: &Ctx<'_>, scope: &Scope) {
        for repo in repos_of(scope) {
            let Some(cover) = self.covers.get_mut(&repo) else { continue };
            cover.open = cover.open.saturating_sub(1);
            if cover.open == 0 {
                cover.tags = cover.tags_planned;
                cover.done = cover.planned;
            }
            if ctx.wants.repo(repo).is_some_and(|wanted| wanted.head() > cover.planned || !cover.tags_planned) {
                self.dirty.insert(repo);
            }
        }
    }

    /// Ends the catch-up if nothing of it is left.
    fn end_generation(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let waits = |key: &RepoKey| {
            let gathering = ctx.wants.gathering.contains(key);
            ctx.wants.repo(*key).is_some_and(|repo| !repo.rooted || (gathering && ctx.flawed(Flaw::WindowNeverCloses)))
        };
        let plannable = self.dirty.iter().any(|key| !waits(key));
        let State::Up(up) = &mut self.state else { return false };
        let Some(generation) = up.generation else { return false };
        let running = up.batches.values().any(|batch| batch.in_generation) || up.loose > 0;
        let walking = up.pass.as_ref().is_some_and(|pass| pass.at.is_some() || pass.open > 0);
        if running
            || walking
            || plannable
            || up.layer_one != Step::Done
            || !self.fetch.is_empty()
            || !up.wishes.is_empty()
        {
            return false;
        }
        up.generation = None;
        up.pass = None;
        self.unsaved = true;
        self.forget_since();
        self.complete_at = Some(ctx.now.wall);
        self.daily = None;
        let whole = !self.overfull && self.owed.is_empty();
        self.health.unpark();
        ctx.note(Note::CaughtUp { relay: self.url.clone(), via: generation.via, events: generation.events, whole });
        true
    }

    /// Nothing is left that was missed while there was no connection.
    fn forget_since(&mut self) {
        let catching_up = self.up().is_none_or(|up| up.generation.is_some());
        if !catching_up && self.owed.iter().all(|owed| owed.since.is_none()) {
            self.since = None;
        }
    }

    /// Begins the daily reconciliation.
    pub(super) fn start_daily(&mut self, ctx: &mut Ctx<'_>) {
        let first = self.daily.take().or_else(|| self.covers.keys().next().map(|key| (*key, 0)));
        self.next_full = ctx.now.mono.plus_secs(ctx.daily());
        self.overfull = false;
        self.unsaved = true;
        let names = self.names(ctx);
        let State::Up(up) = &mut self.state else { return };
        up.generation = Some(Generation { via: Via::Daily, events: 0 });
        up.pass = Some(Pass { via: Via::Daily, since: None, at: first, open: 1 });
        up.wide_seen = (0, 0);
        (self.totals.compared, self.totals.shared) = (0, 0);
        // Announcements again, too, without touching what is live.
        let batch = Batch::new(Scope::announcements(names), Origin::Pass, Via::Daily, ctx.now.wall);
        self.add(ctx, batch, false);
    }

    /// A job has ended, well or not.
    pub(super) fn end_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) -> Option<Job> {
        let State::Up(up) = &mut self.state else { return None };
        let job = up.jobs.remove(&id)?;
        if job.is_comparing() {
            *ctx.negs = ctx.negs.saturating_sub(1);
        }
        if let Some(batch) = up.batches.get_mut(&job.batch) {
            batch.jobs = batch.jobs.saturating_sub(1);
        }
        Some(job)
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
fn regroup(up: &mut Up, id: BatchId) {
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

/// Pages of a filter from the top.
pub(super) fn page(filter: Filter, limit: u32) -> Ask {
    Ask::Page(Box::new(Pages::new(filter, limit as usize, None)))
}

/// A filter without where its pages stand.
pub(super) fn plain(filter: &Filter) -> Filter {
    Filter { until: None, limit: None, ..filter.clone() }
}

/// The repositories of a scope, each once.
pub(super) fn repos_of(scope: &Scope) -> BTreeSet<RepoKey> {
    scope.repos.iter().copied().chain(scope.roots.iter().map(|span| span.repo)).collect()
}

/// The earliest of several moments.
pub(super) fn earliest(moments: impl IntoIterator<Item = Option<Moment>>) -> Option<Moment> {
    moments.into_iter().flatten().min()
}
