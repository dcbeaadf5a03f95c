//! What people may see of the hunt: a picture of one moment.

use super::source::{Outcome, State};
use super::{Hunter, Limits, Quiet};
use crate::repo::Site;
use crate::state_machine::Machine;

/// What was done since the process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rounds that are over.
    pub rounds: u64,
    /// Fetches.
    pub fetches: u64,
    /// Objects that were sought and came.
    pub oids: u64,
    /// Looks.
    pub looks: u64,
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// What is hunted.
    pub quarries: Vec<QuarryView>,
    /// Hosts that somebody names.
    pub hosts: Vec<HostView>,
    /// Fetches under way, those included whose end is only waited for.
    pub in_flight: usize,
    /// What was done.
    pub tally: Tally,
}

/// A quarry at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuarryView {
    /// Where what is found should go.
    pub site: Site,
    /// Events that wait, and those of them that sleep.
    pub events: (usize, usize),
    /// Objects that are missing, as far as is known.
    pub missing: usize,
    /// Some of them.
    pub examples: Vec<String>,
    /// Rounds since the last new event.
    pub attempts: u32,
    /// Milliseconds until the next round. `None` if one is under way or everything waits for hosts.
    pub next_in_millis: Option<u64>,
    /// The places, in the order in which they are asked.
    pub stops: Vec<StopView>,
}

/// A place at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StopView {
    /// Its URL.
    pub url: String,
    /// Whether it is being asked.
    pub asking: bool,
    /// Whether it waits for its host.
    pub waiting: bool,
    /// What came of asking the last time.
    pub outcome: Option<Outcome>,
}

/// A host at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostView {
    /// The host, and the port if it is not the usual one.
    pub authority: String,
    /// What may be asked.
    pub limits: Limits,
    /// Fetches under way.
    pub in_flight: usize,
    /// Quarries that wait for it.
    pub waiting: usize,
    /// Fetches since the process began.
    pub requests: u64,
    /// Milliseconds for which it is left alone, and why.
    pub quiet: Option<(u64, Quiet)>,
    /// Failures in a row.
    pub failures: u32,
    /// Fetches that brought something that was sought, and those that did not, lately.
    pub luck: (u32, u32),
}

/// Missing objects that are named.
const EXAMPLES: usize = 3;

impl Hunter {
    /// A picture of this moment.
    #[must_use]
    pub fn view(&self) -> View {
        View {
            quarries: self.quarries.values().map(|chase| self.quarry_view(chase)).collect(),
            hosts: self.host_views(),
            in_flight: self.flights.len(),
            tally: self.tally,
        }
    }

    /// How many quarries there are.
    #[must_use]
    pub fn queue_size(&self) -> usize {
        self.quarries.len()
    }

    /// What was done.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether nothing is to be done before the next alarm.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alarm().is_none_or(|(at, _)| at > self.now.mono)
    }

    /// The hosts that somebody names or that are being asked.
    #[must_use]
    pub fn host_views(&self) -> Vec<HostView> {
        let now = self.now.mono;
        let live = self.hosts.values().filter(|host| host.stops > 0 || host.in_flight > 0);
        live.map(|host| HostView {
            authority: host.authority.clone(),
            limits: host.limits(self.flaw),
            in_flight: host.in_flight,
            waiting: host.line.len(),
            requests: host.requests,
            quiet: host
                .quiet(now)
                .map(|(until, why)| (u64::try_from(until.since(now).as_millis()).unwrap_or(u64::MAX), why)),
            failures: host.failures(),
            luck: (host.hits, host.misses),
        })
        .collect()
    }

    fn quarry_view(&self, chase: &super::job::Chase) -> QuarryView {
        let missing: std::collections::BTreeSet<&String> = chase.wants.iter().flat_map(|want| &want.unmet).collect();
        let rest = chase.stops.keys().filter(|id| !chase.order.contains(id));
        QuarryView {
            site: chase.site.clone(),
            events: (chase.wants.len(), chase.wants.iter().filter(|want| want.need.dormant).count()),
            missing: missing.len(),
            examples: missing.into_iter().take(EXAMPLES).cloned().collect(),
            attempts: chase.attempts,
            next_in_millis: chase
                .next_round()
                .map(|at| u64::try_from(at.since(self.now.mono).as_millis()).unwrap_or(u64::MAX)),
            stops: chase
                .order
                .iter()
                .chain(rest)
                .filter_map(|id| chase.stops.get(id))
                .map(|stop| StopView {
                    url: stop.url.clone(),
                    asking: stop.is_active(),
                    waiting: stop.state == State::Waiting,
                    outcome: stop.visit.outcome,
                })
                .collect(),
        }
    }
}
