//! What must never happen, as the servers and the registrar see it. Servers outlive our restarts, and so does what they
//! have counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use grasp_core::fetch::Limits;
use grasp_core::fetch::io::{End, Fetch, FetchId, Form, LookId};
use grasp_core::sync::relay_limits::GitTerms;

use super::admission::{Registrar, Stand, event_of};
use super::fixtures::Cast;
use crate::sync::invariants::Broken;
use crate::sync::queue::{HOUR, MINUTE, SECOND, Time};

/// What somebody has counted.
#[derive(Clone, Debug, Default)]
struct Count {
    in_flight: usize,
    asks: VecDeque<Time>,
}

impl Count {
    fn begin(&mut self, now: Time) {
        self.in_flight += 1;
        self.asks.push_back(now);
        while self.asks.front().is_some_and(|at| at + MINUTE <= now) {
            self.asks.pop_front();
        }
    }
}

/// What one name knows.
#[derive(Clone, Debug, Default)]
struct Host {
    count: Count,
    quiet_until: Time,
    cool_until: Time,
    failed_at: Option<Time>,
    terms: Option<(GitTerms, Time)>,
}

#[derive(Clone, Debug)]
struct Flight {
    url: usize,
    repo: usize,
    since: Time,
    answered: bool,
    cancelled: bool,
    events: Vec<usize>,
    form: Form,
    sought: BTreeSet<String>,
}

/// What was done, to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Fetches.
    pub fetches: u64,
    /// Of those, the ones beside a slow one.
    pub hedges: u64,
    /// Looks.
    pub looks: u64,
    /// Fetches that were cancelled.
    pub cancels: u64,
    /// Surveys.
    pub surveys: u64,
    /// Rows that were written.
    pub rows: u64,
    /// Events that were said to be tried.
    pub tried: u64,
    /// The most fetches at once.
    pub at_once: usize,
}

/// Watches one node's machine.
#[derive(Debug, Default)]
pub struct Watch {
    broken: Option<Broken>,
    hosts: BTreeMap<usize, Host>,
    machines: BTreeMap<u8, Count>,
    flights: BTreeMap<FetchId, Flight>,
    /// Looks under way, and their servers.
    looks: BTreeMap<LookId, usize>,
    last: BTreeMap<(usize, usize, Form), Time>,
    /// When a place had nothing for what sleeps, and nobody was woken since.
    vain: BTreeMap<(usize, usize), Time>,
    unsound: BTreeMap<(usize, usize), Time>,
    /// For which events which places have been asked, and how often one was busy.
    asked: BTreeMap<(usize, usize), u8>,
    /// The events that the machine was told of.
    told: BTreeSet<usize>,
    wakes: (Time, u32),
    /// What was done.
    pub counts: Counts,
}

/// As often must a host be busy before it counts as asked.
const BUSY: u8 = 3;

impl Watch {
    /// The first law that was broken.
    pub fn broken(&mut self) -> Option<Broken> {
        self.broken.take()
    }

    fn hold(&mut self, holds: bool, law: &'static str, detail: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(Broken::new(law, detail()));
        }
    }

    /// What may be asked of a server now, by its own word and by the operator's.
    fn allowed(&self, cast: &Cast, server: usize, now: Time) -> Limits {
        let authority = &cast.servers[server].authority;
        let name = authority.split(':').next().unwrap_or_default();
        // Of two choices for one name the later counts.
        let chosen = cast.chosen.iter().rev().find(|(host, _)| host == name).map(|(_, limits)| *limits);
        let usual = chosen.unwrap_or(cast.usual);
        let stated = self.hosts.get(&server).and_then(|host| host.terms).filter(|(_, at)| now < at + HOUR);
        let stated = stated.map(|(terms, _)| terms).unwrap_or_default();
        let of = |usual: u32, stated: Option<u32>, most: u32| match stated {
            Some(stated) if stated < usual => stated,
            Some(stated) if chosen.is_none() => usual.max(stated.min(most)),
            _ => usual,
        };
        Limits {
            concurrent: of(usual.concurrent, stated.concurrent, 32),
            per_minute: of(usual.per_minute, stated.per_minute, 600),
        }
    }

    /// A fetch begins.
    pub fn fetch(&mut self, cast: &Cast, registrar: &Registrar, now: Time, (repo, url): (usize, usize), fetch: &Fetch) {
        let place = &cast.urls[url];
        let what = || format!("{} for {} ({:?})", place.url, cast.repos[repo].name, fetch.form);
        self.counts.fetches += 1;
        self.hold(!self.flights.contains_key(&fetch.id), "every fetch has its own number", what);
        self.hold(!fetch.oids.is_empty(), "something is sought", what);
        self.fetch_is_wanted(cast, registrar, now, (repo, url), fetch);
        self.asks(cast, now, place.server, &what);
        let again = self.last.insert((repo, url, fetch.form), now);
        self.hold(again.is_none_or(|at| at + 20 * SECOND <= now), "the same is not asked twice within 20 s", what);
        let unsound = self.unsound.get(&(repo, url)).is_none_or(|at| at + HOUR <= now);
        self.hold(unsound, "what was unsound is not asked for within an hour", what);
        self.fetch_is_alone(now, repo, &what);
        let events = fetch.events.iter().map(|(event, _)| event_of(event)).collect();
        let (answered, cancelled) = (false, false);
        let (form, sought) = (fetch.form, fetch.oids.iter().cloned().collect());
        self.flights.insert(fetch.id, Flight { url, repo, since: now, answered, cancelled, events, form, sought });
        self.counts.at_once = self.counts.at_once.max(self.flights.len());
        self.hold(self.flights.len() <= 16, "sixteen at once in all", what);
    }

    /// A look begins.
    pub fn look(&mut self, cast: &Cast, now: Time, url: usize, id: LookId) {
        let server = cast.urls[url].server;
        let what = || format!("a look at {}", cast.urls[url].url);
        self.counts.looks += 1;
        self.asks(cast, now, server, &what);
        self.hold(!self.looks.values().any(|other| *other == server), "a host is looked at by one at a time", what);
        let known = self.looks.insert(id, server).is_some();
        self.hold(!known && self.looks.len() <= 4, "four looks at once in all, each with its own number", what);
    }

    /// A look is over.
    pub fn looked(&mut self, cast: &Cast, now: Time, id: LookId, end: &End) {
        if let Some(server) = self.looks.remove(&id) {
            self.ended(cast, now, server, end);
        }
    }

    /// A server is asked something.
    fn asks(&mut self, cast: &Cast, now: Time, server: usize, what: &impl Fn() -> String) {
        let machine = cast.servers[server].machine;
        let own = self.allowed(cast, server, now);
        let host = self.hosts.entry(server).or_default();
        let (quiet_until, cool_until) = (host.quiet_until, host.cool_until);
        host.count.begin(now);
        let (hands, asks) = (host.count.in_flight, host.count.asks.len());
        self.hold(now >= quiet_until, "nothing is asked in a quiet time", || format!("{} until {quiet_until}", what()));
        self.hold(now >= cool_until, "a host that has failed is left alone", what);
        self.hold(hands <= own.concurrent as usize, "so many at once from one host", || {
            format!("{}: {hands} of {own:?}", what())
        });
        self.hold(asks <= own.per_minute as usize, "so many a minute from one host", || {
            format!("{}: {asks} of {own:?}", what())
        });
        let count = self.machines.entry(machine).or_default();
        count.begin(now);
        let (hands, asks) = (count.in_flight, count.asks.len());
        self.hold(hands <= 2 * own.concurrent as usize, "so many at once from one network", || {
            format!("{}: {hands} of twice {own:?}", what())
        });
        self.hold(asks <= 2 * own.per_minute as usize, "so many a minute from one network", || {
            format!("{}: {asks} of twice {own:?}", what())
        });
    }

    fn fetch_is_wanted(&mut self, cast: &Cast, registrar: &Registrar, now: Time, at: (usize, usize), fetch: &Fetch) {
        let (repo, url) = at;
        let mut sought = BTreeSet::new();
        let mut awake = false;
        for event in fetch.events.iter().map(|(event, _)| event_of(event)) {
            let (own, held) = (&cast.events[event], &registrar.events[event]);
            let names = own.repo == repo && own.urls.contains(&url);
            self.hold(names && self.told.contains(&event), "only what waits is asked for, where it says", || {
                format!("event {event} at {}", cast.urls[url].url)
            });
            self.hold(held.due <= now + SECOND, "nothing is asked before its time", || format!("event {event}"));
            awake |= held.stand != Stand::Dormant;
            sought.extend(own.oids.iter());
        }
        self.hold(
            fetch.oids.iter().all(|oid| sought.contains(oid)),
            "only objects of these events are asked for",
            || format!("{:?}", fetch.oids),
        );
        let vain = self.vain.get(&at).is_none_or(|last| last + 58 * MINUTE <= now);
        self.hold(awake || vain, "what sleeps is asked for once an hour", || cast.urls[url].url.clone());
    }

    fn fetch_is_alone(&mut self, now: Time, repo: usize, what: &impl Fn() -> String) {
        let beside: Vec<(Time, bool)> = self
            .flights
            .values()
            .filter(|flight| flight.repo == repo)
            .map(|flight| (flight.since, flight.answered))
            .collect();
        self.counts.hedges += u64::from(!beside.is_empty());
        self.hold(beside.len() < 2, "two servers at once for one quarry", what);
        let slow = beside.iter().all(|(since, answered)| now >= since + if *answered { 30 } else { 5 } * SECOND);
        self.hold(slow, "a second server only beside a slow one", what);
    }

    /// The machine is told what is missing under a name: these events, and of that name's events no others.
    pub fn wanted(&mut self, cast: &Cast, name: &str, events: impl IntoIterator<Item = usize>) {
        self.told.retain(|event| cast.repos[cast.events[*event].repo].name != name);
        self.told.extend(events);
    }

    /// A survey begins.
    pub fn survey(&mut self, now: Time, server: usize, terms: bool) {
        self.counts.surveys += 1;
        let quiet = self.hosts.get(&server).is_some_and(|host| now < host.quiet_until);
        self.hold(!(terms && quiet), "nothing is asked in a quiet time", || format!("the terms of server {server}"));
    }

    /// It is known what a server states, or that it is nowhere.
    pub fn surveyed(&mut self, now: Time, server: usize, known: Option<Option<GitTerms>>) {
        let host = self.hosts.entry(server).or_default();
        match known {
            Some(Some(terms)) => host.terms = Some((terms, now)),
            Some(None) => {}
            None => host.failed_at = Some(now),
        }
    }

    /// Terms were asked for, and there are none.
    pub fn unstated(&mut self, server: usize) {
        self.hosts.entry(server).or_default().terms = None;
    }

    /// The first bytes have come.
    pub fn answering(&mut self, id: FetchId) {
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.answered = true;
        }
    }

    /// A fetch is given up.
    pub fn cancel(&mut self, id: FetchId) {
        self.counts.cancels += 1;
        let known = self.flights.get_mut(&id).is_some_and(|flight| !std::mem::replace(&mut flight.cancelled, true));
        self.hold(known, "what is cancelled is under way", || format!("{id:?}"));
    }

    /// A fetch is over.
    pub fn fetched(&mut self, cast: &Cast, now: Time, id: FetchId, (end, oids): (&End, &[String])) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if *end == End::Sent && flight.sought.iter().all(|oid| oids.contains(oid)) {
            // Whatever is asked next is something else.
            self.last.remove(&(flight.repo, flight.url, flight.form));
        }
        self.ended(cast, now, cast.urls[flight.url].server, end);
        let place = (flight.repo, flight.url);
        match end {
            End::Unsound => drop(self.unsound.insert(place, now)),
            End::Sent | End::Absent => drop(self.vain.insert(place, flight.since)),
            _ => {}
        }
        for event in flight.events {
            let asked = self.asked.entry((event, flight.url)).or_default();
            *asked = match end {
                End::Sent | End::Absent | End::Failed | End::Unsound => BUSY,
                End::Busy(_) => asked.saturating_add(1),
                End::NotByOid | End::Cancelled | End::Ours => *asked,
            };
        }
    }

    /// A server has answered, or not.
    fn ended(&mut self, cast: &Cast, now: Time, server: usize, end: &End) {
        if let Some(count) = self.machines.get_mut(&cast.servers[server].machine) {
            count.in_flight = count.in_flight.saturating_sub(1);
        }
        let host = self.hosts.entry(server).or_default();
        host.count.in_flight = host.count.in_flight.saturating_sub(1);
        match end {
            End::Busy(secs) => {
                let secs = secs.map_or(48, |secs| secs.clamp(1, 3_600));
                host.quiet_until = host.quiet_until.max(now + secs * SECOND);
            }
            End::Failed => {
                host.failed_at = Some(now);
                host.cool_until = now + 16 * SECOND;
            }
            End::Cancelled | End::Ours => {}
            _ => host.cool_until = 0,
        }
    }

    /// An event comes, or is seen again: what was asked before was not for it.
    pub fn arrived(&mut self, cast: &Cast, event: usize) {
        let own = &cast.events[event];
        for url in &own.urls {
            self.asked.remove(&(event, *url));
            self.vain.remove(&(own.repo, *url));
        }
    }

    /// Events are said to be tried.
    pub fn tried(&mut self, cast: &Cast, registrar: &Registrar, event: usize) {
        self.counts.tried += 1;
        let since = registrar.events[event].since;
        let own = &cast.events[event];
        for url in &own.urls {
            let server = cast.urls[*url].server;
            let asked = self.asked.get(&(event, *url)).is_some_and(|times| *times >= BUSY);
            let down = self.hosts.get(&server).and_then(|host| host.failed_at).is_some_and(|at| at >= since);
            let stated = self.hosts.get(&server).and_then(|host| host.terms).filter(|(_, at)| since < at + HOUR);
            let none = |(terms, _): (GitTerms, Time)| terms.concurrent == Some(0) || terms.per_minute == Some(0);
            let never = stated.is_some_and(none);
            let unsound = self.unsound.get(&(own.repo, *url)).is_some_and(|at| since < at + HOUR);
            self.hold(asked || down || never || unsound, "tried means that every place was asked", || {
                let places: Vec<&str> = own.urls.iter().map(|url| cast.urls[*url].url.as_str()).collect();
                format!("event {event} since {since} of {places:?}: {}", cast.urls[*url].url)
            });
        }
    }

    /// The machine is woken.
    pub fn wake(&mut self, now: Time) {
        if now >= self.wakes.0 + 10 * SECOND {
            self.wakes = (now, 0);
        }
        self.wakes.1 += 1;
        let wakes = self.wakes.1;
        self.hold(wakes < 5_000, "nothing is polled", || format!("{wakes} wakes in ten seconds"));
    }

    /// Our process ends, and with it its connections.
    pub fn stop(&mut self) {
        self.flights.clear();
        self.looks.clear();
        self.told.clear();
        self.last.clear();
        self.vain.clear();
        self.unsound.clear();
        self.hosts.values_mut().for_each(|host| host.count.in_flight = 0);
        self.hosts.values_mut().for_each(|host| host.terms = None);
        self.machines.values_mut().for_each(|machine| machine.in_flight = 0);
    }

    /// As many quarries as there are sites at which something waits.
    pub fn queue(&mut self, size: usize, sites: usize) {
        self.hold(size == sites, "what is hunted is what is wanted", || format!("{size} of {sites}"));
    }
}
