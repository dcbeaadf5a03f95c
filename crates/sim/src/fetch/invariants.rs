//! Invariants of the fetch machine, checked from the outside: at the servers and at admission. The servers keep
//! counting when the process restarts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use grasp_core::fetch::HostLimits;
use grasp_core::fetch::io::{FetchId, FetchOutcome, FetchRequest, MirrorId, RequestForm};
use grasp_core::nostr::nip11::GitFetchLimits;

use super::admission::{AdmissionModel, HoldStatus, event_of};
use super::fixtures::WorldFixture;
use crate::simulation::queue::{HOUR, MINUTE, SECOND, Time};
use crate::simulation::{FirstViolation, Violation, WakeCounter};

/// Requests counted by a host or a network.
#[derive(Clone, Debug, Default)]
struct RequestCount {
    in_flight: usize,
    asks: VecDeque<Time>,
}

impl RequestCount {
    fn begin(&mut self, now: Time) {
        self.in_flight += 1;
        self.asks.push_back(now);
        while self.asks.front().is_some_and(|at| at + MINUTE <= now) {
            self.asks.pop_front();
        }
    }
}

/// What is known about one host.
#[derive(Clone, Debug, Default)]
struct HostState {
    count: RequestCount,
    quiet_until: Time,
    failed_until: Time,
    failed_at: Option<Time>,
    stated_limits: Option<(GitFetchLimits, Time)>,
}

#[derive(Clone, Debug)]
struct FetchState {
    url: usize,
    repo: usize,
    since: Time,
    answered: bool,
    cancelled: bool,
    events: Vec<usize>,
    form: RequestForm,
    wanted: BTreeSet<String>,
}

/// Counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchCounts {
    /// Fetches.
    pub fetches: u64,
    /// Fetches started while a slow one was running.
    pub hedges: u64,
    /// Mirror checks.
    pub mirror_checks: u64,
    /// Cancelled fetches.
    pub cancels: u64,
    /// Surveys.
    pub surveys: u64,
    /// Rows stored.
    pub rows: u64,
    /// Events reported as tried.
    pub tried: u64,
    /// Most concurrent fetches.
    pub max_concurrent: usize,
    /// Events that were released.
    pub released: usize,
    /// Events that expired.
    pub expired: usize,
}

impl FetchCounts {
    /// Adds the counters of another run.
    pub fn merge(&mut self, other: &Self) {
        self.fetches += other.fetches;
        self.hedges += other.hedges;
        self.mirror_checks += other.mirror_checks;
        self.cancels += other.cancels;
        self.surveys += other.surveys;
        self.rows += other.rows;
        self.tried += other.tried;
        self.max_concurrent = self.max_concurrent.max(other.max_concurrent);
        self.released += other.released;
        self.expired += other.expired;
    }
}

/// Checks the inputs and outputs of one machine.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    violations: FirstViolation,
    hosts: BTreeMap<usize, HostState>,
    networks: BTreeMap<u8, RequestCount>,
    fetches: BTreeMap<FetchId, FetchState>,
    /// Running mirror checks, with their servers.
    mirror_checks: BTreeMap<MirrorId, usize>,
    last: BTreeMap<(usize, usize, RequestForm), Time>,
    /// When a URL was last asked without result for dormant events, unless an event woke since.
    without_result: BTreeMap<(usize, usize), Time>,
    invalid: BTreeMap<(usize, usize), Time>,
    /// When the refs at a URL did not contain an object, unless an event that names it arrived since.
    lacking: BTreeMap<(usize, usize, String), Time>,
    /// For which events which URLs were asked: the number of busy answers, or [`BUSY_ANSWERS`] if it was answered
    /// otherwise.
    asked: BTreeMap<(usize, usize), u8>,
    /// The events that were reported to the machine.
    reported: BTreeSet<usize>,
    wakes: WakeCounter,
    /// Counters of the run.
    pub counts: FetchCounts,
}

/// Busy answers after which a source counts as asked.
const BUSY_ANSWERS: u8 = 3;

impl InvariantChecker {
    /// Takes the first violation.
    pub fn take_violation(&mut self) -> Option<Violation> {
        self.violations.take()
    }

    fn require(&mut self, holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) {
        self.violations.require(holds, invariant, detail);
    }

    /// Returns the limits of a server, as stated by itself and set by the operator.
    fn allowed(&self, fixture: &WorldFixture, server: usize, now: Time) -> HostLimits {
        let authority = &fixture.servers[server].authority;
        let name = authority.split(':').next().unwrap_or_default();
        // If a name has two limits, the later one applies.
        let host_limits = fixture.host_limits.iter().rev().find(|(host, _)| host == name).map(|(_, limits)| *limits);
        let default_limits = host_limits.unwrap_or(fixture.default_limits);
        let is_operator_set = host_limits.is_some() || fixture.has_operator_limits;
        let stated = self.hosts.get(&server).and_then(|host| host.stated_limits).filter(|(_, at)| now < at + HOUR);
        let stated = stated.map(|(limits, _)| limits).unwrap_or_default();
        let of = |default_limits: u32, stated: Option<u32>, max: u32| match stated {
            Some(stated) if stated < default_limits => stated,
            Some(stated) if !is_operator_set => default_limits.max(stated.min(max)),
            _ => default_limits,
        };
        HostLimits {
            concurrent: of(default_limits.concurrent, stated.concurrent, 32),
            per_minute: of(default_limits.per_minute, stated.per_minute, 600),
        }
    }

    /// Checks the start of a fetch.
    pub fn fetch(
        &mut self,
        fixture: &WorldFixture,
        admission: &AdmissionModel,
        now: Time,
        (repo, url): (usize, usize),
        fetch: &FetchRequest,
    ) {
        let place = &fixture.urls[url];
        let what = || format!("{} for {} ({:?})", place.url, fixture.repos[repo].name, fetch.form);
        self.counts.fetches += 1;
        self.require(!self.fetches.contains_key(&fetch.id), "fetch ids are unique", what);
        self.require(!fetch.oids.is_empty(), "a fetch wants at least one object", what);
        self.check_wanted(fixture, admission, now, (repo, url), fetch);
        self.request_begins(fixture, now, place.server, &what);
        let again = self.last.insert((repo, url, fetch.form), now);
        self.require(
            again.is_none_or(|at| at + 20 * SECOND <= now),
            "the same URL is not asked twice within 20 s",
            what,
        );
        let invalid = self.invalid.get(&(repo, url)).is_none_or(|at| at + HOUR <= now);
        self.require(invalid, "a source with invalid data is not asked within an hour", what);
        let is_known_to_lack =
            |oid: &String| self.lacking.get(&(repo, url, oid.clone())).is_some_and(|at| now < at + 10 * MINUTE);
        let has_hope = fetch.form == RequestForm::ByOid || !fetch.oids.iter().all(is_known_to_lack);
        self.require(has_hope, "refs are not requested for objects that they did not contain", what);
        self.check_concurrency(now, repo, &what);
        let events = fetch.events.iter().map(|(event, _)| event_of(event)).collect();
        let (answered, cancelled) = (false, false);
        let (form, wanted) = (fetch.form, fetch.oids.iter().cloned().collect());
        self.fetches.insert(fetch.id, FetchState { url, repo, since: now, answered, cancelled, events, form, wanted });
        self.counts.max_concurrent = self.counts.max_concurrent.max(self.fetches.len());
        self.require(self.fetches.len() <= 16, "at most sixteen concurrent fetches", what);
    }

    /// Checks the start of a mirror check.
    pub fn mirror_check(&mut self, fixture: &WorldFixture, now: Time, url: usize, id: MirrorId) {
        let server = fixture.urls[url].server;
        let what = || format!("mirror check of {}", fixture.urls[url].url);
        self.counts.mirror_checks += 1;
        self.request_begins(fixture, now, server, &what);
        self.require(
            !self.mirror_checks.values().any(|other| *other == server),
            "one mirror check at a time per host",
            what,
        );
        let known = self.mirror_checks.insert(id, server).is_some();
        self.require(
            !known && self.mirror_checks.len() <= 4,
            "at most four concurrent mirror checks with unique ids",
            what,
        );
    }

    /// Records the end of a mirror check.
    pub fn mirror_checked(&mut self, fixture: &WorldFixture, now: Time, id: MirrorId, end: &FetchOutcome) {
        if let Some(server) = self.mirror_checks.remove(&id) {
            self.request_ends(fixture, now, server, end);
        }
    }

    /// Checks the limits of a server when a request begins.
    fn request_begins(&mut self, fixture: &WorldFixture, now: Time, server: usize, what: &impl Fn() -> String) {
        let network = fixture.servers[server].network;
        let own = self.allowed(fixture, server, now);
        let host = self.hosts.entry(server).or_default();
        let (quiet_until, failed_until) = (host.quiet_until, host.failed_until);
        host.count.begin(now);
        let (in_flight, asks) = (host.count.in_flight, host.count.asks.len());
        self.require(now >= quiet_until, "no request in a quiet time", || format!("{} until {quiet_until}", what()));
        self.require(now >= failed_until, "no request while a failed host is left alone", what);
        self.require(in_flight <= own.concurrent as usize, "concurrent requests per host", || {
            format!("{}: {in_flight} of {own:?}", what())
        });
        self.require(asks <= own.per_minute as usize, "requests per minute per host", || {
            format!("{}: {asks} of {own:?}", what())
        });
        let count = self.networks.entry(network).or_default();
        count.begin(now);
        let (in_flight, asks) = (count.in_flight, count.asks.len());
        self.require(in_flight <= 2 * own.concurrent as usize, "concurrent requests per network", || {
            format!("{}: {in_flight} of twice {own:?}", what())
        });
        self.require(asks <= 2 * own.per_minute as usize, "requests per minute per network", || {
            format!("{}: {asks} of twice {own:?}", what())
        });
    }

    fn check_wanted(
        &mut self,
        fixture: &WorldFixture,
        admission: &AdmissionModel,
        now: Time,
        at: (usize, usize),
        fetch: &FetchRequest,
    ) {
        let (repo, url) = at;
        let mut wanted = BTreeSet::new();
        let mut has_active = false;
        for event in fetch.events.iter().map(|(event, _)| event_of(event)) {
            let (own, held) = (&fixture.events[event], &admission.events[event]);
            let names = own.repo == repo && own.urls.contains(&url);
            self.require(
                names && self.reported.contains(&event),
                "only held events are asked for, at their own URLs",
                || format!("event {event} at {}", fixture.urls[url].url),
            );
            self.require(held.due <= now + SECOND, "no request before an event is due", || format!("event {event}"));
            has_active |= held.status != HoldStatus::Dormant;
            wanted.extend(own.oids.iter());
        }
        self.require(
            fetch.oids.iter().all(|oid| wanted.contains(oid)),
            "only objects of the named events are requested",
            || format!("{:?}", fetch.oids),
        );
        let without_result = self.without_result.get(&at).is_none_or(|last| last + 58 * MINUTE <= now);
        self.require(has_active || without_result, "dormant events are asked for once an hour", || {
            fixture.urls[url].url.clone()
        });
    }

    fn check_concurrency(&mut self, now: Time, repo: usize, what: &impl Fn() -> String) {
        let beside: Vec<(Time, bool)> = self
            .fetches
            .values()
            .filter(|running| running.repo == repo)
            .map(|running| (running.since, running.answered))
            .collect();
        self.counts.hedges += u64::from(!beside.is_empty());
        self.require(beside.len() < 2, "at most two concurrent fetches per job", what);
        let slow = beside.iter().all(|(since, answered)| now >= since + if *answered { 30 } else { 5 } * SECOND);
        self.require(slow, "a second source only while the first is slow", what);
    }

    /// Records the events of an identifier that are reported to the machine. They replace those reported before.
    pub fn wanted(&mut self, fixture: &WorldFixture, name: &str, events: impl IntoIterator<Item = usize>) {
        self.reported.retain(|event| fixture.repos[fixture.events[*event].repo].name != name);
        self.reported.extend(events);
        // The machine remembers it as long as something is missing.
        let is_reported = |repo: usize| self.reported.iter().any(|event| fixture.events[*event].repo == repo);
        self.lacking.retain(|(repo, ..), _| is_reported(*repo));
    }

    /// Checks the start of a survey.
    pub fn survey(&mut self, now: Time, server: usize, with_nip11: bool) {
        self.counts.surveys += 1;
        let quiet = self.hosts.get(&server).is_some_and(|host| now < host.quiet_until);
        self.require(!(with_nip11 && quiet), "no request in a quiet time", || {
            format!("NIP-11 document of server {server}")
        });
    }

    /// Records the result of a survey: the stated limits, or `None` if the name does not resolve.
    pub fn surveyed(&mut self, now: Time, server: usize, stated: Option<Option<GitFetchLimits>>) {
        let host = self.hosts.entry(server).or_default();
        match stated {
            Some(Some(limits)) => host.stated_limits = Some((limits, now)),
            Some(None) => {}
            None => host.failed_at = Some(now),
        }
    }

    /// Records that a NIP-11 document states no limits.
    pub fn unstated(&mut self, server: usize) {
        self.hosts.entry(server).or_default().stated_limits = None;
    }

    /// Records the first bytes of a fetch.
    pub fn first_bytes(&mut self, id: FetchId) {
        if let Some(running) = self.fetches.get_mut(&id) {
            running.answered = true;
        }
    }

    /// Checks the cancellation of a fetch.
    pub fn cancel(&mut self, id: FetchId) {
        self.counts.cancels += 1;
        let known = self.fetches.get_mut(&id).is_some_and(|running| !std::mem::replace(&mut running.cancelled, true));
        self.require(known, "only running fetches are cancelled", || format!("{id:?}"));
    }

    /// Records the end of a fetch.
    pub fn fetched(&mut self, fixture: &WorldFixture, now: Time, id: FetchId, (end, oids): (&FetchOutcome, &[String])) {
        let Some(running) = self.fetches.remove(&id) else { return };
        if *end == FetchOutcome::Sent && running.wanted.iter().all(|oid| oids.contains(oid)) {
            // The next request asks for something else.
            self.last.remove(&(running.repo, running.url, running.form));
        }
        self.request_ends(fixture, now, fixture.urls[running.url].server, end);
        let place = (running.repo, running.url);
        if *end == FetchOutcome::Sent && running.form == RequestForm::ByRef {
            for oid in running.wanted.iter().filter(|oid| !oids.contains(oid)) {
                // What an event that came meanwhile names may be requested again.
                self.lacking.insert((running.repo, running.url, oid.clone()), running.since);
            }
        }
        match end {
            FetchOutcome::InvalidData => drop(self.invalid.insert(place, now)),
            FetchOutcome::Sent | FetchOutcome::Absent => drop(self.without_result.insert(place, running.since)),
            _ => {}
        }
        for event in running.events {
            let asked = self.asked.entry((event, running.url)).or_default();
            *asked = match end {
                FetchOutcome::Sent | FetchOutcome::Absent | FetchOutcome::Failed | FetchOutcome::InvalidData => {
                    BUSY_ANSWERS
                }
                FetchOutcome::Busy(_) => asked.saturating_add(1),
                FetchOutcome::NotByOid | FetchOutcome::Cancelled | FetchOutcome::LocalError => *asked,
            };
        }
    }

    /// Records the end of a request to a server.
    fn request_ends(&mut self, fixture: &WorldFixture, now: Time, server: usize, end: &FetchOutcome) {
        if let Some(count) = self.networks.get_mut(&fixture.servers[server].network) {
            count.in_flight = count.in_flight.saturating_sub(1);
        }
        let host = self.hosts.entry(server).or_default();
        host.count.in_flight = host.count.in_flight.saturating_sub(1);
        match end {
            FetchOutcome::Busy(secs) => {
                let secs = secs.map_or(48, |secs| secs.clamp(1, 3_600));
                host.quiet_until = host.quiet_until.max(now + secs * SECOND);
            }
            FetchOutcome::Failed => {
                host.failed_at = Some(now);
                host.failed_until = now + 16 * SECOND;
            }
            FetchOutcome::Cancelled | FetchOutcome::LocalError => {}
            _ => host.failed_until = 0,
        }
    }

    /// Records that an event arrives, or arrives again: earlier requests were not made for it.
    pub fn arrived(&mut self, fixture: &WorldFixture, event: usize) {
        let own = &fixture.events[event];
        for url in &own.urls {
            self.asked.remove(&(event, *url));
            self.without_result.remove(&(own.repo, *url));
        }
        self.lacking.retain(|(repo, _, oid), _| *repo != own.repo || !own.oids.contains(oid));
    }

    /// Checks that all sources of an event were asked when it is reported as tried.
    pub fn tried(&mut self, fixture: &WorldFixture, admission: &AdmissionModel, event: usize) {
        self.counts.tried += 1;
        let since = admission.events[event].since;
        let own = &fixture.events[event];
        for url in &own.urls {
            let server = fixture.urls[*url].server;
            let asked = self.asked.get(&(event, *url)).is_some_and(|times| *times >= BUSY_ANSWERS);
            let down = self.hosts.get(&server).and_then(|host| host.failed_at).is_some_and(|at| at >= since);
            let stated =
                self.hosts.get(&server).and_then(|host| host.stated_limits).filter(|(_, at)| since < at + HOUR);
            let none =
                |(limits, _): (GitFetchLimits, Time)| limits.concurrent == Some(0) || limits.per_minute == Some(0);
            let never = stated.is_some_and(none);
            let invalid = self.invalid.get(&(own.repo, *url)).is_some_and(|at| since < at + HOUR);
            self.require(
                asked || down || never || invalid,
                "an event is tried when all of its sources were asked",
                || {
                    let places: Vec<&str> = own.urls.iter().map(|url| fixture.urls[*url].url.as_str()).collect();
                    format!("event {event} since {since} of {places:?}: {}", fixture.urls[*url].url)
                },
            );
        }
    }

    /// Checks how often the machine is woken.
    pub fn wake(&mut self, now: Time) {
        let holds = self.wakes.count(now);
        self.require(holds, "nothing is polled", || "too many wakes in ten seconds".to_owned());
    }

    /// Records that the process ends, and with it its connections.
    pub fn stop(&mut self) {
        self.fetches.clear();
        self.mirror_checks.clear();
        self.reported.clear();
        self.last.clear();
        self.without_result.clear();
        self.invalid.clear();
        self.lacking.clear();
        self.hosts.values_mut().for_each(|host| host.count.in_flight = 0);
        self.hosts.values_mut().for_each(|host| host.stated_limits = None);
        self.networks.values_mut().for_each(|network| network.in_flight = 0);
    }

    /// Checks that there are as many jobs as repositories with missing data.
    pub fn job_count(&mut self, size: usize, repo_paths: usize) {
        self.require(size == repo_paths, "one job per repository with missing data", || {
            format!("{size} of {repo_paths}")
        });
    }
}
