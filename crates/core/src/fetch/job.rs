//! What is missing at one site, and how far the search for it is.

use std::collections::{BTreeMap, BTreeSet};

use super::HostId;
use super::fair_queue::{Rank, Seat};
use super::io::{FetchId, Form, Need, Sought};
use super::source::{State, Stop, StopId, Visit};
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::Site;
use crate::time::Moment;

/// An event that waits, and what it still waits for.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub(super) need: Need,
    pub(super) unmet: BTreeSet<String>,
    /// When the last of it came.
    pub(super) met_at: Moment,
    /// Where it may be.
    pub(super) stops: BTreeSet<StopId>,
    /// Of those, the ones that have not been asked since it came.
    pub(super) unasked: BTreeSet<StopId>,
    /// When its time comes: later than it says itself if its owner has hurried us too often.
    pub(super) due: Moment,
    /// Its time has come.
    pub(super) ripe: bool,
    /// The registrar knows that every place was asked.
    pub(super) told: bool,
}

impl Want {
    pub(super) fn is_open(&self) -> bool {
        self.ripe && !self.unmet.is_empty()
    }
}

/// A place in a host's line, and whether it is taken at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) seat: Seat,
    pub(super) taken: bool,
}

/// A quarry that is hunted.
#[derive(Clone, Debug)]
pub(super) struct Chase {
    pub(super) site: Site,
    pub(super) wants: Vec<Want>,
    pub(super) stops: BTreeMap<StopId, Stop>,
    /// Whom to ask first.
    pub(super) order: Vec<StopId>,
    pub(super) next_stop: u32,
    /// What came of asking at places that no event names any more.
    pub(super) visits: BTreeMap<String, Visit>,
    /// Rounds without an end since the last new event.
    pub(super) attempts: u32,
    /// When the next round begins.
    pub(super) next: Option<Moment>,
    /// Nobody is asked before, because the trouble is ours.
    pub(super) hold: Moment,
    /// The operator did not want to wait, and what sleeps was woken.
    pub(super) hurried: Moment,
    /// A round has begun whose end was not counted yet.
    pub(super) open: bool,
    /// Somebody was asked in it.
    pub(super) asked: bool,
    pub(super) places: BTreeMap<HostId, Place>,
    /// URLs of which a person was told that they are not called.
    pub(super) shunned: BTreeSet<String>,
    pub(super) alarm: Option<Moment>,
}

impl Chase {
    pub(super) fn new(site: Site) -> Self {
        Self {
            site,
            wants: Vec::new(),
            stops: BTreeMap::new(),
            order: Vec::new(),
            next_stop: 0,
            visits: BTreeMap::new(),
            attempts: 0,
            next: None,
            hold: Moment(0),
            hurried: Moment(0),
            open: false,
            asked: false,
            places: BTreeMap::new(),
            shunned: BTreeSet::new(),
            alarm: None,
        }
    }

    pub(super) fn owner(&self) -> PublicKey {
        self.site.repo().owner
    }

    /// Whether something that is sought may be there.
    pub(super) fn is_useful(&self, stop: StopId) -> bool {
        self.wants.iter().any(|want| want.is_open() && want.stops.contains(&stop))
    }

    fn is_useful_awake(&self, stop: StopId) -> bool {
        self.wants.iter().any(|want| want.is_open() && !want.need.dormant && want.stops.contains(&stop))
    }

    /// Whether anybody still waits.
    pub(super) fn rank(&self) -> Rank {
        if self.wants.iter().any(|want| !want.need.dormant) { Rank::Awake } else { Rank::Dormant }
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Stop> {
        self.stops.values().filter(|stop| stop.is_active())
    }

    /// Whether one more server may be asked, or when.
    pub(super) fn willing_at(&self) -> Option<Moment> {
        let active = self.active().count();
        if active >= limits::HUNT_AT_ONCE {
            return None;
        }
        Some(self.active().filter_map(Stop::hedge_at).max().unwrap_or_default().max(self.hold))
    }

    /// When a place may be asked, if somebody is to ask there: `None` if not.
    pub(super) fn ready_at(&self, id: StopId, stop: &Stop) -> Option<Moment> {
        (stop.state == State::Waiting && self.is_useful(id)).then(|| stop.visit.again_at(stop.form()))
    }

    /// Until when a place rests whatever happens.
    pub(super) fn barred_until(&self, id: StopId, stop: &Stop) -> Option<Moment> {
        let asleep = stop.visit.asked_at().filter(|at| *at >= self.hurried && !self.is_useful_awake(id));
        let asleep = asleep.map(|at| at.plus_secs(limits::HUNT_DORMANT_SECS));
        stop.visit.unsound_until.max(asleep)
    }

    /// Until the next round, after so many.
    pub(super) fn backoff_secs(&self) -> u64 {
        if self.rank() == Rank::Dormant {
            return limits::HUNT_DORMANT_SECS;
        }
        let nth = usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(usize::MAX);
        let [.., last] = limits::HUNT_BACKOFF_SECS;
        limits::HUNT_BACKOFF_SECS.get(nth).copied().unwrap_or(last)
    }

    /// What to ask for at a place, and for which events. By object only what somebody waits for now, because one object
    /// too many spoils it; by ref everything, because it costs nothing.
    pub(super) fn sought(&self, stop: StopId, form: Form) -> (Vec<String>, Vec<(EventId, Sought)>) {
        let awake = form == Form::Oids && self.is_useful_awake(stop);
        let (mut oids, mut events) = (BTreeSet::new(), Vec::new());
        for want in &self.wants {
            if !want.is_open() || !want.stops.contains(&stop) || (awake && want.need.dormant) {
                continue;
            }
            if !oids.is_empty() && oids.len() + want.unmet.len() > limits::HUNT_OIDS {
                continue;
            }
            oids.extend(want.unmet.iter().take(limits::HUNT_OIDS).cloned());
            events.push((want.need.event, want.need.what));
        }
        (oids.into_iter().collect(), events)
    }

    /// Objects have come.
    pub(super) fn meet(&mut self, now: Moment, oids: &[String]) {
        for want in &mut self.wants {
            for oid in oids {
                if want.unmet.remove(oid) {
                    want.met_at = now;
                }
            }
        }
    }

    /// A place was asked for these events. Gives those whose places have all been.
    pub(super) fn note_asked(&mut self, stop: StopId, events: impl Fn(&EventId) -> bool) -> Vec<EventId> {
        for want in &mut self.wants {
            if events(&want.need.event) {
                want.unasked.remove(&stop);
            }
        }
        self.tried()
    }

    /// Events whose places have all been asked in vain, and of which nobody was told yet.
    pub(super) fn tried(&mut self) -> Vec<EventId> {
        let done = |want: &&mut Want| want.is_open() && !want.told && want.unasked.is_empty() && !want.need.dormant;
        self.wants
            .iter_mut()
            .filter(done)
            .map(|want| {
                want.told = true;
                want.need.event
            })
            .collect()
    }

    /// Whether a fetch brings anything that somebody waits for.
    pub(super) fn needs_any(&self, oids: &[String]) -> bool {
        self.wants.iter().any(|want| oids.iter().any(|oid| want.unmet.contains(oid)))
    }

    /// The place that a fetch asks.
    pub(super) fn stop_of(&mut self, fetch: FetchId) -> Option<(StopId, &mut Stop)> {
        self.stops
            .iter_mut()
            .find(|(_, stop)| matches!(stop.state, State::Fetching { id, .. } if id == fetch))
            .map(|(id, stop)| (*id, stop))
    }
}
