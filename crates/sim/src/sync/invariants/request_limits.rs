//! What a machine may ask of a relay.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::limits;
use grasp_core::nostr::{Filter, kinds};
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, SessionId, SubscriptionId};
use grasp_core::time::Now;

use super::Verdicts;
use crate::sync::queue::{DAY, SECOND, Time};
use crate::sync::relay_profile::{Stated, is_rate};
use crate::sync::tables::Rows;
use crate::sync::wire;

/// What may be asked of a relay that says nothing (spec §14.2).
const FLOOR: Stated = Stated { slots: 20, filters: 10, message: 131_072, page: 500 };
/// How long a relay that wants less is left alone at least.
const QUIET: Time = 65 * SECOND;
/// After so long a subscription that was closed is over, answered or not.
const CLOSING: Time = 2 * SECOND;
/// How long a relay may take to confirm a live subscription before history is asked for all the same.
const CONFIRMED: Time = limits::LIVE_EOSE_TIMEOUT_SECS * SECOND;
/// Full passes over one relay in one day: the daily one, and one that a quick reconnect, or a restart, has put off.
const PASSES_A_DAY: u64 = 3;
/// A pass takes so long at most; what begins another one within that time belongs to it.
const PASS: Time = 60 * SECOND;
/// Requests of one pass. The largest of these worlds has 20 repositories with 240 roots: five tags each, ten values a
/// filter and a page and a fetch for each make 300.
const MOST_A_PASS: u64 = 300;
/// Requests of one day for what has no place among the subscriptions: every five minutes a part of it, with seven filters.
const MOST_IN_TURN: u64 = 24 * 12 * 7;

#[derive(Debug, Default)]
pub(super) struct Manners {
    talks: BTreeMap<SessionId, Talk>,
    places: BTreeMap<String, Place>,
    requests: u64,
    most: (u64, u64),
}

#[derive(Debug, Default)]
struct Talk {
    stated: Option<Stated>,
    listens: Listens,
    open: BTreeMap<SubscriptionId, Open>,
    used: BTreeSet<SubscriptionId>,
}

/// Whether new events of a relay come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Listens {
    /// Nobody has asked for them.
    #[default]
    No,
    /// They were asked for then.
    Asked(Time),
    /// The relay has answered.
    Yes,
}

#[derive(Debug)]
struct Open {
    neg: bool,
    answered: bool,
    closing: Option<Time>,
}

impl Talk {
    /// A complaint that names no request means the oldest one that has no answer: relays go by turns.
    fn complain(&mut self, text: &str) {
        let neg = text.contains("negentropy") || text.contains("NEG");
        let refused = self.open.iter().filter(|(_, open)| !open.answered && (open.neg || !neg)).map(|(sub, _)| *sub);
        if let Some(sub) = refused.min() {
            self.open.remove(&sub);
        }
    }
}

impl Open {
    fn counts(&self, now: Time) -> bool {
        self.closing.is_none_or(|at| !self.answered && now < at + CLOSING)
    }
}

#[derive(Debug, Default)]
struct Place {
    quiet_until: Option<Time>,
    day: Time,
    requests: u64,
    /// Those of them that ask for what is new since a while.
    in_turn: u64,
    passes: u64,
    /// When the last pass began.
    pass_at: Option<Time>,
    /// What made more of them necessary: connections, parts that failed, wishes of the operator.
    reasons: u64,
    /// Those of them that are parts that failed.
    failed: u64,
}

impl Place {
    fn on(&mut self, now: Time) -> &mut Self {
        let day = now / DAY;
        if self.day != day {
            // What failed yesterday is owed today, and so is what a short absence could not see. A calm day has no reasons.
            let reasons = self.failed.min(u64::from(limits::MAX_BATCH_RETRIES)) + u64::from(self.reasons > 0);
            let (quiet_until, pass_at) = (self.quiet_until, self.pass_at);
            *self = Self { quiet_until, day, pass_at, reasons, ..Self::default() };
        }
        self
    }
}

impl Manners {
    pub(super) fn stated(&mut self, session: SessionId, stated: Option<Stated>, relay: usize) {
        let _ = relay;
        self.talks.insert(session, Talk { stated, ..Talk::default() });
    }

    /// Something happened for which a relay may be asked once more.
    pub(super) fn reason(&mut self, now: Time, place: &str) {
        self.places.entry(place.to_owned()).or_default().on(now).reasons += 1;
    }

    /// Part of the history could not be had: it is asked for again.
    pub(super) fn failed(&mut self, now: Time, place: &str) {
        self.reason(now, place);
        self.places.entry(place.to_owned()).or_default().failed += 1;
    }

    pub(super) fn down(&mut self, session: SessionId) {
        self.talks.remove(&session);
    }

    pub(super) fn ended(&mut self) {
        self.talks.clear();
        for place in self.places.values_mut() {
            place.quiet_until = None;
        }
    }

    pub(super) fn began(&mut self, now: Time, clock: Now, rows: &Rows) {
        for row in rows.peers() {
            let left = row.health.cooldown_until.map_or(0, |at| at.secs_since(clock.wall));
            if left > 2 && left < 4_000 {
                let place = self.places.entry(row.url.without_scheme().to_owned()).or_default();
                place.quiet_until = Some(now + (left - 2) * SECOND);
            }
        }
    }

    pub(super) fn quiet_until(&self, place: &str) -> Option<Time> {
        self.places.get(place).and_then(|place| place.quiet_until)
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn most(&self) -> (u64, u64) {
        self.most
    }

    pub(super) fn heard(&mut self, now: Time, session: SessionId, heard: &IncomingMessage, place: Option<&str>) {
        let Some(talk) = self.talks.get_mut(&session) else { return };
        if !matches!(heard, IncomingMessage::Alive | IncomingMessage::Auth(_) | IncomingMessage::Event(..))
            && talk.listens != Listens::No
        {
            talk.listens = Listens::Yes;
        }
        match heard {
            IncomingMessage::Eose(sub, _) | IncomingMessage::NegMsg(sub, _) => {
                if let Some(open) = talk.open.get_mut(sub) {
                    open.answered = true;
                }
            }
            IncomingMessage::Closed(sub, _) | IncomingMessage::NegErr(sub, ..) => drop(talk.open.remove(sub)),
            IncomingMessage::Notice(text) | IncomingMessage::Ok(false, text) => talk.complain(text),
            _ => {}
        }
        let complaint = match heard {
            IncomingMessage::Closed(_, text)
            | IncomingMessage::NegErr(_, text, _)
            | IncomingMessage::Notice(text)
            | IncomingMessage::Ok(false, text) => text,
            _ => return,
        };
        if is_rate(complaint)
            && let Some(place) = place
        {
            let place = self.places.entry(place.to_owned()).or_default();
            place.quiet_until = place.quiet_until.max(Some(now + QUIET));
        }
    }

    pub(super) fn said(
        &mut self,
        verdicts: &mut Verdicts,
        now: Time,
        session: SessionId,
        say: &OutgoingMessage,
        place: Option<&str>,
    ) {
        let Some(talk) = self.talks.get_mut(&session) else {
            verdicts.hold(false, "nothing is said to nobody", || format!("{session:?}"));
            return;
        };
        let limits = talk.stated.unwrap_or(FLOOR);
        let bytes = wire::bytes(say);
        verdicts.hold(bytes <= limits.message, "no message is larger than the relay takes", || {
            format!("{bytes} of {}", limits.message)
        });
        let (sub, filters, neg) = match say {
            OutgoingMessage::Req(sub, filters) => (sub, filters.as_slice(), false),
            OutgoingMessage::NegOpen(sub, filter, _) => (sub, std::slice::from_ref(filter), true),
            OutgoingMessage::Close(sub) | OutgoingMessage::NegClose(sub) => {
                if let Some(open) = talk.open.get_mut(sub) {
                    open.closing = Some(now);
                }
                return;
            }
            OutgoingMessage::NegMsg(sub, _) => {
                if let Some(open) = talk.open.get_mut(sub) {
                    open.answered = false;
                }
                return;
            }
            OutgoingMessage::Auth(_) => return,
        };
        verdicts.hold(talk.used.insert(*sub), "no id is used twice", || format!("{sub:?}"));
        verdicts.hold(filters.len() <= limits.filters, "no more filters than the relay takes", || {
            format!("{} of {}", filters.len(), limits.filters)
        });
        verdicts.hold(!filters.is_empty(), "no request without filters", String::new);
        talk.open.insert(*sub, Open { neg, answered: false, closing: None });
        talk.open.retain(|_, open| open.counts(now));
        let taken = talk.open.len();
        verdicts.hold(taken <= limits.slots, "no more subscriptions than the relay takes", || {
            format!("{taken} of {}", limits.slots)
        });
        let reserve = (limits::RESERVED_RELAY_SUBSCRIPTIONS as usize).min(limits.slots.saturating_sub(2));
        let live = !neg && filters.iter().all(is_live);
        verdicts.hold(live || taken + reserve <= limits.slots, "history leaves the reserve alone", || {
            format!("{taken} of {} with {reserve} in reserve", limits.slots)
        });
        let listens = talk.listens;
        let waited = match listens {
            Listens::No => false,
            Listens::Asked(at) => now >= at + CONFIRMED,
            Listens::Yes => true,
        };
        verdicts.hold(live || waited, "history waits until new events come in", || format!("{listens:?} at {now}"));
        if live && listens == Listens::No {
            talk.listens = Listens::Asked(now);
        }
        self.requests += 1;
        let Some(place) = place else { return };
        let place = self.places.entry(place.to_owned()).or_default();
        let quiet = place.quiet_until;
        verdicts.hold(quiet.is_none_or(|until| until <= now), "no request in a quiet period", || {
            format!("{quiet:?} at {now}")
        });
        let place = place.on(now);
        place.requests += 1;
        place.in_turn += u64::from(!live && filters.iter().all(|filter| filter.since.is_some()));
        if !live && filters.iter().any(begins_a_pass) && place.pass_at.is_none_or(|at| now >= at + PASS) {
            place.pass_at = Some(now);
            place.passes += 1;
        }
        self.most = (self.most.0.max(place.requests), self.most.1.max(place.passes));
        let Place { requests, in_turn, passes, reasons, .. } = *place;
        verdicts.hold(passes <= PASSES_A_DAY + reasons, "few full passes a day", || format!("{passes}, {reasons}"));
        let rest = requests - in_turn.min(MOST_IN_TURN);
        verdicts.hold(rest <= (PASSES_A_DAY + reasons) * MOST_A_PASS, "few requests a day", || {
            format!("{requests}, {reasons}")
        });
    }
}

/// Whether a filter is there to stay, and not for history: history comes in pages, or by id.
pub(super) fn is_live(filter: &Filter) -> bool {
    filter.limit.is_some_and(|limit| limit <= 1)
        || (filter.limit.is_none() && filter.ids.is_none() && filter.until.is_none() && filter.since.is_some())
}

/// Whether a filter asks for all announcements there ever were, from the newest on.
fn begins_a_pass(filter: &Filter) -> bool {
    filter.kinds.as_deref() == Some(&[kinds::ANNOUNCEMENT])
        && filter.tags.is_empty()
        && filter.since.is_none()
        && filter.until.is_none()
}
