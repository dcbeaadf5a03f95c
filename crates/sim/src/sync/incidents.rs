//! Incidents: crashes, outages, clock changes and changes of relays, and how they are applied to the world.

use grasp_core::sync::SyncMachine;
use grasp_core::sync::io::{DisconnectReason, RelayCommand, SessionId, SyncInput};

use super::connection::ConnectionState;
use super::local_events;
use super::relay::ConnectionId;
use super::relay_profile::RelayProfile;
use super::world::{SyncStep, SyncWorld};
use crate::simulation::queue::{MINUTE, SECOND, Time};
use crate::store_contract::StoreUnderTest;

/// An external change of the world.
#[derive(Clone, Debug)]
pub enum Incident {
    /// All relays that a node is connected to send a pong.
    Pongs(usize),
    /// A cancelled connection attempt of a process ends.
    DialCancelled(usize, u32, SessionId),
    /// The process of a node crashes.
    Crash(usize),
    /// The process of a node starts.
    Start(usize),
    /// The network of a node fails (`true`) or works again.
    Outage(usize, bool),
    /// The clock of a node is off by this many seconds from now on.
    ClockSet(usize, i64),
    /// The disk of a node becomes very slow (`true`) or fast again.
    SlowDisk(usize, bool),
    /// A relay closes all its connections.
    DropConnections(usize),
    /// All connections of a relay become half-open.
    FreezeConnections(usize),
    /// A relay loses all its events.
    LoseEvents(usize),
    /// A relay changes its behaviour.
    SetProfile(usize, Box<RelayProfile>),
    /// The operator of a node issues a command.
    Command(usize, RelayCommand),
    /// Events of a node expire.
    Expiry(usize),
    /// A relay closes a connection if the node still does not read it.
    StallTimeout(ConnectionId),
}

/// Minimum and maximum time until a node notices that a connection is half-open.
const SILENCE_TIMEOUT: (Time, Time) = (60 * SECOND, 90 * SECOND);

impl SyncWorld {
    pub(super) fn apply_incident(&mut self, fault: Incident) {
        match fault {
            Incident::Pongs(node) => self.deliver_pongs(node),
            Incident::DialCancelled(node, process, session) => {
                if self.nodes[node].process.is_running(process) && self.nodes[node].cancelled_dials.remove(&session) {
                    self.handle_input(node, SyncInput::Disconnected(session, DisconnectReason::ClosedByUs));
                }
            }
            Incident::Crash(node) => self.crash_node(node),
            Incident::Start(node) => self.start_node(node),
            Incident::Outage(node, is_offline) => self.set_outage(node, is_offline),
            Incident::ClockSet(node, skew_secs) => {
                self.nodes[node].process.clock_skew_secs = skew_secs;
                self.nodes[node].clock_was_set = true;
                self.checkers[node].on_clock_set();
            }
            Incident::SlowDisk(node, is_slow) => self.nodes[node].has_slow_disk = is_slow,
            Incident::DropConnections(relay) => {
                for connection in self.relays[relay].connections() {
                    self.deliver_last_pong(connection);
                    self.break_connection(connection, DisconnectReason::Ended);
                }
            }
            Incident::FreezeConnections(relay) => {
                for connection in self.relays[relay].connections() {
                    self.freeze_connection(connection);
                }
            }
            Incident::LoseEvents(relay) => {
                self.relays[relay].store.clear();
                self.apply_incident(Incident::DropConnections(relay));
            }
            Incident::SetProfile(relay, profile) => {
                let is_unreachable = profile.is_unreachable;
                self.relays[relay].set_profile(*profile);
                if is_unreachable {
                    self.apply_incident(Incident::DropConnections(relay));
                }
            }
            Incident::Command(node, command) => self.handle_input(node, SyncInput::Command(command)),
            Incident::Expiry(node) => self.expire_events(node),
            Incident::StallTimeout(connection) => {
                if self.connections[connection.0].is_stalled {
                    self.break_connection(connection, DisconnectReason::Ended);
                }
            }
        }
    }

    /// Delivers the last pong before a connection ends. Real relays send one every half minute.
    fn deliver_last_pong(&mut self, id: ConnectionId) {
        let connection = &self.connections[id.0];
        let (node, process, session) = (connection.node, connection.process, connection.session);
        if connection.state == ConnectionState::Open && self.nodes[node].process.is_running(process) {
            self.handle_input(node, SyncInput::Message(session, grasp_core::sync::io::IncomingMessage::Alive));
        }
    }

    fn freeze_connection(&mut self, id: ConnectionId) {
        self.deliver_last_pong(id);
        let connection = &mut self.connections[id.0];
        if connection.state != ConnectionState::Open {
            return;
        }
        connection.state = ConnectionState::HalfOpen;
        connection.inbound.clear();
        let relay = connection.relay;
        self.relays[relay].disconnect(id);
        let delay = self.sim.random_between(SILENCE_TIMEOUT.0, SILENCE_TIMEOUT.1);
        self.sim.schedule_in(delay, SyncStep::ConnectionBreaks(id, DisconnectReason::Ended));
    }

    fn set_outage(&mut self, node: usize, is_offline: bool) {
        self.is_offline[node] = is_offline;
        let now = self.sim.now;
        self.checkers[node].on_outage(now, is_offline);
        if !is_offline {
            return;
        }
        for connection in self.nodes[node].sessions.values().copied().collect::<Vec<_>>() {
            if self.sim.rng.one_in(3) {
                self.break_connection(connection, DisconnectReason::Ended);
            } else {
                self.freeze_connection(connection);
            }
        }
        for connection in self.relays[self.node_relay(node)].connections() {
            self.freeze_connection(connection);
        }
    }

    fn crash_node(&mut self, node: usize) {
        if !self.nodes[node].process.is_started() {
            return;
        }
        // The current batch of the writer may be on disk although no result was sent.
        if !self.nodes[node].batch.is_empty() && self.sim.rng.one_in(2) {
            self.commit_batch(node);
            self.nodes[node].server.take_notifications();
        }
        for connection in self.nodes[node].crash() {
            self.connections[connection.0].state = ConnectionState::Closed;
            self.connections[connection.0].inbound.clear();
            let relay = self.connections[connection.0].relay;
            self.relays[relay].disconnect(connection);
        }
        for connection in self.relays[self.node_relay(node)].connections() {
            self.break_connection(connection, DisconnectReason::Ended);
        }
        let now = self.sim.now;
        let has_slow_disk = self.nodes[node].has_slow_disk;
        self.checkers[node].on_crash(now, has_slow_disk);
    }

    /// Starts the process of a node with the stored rows.
    pub fn start_node(&mut self, node: usize) {
        let now = self.sim.now;
        if self.nodes[node].process.is_started() {
            return;
        }
        self.nodes[node].start(now);
        let clock = self.nodes[node].process.clock(now);
        self.checkers[node].on_start(now, clock, &self.nodes[node].tables);
        for restored in self.nodes[node].tables.restored().collect::<Vec<_>>() {
            self.handle_input(node, SyncInput::Restored(restored));
        }
        let handled_up_to = self.nodes[node].process.machine().and_then(SyncMachine::handled_up_to);
        self.nodes[node].server.take_notifications();
        let catalog = self.nodes[node].server.admission().catalog();
        let mut names: Vec<_> = catalog.repositories().map(|(repo, _)| repo.identifier.clone()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let followed = self.nodes[node].server.repo_needs(&name);
            self.handle_input(node, SyncInput::RepoNeeds(name, followed));
        }
        let newest_seq = self.nodes[node].server.store().served_after(0).last().map_or(0, |(seq, _)| *seq);
        self.nodes[node].reported_seq = newest_seq;
        self.update_node_relay(node, &[]);
        self.handle_input(node, SyncInput::Ready);
        if let Some(seq) = handled_up_to {
            for (seq, event) in self.nodes[node].server.store().served_after(seq) {
                self.handle_input(node, SyncInput::Served(local_events::served_event(seq, &event)));
            }
        }
        self.schedule_alarm(node, 1);
        // The search for the git data of held events starts again.
        for held in self.nodes[node].server.store().held() {
            if let Some(index) = super::corpus::corpus().index_of(&held.0)
                && !self.events_without_data.contains(&index)
            {
                self.nodes[node].fetching.insert(index);
                self.sim.schedule_in(MINUTE, SyncStep::GitDataArrives(node, index));
            }
        }
    }

    fn expire_events(&mut self, node: usize) {
        if !self.nodes[node].process.is_started() {
            return;
        }
        let now = self.sim.now;
        let it = &mut self.nodes[node];
        it.server.set_now(it.process.clock(now));
        it.server.advance(0);
        self.after_commit(node);
    }
}
