//! Whom a machine may dial, and when.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::repo::ServiceAddress;
use grasp_core::sync::io::{DisconnectReason, RelayCommand, SessionId};
use grasp_core::sync::relay_limits::Nip11Info;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Now;

use super::{Verdicts, subject};
use crate::sync::queue::{HOUR, SECOND, Time};
use crate::sync::tables::Rows;

/// Attempts at once.
const AT_ONCE: usize = 8;
/// Milliseconds between two attempts.
const APART: Time = 250;
/// Milliseconds between two attempts at one host, and from the end of a connection to the next attempt.
const HOST_APART: Time = 2 * SECOND;
/// The first backoff, and the longest.
const BACKOFF: (Time, Time) = (5 * SECOND, HOUR);
/// A failure is the relay's if another one was heard so recently.
const SIGN: Time = 60 * SECOND;
/// Milliseconds after which what a process has learned is surely on disk.
const WRITTEN: Time = 120 * SECOND;

/// What is known of attempts.
#[derive(Debug)]
pub(super) struct Dials {
    service: ServiceAddress,
    instance: String,
    /// Which places are this node itself.
    own: BTreeMap<String, bool>,
    places: BTreeMap<String, Place>,
    open: BTreeSet<SessionId>,
    sessions: BTreeMap<SessionId, String>,
    last: Option<Time>,
    hosts: BTreeMap<String, Time>,
    /// When each relay was last heard in this life.
    heard: BTreeMap<String, Time>,
    away: bool,
    /// Whether the wall clock was ever set.
    stepped: bool,
    /// When the network last came back.
    back: Time,
}

#[derive(Debug, Default)]
struct Place {
    down_at: Option<Time>,
    not_before: Option<Time>,
    paused: Option<Time>,
    is_self: Option<Time>,
    excused: bool,
    gaps: Vec<(Time, Time)>,
    heard: Time,
}

impl Dials {
    pub(super) fn new(service: ServiceAddress, instance: String) -> Self {
        Self {
            service,
            instance,
            own: BTreeMap::new(),
            places: BTreeMap::new(),
            open: BTreeSet::new(),
            sessions: BTreeMap::new(),
            last: None,
            hosts: BTreeMap::new(),
            heard: BTreeMap::new(),
            away: false,
            stepped: false,
            back: 0,
        }
    }

    pub(super) fn place(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(&session).map(String::as_str)
    }

    pub(super) fn gaps(&self, place: &str) -> &[(Time, Time)] {
        self.places.get(place).map(|place| place.gaps.as_slice()).unwrap_or_default()
    }

    pub(super) fn dial(
        &mut self,
        verdicts: &mut Verdicts,
        now: Time,
        session: SessionId,
        url: &RelayUrl,
        quiet: Option<Time>,
    ) {
        let own = || self.service.is_own_relay_url(&url.to_string());
        let own = *self.own.entry(url.without_scheme().to_owned()).or_insert_with(own);
        verdicts.hold(!own, "nobody dials itself", || url.to_string());
        verdicts.hold(self.open.len() < AT_ONCE, "few dials at once", || format!("{} are open", self.open.len()));
        let since = |last: Time| now.saturating_sub(last);
        verdicts.hold(self.last.is_none_or(|last| since(last) >= APART), "dials are spaced", || url.to_string());
        let host = self.hosts.get(url.host()).copied();
        verdicts
            .hold(host.is_none_or(|last| since(last) >= HOST_APART), "dials of a host are spaced", || url.to_string());
        let place = self.places.entry(url.without_scheme().to_owned()).or_default();
        verdicts.hold(place.paused.is_none(), "what is paused is not dialled", || url.to_string());
        verdicts.hold(place.is_self.is_none(), "nobody dials itself twice", || url.to_string());
        let early = place.down_at.is_some_and(|at| now < at + HOST_APART) && !place.excused;
        verdicts
            .hold(!early, "no dial within two seconds of a drop", || format!("{url}: {:?} at {now}", place.down_at));
        let early = place.not_before.is_some_and(|at| now < at) && !place.excused && now >= self.back + 120 * SECOND;
        verdicts.hold(!early, "no dial before its time", || format!("{url}: {:?} at {now}", place.not_before));
        let quiet = quiet.filter(|_| !place.excused);
        verdicts
            .hold(quiet.is_none_or(|until| until <= now), "no dial in a quiet period", || format!("{url}: {quiet:?}"));
        place.excused = false;
        place.not_before = None;
        self.open.insert(session);
        self.sessions.insert(session, url.without_scheme().to_owned());
        self.last = Some(now);
        self.hosts.insert(url.host().to_owned(), now);
    }

    /// An attempt was given up.
    pub(super) fn hung_up(&mut self, session: SessionId) {
        self.open.remove(&session);
    }

    pub(super) fn up(&mut self, now: Time, session: SessionId, nip11: Option<&Nip11Info>) {
        self.open.remove(&session);
        let Some(place) = self.sessions.get(&session).and_then(|place| self.places.get_mut(place)) else { return };
        if nip11.is_some_and(|nip11| nip11.instance.as_deref() == Some(&self.instance)) {
            place.is_self.get_or_insert(now);
        }
        place.gaps.push((place.heard, now));
        place.heard = now;
        if let Some(name) = self.sessions.get(&session) {
            self.heard.insert(name.clone(), now);
        }
    }

    pub(super) fn heard(&mut self, now: Time, session: SessionId) {
        let Some(name) = self.sessions.get(&session) else { return };
        if let Some(place) = self.places.get_mut(name) {
            place.heard = now;
            self.heard.insert(name.clone(), now);
        }
    }

    pub(super) fn down(&mut self, now: Time, session: SessionId, loss: DisconnectReason) {
        let was_up = !self.open.remove(&session) && loss != DisconnectReason::Unreachable;
        let Some(place) = self.sessions.remove(&session).and_then(|place| self.places.get_mut(&place)) else { return };

        // An attempt that came to nothing is no drop; its backoff is another matter.
        if was_up {
            place.down_at = Some(now);
        }
    }

    pub(super) fn failed(&mut self, verdicts: &mut Verdicts, now: Time, url: &RelayUrl, said: (u32, u64)) {
        let (failures, backoff) = said;
        let place = self.places.entry(url.without_scheme().to_owned()).or_default();
        let others = self.heard.iter().any(|(other, at)| other != url.without_scheme() && now <= at + SIGN);
        let ours = self.away || now < self.back + 70 * SECOND;
        if failures == 0 || !others || ours {
            return;
        }
        let doubled = BACKOFF.0.saturating_mul(1 << (failures - 1).min(20)).min(BACKOFF.1);
        let day = 24 * HOUR;
        let fits = |whole: Time| (whole * 79 / 100..=whole * 121 / 100).contains(&backoff);
        verdicts.hold(fits(doubled) || fits(day), "backoff doubles, give or take a fifth", || {
            format!("{url}: {backoff} ms after {failures} failures")
        });
        place.not_before = Some(now + backoff.saturating_sub(100));
    }

    pub(super) fn order(&mut self, order: &RelayCommand) {
        let place = self.places.entry(subject(order).without_scheme().to_owned()).or_default();
        match order {
            RelayCommand::Pause(_) => place.paused = Some(self.last.unwrap_or(0)),
            RelayCommand::Resume(_) => place.paused = None,
            RelayCommand::Retry(_) => place.excused = true,
            RelayCommand::Forget(_) => {
                (place.excused, place.is_self) = (true, None);
            }
            RelayCommand::Reconcile(_) => {}
        }
    }

    pub(super) fn clock_stepped(&mut self) {
        self.stepped = true;
    }

    pub(super) fn outage(&mut self, now: Time, away: bool) {
        self.away = away;
        self.back = now;
    }

    pub(super) fn ended(&mut self, now: Time) {
        self.open.clear();
        self.sessions.clear();
        // A row that was to be written soon may be lost.
        for place in self.places.values_mut() {
            place.paused = place.paused.filter(|at| at + WRITTEN < now);
            place.is_self = place.is_self.filter(|at| at + WRITTEN < now);
            place.not_before = None;
            place.excused = false;
            place.down_at = None;
        }
        self.last = None;
        self.hosts.clear();
        self.heard.clear();
    }

    pub(super) fn began(&mut self, now: Time, clock: Now, rows: &Rows) {
        for row in rows.peers() {
            let place = self.places.entry(row.url.without_scheme().to_owned()).or_default();
            if row.paused {
                place.paused.get_or_insert(now);
            }
            if row.is_self {
                place.is_self.get_or_insert(now);
            }
            let left = row.health.next_retry_at.map_or(0, |at| at.secs_since(clock.wall));
            // Times that were written by another clock mean little.
            if left > 2 && left < 90_000 && !self.stepped {
                place.not_before = Some(now + (left - 2) * SECOND);
            }
        }
    }
}
