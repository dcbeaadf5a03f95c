//! A model of admission: which events are held, released and expired.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::fetch::FetchMachine;
use grasp_core::fetch::io::{GitSource, WantedEvent, WantedGitData, WantedKind};
use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::{Identifier, RepoId, RepoPath};

use super::fixtures::WorldFixture;
use crate::simulation::process::Process;
use crate::simulation::queue::{HOUR, MINUTE, SECOND, Time};

/// The status of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldStatus {
    /// It has not arrived.
    Unknown,
    /// It is held.
    Held,
    /// It has expired, and its data is still fetched hourly.
    Dormant,
    /// It is served.
    Released,
    /// A newer event has replaced it.
    Replaced,
}

/// An event of the model.
#[derive(Clone, Debug)]
pub struct ModelEvent {
    /// Its status.
    pub status: HoldStatus,
    /// Since when it is held.
    pub since: Time,
    /// When fetching may begin.
    pub due: Time,
    /// Whether all sources were asked.
    pub tried: bool,
    /// Running fetches for it.
    pub running: usize,
}

/// The model.
#[derive(Clone, Debug)]
pub struct AdmissionModel {
    /// All events.
    pub events: Vec<ModelEvent>,
    /// Objects that are here, by repository.
    present: BTreeMap<usize, BTreeSet<String>>,
    /// Number of events that have expired.
    pub expired: usize,
}

/// Returns the id of an event.
pub(super) fn event_id(event: usize) -> EventId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(event as u64).to_be_bytes());
    EventId(id)
}

/// Returns the index of the event with this id.
pub(super) fn event_of(id: &EventId) -> usize {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    u64::from_be_bytes(number) as usize
}

/// Returns the path of a repository.
pub(super) fn repo_path(fixture: &WorldFixture, repo: usize) -> RepoPath {
    let repo = &fixture.repos[repo];
    let identifier = Identifier::new(&repo.name).unwrap_or_else(|| unreachable!("generated identifiers are valid"));
    RepoPath::Announced(RepoId { owner: PublicKey([repo.owner; 32]), identifier })
}

impl AdmissionModel {
    /// Creates a model in which no event has arrived.
    pub fn new(fixture: &WorldFixture) -> Self {
        let held = ModelEvent { status: HoldStatus::Unknown, since: 0, due: 0, tried: false, running: 0 };
        Self { events: vec![held; fixture.events.len()], present: BTreeMap::new(), expired: 0 }
    }

    /// Returns whether an event needs git data.
    pub fn is_waiting(&self, event: usize) -> bool {
        matches!(self.events[event].status, HoldStatus::Held | HoldStatus::Dormant)
    }

    /// Handles an event that arrives, or arrives again.
    pub fn arrive(&mut self, fixture: &WorldFixture, event: usize, now: Time) {
        let own = &fixture.events[event];
        let held = &mut self.events[event];
        match held.status {
            HoldStatus::Unknown | HoldStatus::Dormant => {
                let delay =
                    if own.is_from_client && held.status == HoldStatus::Unknown { 3 * MINUTE } else { SECOND / 2 };
                *held = ModelEvent {
                    status: HoldStatus::Held,
                    since: now,
                    due: now + delay,
                    tried: false,
                    running: held.running,
                };
            }
            HoldStatus::Held | HoldStatus::Released | HoldStatus::Replaced => return,
        }
        if own.is_replacement {
            for (other, earlier) in fixture.events.iter().enumerate().take(event) {
                if earlier.repo == own.repo && self.is_waiting(other) {
                    self.events[other].status = HoldStatus::Replaced;
                }
            }
        }
        self.release(fixture, own.repo);
    }

    /// Adds objects to a repository.
    pub fn adopt(&mut self, fixture: &WorldFixture, repo: usize, oids: impl IntoIterator<Item = String>) {
        self.present.entry(repo).or_default().extend(oids);
        self.release(fixture, repo);
    }

    fn release(&mut self, fixture: &WorldFixture, repo: usize) {
        let Some(present) = self.present.get(&repo) else { return };
        for (event, own) in fixture.events.iter().enumerate() {
            if own.repo == repo && self.is_waiting(event) && own.oids.iter().all(|oid| present.contains(oid)) {
                self.events[event].status = HoldStatus::Released;
            }
        }
    }

    /// Returns whether all objects of an event are here.
    pub fn has_all_objects(&self, fixture: &WorldFixture, event: usize) -> bool {
        let own = &fixture.events[event];
        let present = self.present.get(&own.repo);
        own.oids.iter().all(|oid| present.is_some_and(|present| present.contains(oid)))
    }

    /// Makes an event dormant if it has expired. Returns whether it did.
    pub fn expire(&mut self, event: usize, now: Time) -> bool {
        let held = &mut self.events[event];
        let over = now >= held.since + 30 * MINUTE && held.tried && held.running == 0;
        let expires = held.status == HoldStatus::Held && (over || now >= held.since + 24 * HOUR);
        if expires {
            held.status = HoldStatus::Dormant;
            self.expired += 1;
        }
        expires
    }

    /// Returns the wanted git data of an identifier, for a process.
    pub fn wanted_git_data(
        &self,
        fixture: &WorldFixture,
        name: &str,
        process: &Process<FetchMachine>,
    ) -> Vec<WantedGitData> {
        let mut wanted_git_data = Vec::new();
        for (repo, _) in fixture.repos.iter().enumerate().filter(|(_, repo)| repo.name == name) {
            let mut events = Vec::new();
            for (event, own) in fixture.events.iter().enumerate() {
                if own.repo != repo || !self.is_waiting(event) {
                    continue;
                }
                let source = |url: &usize| {
                    let url = &fixture.urls[*url];
                    GitSource { url: url.url.clone(), is_grasp: fixture.servers[url.server].is_grasp }
                };
                events.push(WantedEvent {
                    id: event_id(event),
                    kind: WantedKind::State,
                    oids: own.oids.clone(),
                    sources: own.urls.iter().map(source).collect(),
                    due: process.mono_time(self.events[event].due),
                    is_dormant: self.events[event].status == HoldStatus::Dormant,
                });
            }
            if !events.is_empty() {
                wanted_git_data.push(WantedGitData { repo_path: repo_path(fixture, repo), events });
            }
        }
        wanted_git_data
    }
}
