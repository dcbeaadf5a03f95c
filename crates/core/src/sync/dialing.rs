//! Whom to dial and when, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};

use super::Syncer;
use super::fault_injection::{Flaw, makes};
use super::health::Blame;
use super::io::{Loss, Note, Output, Session};
use super::relay::{Link, LinkId, State};
use super::relay_limits::Terms;
use crate::limits;
use crate::time::Moment;

/// How dials are spaced.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Attempts under way.
    pub(super) open: usize,
    /// The newest attempt.
    last: Option<Moment>,
    /// The newest attempt at each host.
    hosts: BTreeMap<String, Moment>,
    /// Who is due, the longest first.
    waiting: BTreeSet<(Moment, LinkId)>,
    /// When the next dial may be possible.
    next: Option<Moment>,
    /// The two links that were heard last.
    signs: [Option<(LinkId, Moment)>; 2],
}

impl Dials {
    pub(super) fn next(&self) -> Option<Moment> {
        self.next
    }

    /// A relay was heard: the network is there.
    pub(super) fn sign(&mut self, link: LinkId, at: Moment) {
        if self.signs[0].is_none_or(|(last, _)| last != link) {
            self.signs[1] = self.signs[0];
        }
        self.signs[0] = Some((link, at));
    }

    /// Whether another relay than this was heard a short while ago.
    pub(super) fn others_are_there(&self, link: LinkId, now: Moment) -> bool {
        let recent = |(_, at): &(LinkId, Moment)| now.since(*at).as_secs() <= limits::SYNC_SIGN_SECS;
        self.signs.iter().flatten().any(|sign| sign.0 != link && recent(sign))
    }
}

impl Syncer {
    /// Dials whoever is due, politely spaced.
    pub(super) fn dial(&mut self) {
        self.dials.next = None;
        let now = self.now.mono;
        let waiting: Vec<(Moment, LinkId)> = self.dials.waiting.iter().copied().collect();
        for (due, id) in waiting {
            if self.dials.open >= limits::SYNC_DIALS {
                break;
            }
            let flaw = self.config.flaw;
            let Some(link) = self.links.get_mut(&id).filter(|link| link.dial_at(flaw).is_some_and(|at| at <= now))
            else {
                self.dials.waiting.remove(&(due, id));
                if let Some(link) = self.links.get_mut(&id) {
                    link.in_line = false;
                }
                self.restless.insert(id);
                continue;
            };
            let host = self.dials.hosts.get(link.url.host()).map(|at| at.plus(limits::SYNC_DIAL_HOST));
            let all = self.dials.last.map(|at| at.plus(limits::SYNC_DIAL));
            let at = host.unwrap_or_default().max(all.unwrap_or_default());
            if at > now && !makes(flaw, Flaw::DialsUnspaced) {
                self.dials.next = Some(self.dials.next.map_or(at, |next| next.min(at)));
                if all.is_some_and(|all| all > now) {
                    break;
                }
                continue;
            }
            self.dials.waiting.remove(&(due, id));
            link.in_line = false;
            self.next += 1;
            let session = Session(self.next);
            link.count_time(self.now);
            link.state = State::Dialing(session);
            link.totals.attempts += 1;
            self.sessions.insert(session, id);
            self.dials.open += 1;
            self.dials.last = Some(now);
            self.dials.hosts.retain(|_, at| at.plus(limits::SYNC_DIAL_HOST) > now);
            self.dials.hosts.insert(link.url.host().to_owned(), now);
            self.out.push_back(Output::Dial(session, link.url.clone()));
            self.set_alarm(id);
        }
    }

    /// A connection stands.
    pub(super) fn up(&mut self, session: Session, terms: Option<Terms>) {
        let Some(id) = self.sessions.get(&session).copied() else { return };
        self.dials.sign(id, self.now.mono);
        let now = self.now;
        let own = terms.as_ref().is_some_and(|terms| terms.instance.as_deref() == Some(&self.config.instance));
        if own && !self.flawed(Flaw::DialSelf) {
            if let Some(link) = self.links.get_mut(&id) {
                link.is_self = true;
                link.unsaved = true;
                self.out.push_back(Output::Note(Note::IsSelf(link.url.clone())));
            }
            return self.hang_up(id);
        }
        self.dials.open = self.dials.open.saturating_sub(1);
        let released: Vec<LinkId> = self.links.values().filter(|link| link.blameless).map(|link| link.id).collect();
        for id in released {
            if let Some(link) = self.links.get_mut(&id) {
                link.blameless = false;
                link.health.retry_now(now);
            }
            self.restless.insert(id);
        }
        self.with(id, |link, ctx| link.connect(ctx, session, terms));
        self.restless.insert(id);
    }

    /// A connection has ended or did not come about.
    pub(super) fn down(&mut self, session: Session, loss: Loss) {
        let Some(id) = self.sessions.remove(&session) else { return };
        let now = self.now;
        let chance = self.chance.next();
        let theirs = self.dials.others_are_there(id, now.mono);
        let forgetful = self.flawed(Flaw::QuietForgotten);
        let Some(link) = self.links.get_mut(&id) else { return };
        link.count_time(now);
        let state = std::mem::replace(&mut link.state, State::Idle);
        link.unsaved = true;
        match state {
            State::Idle => {}
            State::Dialing(_) => {
                self.dials.open = self.dials.open.saturating_sub(1);
                if loss != Loss::HungUp {
                    link.totals.failures += 1;
                    let ours = !theirs && loss == Loss::Unreachable;
                    link.blameless = ours;
                    let verdict = link.health.failed(now, if ours { Blame::Ours } else { Blame::Theirs }, chance);
                    let relay = link.url.clone();
                    let failures = link.health.failures();
                    let backoff_millis = u64::try_from(verdict.next.since(now.mono).as_millis()).unwrap_or(u64::MAX);
                    if verdict.died {
                        self.out.push_back(Output::Note(Note::Dead(relay.clone(), failures)));
                    }
                    self.out.push_back(Output::Note(Note::Failed { relay, loss, failures, backoff_millis }));
                }
            }
            State::Up(up) => {
                let comparing = up.jobs.values().filter(|job| job.is_comparing()).count();
                self.negs = self.negs.saturating_sub(comparing);
                if loss == Loss::HungUp {
                    link.health.left(now);
                } else {
                    link.health.lost(now, chance);
                }
                link.disconnect(*up, now.mono);
                if forgetful {
                    link.health.forget_quiet();
                }
                self.out.push_back(Output::Note(Note::Lost(link.url.clone(), loss)));
            }
        }
        self.restless.insert(id);
        if self.links.get(&id).is_some_and(|link| {
            !link.is_wanted()
                && link.unwanted.is_some_and(|at| now.mono.since(at).as_secs() >= limits::SYNC_UNWANTED_SECS)
        }) {
            self.unlink(id);
        }
    }

    /// Ends a link's connection, or the attempt at one.
    pub(super) fn hang_up(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(session) = link.current_session() else { return };
        let leaving = link.up_mut().is_some_and(|up| std::mem::replace(&mut up.leaving, true));
        if !leaving {
            self.out.push_back(Output::HangUp(session));
        }
    }

    /// A link's alarm has rung.
    pub(super) fn due(&mut self, id: LinkId) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&id) else { return };
        if !link.is_wanted()
            && link.unwanted.is_some_and(|at| now.mono.since(at).as_secs() >= limits::SYNC_UNWANTED_SECS)
        {
            match link.current_session() {
                Some(_) => {
                    // The end of the session does the rest.
                    link.unwanted = Some(now.mono);
                    self.hang_up(id);
                }
                None => self.unlink(id),
            }
            return;
        }
        if !link.in_line && link.dial_at(self.config.flaw).is_some_and(|at| at <= now.mono) {
            link.in_line = true;
            self.dials.waiting.insert((now.mono, id));
        }
        let leave = self.with(id, |link, ctx| link.overdue(ctx)).unwrap_or(false);
        if leave {
            self.hang_up(id);
        }
    }
}

impl Link {
    /// When it is to be dialled, if it is.
    pub(super) fn dial_at(&self, flaw: Option<Flaw>) -> Option<Moment> {
        let wanted = self.is_wanted() && (!self.paused || makes(flaw, Flaw::PausedDialled));
        let own = self.is_self && !makes(flaw, Flaw::DialSelf);
        if !matches!(self.state, State::Idle) || !wanted || own {
            return None;
        }
        Some(self.health.next_dial())
    }
}
