//! The rounds of a quarry: who is to be asked, and when again.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use super::fault_injection::{Flaw, makes};
use super::io::{FetchId, Output};
use super::job::{Chase, Place, Want};
use super::source::{Outcome, State, Stop, StopId};
use super::throttle::Doom;
use super::{Hunter, QuarryId, Timer};
use crate::limits;
use crate::nostr::event::EventId;
use crate::time::Moment;

/// An event whose time comes so shortly after a round begins is part of it: a burst is one round.
const SLACK: Duration = Duration::from_secs(1);

/// The time of an event that has none yet.
pub(super) const NEVER: Moment = Moment(u64::MAX);

impl Chase {
    /// Everything is looked for at once.
    pub(super) fn hurry(&mut self, now: Moment) {
        self.attempts = 0;
        self.hold = now;
        self.next = Some(now);
        for want in &mut self.wants {
            want.ripe = true;
        }
        // What sleeps is woken for once.
        self.hurried = now;
    }

    /// The first bytes of a fetch have come.
    pub(super) fn answering(&mut self, fetch: FetchId) {
        if let Some((_, stop)) = self.stop_of(fetch)
            && let State::Fetching { answered, .. } = &mut stop.state
        {
            *answered = true;
        }
    }

    /// When the earliest of the events comes whose time has not come yet.
    fn ripens_at(&self) -> Option<Moment> {
        self.wants.iter().filter(|want| !want.ripe).map(|want| want.due).min()
    }

    /// When the next round begins.
    pub(super) fn next_round(&self) -> Option<Moment> {
        self.next.into_iter().chain(self.ripens_at()).min()
    }

    /// When a round begins anyway that serves an event of this time: a little earlier, or later because its owner has
    /// hurried us too often.
    pub(super) fn round_for(&self, due: Moment) -> Option<Moment> {
        let soon = |at: &Moment| *at <= due && at.plus(SLACK) >= due;
        let planned = self.wants.iter().filter(|want| !want.ripe && want.due < NEVER);
        let planned = planned.filter(|want| soon(&want.due) || (want.due > want.need.due && want.due >= due));
        planned.map(|want| want.due).chain(self.next.filter(soon)).min()
    }
}

impl Hunter {
    /// Begins a round: everything that rests waits for its host.
    fn begin(&mut self, chase: &mut Chase) {
        let now = self.now.mono;
        for want in &mut chase.wants {
            if !want.ripe && want.due <= now.plus(SLACK) {
                want.ripe = true;
                // Whoever was too busy for others has not been too busy for it.
                for (_, stop) in chase.stops.iter_mut().filter(|(id, _)| want.stops.contains(id)) {
                    stop.busy = 0;
                }
            }
            if want.ripe && want.unmet.is_empty() && want.met_at.plus_secs(limits::HUNT_AGAIN_SECS) <= now {
                // All of it came, and still somebody waits: it is looked for again, and need not be waited for.
                want.unmet = want.need.oids.iter().cloned().collect();
                want.unasked.clear();
            }
        }
        self.order(chase);
        let flights = &self.flights;
        let known = |id: &FetchId, event: &EventId| flights.get(id).is_some_and(|flight| flight.events.contains(event));
        let (mut wait, mut again, mut barred) = (Vec::new(), Vec::new(), Vec::new());
        for (id, stop) in &chase.stops {
            let open = || chase.wants.iter().filter(|want| want.is_open() && want.stops.contains(id));
            match &stop.state {
                State::Resting if open().next().is_some() => {
                    match self.barred_until(chase, *id, stop).filter(|until| *until > now) {
                        Some(_) => barred.push(*id),
                        None => wait.push(*id),
                    }
                }
                State::Fetching { id: fetch, .. } if open().any(|want| !known(fetch, &want.need.event)) => {
                    again.push(*id);
                }
                _ => {}
            }
        }
        for id in wait {
            if let Some(stop) = chase.stops.get_mut(&id) {
                stop.state = State::Waiting;
                stop.busy = 0;
            }
        }
        for id in again {
            if let Some(stop) = chase.stops.get_mut(&id) {
                stop.again = true;
            }
        }
        for id in barred {
            for want in chase.wants.iter_mut().filter(|want| want.ripe) {
                want.unasked.remove(&id);
            }
        }
        (chase.open, chase.asked, chase.next) = (true, false, None);
        let tried = chase.tried();
        self.tell_tried(tried);
    }

    pub(super) fn tell_tried(&mut self, events: Vec<EventId>) {
        if !events.is_empty() {
            self.out.push_back(Output::Tried(events));
        }
    }

    /// Whoever had no turn in the last round first, then other GRASP servers, then by luck, then as listed.
    fn order(&self, chase: &mut Chase) {
        let mut order: Vec<(bool, bool, Reverse<u32>, StopId)> = chase
            .stops
            .iter()
            .map(|(id, stop)| {
                let luck = self.hosts.get(stop.host).map_or(0, |host| host.luck());
                (stop.state != State::Waiting, !stop.grasp, Reverse(luck), *id)
            })
            .collect();
        order.sort_unstable();
        chase.order = order.into_iter().map(|(.., id)| id).collect();
    }

    /// Looks at a quarry to which something has happened: whether its round begins, in whose lines it stands, and when it
    /// is to be looked at again.
    pub(super) fn seat(&mut self, id: QuarryId) {
        let Some(mut chase) = self.quarries.remove(&id) else { return };
        let now = self.now.mono;
        if chase.next_round().is_some_and(|at| at <= now) {
            self.begin(&mut chase);
        }
        // What fell asleep while it waited waits for its hour.
        let asleep = |(id, stop): &(&StopId, &Stop)| {
            stop.state == State::Waiting && chase.barred_until(**id, stop).is_some_and(|until| until > now)
        };
        for stop in chase.stops.iter().filter(asleep).map(|(id, _)| *id).collect::<Vec<_>>() {
            chase.stops.entry(stop).and_modify(|stop| stop.state = State::Resting);
        }
        let willing = chase.willing_at();
        let (mut hosts, mut waits, mut hopes) = (BTreeSet::new(), BTreeSet::new(), None::<Moment>);
        let early = |at: Moment, before: Option<Moment>| Some(before.map_or(at, |before| before.min(at)));
        for (stop_id, stop) in &chase.stops {
            let Some(ready) = chase.ready_at(*stop_id, stop) else { continue };
            waits.insert(stop.host);
            let ready = if makes(self.flaw, Flaw::AgainAtOnce) { now } else { ready };
            match willing.map(|willing| willing.max(ready)) {
                Some(at) if at <= now => drop(hosts.insert(stop.host)),
                Some(at) => hopes = early(at, hopes),
                None => {}
            }
        }
        self.sit(id, &mut chase, &hosts, &waits);
        let idle = chase.active().next().is_none();
        if chase.open && idle && (chase.asked || waits.is_empty()) {
            self.ending.insert(id);
        } else if !chase.open && chase.next.is_none() {
            chase.next = self.again_at(&chase);
        }
        let at = chase.next_round().into_iter().chain(hopes).min();
        self.ring(Timer::Quarry(id), chase.alarm, at);
        chase.alarm = at;
        self.quarries.insert(id, chase);
    }

    /// Stands in the lines of these hosts and of no others. The places in the lines of those for which it waits are kept.
    fn sit(
        &mut self,
        id: QuarryId,
        chase: &mut Chase,
        hosts: &BTreeSet<super::HostId>,
        waits: &BTreeSet<super::HostId>,
    ) {
        let rank = chase.rank();
        let owner = chase.owner();
        let mut left = Vec::new();
        chase.places.retain(|host_id, place| {
            let Some(host) = self.hosts.get_mut(*host_id) else { return false };
            let keep = waits.contains(host_id) && place.seat.rank == rank;
            if place.taken && !(keep && hosts.contains(host_id)) {
                host.line.leave(place.seat, id);
                place.taken = false;
                left.push(*host_id);
            }
            keep
        });
        left.into_iter().for_each(|host| self.make_way(host));
        for host_id in hosts {
            let Some(host) = self.hosts.get_mut(*host_id) else { continue };
            let place = chase
                .places
                .entry(*host_id)
                .or_insert_with(|| Place { seat: host.line.seat(rank, owner), taken: false });
            if !place.taken {
                place.taken = true;
                host.line.join(place.seat, id);
            }
            self.rouse(*host_id);
        }
    }

    /// A round is over, as far as anybody can be asked now.
    pub(super) fn close(&mut self, id: QuarryId) {
        let Some(mut chase) = self.quarries.remove(&id) else { return };
        if chase.open && chase.active().next().is_none() {
            chase.open = false;
            if std::mem::take(&mut chase.asked) {
                chase.attempts = chase.attempts.saturating_add(1);
                self.tally.rounds += 1;
            }
            chase.next = chase.next.into_iter().chain(self.again_at(&chase)).min();
            let alarm = chase.alarm.into_iter().chain(chase.next).min();
            self.ring(Timer::Quarry(id), chase.alarm, alarm);
            chase.alarm = alarm;
        }
        self.quarries.insert(id, chase);
    }

    /// When the next round begins. Never if nobody rests: who waits is served in time.
    fn again_at(&self, chase: &Chase) -> Option<Moment> {
        let now = self.now.mono;
        let at = now.plus_secs(chase.backoff_secs());
        let resting = chase.stops.iter().filter(|(id, stop)| stop.state == State::Resting && chase.is_useful(**id));
        // Nothing is gained by a round in which nobody may be asked.
        let free = resting.map(|(id, stop)| self.barred_until(chase, *id, stop).unwrap_or(now)).min();
        let met = chase.wants.iter().any(|want| want.ripe) && !chase.wants.iter().any(Want::is_open);
        match free {
            Some(free) => Some(at.max(free)),
            None => (met && !chase.stops.is_empty()).then_some(at),
        }
    }

    /// Until when a place rests, because of what it did or because its host wants none.
    fn barred_until(&self, chase: &Chase, id: StopId, stop: &Stop) -> Option<Moment> {
        let host = self.hosts.get(stop.host);
        let never = host.and_then(|host| host.never_until(host.limits(self.flaw)));
        chase.barred_until(id, stop).max(never)
    }

    /// Whoever waits for a host at which nobody can be asked goes on without it. Not those who come later.
    pub(super) fn flush(&mut self, id: super::HostId) {
        for _ in 0..limits::HUNT_SLICE {
            let Some(host) = self.hosts.get_mut(id) else { return };
            let Some(doom) = host.doom else { return };
            if host.line.first().is_none() {
                host.doom = None;
                return;
            }
            self.dismiss(id, doom);
        }
    }

    /// Nobody can be asked at a host for now: whoever stands first in its line goes on without it.
    pub(super) fn dismiss(&mut self, host_id: super::HostId, doom: Doom) {
        let Some(id) = self.hosts.get(host_id).and_then(|host| host.line.first()) else { return };
        let Some(mut chase) = self.quarries.remove(&id) else { return };
        let there = chase.stops.iter().filter(|(_, stop)| stop.host == host_id && stop.state == State::Waiting);
        for stop in there.map(|(stop, _)| *stop).collect::<Vec<_>>() {
            self.pass(&mut chase, stop, doom);
        }
        self.quarries.insert(id, chase);
        self.seat(id);
    }

    /// A place counts as asked, because its host is what it is.
    pub(super) fn pass(&mut self, chase: &mut Chase, id: StopId, doom: Doom) {
        let site = chase.site.clone();
        if let Some(stop) = chase.stops.get_mut(&id) {
            stop.state = State::Resting;
            stop.visit.outcome = Some(match doom {
                Doom::Down => Outcome::Failed,
                Doom::Nowhere => Outcome::Nowhere,
                Doom::Forbidden(_) => Outcome::Forbidden,
                Doom::Never => Outcome::Never,
            });
            if let Doom::Forbidden(why) = doom {
                self.shun(&site, stop, why);
            }
        }
        chase.asked = true;
        let ripe: BTreeSet<EventId> = chase.wants.iter().filter(|want| want.ripe).map(|want| want.need.event).collect();
        let tried = chase.note_asked(id, |event| ripe.contains(event));
        self.tell_tried(tried);
    }
}
