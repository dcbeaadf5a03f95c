//! What came of a fetch, and of the question where a server is.

use std::collections::BTreeSet;

use super::fault_injection::{Flaw, makes};
use super::io::{Catch, End, FetchId, Form, Output, Survey};
use super::job::Chase;
use super::network_limit::Network;
use super::origin::Origin;
use super::source::{Outcome, State, Stop};
use super::throttle::{Doom, Sight};
use super::{Errand, Flight, HostId, Hunter};
use crate::limits;
use crate::sync::relay_limits::GitTerms;
use crate::time::Moment;

impl Hunter {
    /// A fetch is over.
    pub(super) fn fetched(&mut self, id: FetchId, catch: &Catch) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let mut oids: Vec<String> = {
            let sought: BTreeSet<&String> = flight.oids.iter().collect();
            catch.oids.iter().filter(|oid| sought.contains(oid)).cloned().collect()
        };
        if !oids.is_empty() && self.has(Flaw::PartsCountAsAll) {
            oids.clone_from(&flight.oids);
        }
        let end = match &catch.end {
            // Nobody wanted it to end.
            End::Cancelled if !flight.cancelled => End::Ours,
            // It was asked for what it has.
            End::NotByOid if flight.form == Form::Refs => End::Sent,
            end => end.clone(),
        };
        self.tally.oids += oids.len() as u64;
        self.book(flight.host, flight.since, &end, Some(!oids.is_empty()));
        self.flush(flight.host);
        self.rest_host(flight.host);
        for host in self.networks.end(self.now.mono, &flight.networks) {
            self.rouse(host);
        }
        self.rouse(flight.host);
        let Some(mut chase) = self.quarries.remove(&flight.quarry) else { return };
        chase.meet(self.now.mono, &oids);
        self.conclude(&mut chase, id, &flight, &end, oids.len());
        self.quarries.insert(flight.quarry, chase);
        self.cancel_needless(flight.quarry);
        self.restless.insert(flight.quarry);
    }

    /// What a host has done when a request ends that began at `since`, and whether it has brought what was sought, if
    /// anything was.
    pub(super) fn book(&mut self, id: HostId, since: Moment, end: &End, hit: Option<bool>) {
        let (now, forgetful) = (self.now, self.has(Flaw::QuietForgotten));
        let Some(host) = self.hosts.get_mut(id) else { return };
        host.in_flight = host.in_flight.saturating_sub(1);
        match end {
            End::Sent | End::Absent | End::Unsound | End::NotByOid => host.answered(),
            End::Busy(secs) => host.busy(now, *secs, &mut self.chance),
            End::Failed => host.fail(now, since, &mut self.chance),
            End::Cancelled | End::Ours => {}
        }
        if forgetful && *end == End::Sent {
            host.busy = None;
        }
        let counts = matches!(end, End::Sent | End::Absent | End::Unsound | End::Failed);
        if let Some(hit) = hit.filter(|hit| *hit || counts) {
            host.score(hit);
        }
        if matches!(end, End::Busy(_) | End::Failed) {
            let row = host.row(now);
            self.out.push_back(Output::Remember(row));
        }
        if self.has(Flaw::NeverForgiven)
            && let Some(host) = self.hosts.get_mut(id).filter(|_| *end == End::Failed)
        {
            host.cool = Some(Moment(u64::MAX));
        }
    }

    /// What that means for the place that was asked.
    fn conclude(&mut self, chase: &mut Chase, id: FetchId, flight: &Flight, end: &End, came: usize) {
        let now = self.now.mono;
        let put_back = !self.has(Flaw::BusyForgotten);
        let form_known = !self.has(Flaw::FormForgotten);
        let Some((stop_id, stop)) = chase.stop_of(id) else { return };
        stop.visit.outcome = Some(outcome(end, came));
        let (state, asked) = match end {
            End::Sent => {
                if came == flight.oids.len() {
                    // Whatever is sought next is something else.
                    stop.visit.satisfied(flight.form);
                }
                if came > 0 {
                    stop.visit.form = Some(flight.form);
                } else if flight.form == Form::Refs {
                    // Everything that it shows came for nothing. Asking for exact objects costs it little.
                    stop.visit.form = Some(Form::Oids);
                    stop.visit.barren_until = Some(now.plus_secs(limits::HUNT_BARREN_SECS));
                }
                (State::Resting, true)
            }
            // Whoever has come since has not been asked for yet.
            End::NotByOid if stop.visit.barren_until.is_some_and(|until| now < until) => (State::Resting, false),
            // Asked by ref next, in this very round.
            End::NotByOid => {
                stop.visit.form = form_known.then_some(Form::Refs);
                (State::Waiting, false)
            }
            End::Absent | End::Failed => (State::Resting, true),
            End::Busy(_) => {
                // Whoever came meanwhile has not met it yet.
                stop.busy = if stop.again { 0 } else { stop.busy.saturating_add(1) };
                let last = stop.busy >= limits::HUNT_BUSY_TIMES;
                if last || !put_back { (State::Resting, true) } else { (State::Waiting, false) }
            }
            End::Unsound => {
                stop.visit.unsound_until = Some(now.plus_secs(limits::HUNT_UNSOUND_SECS));
                (State::Resting, true)
            }
            End::Cancelled | End::Ours => (State::Waiting, false),
        };
        stop.state = if std::mem::take(&mut stop.again) && *end != End::Unsound { State::Waiting } else { state };
        if *end == End::Ours {
            chase.hold = now.plus_secs(limits::HUNT_OURS_SECS);
        }
        if asked {
            let tried = if makes(self.flaw, Flaw::TriedEarly) {
                for want in chase.wants.iter_mut().filter(|want| want.ripe) {
                    want.unasked.clear();
                }
                chase.tried()
            } else {
                let all = makes(self.flaw, Flaw::GrowthForgotten);
                chase.note_asked(stop_id, |event| all || flight.events.contains(event))
            };
            self.tell_tried(tried);
        }
        // Places that no event names any more were kept for this.
        let named = chase.wants.iter().any(|want| want.stops.contains(&stop_id));
        if !named {
            self.drop_stop(chase, stop_id);
        }
    }

    /// It is known where a server is, or that it is nowhere.
    pub(super) fn surveyed(&mut self, origin: &Origin, survey: Survey) {
        let Some(scout) = self.scouts.remove(origin) else { return };
        for host in std::mem::take(&mut self.unseen) {
            self.rouse(host);
        }
        let doom = match survey {
            Survey::Known { addresses, terms } if !addresses.is_empty() => {
                let networks = addresses.into_iter().take(limits::MAX_ADDRESSES).map(Network::of).collect();
                self.sighted(scout.host, origin, networks, scout.terms.then_some(terms.unwrap_or_default()));
                None
            }
            Survey::Known { .. } | Survey::Nowhere => Some(Doom::Nowhere),
            Survey::Forbidden(why) => Some(Doom::Forbidden(why)),
        };
        if let (Some(doom), Some(host)) = (doom, self.hosts.get_mut(scout.host)) {
            host.fail(self.now, self.now.mono, &mut self.chance);
            host.doom = Some(doom);
        }
        match (scout.errand, doom) {
            (Errand::Look(id), doom) => self.look_surveyed(id, scout.host, doom),
            (Errand::Stop(quarry, stop), None) => self.resume(quarry, stop),
            (Errand::Stop(quarry, stop), Some(doom)) => {
                if let Some(mut chase) = self.quarries.remove(&quarry) {
                    let surveying = |stop: &Stop| matches!(stop.state, State::Surveying(_));
                    if chase.stops.get(&stop).is_some_and(surveying) {
                        self.pass(&mut chase, stop, doom);
                    }
                    self.quarries.insert(quarry, chase);
                    self.restless.insert(quarry);
                }
            }
        }
        if doom.is_some() {
            self.flush(scout.host);
        }
        self.rouse(scout.host);
    }

    /// Where a server is, and what it allows if that was asked.
    fn sighted(&mut self, id: HostId, origin: &Origin, networks: BTreeSet<Network>, terms: Option<GitTerms>) {
        let now = self.now.mono;
        self.networks.place(id, &networks);
        let Some(host) = self.hosts.get_mut(id) else { return };
        let before = host.sights.remove(origin);
        let (terms, terms_at) = match (terms, before) {
            (Some(terms), _) => (terms, Some(now)),
            (None, Some(sight)) => (sight.terms, sight.terms_at),
            (None, None) => (GitTerms::default(), None),
        };
        host.sights.insert(origin.clone(), Sight { networks, at: now, terms, terms_at });
    }
}

fn outcome(end: &End, came: usize) -> Outcome {
    match end {
        End::Sent => Outcome::Sent(came),
        End::NotByOid => Outcome::NotByOid,
        End::Absent => Outcome::Absent,
        End::Busy(_) => Outcome::Busy,
        End::Failed => Outcome::Failed,
        End::Unsound => Outcome::Unsound,
        End::Cancelled => Outcome::Cancelled,
        End::Ours => Outcome::Ours,
    }
}
