//! Test machine: a fetch machine with a manual clock and simulated name lookups. The address of a host is derived from
//! its name.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::fetch::io::{
    FetchId, FetchInput, FetchOutcome, FetchOutput, FetchRequest, FetchResult, GitSource, HostRow, MirrorCheck,
    ServedRepo, SurveyResult, WantedEvent, WantedGitData, WantedKind,
};
use crate::fetch::{FetchConfig, FetchMachine, HostLimits, MirrorCheckSchedule};
use crate::net::AddressPolicy;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::nostr::nip11::GitFetchLimits;
use crate::repo::{Identifier, RepoId, RepoPath};
use crate::state_machine::StateMachine;
use crate::time::{MonoTime, Now, Timestamp};

pub(super) struct TestMachine {
    pub(super) machine: FetchMachine,
    pub(super) now: Now,
    /// Limits that servers state, by host.
    pub(super) stated_limits: BTreeMap<String, GitFetchLimits>,
    /// Outputs that the test has not taken yet.
    pub(super) out: Vec<FetchOutput>,
    /// Whether surveys are left to the test instead of being answered.
    pub(super) holds_surveys: bool,
}

pub(super) fn config() -> FetchConfig {
    FetchConfig {
        address_policy: AddressPolicy::Any,
        default_limits: HostLimits::default(),
        max_limits: HostLimits::MAX_STATED,
        host_limits: BTreeMap::new(),
        mirror_checks: MirrorCheckSchedule::default(),
        seed: 1,
    }
}

impl TestMachine {
    pub(super) fn new() -> Self {
        Self::with(config())
    }

    pub(super) fn with(config: FetchConfig) -> Self {
        let now = Now { mono: MonoTime(0), wall: Timestamp(1_000_000) };
        Self {
            machine: FetchMachine::new(config),
            now,
            stated_limits: BTreeMap::new(),
            out: Vec::new(),
            holds_surveys: false,
        }
    }

    /// Returns a test for a process that starts later on the same server.
    pub(super) fn restarted(&self, config: FetchConfig, millis: u64) -> Self {
        let wall = Timestamp(self.now.wall.0 + millis / 1_000);
        Self { now: Now { mono: MonoTime(0), wall }, stated_limits: self.stated_limits.clone(), ..Self::with(config) }
    }

    pub(super) fn handle(&mut self, input: FetchInput) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll() {
            match output {
                FetchOutput::Survey { origin, with_nip11 } if !self.holds_surveys => {
                    let host = origin.host().to_string();
                    let number = host.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                    let [a, b] = number.to_be_bytes();
                    let addresses = vec![IpAddr::V4(Ipv4Addr::new(9, a, b, 1))];
                    let stated_limits = self.stated_limits.get(&host).copied().filter(|_| with_nip11);
                    self.machine.handle(
                        self.now,
                        FetchInput::Surveyed(origin, SurveyResult::Resolved { addresses, stated_limits }),
                    );
                }
                output => self.out.push(output),
            }
        }
    }

    /// Advances the time and wakes the machine at every alarm.
    pub(super) fn advance(&mut self, millis: u64) {
        let end = self.now.mono.0 + millis;
        loop {
            let at = self.machine.alarm().map(|(at, _)| at.0).filter(|at| *at <= end);
            let to = at.unwrap_or(end).max(self.now.mono.0);
            self.now.wall.0 = self.now.wall.0 - self.now.mono.0 / 1_000 + to / 1_000;
            self.now.mono.0 = to;
            if at.is_none() {
                break;
            }
            self.machine.wake(self.now);
            self.drain();
        }
    }

    /// Takes the fetches that have begun.
    pub(super) fn fetches(&mut self) -> Vec<FetchRequest> {
        let (fetches, rest) =
            std::mem::take(&mut self.out).into_iter().partition(|out| matches!(out, FetchOutput::Fetch(_)));
        self.out = rest;
        let fetches: Vec<FetchOutput> = fetches;
        fetches
            .into_iter()
            .filter_map(|out| if let FetchOutput::Fetch(fetch) = out { Some(fetch) } else { None })
            .collect()
    }

    /// Takes the mirror checks that have begun.
    pub(super) fn mirror_checks(&mut self) -> Vec<MirrorCheck> {
        let (checks, rest) =
            std::mem::take(&mut self.out).into_iter().partition(|out| matches!(out, FetchOutput::CheckMirror(_)));
        self.out = rest;
        let checks: Vec<FetchOutput> = checks;
        checks
            .into_iter()
            .filter_map(|out| if let FetchOutput::CheckMirror(check) = out { Some(check) } else { None })
            .collect()
    }

    /// Reports a served repository with these mirrors.
    pub(super) fn set_mirrors(&mut self, owner: u8, name: &str, urls: &[&str]) {
        let served = ServedRepo {
            repo_path: repo_path(owner, name),
            mirror_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        };
        self.handle(FetchInput::Served(served.repo_path.identifier().clone(), vec![served]));
    }

    /// Reports a served repository whose refs have just changed.
    pub(super) fn serve(&mut self, owner: u8, name: &str, urls: &[&str]) {
        self.set_mirrors(owner, name, urls);
        self.handle(FetchInput::RefsChanged(repo_path(owner, name)));
    }

    /// Takes the only fetch that has begun.
    pub(super) fn fetch(&mut self) -> FetchRequest {
        let mut fetches = self.fetches();
        assert_eq!(fetches.len(), 1, "{fetches:?}");
        fetches.pop().expect("one")
    }

    pub(super) fn finish(&mut self, id: FetchId, outcome: FetchOutcome) {
        self.handle(FetchInput::Fetched(id, FetchResult { oids: Vec::new(), outcome }));
    }

    pub(super) fn finish_with(&mut self, id: FetchId, oids: &[&str]) {
        let oids = oids.iter().map(|oid| (*oid).to_owned()).collect();
        self.handle(FetchInput::Fetched(id, FetchResult { oids, outcome: FetchOutcome::Sent }));
    }

    /// Takes the events that were reported as tried.
    pub(super) fn tried(&mut self) -> Vec<u8> {
        let mut tried = Vec::new();
        self.out.retain(|out| match out {
            FetchOutput::SourcesTried(events) => {
                tried.extend(events.iter().map(|event| event.0[0]));
                false
            }
            _ => true,
        });
        tried
    }

    pub(super) fn cancelled(&mut self) -> Vec<FetchId> {
        let ids = self.out.iter().filter_map(|out| if let FetchOutput::Cancel(id) = out { Some(*id) } else { None });
        let ids = ids.collect();
        self.out.retain(|out| !matches!(out, FetchOutput::Cancel(_)));
        ids
    }

    pub(super) fn rows(&mut self) -> Vec<HostRow> {
        let rows = self
            .out
            .iter()
            .filter_map(|out| if let FetchOutput::SaveHost(row) = out { Some(row.clone()) } else { None });
        let rows = rows.collect();
        self.out.retain(|out| !matches!(out, FetchOutput::SaveHost(_)));
        rows
    }

    /// Reports the wanted events of one repository.
    pub(super) fn want(&mut self, owner: u8, name: &str, events: Vec<WantedEvent>) {
        let repo_path = repo_path(owner, name);
        self.handle(FetchInput::Wanted(repo_path.identifier().clone(), vec![WantedGitData { repo_path, events }]));
    }

    /// Reports that an identifier needs nothing any more.
    pub(super) fn unwant(&mut self, name: &str) {
        self.handle(FetchInput::Wanted(Identifier::new(name).expect("valid"), Vec::new()));
    }

    /// Returns an event whose objects are wanted now.
    pub(super) fn wanted(&self, event: u8, oids: &[&str], urls: &[&str]) -> WantedEvent {
        let source = |url: &&str| GitSource { url: (*url).to_owned(), is_grasp: url.contains("grasp") };
        WantedEvent {
            id: EventId([event; 32]),
            kind: WantedKind::State,
            oids: oids.iter().map(|oid| (*oid).to_owned()).collect(),
            sources: urls.iter().map(source).collect(),
            due: self.now.mono,
            is_dormant: false,
        }
    }
}

pub(super) fn repo_path(owner: u8, name: &str) -> RepoPath {
    RepoPath::Announced(RepoId { owner: PublicKey([owner; 32]), identifier: Identifier::new(name).expect("valid") })
}

pub(super) fn urls(fetches: &[FetchRequest]) -> Vec<String> {
    fetches.iter().map(|fetch| fetch.target.to_string()).collect()
}
