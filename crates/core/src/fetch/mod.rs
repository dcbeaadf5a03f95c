//! The third machine: where to look for missing git data, and how much to ask of whom (002).
//!
//! What is missing at one site is a *quarry*. It has *wants*, one for each event that waits, and *stops*, one for each URL
//! that the events name. When its time has come a *round* begins: its stops wait for their hosts, the likely ones are
//! asked first, one at a time; a second server is asked beside a slow one. A host has limits, a line of those who wait for
//! it, and quiet times; quarries go on to other hosts meanwhile, and their places in the line are kept. When everything
//! that could be asked was asked, the round is over, and the next follows later and later.
//!
//! *Looks* come after all that: whether other git servers have what is served here, for people to know.
//!
//! Nothing is polled: everything that waits waits for an end, for an answer, or for a moment that [`alarm`] names.
//!
//! [`alarm`]: Machine::alarm

mod completion;
mod fair_queue;
pub mod fault_injection;
mod hosts;
pub mod io;
mod job;
mod mirror_check;
mod network_limit;
pub mod origin;
mod random;
mod reset_limiter;
mod round;
mod scheduler;
mod sliding_window;
mod source;
#[cfg(test)]
mod tests;
mod throttle;
mod view;
mod visit_history;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::hosts::Hosts;
use self::io::{FetchId, Form, Input, LookId, Output};
use self::origin::Origin;
pub use self::view::{HostView, QuarryView, StopView, Tally, View};
use super::fetch::fault_injection::{Flaw, makes};
use super::fetch::job::Chase;
use super::fetch::mirror_check::Looks;
pub use super::fetch::mirror_check::{Found, LookView, Pace};
use super::fetch::network_limit::{Network, Networks};
use super::fetch::random::Chance;
use super::fetch::reset_limiter::Resets;
pub use super::fetch::source::Outcome;
use super::fetch::source::StopId;
pub use super::fetch::throttle::Quiet;
use super::fetch::visit_history::Graves;
use crate::limits;
use crate::net::Reach;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, Site};
use crate::state_machine::Machine;
use crate::time::{Moment, Now};

/// How much may be asked of one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Fetches at once.
    pub concurrent: u32,
    /// Fetches in any minute.
    pub per_minute: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrent: limits::HUNT_CONCURRENT, per_minute: limits::HUNT_PER_MINUTE }
    }
}

/// How the hunt behaves.
#[derive(Clone, Debug)]
pub struct Manners {
    /// How far calls may go.
    pub reach: Reach,
    /// What may be asked of any host.
    pub usual: Limits,
    /// What may be asked of some, by their names without a port. A server's own word may lower it, not raise it.
    pub overrides: BTreeMap<String, Limits>,
    /// When servers are looked at.
    pub looks: Pace,
    /// Where chance begins.
    pub seed: u64,
}

/// Names a quarry for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct QuarryId(u64);

/// Names a host for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HostId(u64);

/// Whose time comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Host(HostId),
    Quarry(QuarryId),
    Look(LookId),
}

/// A fetch under way.
#[derive(Clone, Debug)]
struct Flight {
    quarry: QuarryId,
    host: HostId,
    networks: BTreeSet<Network>,
    since: Moment,
    form: Form,
    oids: Vec<String>,
    events: BTreeSet<EventId>,
    cancelled: bool,
}

/// A question where a server is, and for whom it was asked.
#[derive(Clone, Copy, Debug)]
struct Scout {
    host: HostId,
    errand: Errand,
    terms: bool,
}

/// For whom.
#[derive(Clone, Copy, Debug)]
enum Errand {
    Stop(QuarryId, StopId),
    Look(LookId),
}

/// The machine.
pub struct Hunter {
    manners: Manners,
    flaw: Option<Flaw>,
    now: Now,
    names: BTreeMap<Identifier, BTreeMap<Site, QuarryId>>,
    quarries: BTreeMap<QuarryId, Box<Chase>>,
    graves: Graves,
    hosts: Hosts,
    networks: Networks,
    resets: Resets,
    flights: BTreeMap<FetchId, Flight>,
    scouts: BTreeMap<Origin, Scout>,
    looks: Looks,
    /// Hosts that wait for one of the questions to be answered.
    unseen: BTreeSet<HostId>,
    /// Hosts that may be able to serve somebody, in turn.
    eager: BTreeSet<(u64, HostId)>,
    /// Quarries that something has happened to.
    restless: BTreeSet<QuarryId>,
    /// Of those, the ones whose round may be over.
    ending: BTreeSet<QuarryId>,
    alarms: BTreeSet<(Moment, Timer)>,
    chance: Chance,
    next: u64,
    tally: Tally,
    out: VecDeque<Output>,
}

impl Hunter {
    /// A machine that hunts for nothing yet.
    #[must_use]
    pub fn new(manners: Manners) -> Self {
        Self {
            chance: Chance(manners.seed),
            manners,
            flaw: None,
            now: Now::default(),
            names: BTreeMap::new(),
            quarries: BTreeMap::new(),
            graves: Graves::default(),
            hosts: Hosts::default(),
            networks: Networks::default(),
            resets: Resets::default(),
            flights: BTreeMap::new(),
            scouts: BTreeMap::new(),
            looks: Looks::default(),
            unseen: BTreeSet::new(),
            eager: BTreeSet::new(),
            restless: BTreeSet::new(),
            ending: BTreeSet::new(),
            alarms: BTreeSet::new(),
            next: 0,
            tally: Tally::default(),
            out: VecDeque::new(),
        }
    }

    /// One that makes a deliberate mistake, for the simulator.
    #[doc(hidden)]
    #[must_use]
    pub fn flawed(manners: Manners, flaw: Option<Flaw>) -> Self {
        Self { flaw, ..Self::new(manners) }
    }

    fn has(&self, flaw: Flaw) -> bool {
        makes(self.flaw, flaw)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The operator does not want to wait.
    fn hurry(&mut self, site: &Site) {
        let id = self.names.get(site.identifier()).and_then(|sites| sites.get(site)).copied();
        let Some(id) = id else { return };
        if let Some(chase) = self.quarries.get_mut(&id) {
            chase.hurry(self.now.mono);
            self.restless.insert(id);
        }
    }

    /// The first bytes of a fetch have come.
    fn answering(&mut self, id: FetchId) {
        let Some(flight) = self.flights.get(&id) else { return };
        if let Some(chase) = self.quarries.get_mut(&flight.quarry) {
            chase.answering(id);
            self.restless.insert(flight.quarry);
        }
    }

    /// Sets or clears an alarm.
    fn ring(&mut self, timer: Timer, before: Option<Moment>, at: Option<Moment>) {
        if before != at {
            before.map(|before| self.alarms.remove(&(before, timer)));
            at.map(|at| self.alarms.insert((at, timer)));
        }
    }

    /// Lets everything that can go on go on.
    fn settle(&mut self) {
        loop {
            while let Some(id) = self.restless.pop_first() {
                self.seat(id);
            }
            if !self.serve() {
                break;
            }
        }
        while let Some(id) = self.ending.pop_first() {
            self.close(id);
        }
    }
}

impl Machine for Hunter {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.now = now;
        match input {
            Input::Restored(row) => self.restore(&row),
            Input::Wanted(name, quarries) => self.wanted(name, quarries),
            Input::Surveyed(origin, survey) => self.surveyed(&origin, survey),
            Input::Answering(id) => self.answering(id),
            Input::Fetched(id, catch) => self.fetched(id, &catch),
            Input::Hurry(site) => self.hurry(&site),
            Input::Kept(name, repos) => self.kept(name, repos),
            Input::Moved(site) => self.moved(&site),
            Input::Looked(id, result) => self.looked(id, result),
        }
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn alarm(&self) -> Option<(Moment, &'static str)> {
        let (at, timer) = self.alarms.first()?;
        let why = match timer {
            Timer::Host(_) => "a host may be asked",
            Timer::Quarry(_) => "a quarry is due",
            Timer::Look(_) => "a look is due",
        };
        Some((*at, why))
    }

    fn wake(&mut self, now: Now) {
        self.now = now;
        for _ in 0..limits::HUNT_SLICE {
            let Some((_, timer)) = self.alarms.first().filter(|(at, _)| *at <= now.mono).copied() else { break };
            self.alarms.pop_first();
            match timer {
                Timer::Host(id) => {
                    if let Some(host) = self.hosts.get_mut(id) {
                        host.alarm = None;
                    }
                    self.rouse(id);
                }
                Timer::Quarry(id) => {
                    if let Some(chase) = self.quarries.get_mut(&id) {
                        chase.alarm = None;
                    }
                    self.restless.insert(id);
                }
                Timer::Look(id) => self.look_due(id),
            }
        }
        self.settle();
    }
}
