//! What is wanted replaces what was wanted (rule M16).

use std::collections::{BTreeMap, BTreeSet};

use super::fault_injection::Flaw;
use super::io::{FetchId, Need, Output, Quarry};
use super::job::{Chase, Want};
use super::origin::Origin;
use super::round::NEVER;
use super::source::{State, Stop, StopId};
use super::{Hunter, QuarryId, Timer};
use crate::limits;
use crate::net::{Purpose, Target};
use crate::nostr::event::EventId;
use crate::repo::{Identifier, Site};

impl Hunter {
    /// What is missing under a name.
    pub(super) fn wanted(&mut self, name: Identifier, quarries: Vec<Quarry>) {
        let mut before = self.names.remove(&name).unwrap_or_default();
        let mut sites = BTreeMap::new();
        for quarry in quarries {
            let known = before.remove(&quarry.site);
            let misplaced = *quarry.site.identifier() != name || sites.contains_key(&quarry.site);
            let crowded = known.is_none() && self.quarries.len() >= limits::HUNT_QUARRIES;
            if misplaced || crowded || quarry.needs.is_empty() {
                known.map(|id| before.insert(quarry.site, id));
                continue;
            }
            let id = known.unwrap_or_else(|| QuarryId(self.number()));
            sites.insert(quarry.site.clone(), id);
            self.want(id, quarry);
        }
        for id in before.into_values() {
            self.lose(id);
        }
        if !sites.is_empty() {
            self.names.insert(name, sites);
        }
    }

    /// What is missing at one site.
    fn want(&mut self, id: QuarryId, quarry: Quarry) {
        let mut chase = self.quarries.remove(&id).unwrap_or_else(|| {
            let mut chase = Box::new(Chase::new(quarry.site.clone()));
            (chase.visits, chase.shunned) = self.graves.raise(&quarry.site);
            chase
        });
        let is_new = chase.wants.is_empty();
        let mut before: BTreeMap<EventId, Want> =
            std::mem::take(&mut chase.wants).into_iter().map(|want| (want.need.event, want)).collect();
        let mut fresh = Vec::new();
        let mut seen = BTreeSet::new();
        let (awake, dormant): (Vec<Need>, Vec<Need>) = quarry.needs.into_iter().partition(|need| !need.dormant);
        for need in awake.into_iter().chain(dormant).take(limits::HUNT_NEEDS) {
            if !seen.insert(need.event) {
                continue;
            }
            let known = before.remove(&need.event);
            let woken = |want: &Want| want.need.dormant && !need.dormant;
            if known.as_ref().is_none_or(|want| woken(want) || (need.due < want.need.due && !want.ripe)) {
                fresh.push(chase.wants.len());
            }
            let want = self.renew(&mut chase, known, need);
            chase.wants.push(want);
        }
        if self.has(Flaw::WantsAdded) {
            chase.wants.extend(before.into_values());
        }
        if !fresh.is_empty() {
            chase.attempts = 0;
            chase.stops.values_mut().for_each(|stop| stop.visit.barren_until = None);
        }
        for nth in &fresh {
            let want = &mut chase.wants[*nth];
            (want.due, want.ripe, want.told) = (NEVER, false, false);
            want.unasked.clone_from(&want.stops);
        }
        for nth in fresh {
            let due = chase.wants[nth].need.due;
            // A round that comes anyway may serve it; otherwise one is brought forward.
            chase.wants[nth].due = match chase.round_for(due) {
                _ if is_new => due,
                Some(at) => due.max(at),
                None => self.resets.hurry(self.now.mono, chase.owner(), due),
            };
        }
        self.tidy(&mut chase);
        self.quarries.insert(id, chase);
        self.cancel_needless(id);
        self.restless.insert(id);
    }

    /// An event that waits, with what is known of it from before.
    fn renew(&mut self, chase: &mut Chase, known: Option<Want>, need: Need) -> Want {
        let mut want = match known {
            Some(want) if want.need.places == need.places => want,
            known => {
                let stops = self.stops(chase, &need);
                match known {
                    Some(mut want) => {
                        // Where it has not been yet, if the registrar still waits to hear of it.
                        want.unasked.retain(|stop| stops.contains(stop));
                        want.unasked.extend(stops.difference(&want.stops).copied());
                        Want { stops, ..want }
                    }
                    None => Want {
                        unmet: need.oids.iter().cloned().collect(),
                        met_at: self.now.mono,
                        unasked: stops.clone(),
                        stops,
                        due: NEVER,
                        ripe: false,
                        told: false,
                        need: need.clone(),
                    },
                }
            }
        };
        if want.need.oids != need.oids {
            let met = |oid: &&String| want.need.oids.contains(*oid) && !want.unmet.contains(*oid);
            let met: BTreeSet<String> = need.oids.iter().filter(met).cloned().collect();
            want.unmet = need.oids.iter().filter(|oid| !met.contains(*oid)).cloned().collect();
        }
        want.need = need;
        want
    }

    /// The places of an event, each once. What must not be called is said once.
    fn stops(&mut self, chase: &mut Chase, need: &Need) -> BTreeSet<StopId> {
        let mut stops = BTreeSet::new();
        for place in need.places.iter().take(limits::HUNT_PLACES) {
            let target = match Target::parse(&place.url, Purpose::Git, self.manners.reach) {
                Ok(target) => target,
                Err(why) => {
                    let room = chase.shunned.len() < limits::HUNT_STOPS;
                    if room && chase.shunned.insert(place.url.clone()) {
                        self.out.push_back(Output::Shun(chase.site.clone(), place.url.clone(), why));
                    }
                    continue;
                }
            };
            let url = target.to_string();
            if let Some((id, stop)) = chase.stops.iter_mut().find(|(_, stop)| stop.url == url) {
                stop.grasp |= place.grasp;
                stops.insert(*id);
                continue;
            }
            if chase.stops.len() >= limits::HUNT_STOPS {
                continue;
            }
            let origin = Origin::of(&target);
            let host = self.host(&origin.authority(), &origin.host().to_string());
            self.hold_host(host);
            chase.next_stop += 1;
            let id = StopId(chase.next_stop);
            let visit = chase.visits.remove(&url).unwrap_or_default();
            let (grasp, state) = (place.grasp, State::Resting);
            let stop = Stop { url, target, origin, host, grasp, state, visit, busy: 0, again: false };
            chase.stops.insert(id, stop);
            stops.insert(id);
        }
        stops
    }

    /// Drops places that no event names any more, unless one is just being asked.
    fn tidy(&mut self, chase: &mut Chase) {
        let named: BTreeSet<StopId> = chase.wants.iter().flat_map(|want| want.stops.iter().copied()).collect();
        let gone = chase.stops.iter().filter(|(id, stop)| !named.contains(id) && !stop.is_active());
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_stop(chase, id);
        }
    }

    /// No event names a place any more. What came of asking there is remembered.
    pub(super) fn drop_stop(&mut self, chase: &mut Chase, id: StopId) {
        let Some(stop) = chase.stops.remove(&id) else { return };
        chase.order.retain(|other| *other != id);
        self.drop_host(stop.host);
        if stop.visit.asked_at().is_some() {
            chase.visits.insert(stop.url, stop.visit);
            if chase.visits.len() > limits::HUNT_GRAVE_STOPS {
                let oldest = chase.visits.iter().min_by_key(|(_, visit)| visit.asked_at());
                let oldest = oldest.map(|(url, _)| url.clone());
                oldest.map(|url| chase.visits.remove(&url));
            }
        }
    }

    /// Nobody needs what a quarry's fetches would bring.
    pub(super) fn cancel_needless(&mut self, id: QuarryId) {
        let Some(chase) = self.quarries.get(&id) else { return };
        let flights = chase.active().filter_map(|stop| match stop.state {
            State::Fetching { id, .. } => Some(id),
            _ => None,
        });
        let needless = |id: &FetchId| self.flights.get(id).is_some_and(|flight| !chase.needs_any(&flight.oids));
        for flight in flights.filter(needless).collect::<Vec<_>>() {
            self.cancel(flight);
        }
    }

    pub(super) fn cancel(&mut self, id: FetchId) {
        let early = self.has(Flaw::CancelFreesSlot);
        if let Some(flight) = self.flights.get_mut(&id).filter(|flight| !flight.cancelled) {
            flight.cancelled = true;
            self.out.push_back(Output::Cancel(id));
            if early {
                self.fetched(id, &super::io::Catch { oids: Vec::new(), end: super::io::End::Cancelled });
            }
        }
    }

    /// Nothing is missing at a site any more.
    fn lose(&mut self, id: QuarryId) {
        let Some(chase) = self.quarries.remove(&id) else { return };
        for (host, place) in &chase.places {
            if let Some(host) = self.hosts.get_mut(*host) {
                host.line.leave(place.seat, id);
            }
            self.make_way(*host);
        }
        self.ring(Timer::Quarry(id), chase.alarm, None);
        self.restless.remove(&id);
        self.ending.remove(&id);
        for stop in chase.stops.values() {
            if let State::Fetching { id, .. } = stop.state {
                self.cancel(id);
            }
            self.drop_host(stop.host);
        }
        self.graves.bury(self.now.mono, *chase);
    }

    /// A person is told once that a place is not called.
    pub(super) fn shun(&mut self, site: &Site, stop: &mut Stop, why: crate::net::Forbidden) {
        if !std::mem::replace(&mut stop.visit.shunned, true) {
            self.out.push_back(Output::Shun(site.clone(), stop.url.clone(), why));
        }
    }
}
