//! What a relay says, and what follows from it.

use std::sync::Arc;

use super::batch::{Ask, BatchId, Doing, JobId, Origin};
use super::complaint::Complaint;
use super::drive::page;
use super::flaw::Flaw;
use super::io::{Heard, LocalIds, More, Note, Output, Say, SubId};
use super::link::{AuthState, Link, Owed, State, What};
use super::live::{Wish, close_live};
use super::nego::{Nego, NegoTurn};
use super::page::PageTurn;
use super::peer::LiveForm;
use super::{Ctx, limits};
use crate::nostr::event::{Event, EventId};
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

/// Whom a delivery belongs to.
pub(super) struct Delivery {
    pub(super) batch: Option<BatchId>,
    /// By a live subscription that has sent all it had stored.
    pub(super) live: bool,
    /// By the subscription without tags.
    pub(super) wide: bool,
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

    fn progress(&mut self, ctx: &Ctx<'_>, sub: SubId) -> Option<JobId> {
        let up = self.up_mut()?;
        let What::Job(id) = up.subs.get(&sub)?.what else { return None };
        let job = up.jobs.get_mut(&id)?;
        job.deadline =
            Some(ctx.now.mono.plus_secs(limits::SYNC_PROGRESS_SECS).min(job.began.plus_secs(limits::SYNC_JOB_SECS)));
        Some(id)
    }

    /// An event comes. Whom it belongs to.
    pub(super) fn deliver(&mut self, ctx: &Ctx<'_>, sub: SubId, event: &Arc<Event>) -> Delivery {
        let job = self.progress(ctx, sub);
        let wall = ctx.now.wall;
        let mut delivery = Delivery { batch: None, live: false, wide: false };
        let Some(up) = self.up_mut() else { return delivery };
        let Some(open) = up.subs.get(&sub) else { return delivery };
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

    fn eose(&mut self, ctx: &mut Ctx<'_>, sub: SubId, more: Option<More>) {
        let Some(up) = self.up_mut() else { return };
        let Some(open) = up.subs.get_mut(&sub) else { return };
        let first = !std::mem::replace(&mut open.answered, true);
        match open.what {
            What::Closing(_) => drop(up.subs.remove(&sub)),
            What::Live(key) => {
                let Some(set) = up.live.get_mut(&key) else { return };
                set.unconfirmed.remove(&sub);
                if set.unconfirmed.is_empty() {
                    self.live_confirmed(ctx, key);
                }
            }
            What::Job(id) if first => {
                up.pace = (up.pace + 1).min(limits::SYNC_PACE);
                up.refusals = 0;
                up.close(ctx, sub, false);
                self.job_answered(ctx, id, more);
            }
            What::Job(_) => {}
        }
    }

    /// A request has sent all that it will.
    fn job_answered(&mut self, ctx: &mut Ctx<'_>, id: JobId, more: Option<More>) {
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
                PageTurn::SteppedOver => {
                    self.overfull |= !ctx.flawed(Flaw::SameSecondSkipped);
                    batch.todo.push_front(Ask::Page(pages));
                }
                PageTurn::GaveUp => batch.trouble("pages without end"),
            },
            Doing::Fetching { asked, left, round } => {
                if !left.is_empty() {
                    batch.todo.push_front(Ask::Fetch(left, round));
                }
                if !asked.is_empty() && round != u8::MAX {
                    self.look(ctx, job.batch, asked.into_iter().collect(), round + 1);
                }
            }
            Doing::Comparing(_) | Doing::Reconciling(..) | Doing::Looking(_) => {}
        }
    }

    /// Asks the store which events are missing.
    fn look(&mut self, ctx: &mut Ctx<'_>, batch: BatchId, ids: Vec<EventId>, round: u8) {
        let link = self.id;
        let State::Up(up) = &mut self.state else { return };
        let Some(asking) = up.batches.get_mut(&batch) else { return };
        asking.jobs += 1;
        let id = JobId(ctx.next());
        let ask = ctx.ask(link, id);
        ctx.out.push_back(Output::AskMissing(ask, ids));
        let job =
            super::batch::Job { batch, sub: None, doing: Doing::Looking(round), began: ctx.now.mono, deadline: None };
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
        let frame = up.budget.frame_beside(super::live::text_bytes(&filter)).filter(|_| !items.is_empty());
        let Some(frame) = frame.filter(|_| !quiet && up.unsent < limits::SYNC_MAX_UNSENT) else {
            let nothing = items.is_empty() || frame.is_none();
            self.end_job(ctx, id);
            let Some(batch) = self.up_mut().and_then(|up| up.batches.get_mut(&batch_id)) else { return };
            if nothing {
                batch.blank.push(filter);
            } else {
                batch.todo.push_back(Ask::Compare(filter));
            }
            return;
        };
        if let Some(from) = down_to
            && let Some(batch) = up.batches.get_mut(&batch_id)
        {
            // This window, and everything before it as another.
            batch.todo.push_back(Ask::Compare(Filter { until: Some(Timestamp(from.0 - 1)), ..filter.clone() }));
            filter.since = Some(from);
        }
        let (nego, first) = Nego::begin(&items, frame);
        let sub = ctx.sub();
        up.subs.insert(sub, super::link::Sub { what: What::Job(id), answered: false });
        if let Some(job) = up.jobs.get_mut(&id) {
            job.sub = Some(sub);
            job.deadline = Some(ctx.now.mono.plus_secs(limits::SYNC_NEG_SECS));
            job.doing = Doing::Reconciling(filter.clone(), Box::new(nego));
        }
        ctx.say(up, Say::NegOpen(sub, filter, first));
    }

    fn neg_msg(&mut self, ctx: &mut Ctx<'_>, sub: SubId, message: &[u8]) {
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
            return self.stop_reconciling(ctx, id, sub, Ask::Compare(filter));
        }
        match turn {
            NegoTurn::Say(message) => ctx.say(up, Say::NegMsg(sub, message)),
            NegoTurn::Done => {
                let need = nego.need();
                let lacking = nego.lacking().len() as u64;
                let compared = nego.items() as u64;
                self.totals.compared += compared;
                self.totals.shared += compared.saturating_sub(lacking);
                up.pace = (up.pace + 1).min(limits::SYNC_PACE);
                up.close(ctx, sub, true);
                // A reconciliation that has ended has no answer to wait for.
                up.subs.remove(&sub);
                let lacks = up.batches.get(&batch_id).filter(|_| lacking > 0);
                if let Some(repo) = lacks.and_then(|batch| match &batch.scope.repos[..] {
                    [repo] if batch.via == super::io::Via::Daily => ctx.wants.repo(*repo),
                    _ => None,
                }) {
                    ctx.note(Note::PeerLacks(self.url.clone(), repo.id.clone(), lacking));
                }
                self.end_job(ctx, id);
                if !need.is_empty() {
                    self.look(ctx, batch_id, need, 0);
                }
            }
            NegoTurn::Dense | NegoTurn::Endless | NegoTurn::Bad => {
                let ask = page(filter.clone(), up.budget.page);
                self.stop_reconciling(ctx, id, sub, ask);
            }
        }
    }

    pub(super) fn stop_reconciling(&mut self, ctx: &mut Ctx<'_>, id: JobId, sub: SubId, instead: Ask) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        up.close(ctx, sub, true);
        if let Some(batch) = up.batches.get_mut(&job.batch) {
            batch.todo.push_back(instead);
        }
    }

    /// A relay ends a request. `true` if the connection must end.
    fn closed(&mut self, ctx: &mut Ctx<'_>, sub: SubId, text: &str) -> bool {
        let Some(up) = self.up_mut() else { return false };
        let complaint = Complaint::read(text);
        let limited = complaint == Complaint::Rate;
        let Some(open) = up.subs.remove(&sub) else { return limited && self.complain(ctx, complaint, text) };
        match open.what {
            // Whatever it was, we had ended it; but that it was too much counts.
            What::Closing(_) => return limited && self.complain(ctx, complaint, text),
            What::Job(_) if open.answered => return limited && self.complain(ctx, complaint, text),
            What::Job(id) => {
                self.refused_job(ctx, id, complaint);
            }
            What::Live(key) => {
                let Some(set) = up.live.get_mut(&key) else { return false };
                set.subs.remove(&sub);
                let confirmed = set.unconfirmed.is_empty();
                if self.lost_live(ctx, key, complaint, confirmed) {
                    return true;
                }
            }
        }
        self.complain(ctx, complaint, text)
    }

    /// A live subscription was refused, or ended by the relay. `true` if the connection must end.
    fn lost_live(
        &mut self,
        ctx: &mut Ctx<'_>,
        key: super::live::LiveKey,
        complaint: Complaint,
        confirmed: bool,
    ) -> bool {
        let overlap = self.overlap();
        let State::Up(up) = &mut self.state else { return false };
        let Some(set) = up.live.get_mut(&key) else { return false };
        let (scope, batches) = (set.scope.clone(), std::mem::take(&mut set.batches));
        let replaces = std::mem::take(&mut set.replaces);
        let wide = up.wide == Some(key);
        close_live(up, ctx, key);
        if !replaces.is_empty() && !wide {
            // Merging was a wish of ours; what it would have replaced still stands.
            up.unmergeable = true;
            return false;
        }
        let again = matches!(
            complaint,
            Complaint::LimitZero
                | Complaint::FilterCount
                | Complaint::AuthRequired
                | Complaint::Rate
                | Complaint::Slots
                | Complaint::Bytes(_)
        );
        if !confirmed && again {
            up.wishes.push_front(Wish { key, scope, batches, replaces });
            return false;
        }
        if wide {
            // Another connection begins without it.
            self.learned.not_wide = true;
            return true;
        }
        for id in &batches {
            if let Some(batch) = up.batches.get_mut(id) {
                batch.trouble("a live subscription was refused");
            }
        }
        for id in batches {
            self.begin_history(ctx, id);
        }
        let since = Some(Timestamp(ctx.now.wall.0.saturating_sub(overlap)));
        for repo in super::drive::repos_of(&scope) {
            self.covers.entry(repo).and_modify(|cover| cover.open += 1);
        }
        let due = ctx.now.mono.plus_secs(limits::SYNC_QUIET_SECS);
        self.owed.push(Owed { scope, since, via: super::io::Via::CatchUp, due, tries: 1, reopen: true });
        false
    }

    /// A request for history was refused.
    fn refused_job(&mut self, ctx: &mut Ctx<'_>, id: JobId, complaint: Complaint) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        let limit = up.budget.page;
        let Some(batch) = up.batches.get_mut(&job.batch) else { return };
        let lasting =
            matches!(complaint, Complaint::FilterShape | Complaint::Policy | Complaint::Other | Complaint::Closing);
        match job.doing {
            Doing::Reconciling(filter, _) => batch.todo.push_back(match complaint {
                Complaint::Rate | Complaint::Slots | Complaint::AuthRequired => Ask::Compare(filter),
                _ => page(filter, limit),
            }),
            _ if lasting && batch.origin != Origin::Ids => batch.trouble("a request was refused"),
            Doing::Group(filters, _) if complaint == Complaint::FilterCount || complaint == Complaint::ResultSize => {
                batch.todo.extend(filters.into_iter().map(|filter| page(filter, limit)));
            }
            Doing::Group(filters, _) => batch.todo.push_front(Ask::Group(filters)),
            Doing::Page(pages) => batch.todo.push_front(Ask::Page(pages)),
            Doing::Fetching { asked, left, round } => {
                let ids = asked.into_iter().chain(left).collect();
                batch.todo.push_front(Ask::Fetch(ids, round));
            }
            Doing::Comparing(filter) => batch.todo.push_back(Ask::Compare(filter)),
            Doing::Looking(_) => {}
        }
    }

    /// Something for people, which may concern a request.
    fn notice(&mut self, ctx: &mut Ctx<'_>, text: &str) -> bool {
        let complaint = Complaint::read(text);
        if matches!(complaint, Complaint::Other | Complaint::Closing) {
            return false;
        }
        let Some(up) = self.up_mut() else { return false };
        // It belongs to the only request that waits for an answer; with several nobody can say, and their deadlines will.
        let mut waiting = up.subs.iter().filter(|(_, sub)| !sub.answered && !matches!(sub.what, What::Closing(_)));
        let negentropy = |sub: &What| match sub {
            What::Job(id) => up.jobs.get(id).is_some_and(|job| matches!(job.doing, Doing::Reconciling(..))),
            _ => false,
        };
        let only = match complaint {
            Complaint::NoNegentropy => waiting.find(|(_, sub)| negentropy(&sub.what)).map(|(id, _)| *id),
            _ => waiting.next().filter(|_| waiting.next().is_none()).map(|(id, _)| *id),
        };
        match only {
            Some(sub) => self.closed(ctx, sub, text),
            None => {
                up.pace = 1;
                self.complain(ctx, complaint, text)
            }
        }
    }

    /// What a complaint changes for the whole connection. `true` if it must end.
    fn complain(&mut self, ctx: &mut Ctx<'_>, complaint: Complaint, text: &str) -> bool {
        self.unsaved = true;
        let State::Up(up) = &mut self.state else { return false };
        if !matches!(complaint, Complaint::Other | Complaint::Closing) {
            up.pace = (up.pace / 2).max(1);
            // Whatever it is that it does not like, it is not asked in a circle.
            up.refusals = (up.refusals + 1).min(6);
            up.hold_until = up.hold_until.max(ctx.now.mono.plus_secs(1 << up.refusals));
        }
        let open = up.subs.values().filter(|sub| !matches!(sub.what, What::Closing(_))).count() as u32;
        match complaint {
            Complaint::Rate => {
                let was_quiet = self.health.quiet_until().is_some_and(|until| until > ctx.now.mono);
                let until = self.health.limited(ctx.now);
                if was_quiet {
                    return false;
                }
                ctx.note(Note::RateLimited(self.url.clone(), clipped(text), until.since(ctx.now.mono).as_secs()));
            }
            Complaint::Slots => {
                let fewer = open.max(1).min(up.budget.slots.saturating_sub(1).max(1));
                self.learned.slots = Some(self.learned.slots.map_or(fewer, |slots| slots.min(fewer)));
            }
            Complaint::Bytes(bytes) => {
                // It may count otherwise than we do: what it refuses although it is within its number is halved.
                let ours = up.live.values().map(|set| set.size.bytes as u64).sum::<u64>();
                let known = self.learned.subscription_bytes.unwrap_or(u64::MAX);
                self.learned.subscription_bytes =
                    Some(if bytes < known { bytes } else { (known.min(ours) / 2).max(1) });
            }
            Complaint::FilterCount => {
                let fewer = match up.budget.filters {
                    6.. => 5,
                    3.. => 2,
                    _ => 1,
                };
                self.learned.filters = Some(fewer);
            }
            Complaint::LimitZero => {
                self.learned.live = match self.learned.live {
                    LiveForm::Zero => LiveForm::One,
                    LiveForm::One | LiveForm::Since => LiveForm::Since,
                };
            }
            Complaint::NoNegentropy => self.no_negentropy(ctx),
            Complaint::AuthRequired => return self.demand_auth(ctx),
            Complaint::Policy => {
                ctx.note(Note::Parked(self.url.clone(), clipped(text)));
                self.health.park(ctx.now, ctx.chance.next());
                return true;
            }
            Complaint::FilterShape | Complaint::ResultSize | Complaint::Closing | Complaint::Other => return false,
        }
        self.rebudget();
        false
    }

    pub(super) fn no_negentropy(&mut self, ctx: &mut Ctx<'_>) {
        self.learned.no_negentropy_at = Some(ctx.now.wall);
        self.unsaved = true;
        if !std::mem::replace(&mut self.warned, true) {
            ctx.note(Note::NoNegentropy(self.url.clone()));
        }
    }

    pub(super) fn rebudget(&mut self) {
        let learned = self.learned;
        if let Some(up) = self.up_mut() {
            up.budget = super::terms::Budget::of(up.terms.as_ref(), &learned);
        }
    }

    fn demand_auth(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let State::Up(up) = &mut self.state else { return false };
        let until = ctx.now.mono.plus_secs(limits::SYNC_EOSE_SECS);
        match (up.auth.state, up.auth.challenge.clone()) {
            (AuthState::Unneeded, Some(challenge)) => {
                up.auth.state = AuthState::Sent(until);
                ctx.say(up, Say::Auth(challenge));
                false
            }
            (AuthState::Unneeded, None) => {
                up.auth.state = AuthState::Wanted(until);
                false
            }
            (AuthState::Wanted(_) | AuthState::Sent(_), _) => false,
            // It knows who we are and still does not want us.
            (AuthState::Done, _) => {
                ctx.note(Note::Parked(self.url.clone(), "auth-required".to_owned()));
                self.health.park(ctx.now, ctx.chance.next());
                true
            }
        }
    }

    fn challenged(&mut self, ctx: &mut Ctx<'_>, challenge: String) {
        let Some(up) = self.up_mut() else { return };
        let stated = up.terms.as_ref().is_some_and(|terms| terms.auth_required == Some(true));
        up.auth.challenge = Some(challenge.clone());
        if matches!(up.auth.state, AuthState::Wanted(_)) || (stated && up.auth.state == AuthState::Unneeded) {
            up.auth.state = AuthState::Sent(ctx.now.mono.plus_secs(limits::SYNC_EOSE_SECS));
            ctx.say(up, Say::Auth(challenge));
        }
    }

    fn answered(&mut self, ctx: &mut Ctx<'_>, accepted: bool, text: &str) -> bool {
        let Some(up) = self.up_mut() else { return false };
        if accepted {
            up.auth.state = AuthState::Done;
            return false;
        }
        let complaint = Complaint::read(text);
        if matches!(up.auth.state, AuthState::Sent(_)) && complaint != Complaint::Rate {
            up.auth.state = AuthState::Done;
            return self.demand_auth(ctx);
        }
        complaint == Complaint::Rate && self.complain(ctx, complaint, text)
    }
}

/// So much of a stranger's text as is kept.
fn clipped(text: &str) -> String {
    text.chars().take(120).collect()
}
