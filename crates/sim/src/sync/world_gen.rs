//! How a world begins: who is there, who has what, what will happen. All of it comes from the seed.

use std::collections::BTreeMap;

use grasp_core::nostr::PublicKey;
use grasp_core::sync::SyncConfig;
use grasp_core::sync::fault_injection::SyncFault;
use grasp_core::sync::io::RelayCommand;
use grasp_core::sync::relay_url::RelayUrl;

use super::corpus::{EPOCH, Ix, corpus};
use super::fault_injection::Fault;
use super::invariants::Watch;
use super::node::Node;
use super::queue::{DAY, HOUR, MINUTE, Queue, SECOND, Time};
use super::relay::Relay;
use super::relay_profile::Persona;
use super::repo_history;
use super::repo_history::{RELAYS, Role, SERVICES, Tale};
use super::trace::Trace;
use super::world::{Happening, World};
use crate::random::Chance;

/// When everybody becomes honest.
pub const HEALED: Time = 7 * DAY;

/// Milliseconds between pongs.
const PONGS: Time = 6 * HOUR;

/// Events of one world at most.
const EVENTS: usize = 500;

impl World {
    /// The world of a seed.
    #[must_use]
    pub fn born(seed: u64, flaw: Option<SyncFault>, trace: Trace) -> Self {
        let mut chance = Chance::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x7361_6c74);
        let nodes = if seed % 5 == 4 { 2 + chance.below(2) } else { 1 };
        let present = 4 + chance.below(RELAYS - 3);
        let tales = choose(&mut chance);
        let authors: Vec<PublicKey> = people(&tales);
        let mut relays: Vec<Relay> = Vec::new();
        for _ in 0..RELAYS {
            relays.push(Relay::new(Persona::draw(&mut chance, &authors)));
        }
        // Which of them are there: strangers name the others, too, and nobody answers.
        let mut absent: Vec<usize> = (0..RELAYS).collect();
        for _ in 0..present {
            absent.swap_remove(chance.below(absent.len()));
        }
        let mut hosts = BTreeMap::new();
        for relay in (0..RELAYS).filter(|relay| !absent.contains(relay)) {
            hosts.insert(host(&repo_history::relay_url(relay)), relay);
            hosts.insert(host(&repo_history::other_url(relay)), relay);
        }
        for (node, service) in SERVICES.iter().enumerate().take(nodes) {
            let instance = format!("instance-{node}");
            let mut face = Relay::new(Persona::node());
            face.instance = Some(instance);
            relays.push(face);
            hosts.insert((*service).to_owned(), RELAYS + node);
            hosts.insert(host(&repo_history::alias_url(node)), RELAYS + node);
        }
        let mut world = Self {
            seed,
            now: 0,
            queue: Queue::default(),
            trace,
            relays,
            nodes: Vec::new(),
            watches: (0..nodes).map(|node| Watch::new(node, format!("instance-{node}"))).collect(),
            hosts,
            conns: Vec::new(),
            offline: vec![false; nodes],
            dataless: Vec::new(),
            told: Vec::new(),
            broken: None,
            healed: false,
            chance,
        };
        for node in 0..nodes {
            let config = world.config(node, flaw);
            world.watches[node].bootstrap(&config.bootstrap);
            world.nodes.push(Node::new(node, config));
        }
        world.spread(&tales);
        world.trouble(&authors);
        world.pongs_come();
        if world.chance.one_in(5) {
            world.bad_start(0);
        }
        for node in 0..nodes {
            let delay = if node == 0 { 0 } else { world.between(0, 10 * MINUTE) };
            world.after(delay, Happening::Fault(Box::new(Fault::Start(node))));
        }
        world
    }

    fn config(&mut self, node: usize, flaw: Option<SyncFault>) -> SyncConfig {
        let mut bootstrap = Vec::new();
        if self.chance.below(10) < 7 {
            // One that is there: a world in which nobody is has nothing to tell.
            let there: Vec<usize> = self.hosts.values().copied().filter(|relay| *relay < RELAYS).collect();
            let relay = self.chance.pick(&there).copied().unwrap_or(0);
            bootstrap.extend(RelayUrl::parse(&repo_history::relay_url(relay)));
        }
        SyncConfig {
            service: repo_history::service(node),
            instance: format!("instance-{node}"),
            bootstrap,
            batch_window_millis: 5_000,
            values_per_filter: if self.chance.one_in(3) { 10 } else { 100 },
            use_negentropy: !self.chance.one_in(12),
            backoff: Default::default(),
            rejected: Default::default(),
            epoch: 1,
            seed: self.chance.draw(),
            fault: flaw,
        }
    }

    /// Who has what, and when.
    fn spread(&mut self, tales: &[(&Tale, Vec<(Role, Ix)>)]) {
        for (tale, parts) in tales {
            for (role, ix) in parts {
                let created = corpus().event(*ix).created_at.0;
                let mut homes: Vec<usize> = tale.relays.iter().copied().filter(|_| !self.chance.one_in(5)).collect();
                if self.chance.one_in(12) {
                    homes.push(self.chance.below(RELAYS));
                }
                // Some things only one relay has.
                if self.chance.one_in(8) {
                    homes.truncate(1);
                }
                for relay in homes {
                    let at = self.arrival(created, *role);
                    self.publish(relay, *ix, at);
                    self.told.push((relay, *ix));
                }
                self.hand_in(tale, *role, *ix, created);
                if matches!(role, Role::State | Role::Root) && self.chance.one_in(25) {
                    self.dataless.push(*ix);
                }
            }
        }
        for ix in corpus().strays() {
            for _ in 0..self.chance.below(3) {
                let relay = self.chance.below(RELAYS);
                let at = self.arrival(corpus().event(*ix).created_at.0, Role::Talk);
                self.publish(relay, *ix, at);
            }
        }
        for (at, _) in corpus().expiring() {
            let Some(secs) = at.checked_sub(EPOCH).filter(|secs| *secs < 8 * 86_400) else { continue };
            for node in 0..self.nodes.len() {
                self.queue.plan((secs + 1) * SECOND, Happening::Fault(Box::new(Fault::Expiry(node))));
            }
        }
    }

    /// Clients offer something to nodes: mostly what begins a repository.
    fn hand_in(&mut self, tale: &Tale, role: Role, ix: Ix, created: u64) {
        for node in 0..self.nodes.len() {
            if !tale.services.contains(&node) {
                continue;
            }
            let likely = match role {
                Role::Announcement | Role::State => 3,
                _ => 12,
            };
            if self.chance.one_in(likely) {
                let at = self.arrival(created, role).max(2 * SECOND);
                self.queue.plan(at, Happening::Offered(node, ix));
            }
        }
    }

    fn publish(&mut self, relay: usize, ix: Ix, at: Time) {
        if at == 0 {
            self.relays[relay].publish(0, ix, &mut self.chance);
        } else {
            self.queue.plan(at, Happening::Published(relay, ix));
        }
    }

    /// When an event comes to a relay: it was there before, or it comes when it is made, or when its git data does, or
    /// somebody imports it much later.
    fn arrival(&mut self, created: u64, role: Role) -> Time {
        let made = created.saturating_sub(EPOCH) * SECOND;
        let late = match self.chance.below(20) {
            0 => self.between(0, 5 * DAY),
            1..=3 => self.between(MINUTE, 30 * MINUTE),
            _ if made == 0 || role == Role::Flood => 0,
            _ => self.between(200, 4_000),
        };
        (made + late).min(HEALED - HOUR)
    }

    /// What goes wrong, in bursts.
    fn trouble(&mut self, authors: &[PublicKey]) {
        for _ in 0..3 + self.chance.below(6) {
            let begin = self.between(0, HEALED - HOUR);
            let length = if self.chance.one_in(2) { self.between(MINUTE, HOUR) } else { self.between(HOUR, 10 * HOUR) };
            let end = (begin + length).min(HEALED - MINUTE);
            for _ in 0..1 + self.chance.below(3) {
                self.incident(begin, end, authors);
            }
        }
    }

    /// Pongs come every few hours, so that rows are written; see [`pongs`](Self::pongs).
    fn pongs_come(&mut self) {
        for node in 0..self.nodes.len() {
            for nth in 1..(HEALED + 2 * DAY) / PONGS {
                self.queue.plan(nth * PONGS, Happening::Fault(Box::new(Fault::Pongs(node))));
            }
        }
    }

    fn incident(&mut self, begin: Time, end: Time, authors: &[PublicKey]) {
        let relay = self.chance.below(RELAYS);
        let node = self.chance.below(self.nodes.len());
        let at = |world: &mut Self| world.between(begin, end);
        let plan = |world: &mut Self, at: Time, fault: Fault| world.queue.plan(at, Happening::Fault(Box::new(fault)));
        match self.chance.below(20) {
            0 | 1 => {
                // A restart, now and then a long one.
                let stop = at(self);
                let down =
                    if self.chance.one_in(3) { self.between(MINUTE, 3 * HOUR) } else { self.between(SECOND, MINUTE) };
                // What was heard lately is on disk by then.
                for before in [16, 11, 6, 1] {
                    plan(self, stop.saturating_sub(before * MINUTE), Fault::Pongs(node));
                }
                plan(self, stop, Fault::Crash(node));
                plan(self, stop + down, Fault::Start(node));
            }
            2 => {
                let away = self.between(30 * SECOND, 2 * HOUR);
                plan(self, begin, Fault::Outage(node, true));
                plan(self, begin + away, Fault::Outage(node, false));
            }
            3 => {
                let skew = self.chance.draw() as i64 % 86_400;
                plan(self, begin, Fault::Clock(node, skew));
                plan(self, end, Fault::Clock(node, 0));
            }
            4 | 5 => {
                // Flapping.
                for _ in 0..3 + self.chance.below(12) {
                    let when = at(self);
                    plan(self, when, Fault::Drop(relay));
                }
            }
            6 => {
                let when = at(self);
                plan(self, when, Fault::Freeze(relay));
            }
            7 => {
                let when = at(self);
                plan(self, when, Fault::Empty(relay));
            }
            8 | 9 => {
                let usual = self.relays[relay].persona.clone();
                let gone = Persona { gone: true, ..usual.clone() };
                plan(self, begin, Fault::Habits(relay, Box::new(gone)));
                let end = if self.chance.one_in(4) { end + DAY } else { end };
                plan(self, end.min(HEALED - MINUTE), Fault::Habits(relay, Box::new(usual)));
            }
            15 => {
                // A slow disk while everybody comes back.
                plan(self, begin, Fault::Slow(node, true));
                for relay in 0..RELAYS {
                    let when = begin + self.between(SECOND, 20 * SECOND);
                    plan(self, when, Fault::Drop(relay));
                    let again = self.between(10 * SECOND, 2 * MINUTE);
                    plan(self, when + again, Fault::Drop(relay));
                }
                let end = begin + self.between(MINUTE, 6 * MINUTE);
                plan(self, end, Fault::Slow(node, false));
            }
            16 | 17 => self.releases(begin, end),
            10..=14 => {
                let usual = self.relays[relay].persona.clone();
                let mut odd = usual.clone();
                odd.habit(&mut self.chance, authors);
                plan(self, begin, Fault::Habits(relay, Box::new(odd)));
                plan(self, end, Fault::Habits(relay, Box::new(usual)));
            }
            _ => self.orders(node, relay, begin, end),
        }
    }

    /// Relays get events some minutes after they were made, when nobody listens: right after they have dropped everybody.
    fn releases(&mut self, begin: Time, end: Time) {
        let made = |ix: Ix| corpus().event(ix).created_at.0.checked_sub(EPOCH).map(|secs| secs * SECOND);
        let told: Vec<(usize, Ix, Time)> = self
            .told
            .iter()
            .filter_map(|(relay, ix)| Some((*relay, *ix, made(*ix)?)))
            .filter(|(_, _, made)| (begin.saturating_sub(HOUR)..end.max(begin + 6 * HOUR)).contains(made))
            .collect();
        for _ in 0..4 {
            let Some((relay, ix, made)) = self.chance.pick(&told).copied() else { return };
            let drop = made + self.between(MINUTE, 13 * MINUTE);
            let after = self.between(100, 1_500);
            self.queue.plan(drop, Happening::Fault(Box::new(Fault::Drop(relay))));
            self.queue.plan(drop + after, Happening::Published(relay, ix));
        }
    }

    /// The first minutes, when everything is new, with a slow disk and connections that end.
    fn bad_start(&mut self, node: usize) {
        self.queue.plan(SECOND, Happening::Fault(Box::new(Fault::Slow(node, true))));
        for relay in 0..self.relays.len() {
            for _ in 0..self.chance.below(4) {
                let when = self.between(300, 90 * SECOND);
                self.queue.plan(when, Happening::Fault(Box::new(Fault::Drop(relay))));
            }
        }
        let end = self.between(30 * SECOND, 6 * MINUTE);
        self.queue.plan(end, Happening::Fault(Box::new(Fault::Slow(node, false))));
        if self.chance.one_in(3) {
            let stop = self.between(20 * SECOND, end);
            self.queue.plan(stop, Happening::Fault(Box::new(Fault::Crash(node))));
            self.queue.plan(stop + MINUTE, Happening::Fault(Box::new(Fault::Start(node))));
        }
    }

    fn orders(&mut self, node: usize, relay: usize, begin: Time, end: Time) {
        let Some(url) = RelayUrl::parse(&repo_history::relay_url(relay)) else { return };
        let (first, then) = match self.chance.below(4) {
            0 | 1 => (RelayCommand::Pause(url.clone()), Some(RelayCommand::Resume(url))),
            2 => (RelayCommand::Retry(url.clone()), Some(RelayCommand::Reconcile(url))),
            _ => (RelayCommand::Forget(url), None),
        };
        self.queue.plan(begin, Happening::Fault(Box::new(Fault::Command(node, first))));
        if let Some(then) = then {
            self.queue.plan(end, Happening::Fault(Box::new(Fault::Command(node, then))));
        }
    }

    /// From now on every relay is honest about what it has, every host reachable, every clock right, and nothing ends.
    pub fn heal(&mut self) {
        self.healed = true;
        for relay in &mut self.relays {
            relay.persona.heal();
        }
        for node in 0..self.nodes.len() {
            self.offline[node] = false;
            let now = self.now;
            self.watches[node].outage(now, false);
            self.nodes[node].unsettled |= self.nodes[node].skew != 0;
            self.nodes[node].skew = 0;
            self.nodes[node].slow = false;
            self.start(node);
        }
    }
}

/// Which stories are told in a world, and how much of each.
fn choose(chance: &mut Chance) -> Vec<(&'static Tale, Vec<(Role, Ix)>)> {
    let large = chance.one_in(6);
    let most = if large { EVENTS } else { 60 + chance.below(EVENTS / 2 - 60) };
    let wanted = 3 + chance.below(if large { 18 } else { 8 });
    let share = 20 + chance.below(81);
    let floods = chance.one_in(4);
    let mut left: Vec<&Tale> = corpus().tales().iter().collect();
    let (mut chosen, mut count) = (Vec::new(), 0);
    while chosen.len() < wanted && count < most {
        let tale = left.swap_remove(chance.below(left.len()));
        let mut parts = Vec::new();
        for (role, ix) in tale.parts() {
            let told = match role {
                Role::Announcement | Role::State => true,
                Role::Flood => floods,
                Role::Root | Role::Talk | Role::Removal => chance.below(100) < share,
            };
            if told {
                parts.push((*role, *ix));
            }
        }
        count += parts.len();
        chosen.push((tale, parts));
    }
    chosen
}

fn people(tales: &[(&Tale, Vec<(Role, Ix)>)]) -> Vec<PublicKey> {
    let mut keys: Vec<PublicKey> =
        tales.iter().flat_map(|(_, parts)| parts).map(|(_, ix)| corpus().event(*ix).pubkey).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn host(url: &str) -> String {
    RelayUrl::parse(url).map(|url| url.host().to_owned()).unwrap_or_default()
}
