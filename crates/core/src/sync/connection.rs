//! A connection begins, ends, or keeps us waiting.

use std::collections::{BTreeMap, VecDeque};

use super::batch::{Ask, Doing, End};
use super::earlier;
use super::fault_injection::Flaw;
use super::io::{Note, Reconnect, Session, Via};
use super::live::{LiveKey, close_live};
use super::pagination::PageCap;
use super::relay::{Auth, AuthState, Cover, Generation, Late, Link, Pass, Resume, State, Step, Up};
use super::relay_limits::{Budget, Terms};
use super::scheduler::{instead, plain};
use crate::limits;
use crate::time::{Moment, Timestamp};

impl Link {
    /// A new connection: what it begins with.
    pub(super) fn connect(&mut self, ctx: &mut super::Ctx<'_>, session: Session, terms: Option<Terms>) {
        self.count_time(ctx.now);
        self.health.connected(ctx.now);
        let gap = self.heard.filter(|_| self.late != Late::Found).map(|heard| ctx.now.mono.since(heard.mono).as_secs());
        let how = match gap {
            Some(secs)
                if secs < limits::SYNC_QUICK_SECS
                    && (self.announced
                        || self.covers.values().any(|cover| cover.tags)
                        || ctx.flawed(Flaw::SinceBeforeComplete)) =>
            {
                Reconnect::Quick
            }
            Some(_) => Reconnect::Long,
            None => Reconnect::Fresh,
        };
        if self.late == Late::Found {
            self.late = Late::Known;
        }
        let budget = Budget::of(terms.as_ref(), &self.learned);
        let grasp = terms.as_ref().is_some_and(|terms| terms.is_grasp);
        let overlap = if ctx.flawed(Flaw::OverlapDropped) { 0 } else { self.overlap_with(grasp) };
        if how == Reconnect::Quick {
            let lost = self.heard.map_or(ctx.now.wall, |heard| heard.wall);
            self.since = Some(earlier(self.since, Timestamp(lost.0.saturating_sub(overlap))));
        } else {
            self.since = None;
            self.announced = false;
            self.restored = None;
            self.daily = None;
            for (key, cover) in &mut self.covers {
                *cover = Cover::default();
                self.dirty.insert(*key);
            }
            self.resume.clear();
        }
        self.fast_by = None;
        self.owed.clear();
        self.complete_at = if how == Reconnect::Quick { self.complete_at } else { None };
        let full = if how == Reconnect::Quick {
            // What `since` cannot see is owed to a full pass; where that is cheap, within one to three hours, so that relays
            // that came back together are not all asked at once.
            let soon = ctx.now.mono.plus_secs(3_600 + ctx.chance.next() % 7_200);
            let cheap = terms.as_ref().and_then(|terms| terms.negentropy) == Some(true)
                && self.learned.no_negentropy_at.is_none();
            if cheap { self.next_full.min(soon) } else { self.next_full }
        } else {
            ctx.now.mono.plus_secs(ctx.daily())
        };
        self.next_full = full.max(ctx.now.mono.plus_secs(1));
        let pass = (how == Reconnect::Quick).then(|| Pass {
            via: Via::CatchUp,
            since: self.since,
            at: self.covers.keys().next().map(|key| (*key, 0)),
            open: 0,
        });
        self.unsaved = true;
        self.stirred = true;
        self.heard = Some(ctx.now);
        self.state = State::Up(Box::new(Up {
            session,
            terms,
            budget,
            unsent: 0,
            said: 0,
            subs: BTreeMap::new(),
            live: BTreeMap::new(),
            wishes: VecDeque::new(),
            wide: None,
            polled: VecDeque::new(),
            poll_at: None,
            batches: BTreeMap::new(),
            jobs: BTreeMap::new(),
            generation: Some(Generation { via: Via::CatchUp, events: 0 }),
            pass,
            layer_one: Step::Todo,
            named: None,
            unmergeable: false,
            refusals: 0,
            pace: limits::SYNC_FIRST_PACE,
            hold_until: ctx.now.mono,
            cap: PageCap::trusting(ctx.flawed(Flaw::PageFloorTrusted)),
            empty: VecDeque::new(),
            auth: Auth::default(),
            wide_seen: (0, 0),
            loose: 0,
            leaving: false,
            nonsense: 0,
        }));
        ctx.note(Note::Connected(self.url.clone(), how));
    }

    /// A connection has ended: what was under way is asked for again by the next one.
    pub(super) fn disconnect(&mut self, up: Up, now: Moment) {
        let grasp = up.terms.as_ref().is_some_and(|terms| terms.is_grasp);
        let owed = self.owed.iter().filter_map(|owed| owed.since);
        self.since = self.since.into_iter().chain(owed).chain(up.missed(self.overlap_with(grasp))).min();
        for job in up.jobs.into_values() {
            let began = up.batches.get(&job.batch).map_or(Timestamp(0), |batch| batch.began);
            if let Doing::Page(pages) = &job.doing {
                self.keep_place(pages, began, now);
            }
        }
        for batch in up.batches.into_values() {
            for ask in &batch.todo {
                if let Ask::Page(pages) = ask {
                    self.keep_place(pages, batch.began, now);
                }
            }
        }
        if let Some(pass) = up.pass.filter(|pass| pass.via == Via::Daily) {
            self.daily = pass.at;
            // It goes on when there is a connection again.
            self.next_full = now;
        }
        for (key, cover) in &mut self.covers {
            cover.open = 0;
            cover.planned = cover.done;
            cover.tags_planned = cover.tags;
            self.dirty.insert(*key);
        }
    }

    pub(super) fn keep_place(&mut self, pages: &super::pagination::Pages, began: Timestamp, now: Moment) {
        if let Some(until) = pages.cursor()
            && self.resume.len() < limits::SYNC_RESUMES
        {
            self.resume.insert(plain(&pages.request()), Resume { until, began, at: now });
        }
    }

    /// Deadlines that have passed. `true` if the connection must end.
    pub(super) fn overdue(&mut self, ctx: &mut super::Ctx<'_>) -> bool {
        let now = ctx.now.mono;
        let State::Up(up) = &mut self.state else { return false };
        if up.leaving {
            return false;
        }
        if let AuthState::Wanted(at) | AuthState::Sent(at) = up.auth.state
            && at <= now
        {
            ctx.note(Note::Parked(self.url.clone(), "authentication was not answered".to_owned()));
            self.health.park(ctx.now, ctx.chance.next());
            return true;
        }
        let late: Vec<_> = up
            .live
            .iter()
            .filter(|(_, set)| !set.unconfirmed.is_empty() && set.deadline <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            if self.unconfirmed(ctx, key) {
                return true;
            }
        }
        let Some(up) = self.up_mut() else { return false };
        let late: Vec<_> = up
            .jobs
            .iter()
            .filter(|(_, job)| job.deadline.is_some_and(|at| at <= now))
            .map(|(id, job)| (*id, job.sub, job.end))
            .collect();
        for (id, sub, end) in late {
            match end {
                End::Awaited => self.give_up(ctx, id, sub),
                End::Said(more) => self.finish(ctx, id, sub, more),
            }
        }
        let State::Up(up) = &mut self.state else { return false };
        if self.next_full <= now && up.generation.is_none() {
            self.start_daily(ctx);
        }
        false
    }

    /// A relay does not confirm a live subscription: it may have it or not. `true` if the connection must end.
    fn unconfirmed(&mut self, ctx: &mut super::Ctx<'_>, key: LiveKey) -> bool {
        let State::Up(up) = &mut self.state else { return false };
        let Some(set) = up.live.get_mut(&key) else { return false };
        set.unconfirmed.clear();
        set.doubtful = true;
        if up.wide == Some(key) {
            // Another connection begins without it.
            self.learned.not_wide = true;
            return true;
        }
        if set.batches.is_empty() && !set.replaces.is_empty() {
            // Merging was a wish of ours; what it would have replaced still stands.
            close_live(up, ctx, key);
            up.unmergeable = true;
            return false;
        }
        for batch in set.batches.clone() {
            if let Some(batch) = up.batches.get_mut(&batch) {
                batch.trouble("a live subscription was not confirmed");
                batch.doubt = Some(key);
            }
        }
        self.live_confirmed(ctx, key);
        false
    }

    pub(super) fn give_up(&mut self, ctx: &mut super::Ctx<'_>, id: super::batch::JobId, sub: Option<super::io::SubId>) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        let page = up.budget.page;
        up.pace = (up.pace / 2).max(1);
        if let Some(sub) = sub {
            let negentropy = matches!(job.doing, Doing::Reconciling(..));
            up.close(ctx, sub, negentropy);
        }
        let Some(batch) = up.batches.get_mut(&job.batch) else { return };
        match job.doing {
            Doing::Reconciling(filter, nego) => {
                batch.ask_again(instead(batch.paged(filter), page, &mut self.overfull));
                if nego.rounds() == 0 {
                    self.no_negentropy(ctx);
                }
            }
            Doing::Page(pages) => {
                batch.trouble("a request was not answered");
                let began = batch.began;
                self.keep_place(&pages, began, ctx.now.mono);
            }
            _ => batch.trouble("a request was not answered"),
        }
    }
}
