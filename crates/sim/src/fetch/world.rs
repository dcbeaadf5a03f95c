//! The simulated world: the clock, the driver of the machine, and restarts.

use std::collections::BTreeMap;

use grasp_core::fetch::fault_injection::Fault;
use grasp_core::fetch::io::{
    FetchId, FetchInput, FetchOutcome, FetchOutput, FetchResult, HostRow, MirrorId, RefComparison, ServedRepo,
    SurveyResult,
};
use grasp_core::fetch::origin::Origin;
use grasp_core::fetch::{FetchConfig, FetchMachine, MirrorCheckSchedule};
use grasp_core::net::AddressPolicy;
use grasp_core::repo::Identifier;
use grasp_core::state_machine::StateMachine;
use grasp_core::time::{MonoTime, Now, Timestamp};

use super::admission::{AdmissionModel, event_of, repo_path};
use super::fixtures::{ServerBehavior, WorldFixture};
use super::invariants::InvariantChecker;
use super::server::{ServerAnswer, Servers};
use crate::random::Rng;
use crate::sync::invariants::Violation;
use crate::sync::queue::{HOUR, MINUTE, Queue, Time};
use crate::sync::trace::Trace;

/// Wall time when the world begins.
const WORLD_START: u64 = 1_700_000_000;

/// What can happen next.
#[derive(Debug)]
enum WorldEvent {
    Arrive(usize),
    Pushed(usize),
    Expire(usize),
    BehaviorChange(usize, ServerBehavior),
    Surveyed { process: u32, origin: Origin, server: usize, with_nip11: bool, survey: SurveyResult },
    FirstBytes(u32, FetchId),
    FetchEnded(u32, FetchId),
    MirrorChecked(u32, MirrorId, Result<RefComparison, FetchOutcome>),
    Stop(Time),
    Start,
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
pub struct World {
    /// The initial state.
    pub fixture: WorldFixture,
    /// The model of admission.
    pub admission: AdmissionModel,
    /// The git servers.
    pub servers: Servers,
    /// The first violated invariant.
    pub violation: Option<Violation>,
    /// The trace of the run.
    pub trace: Trace,
    /// The invariant checker.
    pub checker: InvariantChecker,
    /// The machine, while the process runs.
    pub machine: Option<FetchMachine>,
    /// Milliseconds since the world began.
    pub time: Time,
    fault: Option<Fault>,
    seed: u64,
    boot: Time,
    process: u32,
    queue: Queue<WorldEvent>,
    rng: Rng,
    rows: BTreeMap<String, HostRow>,
    pending_fetches: BTreeMap<FetchId, PendingFetch>,
    authorities: BTreeMap<String, usize>,
    urls: BTreeMap<String, usize>,
    repo_paths: BTreeMap<String, usize>,
}

impl World {
    /// Creates a world and starts the process.
    #[must_use]
    pub fn new(fixture: WorldFixture, seed: u64, fault: Option<Fault>, trace: Trace) -> Self {
        let mut queue = Queue::default();
        for (event, own) in fixture.events.iter().enumerate() {
            for at in own.seen_again.iter().chain([&own.at]) {
                queue.schedule(*at, WorldEvent::Arrive(event));
            }
            if let Some(at) = own.pushed {
                queue.schedule(at, WorldEvent::Pushed(event));
            }
        }
        for (server, own) in fixture.servers.iter().enumerate() {
            for (at, behavior) in &own.later_behaviors {
                queue.schedule(*at, WorldEvent::BehaviorChange(server, *behavior));
            }
        }
        for (at, down) in &fixture.restarts {
            queue.schedule(*at, WorldEvent::Stop(*down));
        }
        let mut world = Self {
            admission: AdmissionModel::new(&fixture),
            servers: Servers::new(&fixture),
            violation: None,
            trace,
            checker: InvariantChecker::default(),
            machine: None,
            time: 0,
            fault,
            seed,
            boot: 0,
            process: 0,
            queue,
            rng: Rng::new(seed),
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

    fn now(&self) -> Now {
        Now { mono: MonoTime(self.time - self.boot), wall: Timestamp(WORLD_START + self.time / 1_000) }
    }

    /// Runs until a time, or until an invariant is violated.
    pub fn run(&mut self, end: Time) {
        while self.violation.is_none() {
            let alarm = self
                .machine
                .as_ref()
                .and_then(StateMachine::alarm)
                .map(|(at, _)| at.0.saturating_add(self.boot).max(self.time));
            let until = alarm.map_or(end, |alarm| alarm.min(end));
            if let Some((at, what)) = self.queue.next(until) {
                self.time = at;
                self.trace.log(at, || format!("{what:?}"));
                self.trace.step(at, 1);
                self.apply(what);
            } else if let Some(at) = alarm.filter(|at| *at <= end) {
                self.time = at;
                self.trace.step(at, 2);
                self.checker.wake(at);
                let now = self.now();
                if let Some(machine) = &mut self.machine {
                    machine.wake(now);
                }
                self.drain();
            } else {
                self.time = end;
                break;
            }
            let violation = self.checker.take_violation();
            self.violation = self.violation.take().or(violation);
        }
    }

    /// Makes all git servers behave normally for the rest of the run.
    pub fn heal(&mut self) {
        self.servers.heal();
        self.trace.log(self.time, || "healed".to_owned());
    }

    fn apply(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Start => self.start(),
            WorldEvent::Stop(down) => self.stop(down),
            WorldEvent::BehaviorChange(server, behavior) => self.servers.change(server, behavior),
            // What arrives while the process is down arrives again later.
            WorldEvent::Arrive(_) | WorldEvent::Pushed(_) | WorldEvent::Expire(_) if self.machine.is_none() => {
                self.queue.schedule(self.time + 1_000, what);
            }
            WorldEvent::Arrive(event) => {
                let knew = self.admission.is_waiting(event);
                self.admission.arrive(&self.fixture, event, self.time);
                if !knew || self.admission.events[event].since == self.time {
                    self.checker.arrived(&self.fixture, event);
                    self.queue.schedule(self.time + 30 * MINUTE, WorldEvent::Expire(event));
                    self.queue.schedule(self.time + 24 * HOUR, WorldEvent::Expire(event));
                    self.report_wanted_of_repo(self.fixture.events[event].repo);
                }
            }
            WorldEvent::Pushed(event) => {
                let own = &self.fixture.events[event];
                let (repo, oids) = (own.repo, own.oids.clone());
                self.admission.adopt(&self.fixture, repo, oids);
                self.report_wanted_of_repo(repo);
                self.handle(FetchInput::RefsChanged(repo_path(&self.fixture, repo)));
            }
            WorldEvent::Expire(event) => self.expire(event),
            WorldEvent::Surveyed { process, origin, server, with_nip11, survey } if process == self.process => {
                self.surveyed(origin, server, with_nip11, survey);
            }
            WorldEvent::FirstBytes(process, id) if process == self.process => {
                if self.pending_fetches.contains_key(&id) {
                    self.checker.first_bytes(id);
                    self.handle(FetchInput::FirstBytes(id));
                }
            }
            WorldEvent::FetchEnded(process, id) if process == self.process => self.end_fetch(id),
            WorldEvent::MirrorChecked(process, id, result) if process == self.process => {
                self.checker.mirror_checked(
                    &self.fixture,
                    self.time,
                    id,
                    result.as_ref().err().unwrap_or(&FetchOutcome::Sent),
                );
                self.handle(FetchInput::MirrorChecked(id, result));
            }
            WorldEvent::Surveyed { .. }
            | WorldEvent::FirstBytes(..)
            | WorldEvent::FetchEnded(..)
            | WorldEvent::MirrorChecked(..) => {}
        }
    }

    fn start(&mut self) {
        self.boot = self.time;
        self.process += 1;
        let config = FetchConfig {
            address_policy: AddressPolicy::Any,
            default_limits: self.fixture.default_limits,
            host_limits: self.fixture.host_limits.iter().cloned().collect(),
            mirror_checks: MirrorCheckSchedule {
                after_change_secs: 30,
                retry_secs: [60, 120, 300, 600],
                startup_spread_secs: 600,
            },
            seed: self.seed.wrapping_add(u64::from(self.process)),
        };
        self.machine = Some(FetchMachine::with_fault(config, self.fault));
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
        if self.machine.take().is_some() {
            self.process += 1;
            self.pending_fetches.clear();
            self.checker.stop();
            self.queue.schedule(self.time + down, WorldEvent::Start);
        }
    }

    fn handle(&mut self, input: FetchInput) {
        let now = self.now();
        if let Some(machine) = &mut self.machine {
            machine.handle(now, input);
        }
        self.drain();
    }

    /// Reports the wanted git data of the identifier of a repository.
    fn report_wanted_of_repo(&mut self, repo: usize) {
        let name = self.fixture.repos[repo].name.clone();
        self.report_wanted(&name);
    }

    fn report_wanted(&mut self, name: &str) {
        let wanted_git_data = self.admission.wanted_git_data(&self.fixture, name, self.boot);
        let events = wanted_git_data.iter().flat_map(|data| data.events.iter().map(|event| event_of(&event.id)));
        self.checker.wanted(&self.fixture, name, events);
        if let Some(name) = Identifier::new(name) {
            self.handle(FetchInput::Wanted(name, wanted_git_data));
        }
    }

    fn expire(&mut self, event: usize) {
        if self.admission.expire(event, self.time) {
            self.trace.log(self.time, || format!("event {event} expires"));
            self.report_wanted_of_repo(self.fixture.events[event].repo);
        }
    }

    fn surveyed(&mut self, origin: Origin, server: usize, with_nip11: bool, survey: SurveyResult) {
        match &survey {
            SurveyResult::Resolved { stated_limits: stated, .. } => {
                self.checker.surveyed(self.time, server, Some(*stated));
                if with_nip11 && stated.is_none() {
                    self.checker.unstated(server);
                }
            }
            SurveyResult::NoAddress | SurveyResult::Forbidden(_) => self.checker.surveyed(self.time, server, None),
        }
        self.handle(FetchInput::Surveyed(origin, survey));
    }

    /// Ends a fetch: first admission receives the objects, then the machine the result.
    fn end_fetch(&mut self, id: FetchId) {
        let Some(pending) = self.pending_fetches.remove(&id) else { return };
        let (end, oids) = if pending.cancelled {
            (FetchOutcome::Cancelled, Vec::new())
        } else if self.fixture.has_local_errors && self.rng.one_in(30) {
            (FetchOutcome::LocalError, Vec::new())
        } else {
            (pending.answer.outcome, pending.answer.oids)
        };
        self.trace.log(self.time, || format!("  {id:?} ended {end:?} with {}", oids.len()));
        for event in &pending.events {
            let held = &mut self.admission.events[*event];
            held.running = held.running.saturating_sub(1);
        }
        let has_received = !oids.is_empty();
        self.admission.adopt(&self.fixture, pending.repo, oids.iter().cloned());
        // The report may come before or after the end of the fetch.
        let early = has_received && self.rng.one_in(2);
        if early {
            self.report_wanted_of_repo(pending.repo);
        }
        self.checker.fetched(&self.fixture, self.time, id, (&end, &oids));
        self.handle(FetchInput::Fetched(id, FetchResult { oids, outcome: end }));
        if has_received && !early {
            self.report_wanted_of_repo(pending.repo);
        }
        for event in pending.events {
            self.expire(event);
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.as_mut().and_then(StateMachine::poll) {
            self.trace.log(self.time, || format!("  → {output:?}"));
            match output {
                FetchOutput::Survey { origin, with_nip11 } => {
                    let Some(server) = self.authorities.get(&origin.authority()).copied() else { continue };
                    self.trace.hash_number(server as u64);
                    self.checker.survey(self.time, server, with_nip11);
                    let (took, survey) = self.servers.survey(&self.fixture, server, with_nip11, &mut self.rng);
                    let process = self.process;
                    self.queue.schedule(
                        self.time + took,
                        WorldEvent::Surveyed { process, origin, server, with_nip11, survey },
                    );
                }
                FetchOutput::Fetch(fetch) => self.fetch(&fetch),
                FetchOutput::CheckMirror(check) => {
                    let Some(url) = self.urls.get(&check.target.to_string()).copied() else { continue };
                    self.trace.hash_number(url as u64);
                    self.checker.mirror_check(&self.fixture, self.time, url, check.id);
                    let (at, result) = self.servers.check_mirror(&self.fixture, url, self.time, &mut self.rng);
                    self.queue.schedule(at, WorldEvent::MirrorChecked(self.process, check.id, result));
                }
                FetchOutput::Cancel(id) => {
                    self.checker.cancel(id);
                    if let Some(pending) = self.pending_fetches.get_mut(&id) {
                        pending.cancelled = true;
                        self.queue.schedule(
                            self.time + 1 + self.rng.next_u64() % 200,
                            WorldEvent::FetchEnded(self.process, id),
                        );
                    }
                }
                FetchOutput::SourcesTried(events) => {
                    for event in events.iter().map(event_of) {
                        self.checker.tried(&self.fixture, &self.admission, event);
                        self.admission.events[event].tried = true;
                        self.queue.schedule(self.time, WorldEvent::Expire(event));
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
            self.violation = Some(Violation::new("only listed URLs are asked", fetch.target.to_string()));
            return;
        };
        self.trace.hash_number((url * 2 + fetch.form as usize) as u64);
        self.checker.fetch(&self.fixture, &self.admission, self.time, (repo, url), fetch);
        let answer = self.servers.answer(&self.fixture, url, fetch, self.time, &mut self.rng);
        let events: Vec<usize> = fetch.events.iter().map(|(event, _)| event_of(event)).collect();
        for event in &events {
            self.admission.events[*event].running += 1;
        }
        if let Some(first) = answer.first_bytes_at {
            self.queue.schedule(first, WorldEvent::FirstBytes(self.process, fetch.id));
        }
        self.queue.schedule(answer.ends_at, WorldEvent::FetchEnded(self.process, fetch.id));
        self.pending_fetches.insert(fetch.id, PendingFetch { repo, events, answer, cancelled: false });
    }

    /// Returns the number of repositories with missing data.
    #[must_use]
    pub fn repos_with_missing_data(&self) -> usize {
        (0..self.fixture.repos.len())
            .filter(|repo| {
                (0..self.fixture.events.len())
                    .any(|event| self.fixture.events[event].repo == *repo && self.admission.is_waiting(event))
            })
            .count()
    }
}
