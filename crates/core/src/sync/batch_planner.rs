//! Which batch comes next: what is wished, less what is pending, less what is had. (`compute_actions` of earlier designs.)

use std::collections::BTreeSet;

use super::batch::{Ask, Batch, BatchId, Origin, Stage};
use super::fault_injection::Flaw;
use super::filters::{Gatherer, Names, Scope};
use super::io::Via;
use super::live::{LiveKey, Polled};
use super::relay::{Link, Listening, State, Step};
use super::{Ctx, limits};
use crate::nostr::event::EventId;
use crate::time::Timestamp;

impl Link {
    /// Makes the next batch. `false` if there is none, or enough are under way.
    pub(super) fn next_batch(&mut self, ctx: &mut Ctx<'_>) -> bool {
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

    pub(super) fn start_layer_one(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let since = self.since.filter(|_| self.announced || ctx.flawed(Flaw::SinceBeforeComplete));
        let names = self.names(ctx);
        let State::Up(up) = &mut self.state else { return false };
        let again = up.named.replace(names.clone()).is_some();
        if up.wide.is_some() && ((since.is_some() && self.stated) || again) {
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
    pub(super) fn add(&mut self, ctx: &mut Ctx<'_>, mut batch: Batch, live: bool) {
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

    /// Puts a batch to work behind a live subscription that stands for one which the relay may not have taken.
    fn add_instead(&mut self, ctx: &mut Ctx<'_>, mut batch: Batch, old: LiveKey) {
        let id = BatchId(ctx.next());
        let key = self.wish(ctx, batch.scope.clone(), Some(id), vec![old]);
        let State::Up(up) = &mut self.state else { return };
        batch.in_generation = up.generation.is_some();
        batch.stage = Stage::Live(key);
        up.batches.insert(id, batch);
    }

    /// Events whose dependency has come are fetched by id.
    pub(super) fn fetch_woken(&mut self, ctx: &mut Ctx<'_>) -> bool {
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
    pub(super) fn again(&mut self, ctx: &mut Ctx<'_>) -> bool {
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
        let doubtful = |key: &LiveKey| self.up().and_then(|up| up.live.get(key)).is_some_and(|set| set.doubtful);
        match owed.live {
            Listening::Doubtful(key) if doubtful(&key) => self.add_instead(ctx, batch, key),
            Listening::Gone => self.add(ctx, batch, true),
            Listening::Stands | Listening::Doubtful(_) => self.add(ctx, batch, false),
        }
        true
    }

    /// The next part of the walk over everything.
    pub(super) fn pass_on(&mut self, ctx: &mut Ctx<'_>) -> bool {
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
    pub(super) fn cover_new(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.dirty.is_empty() || !self.stirred {
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
            self.stirred = false;
            return false;
        }
        let batch = Batch::new(scope, Origin::New, Via::CatchUp, ctx.now.wall);
        self.add(ctx, batch, true);
        true
    }

    /// What has no place among the live subscriptions is asked for in turn.
    pub(super) fn poll(&mut self, ctx: &mut Ctx<'_>) -> bool {
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
}
