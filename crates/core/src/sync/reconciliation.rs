//! Reconciliations: what is here, what is there, and fetching the difference.

use super::batch::{Ask, BatchId, Doing, End, Job, JobId};
use super::fault_injection::Flaw;
use super::filters::is_states;
use super::io::{LocalIds, Note, Output, Say, SubId, Via};
use super::negentropy::{Nego, NegoTurn};
use super::relay::{Link, State, What};
use super::scheduler::{instead, is_one_second};
use super::{Ctx, limits};
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

impl Link {
    /// Asks the store which events are missing.
    pub(super) fn look(&mut self, ctx: &mut Ctx<'_>, batch: BatchId, ids: Vec<EventId>, round: u8) {
        let link = self.id;
        let State::Up(up) = &mut self.state else { return };
        let Some(asking) = up.batches.get_mut(&batch) else { return };
        asking.jobs += 1;
        let id = JobId(ctx.next());
        let ask = ctx.ask(link, id);
        ctx.out.push_back(Output::AskMissing(ask, ids));
        let (doing, began) = (Doing::Looking(round), ctx.now.mono);
        let job = Job { batch, sub: None, doing, began, deadline: None, end: End::Awaited };
        up.jobs.insert(id, job);
    }

    /// The store says what is missing.
    pub(super) fn missing(&mut self, ctx: &mut Ctx<'_>, id: JobId, mut ids: Vec<EventId>) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let Doing::Looking(round) = job.doing else { return };
        ids.retain(|id| !ctx.refused.contains(id));
        let Some(batch) = self.up_mut().and_then(|up| up.batches.get_mut(&job.batch)) else { return };
        match round {
            _ if ids.is_empty() => {}
            0 | 1 => batch.todo.push_front(Ask::Fetch(ids, round)),
            _ => batch.trouble("does not serve the events that it offers"),
        }
    }

    /// The store says what is here.
    pub(super) fn local_ids(&mut self, ctx: &mut Ctx<'_>, id: JobId, ids: LocalIds) {
        let quiet = self.is_quiet(ctx.now);
        let State::Up(up) = &mut self.state else { return };
        let Some(job) = up.jobs.get_mut(&id) else { return };
        let Doing::Comparing(filter) = &job.doing else { return };
        let mut filter = filter.clone();
        let batch_id = job.batch;
        let mut items = ids.items;
        let down_to = ids.down_to.filter(|from| from.0 > 0 && filter.since.is_none_or(|since| *from > since));
        if down_to.is_none() {
            items.extend(ctx.refused.items(&self.url, &filter));
        }
        items.sort_unstable();
        items.dedup();
        let second = is_one_second(&filter);
        let frame = up.budget.frame_beside(super::live::text_bytes(&filter)).filter(|_| second || !items.is_empty());
        // Live subscriptions may have taken the slot meanwhile.
        let reserve = if ctx.flawed(Flaw::ReserveIgnored) { 0 } else { up.budget.reserve as usize };
        let room = up.subs.len() + reserve < up.budget.slots as usize;
        let Some(frame) = frame.filter(|_| !quiet && room && up.unsent < limits::SYNC_MAX_UNSENT) else {
            self.end_job(ctx, id);
            self.overfull |= second && frame.is_none();
            let Some(batch) = self.up_mut().and_then(|up| up.batches.get_mut(&batch_id)) else { return };
            match frame {
                None if second => {}
                None => batch.blank.push(batch.paged(filter)),
                Some(_) => batch.ask_again(Some(Ask::Compare(filter))),
            }
            return;
        };
        if let Some(from) = down_to
            && let Some(batch) = up.batches.get_mut(&batch_id)
        {
            // This window, and everything before it as another.
            batch.ask_again(Some(Ask::Compare(Filter { until: Some(Timestamp(from.0 - 1)), ..filter.clone() })));
            filter.since = Some(from);
        }
        let (nego, first) = Nego::begin(&items, frame);
        let sub = ctx.sub();
        up.subs.insert(sub, super::relay::Sub { what: What::Job(id), answered: false });
        if let Some(job) = up.jobs.get_mut(&id) {
            job.sub = Some(sub);
            job.deadline = Some(ctx.now.mono.plus_secs(limits::SYNC_NEG_SECS));
            job.doing = Doing::Reconciling(filter.clone(), Box::new(nego));
        }
        ctx.say(up, Say::NegOpen(sub, filter, first));
    }

    pub(super) fn neg_msg(&mut self, ctx: &mut Ctx<'_>, sub: SubId, message: &[u8]) {
        let quiet = self.is_quiet(ctx.now);
        let State::Up(up) = &mut self.state else { return };
        let Some(What::Job(id)) = up.subs.get(&sub).map(|sub| sub.what) else { return };
        let Some(job) = up.jobs.get_mut(&id) else { return };
        let batch_id = job.batch;
        let Doing::Reconciling(filter, nego) = &mut job.doing else { return };
        let turn = nego.hear(message);
        job.deadline = Some(ctx.now.mono.plus_secs(limits::SYNC_NEG_SECS));
        if let NegoTurn::Say(_) = turn
            && quiet
        {
            // Nothing more is asked now; it begins anew later.
            let filter = filter.clone();
            return self.stop_reconciling(ctx, id, sub, Some(Ask::Compare(filter)));
        }
        match turn {
            NegoTurn::Say(message) => ctx.say(up, Say::NegMsg(sub, message)),
            NegoTurn::Done => {
                let need = nego.need();
                let lacking = nego.lacking().len() as u64;
                let compared = nego.items() as u64;
                self.totals.compared += compared;
                self.totals.shared += compared.saturating_sub(lacking);
                if is_states(filter) {
                    let (shared, lacking) = (nego.shared(), nego.lacking().to_vec());
                    ctx.note(Note::States { relay: self.url.clone(), shared, lacking });
                }
                if let Some(batch) = up.batches.get_mut(&batch_id).filter(|batch| batch.via == Via::Daily) {
                    batch.lacking.get_or_insert_default().extend(nego.lacking());
                }
                up.pace = (up.pace + 1).min(limits::SYNC_PACE);
                up.close(ctx, sub, true);
                // A reconciliation that has ended has no answer to wait for.
                up.subs.remove(&sub);
                self.end_job(ctx, id);
                if !need.is_empty() {
                    self.look(ctx, batch_id, need, 0);
                }
            }
            NegoTurn::Dense | NegoTurn::Endless | NegoTurn::Bad => {
                let filter = up.batches.get(&batch_id).map_or(filter.clone(), |batch| batch.paged(filter.clone()));
                let ask = instead(filter, up.budget.page, &mut self.overfull);
                self.stop_reconciling(ctx, id, sub, ask);
            }
        }
    }

    pub(super) fn stop_reconciling(&mut self, ctx: &mut Ctx<'_>, id: JobId, sub: SubId, instead: Option<Ask>) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        up.close(ctx, sub, true);
        if let Some(batch) = up.batches.get_mut(&job.batch) {
            batch.ask_again(instead);
        }
    }
}
