//! Whose turn it is: hosts serve those who wait for them.

use super::fault_injection::{Flaw, makes};
use super::io::{Fetch, FetchId, Output};
use super::job::Chase;
use super::network_limit::Room;
use super::source::{State, StopId};
use super::throttle::{Doom, Gate};
use super::{Errand, Flight, HostId, Hunter, QuarryId, Scout, Timer};
use crate::limits;
use crate::time::Moment;

/// Whether somebody could be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// Yes.
    Begun,
    /// Not before, or not before something ends.
    NotNow(Option<Moment>),
}

impl Hunter {
    /// A host may be able to serve somebody.
    pub(super) fn rouse(&mut self, id: HostId) {
        self.next += 1;
        let tick = self.next;
        if let Some(host) = self.hosts.get_mut(id)
            && host.eager.is_none()
        {
            host.eager = Some(tick);
            self.eager.insert((tick, id));
        }
    }

    /// Lets hosts serve those who wait, each host in turn. Whether anybody was served.
    pub(super) fn serve(&mut self) -> bool {
        let (mut served, mut work) = (false, 0);
        while let Some((_, id)) = self.eager.first().copied() {
            if self.flights.len() >= limits::HUNT_FETCHES {
                break;
            }
            self.eager.pop_first();
            if let Some(host) = self.hosts.get_mut(id) {
                host.eager = None;
            }
            // What is left is done in the next step, which follows at once.
            work += 1;
            if work > 4 * limits::HUNT_SLICE {
                self.remind(id, Some(self.now.mono));
                continue;
            }
            if self.serve_one(id) {
                served = true;
                self.rouse(id);
            }
        }
        served
    }

    /// Sets the time at which a host is looked at again.
    fn remind(&mut self, id: HostId, at: Option<Moment>) {
        let Some(host) = self.hosts.get_mut(id) else { return };
        let before = std::mem::replace(&mut host.alarm, at);
        self.ring(Timer::Host(id), before, at);
    }

    /// Serves the first in a host's line. Whether that was possible.
    fn serve_one(&mut self, id: HostId) -> bool {
        let flaw = self.flaw;
        let Some(host) = self.hosts.get_mut(id) else { return false };
        let Some(first) = host.line.first() else {
            // Those who are busy elsewhere at the moment may be luckier when they come.
            host.doom = None;
            let look = self.serve_look(id);
            self.remind(id, look.err().flatten());
            return look.is_ok();
        };
        if let Some(doom) = host.doom {
            self.dismiss(id, doom);
            return true;
        }
        let until = match host.gate(self.now.mono, host.limits(flaw)) {
            Gate::Never => {
                host.doom = Some(Doom::Never);
                return true;
            }
            Gate::Open(_) => match self.advance(first, id) {
                Start::Begun => return true,
                Start::NotNow(until) => until,
            },
            Gate::Until(until) => Some(until),
            Gate::Full => None,
        };
        self.remind(id, until);
        false
    }

    /// It is a quarry's turn at a host: it asks whom it likes best, if that host has room for everybody in its line or it
    /// is first there, too.
    fn advance(&mut self, id: QuarryId, turn: HostId) -> Start {
        let Some(mut chase) = self.quarries.remove(&id) else { return Start::NotNow(None) };
        let now = self.now.mono;
        let mut start = Start::NotNow(None);
        for stop_id in chase.order.clone() {
            let Some(stop) = chase.stops.get(&stop_id) else { continue };
            let ready = chase.ready_at(stop_id, stop).is_some_and(|at| at <= now || self.has(Flaw::AgainAtOnce));
            if !ready || !self.has_room(id, stop.host, turn) {
                continue;
            }
            let here = stop.host == turn;
            match self.start(id, &mut chase, stop_id) {
                Start::Begun => {
                    start = Start::Begun;
                    break;
                }
                not_now if here => start = not_now,
                Start::NotNow(_) => {}
            }
        }
        self.quarries.insert(id, chase);
        if start == Start::Begun {
            self.seat(id);
        }
        start
    }

    fn has_room(&mut self, id: QuarryId, host: HostId, turn: HostId) -> bool {
        let (now, flaw) = (self.now.mono, self.flaw);
        let Some(host) = self.hosts.get_mut(host).filter(|_| host != turn) else { return true };
        let Gate::Open(hands) = host.gate(now, host.limits(flaw)) else { return false };
        host.doom.is_none() && (host.line.first() == Some(id) || hands >= host.line.len())
    }

    /// Asks at a place, or finds out first where it is.
    fn start(&mut self, id: QuarryId, chase: &mut Chase, stop_id: StopId) -> Start {
        let now = self.now.mono;
        let Some(stop) = chase.stops.get_mut(&stop_id) else { return Start::NotNow(None) };
        let (host_id, origin) = (stop.host, stop.origin.clone());
        if self.scouts.contains_key(&origin) {
            return Start::NotNow(None);
        }
        let Some(host) = self.hosts.get_mut(host_id) else { return Start::NotNow(None) };
        if let Some(terms) = host.is_stale(now, &origin, stop.grasp) {
            if self.scouts.len() >= limits::HUNT_SURVEYS {
                self.unseen.insert(host_id);
                return Start::NotNow(None);
            }
            stop.state = State::Surveying(now);
            let errand = Errand::Stop(id, stop_id);
            self.scouts.insert(origin.clone(), Scout { host: host_id, errand, terms });
            self.out.push_back(Output::Survey { origin, terms });
            return Start::Begun;
        }
        self.launch(id, chase, stop_id)
    }

    /// Asks at a place of which it is known where it is.
    fn launch(&mut self, id: QuarryId, chase: &mut Chase, stop_id: StopId) -> Start {
        let (now, flaw) = (self.now, self.flaw);
        let Some(stop) = chase.stops.get(&stop_id) else { return Start::NotNow(None) };
        let (host_id, form) = (stop.host, stop.form());
        let Some(host) = self.hosts.get_mut(host_id) else { return Start::NotNow(None) };
        let networks = host.sights.get(&stop.origin).map(|sight| sight.networks.clone()).unwrap_or_default();
        let own = host.limits(flaw);
        if !makes(flaw, Flaw::NetworkIgnored) {
            let at = match self.networks.room(now.mono, host_id, &networks, own) {
                Room::Free => None,
                Room::Until(at) => Some(Some(at)),
                Room::Full => Some(None),
            };
            if let Some(at) = at {
                let until = at.unwrap_or(now.mono).plus_secs(limits::LOOK_CALL_SECS);
                self.networks.reserve(&networks, until);
                return Start::NotNow(at);
            }
        }
        let (oids, events) = chase.sought(stop_id, form);
        let row = host.begin(now, own);
        if let Some(place) = chase.places.remove(&host_id) {
            host.line.serve(place.seat, id);
        }
        self.networks.begin(now.mono, &networks);
        self.tally.fetches += 1;
        let fetch = FetchId(self.number());
        let Some(stop) = chase.stops.get_mut(&stop_id) else { return Start::NotNow(None) };
        stop.state = State::Fetching { id: fetch, since: now.mono, answered: false };
        stop.again = false;
        stop.visit.ask(now.mono, form);
        chase.asked = true;
        let target = stop.target.clone();
        let named = events.iter().map(|(event, _)| *event).collect();
        let (since, cancelled) = (now.mono, false);
        let flight =
            Flight { quarry: id, host: host_id, networks, since, form, oids: oids.clone(), events: named, cancelled };
        self.flights.insert(fetch, flight);
        self.out.extend(row.map(Output::Remember));
        self.out.push_back(Output::Fetch(Fetch { id: fetch, site: chase.site.clone(), target, form, oids, events }));
        Start::Begun
    }

    /// It is known where a place is: whoever wanted to know asks there, if it still may.
    pub(super) fn resume(&mut self, id: QuarryId, stop_id: StopId) {
        let (now, flaw) = (self.now.mono, self.flaw);
        let Some(mut chase) = self.quarries.remove(&id) else { return };
        let asleep = |stop| chase.barred_until(stop_id, stop).is_some_and(|until| until > now);
        let mut asleep = chase.stops.get(&stop_id).is_some_and(asleep);
        if let Some(stop) = chase.stops.get_mut(&stop_id) {
            stop.state = State::Waiting;
        }
        // Somebody else who was asked meanwhile may be quick.
        asleep |= chase.willing_at().is_none_or(|at| at > now);
        if let Some(stop) = chase.stops.get(&stop_id) {
            let host = self.hosts.get_mut(stop.host);
            let open = host.is_some_and(|host| matches!(host.gate(now, host.limits(flaw)), Gate::Open(_)));
            let again = stop.visit.again_at(stop.form()) <= now;
            if open && again && !asleep && chase.is_useful(stop_id) && self.flights.len() < limits::HUNT_FETCHES {
                self.launch(id, &mut chase, stop_id);
            }
        }
        self.quarries.insert(id, chase);
        self.restless.insert(id);
    }
}
