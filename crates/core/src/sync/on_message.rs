//! What a relay says, and what follows from it.

use std::sync::Arc;

use super::batch::{Ask, BatchId, Doing, End, JobId};
use super::fault_injection::Flaw;
use super::io::{Heard, More, SubId};
use super::pagination::PageTurn;
use super::relay::{Empty, Late, Link, State, What};
use super::scheduler::page;
use super::{Ctx, limits};
use crate::nostr::event::Event;

/// Whom a delivery belongs to.
pub(super) struct Delivery {
    pub(super) batch: Option<BatchId>,
    /// By a live subscription that has sent all it had stored.
    pub(super) live: bool,
    /// By the subscription without tags.
    pub(super) wide: bool,
    /// It shows that what was had of this relay is not all: the connection must end, and another one begin afresh.
    pub(super) late: bool,
}

impl Link {
    /// Anything but an event. `true` if the connection must end.
    pub(super) fn hear(&mut self, ctx: &mut Ctx<'_>, heard: Heard) -> bool {
        match heard {
            Heard::Eose(sub, more) => self.eose(ctx, sub, more),
            Heard::Closed(sub, text) => return self.closed(ctx, sub, &text),
            Heard::NegErr(sub, text, _) => return self.closed(ctx, sub, &text),
            Heard::NegMsg(sub, message) => self.neg_msg(ctx, sub, &message),
            Heard::Notice(text) => return self.notice(ctx, &text),
            Heard::Ok(accepted, text) => return self.answered(ctx, accepted, &text),
            Heard::Auth(challenge) => self.challenged(ctx, challenge),
            Heard::Nonsense => {
                let Some(up) = self.up_mut() else { return false };
                up.nonsense += 1;
                return up.nonsense > limits::SYNC_NONSENSE;
            }
            Heard::TooLarge(sub) => {
                // It counts as delivered: the same page would bring it again.
                self.progress(ctx, sub);
            }
            Heard::Alive | Heard::Event(..) => {}
        }
        false
    }

    pub(super) fn progress(&mut self, ctx: &Ctx<'_>, sub: SubId) -> Option<JobId> {
        let up = self.up_mut()?;
        let What::Job(id) = up.subs.get(&sub)?.what else { return None };
        let job = up.jobs.get_mut(&id)?;
        let wait = if job.end == End::Awaited { limits::SYNC_PROGRESS_SECS } else { limits::SYNC_LATE_SECS };
        job.deadline = Some(ctx.now.mono.plus_secs(wait).min(job.began.plus_secs(limits::SYNC_JOB_SECS)));
        Some(id)
    }

    /// An event comes. Whom it belongs to.
    pub(super) fn deliver(&mut self, ctx: &Ctx<'_>, sub: SubId, event: &Arc<Event>) -> Delivery {
        let job = self.progress(ctx, sub);
        let wall = ctx.now.wall;
        let mut delivery = Delivery { batch: None, live: false, wide: false, late: false };
        let State::Up(up) = &mut self.state else { return delivery };
        let Some(open) = up.subs.get(&sub) else {
            if self.late == Late::No && up.came_late(sub, event.created_at, ctx.now.mono) {
                self.late = Late::Found;
                delivery.late = true;
            }
            return delivery;
        };
        if let What::Live(key) = open.what {
            delivery.live = open.answered;
            delivery.wide = up.wide == Some(key);
            if open.answered {
                let late = wall.secs_since(event.created_at);
                self.fast_by = Some(self.fast_by.map_or(late, |least| least.min(late)));
            }
            return delivery;
        }
        let Some(job) = job.and_then(|id| up.jobs.get_mut(&id)) else { return delivery };
        delivery.batch = Some(job.batch);
        match &mut job.doing {
            Doing::Group(_, count) => *count += 1,
            Doing::Page(pages) => pages.heard(event.id, event.created_at),
            Doing::Fetching { asked, .. } => drop(asked.remove(&event.id)),
            _ => {}
        }
        delivery
    }

    pub(super) fn eose(&mut self, ctx: &mut Ctx<'_>, sub: SubId, more: Option<More>) {
        let late = self.late;
        let Some(up) = self.up_mut() else { return };
        let Some(open) = up.subs.get_mut(&sub) else { return };
        let first = !std::mem::replace(&mut open.answered, true);
        match open.what {
            What::Closing(_) => drop(up.subs.remove(&sub)),
            What::Live(key) => {
                let Some(set) = up.live.get_mut(&key) else { return };
                set.unconfirmed.remove(&sub);
                set.doubtful &= !first;
                up.refusals = 0;
                if set.unconfirmed.is_empty() {
                    self.live_confirmed(ctx, key);
                }
            }
            What::Job(id) if first => {
                up.pace = (up.pace + 1).min(limits::SYNC_PACE);
                up.refusals = 0;
                let Some(job) = up.jobs.get_mut(&id) else { return };
                let until = ctx.now.mono.plus_secs(limits::SYNC_LATE_SECS);
                if late == Late::Known {
                    job.end = End::Said(more);
                    job.deadline = Some(until);
                    return;
                }
                if job.is_empty() {
                    up.empty.truncate(limits::SYNC_LATE_REQUESTS - 1);
                    up.empty.push_front(Empty { sub, asked: ctx.now.wall, until, late: 0 });
                }
                self.finish(ctx, id, Some(sub), more);
            }
            What::Job(_) => {}
        }
    }

    /// A request is over.
    pub(super) fn finish(&mut self, ctx: &mut Ctx<'_>, id: JobId, sub: Option<SubId>, more: Option<More>) {
        if let Some((up, sub)) = self.up_mut().zip(sub) {
            up.close(ctx, sub, false);
        }
        self.job_answered(ctx, id, more);
    }

    /// A request has sent all that it will.
    pub(super) fn job_answered(&mut self, ctx: &mut Ctx<'_>, id: JobId, more: Option<More>) {
        let compares = self.speaks_negentropy(ctx.now, ctx.config.negentropy);
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        let limit = up.budget.page;
        let Some(batch) = up.batches.get_mut(&job.batch) else { return };
        match job.doing {
            Doing::Group(filters, count) => {
                let short = more.is_none() && count < limit as usize && up.cap.is_short(count);
                let whole = more == Some(More::Finish) || short;
                if !whole && !ctx.flawed(Flaw::CursorPerGroup) {
                    // Some filter may have been cut short, and nobody can say which: each is paged alone.
                    batch.todo.extend(filters.into_iter().map(|filter| page(filter, limit)));
                }
            }
            Doing::Page(mut pages) => match pages.ended(more, &mut up.cap) {
                PageTurn::Done => {}
                PageTurn::Next => batch.todo.push_front(Ask::Page(pages)),
                PageTurn::Split(filters) => {
                    for filter in filters.into_iter().rev() {
                        batch.todo.push_front(page(filter, limit));
                    }
                }
                PageTurn::SteppedOver(second) => {
                    // Comparing needs no pages; if that is not possible, what else the second has is lost.
                    match pages.one_second(second) {
                        _ if ctx.flawed(Flaw::SameSecondSkipped) => {}
                        filter if compares => batch.todo.push_back(Ask::Compare(filter)),
                        _ => self.overfull = true,
                    }
                    batch.todo.push_front(Ask::Page(pages));
                }
                PageTurn::GaveUp => batch.trouble("pages without end"),
            },
            Doing::Fetching { asked, count, left, round } => {
                if !left.is_empty() {
                    batch.todo.push_front(Ask::Fetch(left, round));
                }
                if !asked.is_empty() && round != u8::MAX {
                    // An answer that was cut is no refusal: the rest is asked for as if for the first time.
                    let cut = asked.len() < count && !up.cap.is_short(count - asked.len());
                    self.look(ctx, job.batch, asked.into_iter().collect(), if cut { round } else { round + 1 });
                }
            }
            Doing::Comparing(_) | Doing::Reconciling(..) | Doing::Looking(_) => {}
        }
    }
}
