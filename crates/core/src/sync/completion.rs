//! What has ended: batches, catch-ups, the daily pass. (`confirm_batch`, `check_and_complete_historic_sync` of earlier
//! designs.)

use std::collections::BTreeSet;

use super::batch::{Ask, Batch, Doing, Job, JobId, Origin};
use super::fault_injection::Flaw;
use super::filters::{Names, Scope};
use super::io::{Note, Via};
use super::relay::{Generation, Link, Listening, Owed, Pass, State, Step};
use super::scheduler::regroup;
use super::targets::RepoKey;
use super::{Ctx, limits};

impl Link {
    /// Ends one batch that is over, or the catch-up. `false` if there is nothing to end.
    pub(super) fn settle(&mut self, ctx: &mut Ctx<'_>) -> bool {
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

    pub(super) fn end(&mut self, ctx: &mut Ctx<'_>, mut batch: Batch) {
        if ctx.flawed(Flaw::FailedCountsAsDone) {
            batch.trouble = None;
        }
        self.unsaved = true;
        self.stirred = true;
        if batch.gaps.0 > 0 {
            self.totals.gaps += batch.gaps.0;
            let (count, examples) = batch.gaps.clone();
            ctx.note(Note::Gaps { relay: self.url.clone(), via: batch.via, count, examples });
        }
        if let (Some(lacking), None) = (&batch.lacking, batch.trouble) {
            // Of several repositories together it is not known which of them lack how much.
            let (wants, count) = (ctx.wants, lacking.len() as u64);
            let repos = batch.scope.repos.iter().filter(|_| count == 0 || batch.scope.repos.len() == 1);
            for repo in repos.filter_map(|repo| wants.repo(*repo)) {
                ctx.note(Note::PeerLacks(self.url.clone(), repo.id.clone(), count));
            }
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
            let Batch { scope, since, via, origin, doubt, .. } = batch;
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
            let doubt = doubt.filter(|_| !ctx.flawed(Flaw::DoubtForgotten));
            let live = doubt.map_or(Listening::Stands, Listening::Doubtful);
            self.owed.push(Owed { scope, since, via, due, tries, live });
            return;
        }
        if matches!(batch.origin, Origin::New | Origin::Again(_)) {
            self.covered(ctx, &batch.scope);
        }
        if matches!(batch.origin, Origin::Again(_)) {
            self.forget_since();
        }
        self.stated |= batch.scope.announcements.is_some();
        if (batch.since.is_none() || ctx.flawed(Flaw::SinceBeforeComplete))
            && let Some(Names::All) = batch.scope.announcements
        {
            self.announced = true;
        }
    }

    /// A scope has been had.
    pub(super) fn covered(&mut self, ctx: &Ctx<'_>, scope: &Scope) {
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
    pub(super) fn end_generation(&mut self, ctx: &mut Ctx<'_>) -> bool {
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
        let whole = !self.has_failed();
        self.health.unpark();
        ctx.note(Note::CaughtUp { relay: self.url.clone(), via: generation.via, events: generation.events, whole });
        true
    }

    /// Nothing is left that was missed while there was no connection.
    pub(super) fn forget_since(&mut self) {
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

/// The repositories of a scope, each once.
pub(super) fn repos_of(scope: &Scope) -> BTreeSet<RepoKey> {
    scope.repos.iter().copied().chain(scope.roots.iter().map(|span| span.repo)).collect()
}
