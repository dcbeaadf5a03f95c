//! What a relay refuses, and what is asked otherwise, later or never again.

use super::batch::{Ask, Doing, JobId, Origin};
use super::filters::Scope;
use super::io::{Note, Say, SubId};
use super::live::{Wish, close_live};
use super::rejection_text::Complaint;
use super::relay::{AuthState, Link, Listening, Owed, State, What};
use super::relay_record::LiveForm;
use super::scheduler::{instead, page};
use super::{Ctx, limits};
use crate::time::Timestamp;

impl Link {
    /// A relay ends a request. `true` if the connection must end.
    pub(super) fn closed(&mut self, ctx: &mut Ctx<'_>, sub: SubId, text: &str) -> bool {
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
    pub(super) fn lost_live(
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
        if !replaces.is_empty() && batches.is_empty() && !wide {
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
        self.reopen(ctx, scope, overlap, limits::SYNC_QUIET_SECS);
        false
    }

    /// A request for history was refused.
    pub(super) fn refused_job(&mut self, ctx: &mut Ctx<'_>, id: JobId, complaint: Complaint) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        let limit = up.budget.page;
        let Some(batch) = up.batches.get_mut(&job.batch) else { return };
        let lasting =
            matches!(complaint, Complaint::FilterShape | Complaint::Policy | Complaint::Other | Complaint::Closing);
        match job.doing {
            Doing::Reconciling(filter, _) => batch.ask_again(match complaint {
                Complaint::Rate | Complaint::Slots | Complaint::AuthRequired => Some(Ask::Compare(filter)),
                _ => instead(batch.paged(filter), limit, &mut self.overfull),
            }),
            _ if lasting && batch.origin != Origin::Ids => batch.trouble("a request was refused"),
            Doing::Group(filters, _) if complaint == Complaint::FilterCount || complaint == Complaint::ResultSize => {
                batch.todo.extend(filters.into_iter().map(|filter| page(filter, limit)));
            }
            Doing::Group(filters, _) => batch.todo.push_front(Ask::Group(filters)),
            Doing::Page(pages) => batch.todo.push_front(Ask::Page(pages)),
            Doing::Fetching { asked, left, round, .. } => {
                let ids = asked.into_iter().chain(left).collect();
                batch.todo.push_front(Ask::Fetch(ids, round));
            }
            Doing::Comparing(filter) => batch.ask_again(Some(Ask::Compare(filter))),
            Doing::Looking(_) => {}
        }
    }

    /// Something for people, which may concern a request.
    pub(super) fn notice(&mut self, ctx: &mut Ctx<'_>, text: &str) -> bool {
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
    pub(super) fn complain(&mut self, ctx: &mut Ctx<'_>, complaint: Complaint, text: &str) -> bool {
        self.unsaved = true;
        let State::Up(up) = &mut self.state else { return false };
        // Some only ask for another form, which is learned once.
        let form = matches!(complaint, Complaint::NoNegentropy | Complaint::LimitZero | Complaint::AuthRequired);
        if !form && !matches!(complaint, Complaint::Other | Complaint::Closing) {
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
        self.shrink(ctx);
        false
    }

    /// Closes live subscriptions that are more than the relay turned out to take. What they followed is opened again, merged
    /// with others or asked for in turn, and what came meanwhile is asked for.
    fn shrink(&mut self, ctx: &mut Ctx<'_>) {
        let overlap = self.overlap();
        loop {
            let State::Up(up) = &mut self.state else { return };
            let taken: usize = up.live.values().map(|set| set.subs.len()).sum();
            let bytes: usize = up.live.values().map(|set| set.size.bytes).sum();
            if taken <= up.budget.live as usize && bytes <= up.budget.live_bytes {
                return;
            }
            let spare = |set: &super::live::LiveSet| {
                set.scope.announcements.is_none()
                    && !set.scope.wide
                    && set.unconfirmed.is_empty()
                    && set.replaces.is_empty()
            };
            let smallest = up.live.iter().filter(|(_, set)| spare(set)).min_by_key(|(_, set)| set.size.bytes);
            let Some((key, scope)) = smallest.map(|(key, set)| (*key, set.scope.clone())) else { return };
            close_live(up, ctx, key);
            self.reopen(ctx, scope, overlap, 0);
        }
    }

    /// Follows a scope again whose live subscription is gone.
    fn reopen(&mut self, ctx: &Ctx<'_>, scope: Scope, overlap: u64, wait_secs: u64) {
        for repo in super::completion::repos_of(&scope) {
            self.covers.entry(repo).and_modify(|cover| cover.open += 1);
        }
        let since = Some(Timestamp(ctx.now.wall.0.saturating_sub(overlap)));
        let due = ctx.now.mono.plus_secs(wait_secs);
        self.owed.push(Owed { scope, since, via: super::io::Via::CatchUp, due, tries: 0, live: Listening::Gone });
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
            up.budget = super::relay_limits::Budget::of(up.terms.as_ref(), &learned);
        }
    }

    pub(super) fn demand_auth(&mut self, ctx: &mut Ctx<'_>) -> bool {
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

    pub(super) fn challenged(&mut self, ctx: &mut Ctx<'_>, challenge: String) {
        let Some(up) = self.up_mut() else { return };
        let stated = up.terms.as_ref().is_some_and(|terms| terms.auth_required == Some(true));
        up.auth.challenge = Some(challenge.clone());
        if matches!(up.auth.state, AuthState::Wanted(_)) || (stated && up.auth.state == AuthState::Unneeded) {
            up.auth.state = AuthState::Sent(ctx.now.mono.plus_secs(limits::SYNC_EOSE_SECS));
            ctx.say(up, Say::Auth(challenge));
        }
    }

    pub(super) fn answered(&mut self, ctx: &mut Ctx<'_>, accepted: bool, text: &str) -> bool {
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
