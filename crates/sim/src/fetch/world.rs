//! The simulated world: the clock, the driver of the machine, and restarts.

use std::collections::BTreeMap;

use grasp_core::fetch::io::{
    FetchId, FetchInput, FetchOutcome, FetchOutput, FetchResult, HostRow, MirrorId, RefComparison, ServedRepo,
    SurveyResult,
};
use grasp_core::fetch::origin::Origin;
use grasp_core::fetch::{FetchConfig, FetchMachine, HostLimits, MirrorCheckSchedule};
use grasp_core::net::AddressPolicy;
use grasp_core::repo::Identifier;

use super::admission::{AdmissionModel, HoldStatus, event_of, repo_path};
use super::fixtures::{ServerBehavior, WorldFixture};
use super::invariants::{FetchCounts, InvariantChecker};
use super::server::{ServerAnswer, Servers};
use super::world_gen::generate;
use crate::random::Rng;
use crate::simulation::process::Process;
use crate::simulation::queue::{HOUR, MINUTE, Time};
use crate::simulation::trace::Trace;
use crate::simulation::{Simulation, Violation, World};

/// Time after healing within which everything must have been fetched: an hour of `Retry-After`, an hour after invalid
/// data, an hour of dormancy, and the time that slow hosts need.
const CONVERGENCE_TIME: Time = 5 * HOUR;

/// A scheduled step of the simulation. Results have the number of the process that started the request.
#[derive(Debug)]
pub enum FetchStep {
    /// An event arrives, or arrives again.
    Arrive(usize),
    /// The objects of an event are pushed.
    Pushed(usize),
    /// An event may have expired.
    Expire(usize),
    /// A server changes its behaviour.
    BehaviorChange(usize, ServerBehavior),
    /// A survey of a server ends.
    Surveyed(u32, Box<EndedSurvey>),
    /// The first bytes of a fetch arrive.
    FirstBytes(u32, FetchId),
    /// A fetch ends.
    FetchEnded(u32, FetchId),
    /// A mirror check ends.
    MirrorChecked(u32, MirrorId, Result<RefComparison, FetchOutcome>),
    /// The process stops for this time.
    Stop(Time),
    /// The process starts.
    Start,
}

/// A survey and its result.
#[derive(Debug)]
pub struct EndedSurvey {
    origin: Origin,
    server: usize,
    with_nip11: bool,
    result: SurveyResult,
}

/// A running fetch.
#[derive(Debug)]
struct PendingFetch {
    repo: usize,
    events: Vec<usize>,
    answer: ServerAnswer,
    cancelled: bool,
}

/// One server under test, and all git servers that it may ask.
pub struct FetchWorld {
    /// Time, scheduled steps, trace and violation.
    pub sim: Simulation<FetchStep>,
    /// The initial state.
    pub fixture: WorldFixture,
    /// The model of admission.
    pub admission: AdmissionModel,
    /// The invariant checker.
    pub checker: InvariantChecker,
    servers: Servers,
    process: Process<FetchMachine>,
    rows: BTreeMap<String, HostRow>,
    pending_fetches: BTreeMap<FetchId, PendingFetch>,
    authorities: BTreeMap<String, usize>,
    urls: BTreeMap<String, usize>,
    repo_paths: BTreeMap<String, usize>,
}

impl FetchWorld {
    /// Creates a world and starts the process.
    pub fn new(fixture: WorldFixture, seed: u64, trace: Trace) -> Self {
        let mut sim = Simulation::new(seed, Rng::new(seed), trace);
        let queue = &mut sim.queue;
        for (event, own) in fixture.events.iter().enumerate() {
            for at in own.seen_again.iter().chain([&own.at]) {
                queue.schedule(*at, FetchStep::Arrive(event));
            }
            if let Some(at) = own.pushed {
                queue.schedule(at, FetchStep::Pushed(event));
            }
        }
        for (server, own) in fixture.servers.iter().enumerate() {
            for (at, behavior) in &own.later_behaviors {
                queue.schedule(*at, FetchStep::BehaviorChange(server, *behavior));
            }
        }
        for (at, down) in &fixture.restarts {
            queue.schedule(*at, FetchStep::Stop(*down));
        }
        let mut world = Self {
            sim,
            admission: AdmissionModel::new(&fixture),
            servers: Servers::new(&fixture),
            checker: InvariantChecker::default(),
            process: Process::default(),
            rows: BTreeMap::new(),
            pending_fetches: BTreeMap::new(),
            authorities: fixture.servers.iter().enumerate().map(|(nth, own)| (own.authority.clone(), nth)).collect(),
            urls: fixture.urls.iter().enumerate().map(|(nth, own)| (own.url.clone(), nth)).collect(),
            repo_paths: (0..fixture.repos.len()).map(|repo| (repo_path(&fixture, repo).path(), repo)).collect(),
            fixture,
        };
        world.start();
        world
    }

    fn apply(&mut self, what: FetchStep) {
        match what {
            FetchStep::Start => self.start(),
            FetchStep::Stop(down) => self.stop(down),
            FetchStep::BehaviorChange(server, behavior) => self.servers.change(server, behavior),
            // What arrives while the process is down arrives again later.
            FetchStep::Arrive(_) | FetchStep::Pushed(_) | FetchStep::Expire(_) if !self.process.is_started() => {
                self.sim.schedule_in(1_000, what);
            }
            FetchStep::Arrive(event) => {
                let knew = self.admission.is_waiting(event);
                self.admission.arrive(&self.fixture, event, self.sim.now);
                if !knew || self.admission.events[event].since == self.sim.now {
                    self.checker.arrived(&self.fixture, event);
                    self.sim.schedule_in(30 * MINUTE, FetchStep::Expire(event));
                    self.sim.schedule_in(24 * HOUR, FetchStep::Expire(event));
                    self.report_wanted_of_repo(self.fixture.events[event].repo);
                }
            }
            FetchStep::Pushed(event) => {
                let own = &self.fixture.events[event];
                let (repo, oids) = (own.repo, own.oids.clone());
                self.admission.adopt(&self.fixture, repo, oids);
                self.report_wanted_of_repo(repo);
                self.handle(FetchInput::RefsChanged(repo_path(&self.fixture, repo)));
            }
            FetchStep::Expire(event) => self.expire(event),
            FetchStep::Surveyed(process, survey) if self.process.is_running(process) => self.surveyed(*survey),
            FetchStep::FirstBytes(process, id) if self.process.is_running(process) => {
                if self.pending_fetches.contains_key(&id) {
                    self.checker.first_bytes(id);
                    self.handle(FetchInput::FirstBytes(id));
                }
            }
            FetchStep::FetchEnded(process, id) if self.process.is_running(process) => self.end_fetch(id),
            FetchStep::MirrorChecked(process, id, result) if self.process.is_running(process) => {
                self.checker.mirror_checked(
                    &self.fixture,
                    self.sim.now,
                    id,
                    result.as_ref().err().unwrap_or(&FetchOutcome::Sent),
                );
                self.handle(FetchInput::MirrorChecked(id, result));
            }
            FetchStep::Surveyed(..)
            | FetchStep::FirstBytes(..)
            | FetchStep::FetchEnded(..)
            | FetchStep::MirrorChecked(..) => {}
        }
    }

    fn start(&mut self) {
        let seed = self.sim.seed;
        let config = FetchConfig {
            address_policy: AddressPolicy::Any,
            default_limits: self.fixture.default_limits,
            max_limits: match self.fixture.has_operator_limits {
                true => self.fixture.default_limits,
                false => HostLimits::MAX_STATED,
            },
            host_limits: self.fixture.host_limits.iter().cloned().collect(),
            mirror_checks: MirrorCheckSchedule {
                after_change_secs: 30,
                retry_secs: [60, 120, 300, 600],
                startup_spread_secs: 600,
            },
            seed,
        };
        self.process.start(self.sim.now, |number| {
            let seed = seed.wrapping_add(u64::from(2 * number - 1));
            FetchMachine::new(FetchConfig { seed, ..config })
        });
        for row in self.rows.values().cloned().collect::<Vec<_>>() {
            self.handle(FetchInput::HostRestored(row));
        }
        for held in &mut self.admission.events {
            held.running = 0;
        }
        let mut names: Vec<String> = self.fixture.repos.iter().map(|repo| repo.name.clone()).collect();
        names.sort();
        names.dedup();
        for name in names {
            self.report_wanted(&name);
            self.report_served(&name);
        }
    }

    /// Reports the repositories of an identifier as served. All of their URLs that are not of a GRASP server are
    /// mirrors.
    fn report_served(&mut self, name: &str) {
        let repos = (0..self.fixture.repos.len()).filter(|repo| self.fixture.repos[*repo].name == name);
        let plain = |url: &&usize| !self.fixture.servers[self.fixture.urls[**url].server].is_grasp;
        let served = repos.map(|repo| {
            let events = self.fixture.events.iter().filter(|event| event.repo == repo);
            let urls = events.flat_map(|event| event.urls.iter().filter(plain));
            ServedRepo {
                repo_path: repo_path(&self.fixture, repo),
                mirror_urls: urls.map(|url| self.fixture.urls[*url].url.clone()).collect(),
            }
        });
        let served = served.collect();
        if let Some(name) = Identifier::new(name) {
            self.handle(FetchInput::Served(name, served));
        }
    }

    fn stop(&mut self, down: Time) {
        if self.process.is_started() {
            self.process.stop();
            self.pending_fetches.clear();
            self.checker.stop();
            self.sim.schedule_in(down, FetchStep::Start);
        }
    }

    fn handle(&mut self, input: FetchInput) {
        self.process.handle(self.sim.now, input);
        self.drain();
    }

    /// Reports the wanted git data of the identifier of a repository.
    fn report_wanted_of_repo(&mut self, repo: usize) {
        let name = self.fixture.repos[repo].name.clone();
        self.report_wanted(&name);
    }

    fn report_wanted(&mut self, name: &str) {
        let wanted_git_data = self.admission.wanted_git_data(&self.fixture, name, &self.process);
        let events = wanted_git_data.iter().flat_map(|data| data.events.iter().map(|event| event_of(&event.id)));
        self.checker.wanted(&self.fixture, name, events);
        if let Some(name) = Identifier::new(name) {
            self.handle(FetchInput::Wanted(name, wanted_git_data));
        }
    }

    fn expire(&mut self, event: usize) {
        if self.admission.expire(event, self.sim.now) {
            self.sim.trace.log(self.sim.now, || format!("event {event} expires"));
            self.report_wanted_of_repo(self.fixture.events[event].repo);
        }
    }

    fn surveyed(&mut self, survey: EndedSurvey) {
        let EndedSurvey { origin, server, with_nip11, result } = survey;
        match &result {
            SurveyResult::Resolved { stated_limits: stated, .. } => {
                self.checker.surveyed(self.sim.now, server, Some(*stated));
                if with_nip11 && stated.is_none() {
                    self.checker.unstated(server);
                }
            }
            SurveyResult::NoAddress | SurveyResult::Forbidden(_) => self.checker.surveyed(self.sim.now, server, None),
        }
        self.handle(FetchInput::Surveyed(origin, result));
    }

    /// Ends a fetch: first admission receives the objects, then the machine the result.
    fn end_fetch(&mut self, id: FetchId) {
        let Some(pending) = self.pending_fetches.remove(&id) else { return };
        let (end, oids) = if pending.cancelled {
            (FetchOutcome::Cancelled, Vec::new())
        } else if self.fixture.has_local_errors && self.sim.rng.one_in(30) {
            (FetchOutcome::LocalError, Vec::new())
        } else {
            (pending.answer.outcome, pending.answer.oids)
        };
        self.sim.trace.log(self.sim.now, || format!("  {id:?} ended {end:?} with {}", oids.len()));
        for event in &pending.events {
            let held = &mut self.admission.events[*event];
            held.running = held.running.saturating_sub(1);
        }
        let has_received = !oids.is_empty();
        self.admission.adopt(&self.fixture, pending.repo, oids.iter().cloned());
        // The report may come before or after the end of the fetch.
        let early = has_received && self.sim.rng.one_in(2);
        if early {
            self.report_wanted_of_repo(pending.repo);
        }
        self.checker.fetched(&self.fixture, self.sim.now, id, (&end, &oids));
        self.handle(FetchInput::Fetched(id, FetchResult { oids, outcome: end }));
        if has_received && !early {
            self.report_wanted_of_repo(pending.repo);
        }
        for event in pending.events {
            self.expire(event);
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.process.poll() {
            self.sim.trace.log(self.sim.now, || format!("  → {output:?}"));
            match output {
                FetchOutput::Survey { origin, with_nip11 } => {
                    let Some(server) = self.authorities.get(&origin.authority()).copied() else { continue };
                    self.sim.trace.hash_number(server as u64);
                    self.checker.survey(self.sim.now, server, with_nip11);
                    let (took, result) = self.servers.survey(&self.fixture, server, with_nip11, &mut self.sim.rng);
                    let survey = Box::new(EndedSurvey { origin, server, with_nip11, result });
                    self.sim.schedule_in(took, FetchStep::Surveyed(self.process.number(), survey));
                }
                FetchOutput::Fetch(fetch) => self.fetch(&fetch),
                FetchOutput::CheckMirror(check) => {
                    let Some(url) = self.urls.get(&check.target.to_string()).copied() else { continue };
                    self.sim.trace.hash_number(url as u64);
                    self.checker.mirror_check(&self.fixture, self.sim.now, url, check.id);
                    let (at, result) = self.servers.check_mirror(&self.fixture, url, self.sim.now, &mut self.sim.rng);
                    self.sim.queue.schedule(at, FetchStep::MirrorChecked(self.process.number(), check.id, result));
                }
                FetchOutput::Cancel(id) => {
                    self.checker.cancel(id);
                    if let Some(pending) = self.pending_fetches.get_mut(&id) {
                        pending.cancelled = true;
                        self.sim.queue.schedule(
                            self.sim.now + 1 + self.sim.rng.next_u64() % 200,
                            FetchStep::FetchEnded(self.process.number(), id),
                        );
                    }
                }
                FetchOutput::SourcesTried(events) => {
                    for event in events.iter().map(event_of) {
                        self.checker.tried(&self.fixture, &self.admission, event);
                        self.admission.events[event].tried = true;
                        self.sim.schedule_in(0, FetchStep::Expire(event));
                    }
                }
                FetchOutput::SaveHost(row) => {
                    self.checker.counts.rows += 1;
                    self.rows.insert(row.authority.clone(), row);
                }
                FetchOutput::DeleteHost(authority) => drop(self.rows.remove(&authority)),
                FetchOutput::UrlForbidden(..) => {}
            }
        }
    }

    fn fetch(&mut self, fetch: &grasp_core::fetch::io::FetchRequest) {
        let url = self.urls.get(&fetch.target.to_string()).copied();
        let repo = self.repo_paths.get(&fetch.repo_path.path()).copied();
        let (Some(url), Some(repo)) = (url, repo) else {
            self.sim.report(Violation::new("only listed URLs are asked", fetch.target.to_string()));
            return;
        };
        self.sim.trace.hash_number((url * 2 + fetch.form as usize) as u64);
        self.checker.fetch(&self.fixture, &self.admission, self.sim.now, (repo, url), fetch);
        let answer = self.servers.answer(&self.fixture, url, fetch, self.sim.now, &mut self.sim.rng);
        let events: Vec<usize> = fetch.events.iter().map(|(event, _)| event_of(event)).collect();
        for event in &events {
            self.admission.events[*event].running += 1;
        }
        if let Some(first) = answer.first_bytes_at {
            self.sim.queue.schedule(first, FetchStep::FirstBytes(self.process.number(), fetch.id));
        }
        self.sim.queue.schedule(answer.ends_at, FetchStep::FetchEnded(self.process.number(), fetch.id));
        self.pending_fetches.insert(fetch.id, PendingFetch { repo, events, answer, cancelled: false });
    }

    /// Returns the number of repositories with missing data.
    fn repos_with_missing_data(&self) -> usize {
        (0..self.fixture.repos.len())
            .filter(|repo| {
                (0..self.fixture.events.len())
                    .any(|event| self.fixture.events[event].repo == *repo && self.admission.is_waiting(event))
            })
            .count()
    }

    /// Returns whether a server states that it wants no requests.
    fn wants_none(&self, server: usize) -> bool {
        let none = |stated: Option<u32>| stated == Some(0);
        self.fixture.servers[server]
            .stated_limits
            .is_some_and(|limits| none(limits.concurrent) || none(limits.per_minute))
    }

    /// Checks that all data that exists somewhere was fetched, and that the other events are dormant.
    fn find_unconverged(&mut self) -> Option<Violation> {
        for (event, own) in self.fixture.events.iter().enumerate() {
            let held = &self.admission.events[event];
            let released = held.status == HoldStatus::Released;
            if released && !self.admission.has_all_objects(&self.fixture, event) {
                return Some(Violation::new("no event is released without its objects", format!("event {event}")));
            }
            let there = |oid: &String| {
                let has = |url: &&usize| {
                    self.servers.has(**url, oid, self.sim.now) && !self.wants_none(self.fixture.urls[**url].server)
                };
                own.urls.iter().find(has).is_some()
            };
            if self.admission.is_waiting(event) && own.oids.iter().all(there) {
                return Some(Violation::new("data that exists is fetched", format!("event {event}: {held:?}")));
            }
            if held.status == HoldStatus::Held && held.since + 3 * HOUR < self.sim.now {
                return Some(Violation::new(
                    "an event without data becomes dormant",
                    format!("event {event}: {held:?}"),
                ));
            }
        }
        let (size, repo_paths) =
            (self.process.machine().map_or(0, FetchMachine::queue_size), self.repos_with_missing_data());
        self.checker.job_count(size, repo_paths);
        self.checker.take_violation()
    }

    /// Takes the first violation that the checker has found.
    fn take_violation(&mut self) {
        if let Some(violation) = self.checker.take_violation() {
            self.sim.report(violation);
        }
    }
}

impl World for FetchWorld {
    const NAME: &'static str = "fetch";
    const HEALED_AT: Time = 5 * HOUR;
    type Step = FetchStep;
    type Counts = FetchCounts;

    fn generate(seed: u64, trace: Trace) -> Self {
        Self::new(generate(seed), seed, trace)
    }

    fn simulation(&mut self) -> &mut Simulation<FetchStep> {
        &mut self.sim
    }

    fn step(&mut self, step: FetchStep) {
        self.sim.trace.log(self.sim.now, || format!("{step:?}"));
        self.sim.trace.step(self.sim.now, 1);
        self.apply(step);
        self.take_violation();
    }

    fn alarm(&self) -> Option<Time> {
        self.process.alarm()
    }

    fn wake(&mut self) {
        self.sim.trace.step(self.sim.now, 2);
        self.checker.wake(self.sim.now);
        self.process.wake(self.sim.now);
        self.drain();
        self.take_violation();
    }

    fn heal(&mut self) {
        self.servers.heal();
        self.sim.trace.log(self.sim.now, || "healed".to_owned());
    }

    fn convergence_time(&self) -> Time {
        CONVERGENCE_TIME
    }

    fn check_converged(&mut self) {
        if let Some(violation) = self.find_unconverged() {
            self.sim.report(violation);
        }
    }

    fn counts(&self) -> FetchCounts {
        let released = self.admission.events.iter().filter(|held| held.status == HoldStatus::Released).count();
        FetchCounts { released, expired: self.admission.expired, ..self.checker.counts }
    }

    fn merge_counts(total: &mut FetchCounts, counts: FetchCounts) {
        total.merge(&counts);
    }
}
