//! Generates a world from a seed: which relays and nodes exist, which events they have, and what will happen.

use std::collections::BTreeMap;

use grasp_core::nostr::PublicKey;
use grasp_core::sync::io::RelayCommand;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{SyncConfig, SyncLimits};

use super::corpus::{EventIndex, corpus};
use super::incidents::Incident;
use super::invariants::SyncChecker;
use super::node::Node;
use super::relay::SimRelay;
use super::relay_profile::RelayProfile;
use super::repo_history;
use super::repo_history::{EventRole, RELAYS, RepoHistory, SERVICES};
use super::world::{SyncStep, SyncWorld};
use crate::random::Rng;
use crate::simulation::queue::{DAY, HOUR, MINUTE, SECOND, Time};
use crate::simulation::trace::Trace;
use crate::simulation::{Simulation, WORLD_START, World};

/// Time between pongs.
const PONG_INTERVAL: Time = 6 * HOUR;

/// Maximum number of events of one world.
const MAX_EVENTS: usize = 500;

impl SyncWorld {
    /// Generates the world of a seed.
    pub(super) fn generate_world(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x7361_6c74);
        let nodes = if seed % 5 == 4 { 2 + rng.below(2) } else { 1 };
        let present_count = 4 + rng.below(RELAYS - 3);
        let histories = choose_histories(&mut rng);
        let authors: Vec<PublicKey> = authors_of(&histories);
        let mut relays: Vec<SimRelay> = Vec::new();
        for _ in 0..RELAYS {
            relays.push(SimRelay::new(RelayProfile::random(&mut rng, &authors)));
        }
        // Announcements also list relays that do not exist in this world.
        let mut absent: Vec<usize> = (0..RELAYS).collect();
        for _ in 0..present_count {
            absent.swap_remove(rng.below(absent.len()));
        }
        let mut hosts = BTreeMap::new();
        for relay in (0..RELAYS).filter(|relay| !absent.contains(relay)) {
            hosts.insert(host(&repo_history::relay_url(relay)), relay);
            hosts.insert(host(&repo_history::other_url(relay)), relay);
        }
        for (node, service) in SERVICES.iter().enumerate().take(nodes) {
            let instance = format!("instance-{node}");
            let mut relay = SimRelay::new(RelayProfile::graspd());
            relay.instance = Some(instance);
            relays.push(relay);
            hosts.insert((*service).to_owned(), RELAYS + node);
            hosts.insert(host(&repo_history::alias_url(node)), RELAYS + node);
        }
        let mut world = Self {
            sim: Simulation::new(seed, rng, trace),
            relays,
            nodes: Vec::new(),
            checkers: (0..nodes).map(|node| SyncChecker::new(node, format!("instance-{node}"))).collect(),
            hosts,
            connections: Vec::new(),
            is_offline: vec![false; nodes],
            events_without_data: Vec::new(),
            publications: Vec::new(),
            is_healed: false,
        };
        for node in 0..nodes {
            let config = world.config(node);
            world.checkers[node].bootstrap(&config.bootstrap);
            world.nodes.push(Node::new(node, config));
        }
        world.distribute_events(&histories);
        world.schedule_incidents(&authors);
        world.schedule_pongs();
        if world.sim.rng.one_in(5) {
            world.schedule_troubled_start(0);
        }
        for node in 0..nodes {
            let delay = if node == 0 { 0 } else { world.sim.random_between(0, 10 * MINUTE) };
            world.sim.schedule_in(delay, SyncStep::Incident(Box::new(Incident::Start(node))));
        }
        world
    }

    fn config(&mut self, node: usize) -> SyncConfig {
        let mut bootstrap = Vec::new();
        if self.sim.rng.below(10) < 7 {
            // An existing relay: without one the node would sync nothing.
            let existing: Vec<usize> = self.hosts.values().copied().filter(|relay| *relay < RELAYS).collect();
            let relay = self.sim.rng.pick(&existing).copied().unwrap_or(0);
            bootstrap.extend(RelayUrl::parse(&repo_history::relay_url(relay)));
        }
        SyncConfig {
            service: repo_history::service(node),
            instance: format!("instance-{node}"),
            bootstrap,
            batch_window_millis: 5_000,
            values_per_filter: if self.sim.rng.one_in(3) { 10 } else { 100 },
            descendant_limit: super::local_events::DESCENDANT_LIMIT,
            use_negentropy: !self.sim.rng.one_in(12),
            backoff: Default::default(),
            rejected: Default::default(),
            // A week with a request every five seconds would take most of the time of a run.
            limits: SyncLimits { descendant_poll_secs: 300, descendant_round_pause_secs: 600, ..SyncLimits::default() },
            epoch: 1,
            seed: self.sim.rng.next_u64(),
        }
    }

    /// Distributes the events among relays and clients, and over time.
    fn distribute_events(&mut self, histories: &[(&RepoHistory, Vec<(EventRole, EventIndex)>)]) {
        for (history, events) in histories {
            for (role, index) in events {
                let created = corpus().event(*index).created_at.0;
                let mut relays: Vec<usize> =
                    history.relays.iter().copied().filter(|_| !self.sim.rng.one_in(5)).collect();
                if self.sim.rng.one_in(12) {
                    relays.push(self.sim.rng.below(RELAYS));
                }
                // Some events exist only at one relay.
                if self.sim.rng.one_in(8) {
                    relays.truncate(1);
                }
                for relay in relays {
                    let at = self.arrival_time(created, *role);
                    self.publish(relay, *index, at);
                    self.publications.push((relay, *index));
                }
                self.schedule_client_submissions(history, *role, *index, created);
                if matches!(role, EventRole::State | EventRole::Root) && self.sim.rng.one_in(25) {
                    self.events_without_data.push(*index);
                }
            }
        }
        for index in corpus().unrelated_events() {
            for _ in 0..self.sim.rng.below(3) {
                let relay = self.sim.rng.below(RELAYS);
                let at = self.arrival_time(corpus().event(*index).created_at.0, EventRole::Discussion);
                self.publish(relay, *index, at);
            }
        }
        for (at, _) in corpus().expiring() {
            let Some(secs) = at.checked_sub(WORLD_START).filter(|secs| *secs < 8 * 86_400) else { continue };
            for node in 0..self.nodes.len() {
                self.sim.queue.schedule((secs + 1) * SECOND, SyncStep::Incident(Box::new(Incident::Expiry(node))));
            }
        }
    }

    /// Schedules submissions by clients: mostly announcements and states.
    fn schedule_client_submissions(&mut self, history: &RepoHistory, role: EventRole, index: EventIndex, created: u64) {
        for node in 0..self.nodes.len() {
            if !history.services.contains(&node) || role == EventRole::Unparsable {
                continue;
            }
            let one_of = match role {
                EventRole::Announcement | EventRole::State => 3,
                _ => 12,
            };
            if self.sim.rng.one_in(one_of) {
                let at = self.arrival_time(created, role).max(2 * SECOND);
                self.sim.queue.schedule(at, SyncStep::ClientSubmits(node, index));
            }
        }
    }

    fn publish(&mut self, relay: usize, index: EventIndex, at: Time) {
        if at == 0 {
            self.relays[relay].publish(0, index, &mut self.sim.rng);
        } else {
            self.sim.queue.schedule(at, SyncStep::Published(relay, index));
        }
    }

    /// Returns when an event arrives at a relay: before the start, when it is created, when its git data arrives, or
    /// much later by an import.
    fn arrival_time(&mut self, created: u64, role: EventRole) -> Time {
        let created_at = created.saturating_sub(WORLD_START) * SECOND;
        let delay = match self.sim.rng.below(20) {
            0 => self.sim.random_between(0, 5 * DAY),
            1..=3 => self.sim.random_between(MINUTE, 30 * MINUTE),
            _ if created_at == 0 || role == EventRole::Burst => 0,
            _ => self.sim.random_between(200, 4_000),
        };
        (created_at + delay).min(Self::HEALED_AT - HOUR)
    }

    /// Schedules bursts of incidents.
    fn schedule_incidents(&mut self, authors: &[PublicKey]) {
        for _ in 0..3 + self.sim.rng.below(6) {
            let begin = self.sim.random_between(0, Self::HEALED_AT - HOUR);
            let length = if self.sim.rng.one_in(2) {
                self.sim.random_between(MINUTE, HOUR)
            } else {
                self.sim.random_between(HOUR, 10 * HOUR)
            };
            let end = (begin + length).min(Self::HEALED_AT - MINUTE);
            for _ in 0..1 + self.sim.rng.below(3) {
                self.schedule_incident(begin, end, authors);
            }
        }
    }

    /// Schedules pongs every few hours, so that rows are written; see [`deliver_pongs`](Self::deliver_pongs).
    fn schedule_pongs(&mut self) {
        for node in 0..self.nodes.len() {
            for number in 1..(Self::HEALED_AT + 2 * DAY) / PONG_INTERVAL {
                self.sim.queue.schedule(number * PONG_INTERVAL, SyncStep::Incident(Box::new(Incident::Pongs(node))));
            }
        }
    }

    fn schedule_incident(&mut self, begin: Time, end: Time, authors: &[PublicKey]) {
        let relay = self.sim.rng.below(RELAYS);
        let node = self.sim.rng.below(self.nodes.len());
        let at = |world: &mut Self| world.sim.random_between(begin, end);
        let schedule = |world: &mut Self, at: Time, incident: Incident| {
            world.sim.queue.schedule(at, SyncStep::Incident(Box::new(incident)))
        };
        match self.sim.rng.below(22) {
            20 | 21 => self.schedule_interrupted_arrivals(node, relay, begin),
            0 | 1 => {
                // A restart, sometimes with a long downtime.
                let stop = at(self);
                let down = if self.sim.rng.one_in(3) {
                    self.sim.random_between(MINUTE, 3 * HOUR)
                } else {
                    self.sim.random_between(SECOND, MINUTE)
                };
                // Rows with recent activity are written before.
                for before in [16, 11, 6, 1] {
                    schedule(self, stop.saturating_sub(before * MINUTE), Incident::Pongs(node));
                }
                schedule(self, stop, Incident::Crash(node));
                schedule(self, stop + down, Incident::Start(node));
            }
            2 => {
                let duration = self.sim.random_between(30 * SECOND, 2 * HOUR);
                schedule(self, begin, Incident::Outage(node, true));
                schedule(self, begin + duration, Incident::Outage(node, false));
            }
            3 => {
                let skew_secs = self.sim.rng.next_u64() as i64 % 86_400;
                schedule(self, begin, Incident::ClockSet(node, skew_secs));
                schedule(self, end, Incident::ClockSet(node, 0));
            }
            4 | 5 => {
                // The relay drops its connections repeatedly.
                for _ in 0..3 + self.sim.rng.below(12) {
                    let when = at(self);
                    schedule(self, when, Incident::DropConnections(relay));
                }
            }
            6 => {
                let when = at(self);
                schedule(self, when, Incident::FreezeConnections(relay));
            }
            7 => {
                let when = at(self);
                schedule(self, when, Incident::LoseEvents(relay));
            }
            8 | 9 => {
                let normal = self.relays[relay].profile.clone();
                let unreachable = RelayProfile { is_unreachable: true, ..normal.clone() };
                schedule(self, begin, Incident::SetProfile(relay, Box::new(unreachable)));
                let end = if self.sim.rng.one_in(4) { end + DAY } else { end };
                schedule(self, end.min(Self::HEALED_AT - MINUTE), Incident::SetProfile(relay, Box::new(normal)));
            }
            15 => {
                // A slow disk while all relays reconnect.
                schedule(self, begin, Incident::SlowDisk(node, true));
                for relay in 0..RELAYS {
                    let when = begin + self.sim.random_between(SECOND, 20 * SECOND);
                    schedule(self, when, Incident::DropConnections(relay));
                    let again = self.sim.random_between(10 * SECOND, 2 * MINUTE);
                    schedule(self, when + again, Incident::DropConnections(relay));
                }
                let end = begin + self.sim.random_between(MINUTE, 6 * MINUTE);
                schedule(self, end, Incident::SlowDisk(node, false));
            }
            16 | 17 => self.schedule_missed_publications(begin, end),
            10..=14 => {
                let normal = self.relays[relay].profile.clone();
                let mut misbehaving = normal.clone();
                misbehaving.add_misbehavior(&mut self.sim.rng, authors);
                schedule(self, begin, Incident::SetProfile(relay, Box::new(misbehaving)));
                schedule(self, end, Incident::SetProfile(relay, Box::new(normal)));
            }
            _ => self.schedule_commands(node, relay, begin, end),
        }
    }

    /// Publishes events some minutes after their creation, directly after the relay dropped all connections.
    fn schedule_missed_publications(&mut self, begin: Time, end: Time) {
        let created_at =
            |index: EventIndex| corpus().event(index).created_at.0.checked_sub(WORLD_START).map(|secs| secs * SECOND);
        let publications: Vec<(usize, EventIndex, Time)> = self
            .publications
            .iter()
            .filter_map(|(relay, index)| Some((*relay, *index, created_at(*index)?)))
            .filter(|(_, _, created_at)| (begin.saturating_sub(HOUR)..end.max(begin + 6 * HOUR)).contains(created_at))
            .collect();
        for _ in 0..4 {
            let Some((relay, index, created_at)) = self.sim.rng.pick(&publications).copied() else { return };
            let drop = created_at + self.sim.random_between(MINUTE, 13 * MINUTE);
            let after = self.sim.random_between(100, 1_500);
            self.sim.queue.schedule(drop, SyncStep::Incident(Box::new(Incident::DropConnections(relay))));
            self.sim.queue.schedule(drop + after, SyncStep::Published(relay, index));
        }
    }

    /// Publishes many events long after their creation while the disk is very slow, and lets the process crash before all
    /// of them are stored.
    fn schedule_interrupted_arrivals(&mut self, node: usize, relay: usize, begin: Time) {
        let is_old = |index: EventIndex| corpus().event(index).created_at.0 + 3_600 < WORLD_START + begin / SECOND;
        let mut late: Vec<EventIndex> = self.publications.iter().map(|(_, index)| *index).collect();
        late.retain(|index| is_old(*index));
        let schedule = |world: &mut Self, at: Time, incident: Incident| {
            world.sim.queue.schedule(at, SyncStep::Incident(Box::new(incident)))
        };
        for before in [10, 5] {
            schedule(self, begin.saturating_sub(before * MINUTE), Incident::Pongs(node));
        }
        schedule(self, begin, Incident::SlowDisk(node, true));
        for _ in 0..40 {
            let Some(index) = self.sim.rng.pick(&late).copied() else { break };
            let at = begin + self.sim.random_between(SECOND, 3 * SECOND);
            self.sim.queue.schedule(at, SyncStep::Published(relay, index));
        }
        let crash = begin + self.sim.random_between(50 * SECOND, 150 * SECOND);
        schedule(self, crash, Incident::Crash(node));
        schedule(self, crash + SECOND, Incident::SlowDisk(node, false));
        schedule(self, crash + 30 * SECOND, Incident::Start(node));
    }

    /// Schedules a slow disk and dropped connections for the first minutes, when nothing is synced.
    fn schedule_troubled_start(&mut self, node: usize) {
        self.sim.queue.schedule(SECOND, SyncStep::Incident(Box::new(Incident::SlowDisk(node, true))));
        for relay in 0..self.relays.len() {
            for _ in 0..self.sim.rng.below(4) {
                // Half of them while announcements are requested.
                let latest = if self.sim.rng.one_in(2) { 4 * SECOND } else { 90 * SECOND };
                let when = self.sim.random_between(300, latest);
                self.sim.queue.schedule(when, SyncStep::Incident(Box::new(Incident::DropConnections(relay))));
            }
        }
        let end = self.sim.random_between(30 * SECOND, 6 * MINUTE);
        self.sim.queue.schedule(end, SyncStep::Incident(Box::new(Incident::SlowDisk(node, false))));
        if self.sim.rng.one_in(3) {
            let stop = self.sim.random_between(20 * SECOND, end);
            self.sim.queue.schedule(stop, SyncStep::Incident(Box::new(Incident::Crash(node))));
            self.sim.queue.schedule(stop + MINUTE, SyncStep::Incident(Box::new(Incident::Start(node))));
        }
    }

    fn schedule_commands(&mut self, node: usize, relay: usize, begin: Time, end: Time) {
        let Some(url) = RelayUrl::parse(&repo_history::relay_url(relay)) else { return };
        let (first, then) = match self.sim.rng.below(4) {
            0 | 1 => (RelayCommand::Pause(url.clone()), Some(RelayCommand::Resume(url))),
            2 => (RelayCommand::Retry(url.clone()), Some(RelayCommand::Reconcile(url))),
            _ => (RelayCommand::Forget(url), None),
        };
        self.sim.queue.schedule(begin, SyncStep::Incident(Box::new(Incident::Command(node, first))));
        if let Some(then) = then {
            self.sim.queue.schedule(end, SyncStep::Incident(Box::new(Incident::Command(node, then))));
        }
    }
}

/// Returns the repositories of a world, and which of their events it uses.
fn choose_histories(rng: &mut Rng) -> Vec<(&'static RepoHistory, Vec<(EventRole, EventIndex)>)> {
    let large = rng.one_in(6);
    let max_events = if large { MAX_EVENTS } else { 60 + rng.below(MAX_EVENTS / 2 - 60) };
    let history_count = 3 + rng.below(if large { 18 } else { 8 });
    let percentage = 20 + rng.below(81);
    let has_bursts = rng.one_in(4);
    let mut remaining: Vec<&RepoHistory> = corpus().histories().iter().collect();
    let (mut chosen, mut count) = (Vec::new(), 0);
    while chosen.len() < history_count && count < max_events {
        let history = remaining.swap_remove(rng.below(remaining.len()));
        let mut events = Vec::new();
        for (role, index) in history.events() {
            let is_included = match role {
                EventRole::Announcement | EventRole::State => true,
                EventRole::Burst => has_bursts,
                EventRole::Root | EventRole::Discussion | EventRole::Removal | EventRole::Unparsable => {
                    rng.below(100) < percentage
                }
            };
            if is_included {
                events.push((*role, *index));
            }
        }
        count += events.len();
        chosen.push((history, events));
    }
    chosen
}

fn authors_of(histories: &[(&RepoHistory, Vec<(EventRole, EventIndex)>)]) -> Vec<PublicKey> {
    let mut keys: Vec<PublicKey> =
        histories.iter().flat_map(|(_, events)| events).map(|(_, index)| corpus().event(*index).pubkey).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn host(url: &str) -> String {
    RelayUrl::parse(url).map(|url| url.host().to_owned()).unwrap_or_default()
}
