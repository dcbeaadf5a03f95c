//! The world: relays, nodes, connections between them, and one clock.

use std::collections::BTreeMap;

use grasp_core::nostr::Filter;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::repo::RepoId;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{
    DisconnectReason, EventPresence, IncomingMessage, OutgoingMessage, QueryId, SessionId, SyncInput,
};
use grasp_core::sync::relay_url::RelayUrl;

use super::connection::{ConnectionState, InboundItem, SimConnection};
use super::corpus::{EventIndex, corpus};
use super::incidents::Incident;
use super::invariants::{SyncChecker, Violation};
use super::node::{Node, PendingSubmission};
use super::queue::{Queue, Time};
use super::relay::{ConnectionId, RelayResponse, SimRelay};
use super::trace::Trace;
use super::wire::RelayFrame;
use crate::random::Rng;

/// Time after which some relays close a connection that is not read.
const STALL_TIMEOUT: Time = 10_000;

/// A scheduled step of the simulation. Most steps of a node have its index and the number of its process.
#[derive(Debug)]
pub enum WorldStep {
    /// Alarm of the sync machine (0) or of the admission machine (1) of a node.
    Alarm(usize, u32, usize),
    /// The first item on its way to a node arrives.
    FrameArrives(ConnectionId),
    /// A message arrives at a relay.
    MessageArrives(ConnectionId, OutgoingMessage),
    /// A relay handles a message.
    RelayHandles(ConnectionId, OutgoingMessage),
    /// Bytes have left the send buffer of a node.
    BytesSent(ConnectionId, usize),
    /// A connection attempt ends.
    DialEnds(usize, u32, SessionId, Option<usize>),
    /// The signature of a submitted event has been verified.
    Verified(usize, u32, Box<PendingSubmission>),
    /// A batch of the writer is on disk.
    BatchCommitted(usize, u32),
    /// Rows of sync are on disk.
    RowsCommitted(usize, u32),
    /// The store answers a query.
    QueryAnswered(usize, u32, Box<StoreQuery>),
    /// An event is published at a relay.
    Published(usize, EventIndex),
    /// A client submits an event to a node.
    ClientSubmits(usize, EventIndex),
    /// The git data of an event arrives at a node.
    GitDataArrives(usize, EventIndex),
    /// A connection breaks. Items on their way are lost.
    ConnectionBreaks(ConnectionId, DisconnectReason),
    /// An incident starts or ends.
    Incident(Box<Incident>),
}

/// A query of the sync machine to the store.
#[derive(Debug)]
pub enum StoreQuery {
    /// Root events of a repository.
    RootEvents(RepoId),
    /// Local events that match a filter.
    LocalIds(QueryId, Filter),
    /// Which of these ids are not here.
    MissingIds(QueryId, Vec<EventId>),
}

/// A simulated world.
pub struct World {
    /// Its seed.
    pub seed: u64,
    /// The current time.
    pub now: Time,
    /// Scheduled steps.
    pub queue: Queue<WorldStep>,
    /// Source of all random decisions.
    pub rng: Rng,
    /// What happened.
    pub trace: Trace,
    /// Relays. The last ones serve the events of the nodes.
    pub relays: Vec<SimRelay>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Checkers of the nodes' sync machines.
    pub checkers: Vec<SyncChecker>,
    /// Which relay answers under a host name.
    pub hosts: BTreeMap<String, usize>,
    /// All connections so far.
    pub connections: Vec<SimConnection>,
    /// Whether the network of a node is down.
    pub is_offline: Vec<bool>,
    /// Events whose git data does not exist anywhere.
    pub events_without_data: Vec<EventIndex>,
    /// Which events of histories are published at which relays.
    pub publications: Vec<(usize, EventIndex)>,
    /// The first violated invariant, if any.
    pub violation: Option<Violation>,
    /// Whether all relays and networks are healthy for the rest of the run.
    pub is_healed: bool,
}

impl World {
    /// Runs all steps up to `end`, or until an invariant is violated.
    pub fn run(&mut self, end: Time) {
        while self.violation.is_none() {
            let Some((at, step)) = self.queue.next(end) else { break };
            self.now = at;
            self.step(step);
        }
        if self.violation.is_none() {
            self.now = self.now.max(end);
        }
    }

    fn step(&mut self, step: WorldStep) {
        if self.trace.has_text() {
            self.describe_step(&step);
        }
        self.trace.step(self.now, step.tag());
        match step {
            WorldStep::Alarm(node, process, which) => self.on_alarm(node, process, which),
            WorldStep::FrameArrives(connection) => self.on_frame_arrival(connection),
            WorldStep::MessageArrives(connection, message) => self.on_message_arrival(connection, message),
            WorldStep::RelayHandles(connection, message) => self.relay_handles(connection, &message),
            WorldStep::BytesSent(connection, bytes) => self.on_bytes_sent(connection, bytes),
            WorldStep::DialEnds(node, process, session, relay) => self.on_dial_result(node, process, session, relay),
            WorldStep::Verified(node, process, pending) => self.on_verified(node, process, *pending),
            WorldStep::BatchCommitted(node, process) => self.on_batch_committed(node, process),
            WorldStep::RowsCommitted(node, process) => {
                if self.nodes[node].is_running(process) {
                    let written = self.nodes[node].tables.commit();
                    self.check_rows(node, &written);
                }
            }
            WorldStep::QueryAnswered(node, process, query) => self.answer_query(node, process, *query),
            WorldStep::Published(relay, index) => {
                let deliveries = self.relays[relay].publish(self.now, index, &mut self.rng);
                self.trace.log(self.now, || format!("  delivered to {deliveries:?}"));
                self.deliver(relay, deliveries);
            }
            WorldStep::ClientSubmits(node, index) => self.on_client_submission(node, index),
            WorldStep::GitDataArrives(node, index) => self.on_git_data(node, index),
            WorldStep::ConnectionBreaks(connection, reason) => self.break_connection(connection, reason),
            WorldStep::Incident(incident) => self.apply_incident(*incident),
        }
    }

    /// Schedules a step after a delay.
    pub fn schedule_in(&mut self, delay: Time, step: WorldStep) {
        self.queue.schedule(self.now + delay, step);
    }

    /// Returns a random number from `least` up to but excluding `most`.
    pub fn random_between(&mut self, least: Time, most: Time) -> Time {
        least + self.rng.next_u64() % (most - least).max(1)
    }

    /// Passes an input to a node's sync machine and carries out its outputs.
    pub fn handle_input(&mut self, node: usize, input: SyncInput) {
        let now = self.now;
        if self.nodes[node].machine.is_none() {
            return;
        }
        if self.trace.has_text() {
            let line = format!("node {node} <- {}", super::text::describe_input(&input));
            self.trace.log(now, || line);
        }
        let clock = self.nodes[node].clock(now);
        self.checkers[node].on_input(now, clock, &input);
        self.nodes[node].handle(now, input);
        self.drain_outputs(node);
    }

    /// Carries out all outputs of a node's sync machine and schedules its alarm.
    pub fn drain_outputs(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].poll() {
            if self.trace.has_text() {
                let line = format!("node {node} -> {}", super::text::describe_output(&output));
                self.trace.log(self.now, || line);
            }
            let clock = self.nodes[node].clock(self.now);
            self.checkers[node].on_output(self.now, clock, &output);
            self.perform(node, output);
        }
        if let Some(violation) = self.checkers[node].take_violation() {
            self.report_violation(violation);
        }
        self.schedule_alarm(node, 0);
    }

    /// Records a violated invariant.
    pub fn report_violation(&mut self, violation: Violation) {
        self.trace.log(self.now, || format!("VIOLATION: {violation}"));
        self.violation.get_or_insert(violation);
    }

    /// Schedules the next alarm of a node's sync machine (0) or admission machine (1).
    pub fn schedule_alarm(&mut self, node: usize, which: usize) {
        let it = &mut self.nodes[node];
        let Some(machine) = &it.machine else { return };
        let alarm = if which == 0 { machine.alarm() } else { it.server.admission().alarm() };
        let Some((mono_time, _)) = alarm else { return };
        let at = it.time_of(mono_time).max(self.now);
        if it.alarms[which].is_none_or(|scheduled| scheduled > at) {
            it.alarms[which] = Some(at);
            let process = it.process;
            self.queue.schedule(at, WorldStep::Alarm(node, process, which));
        }
    }

    fn on_alarm(&mut self, node: usize, process: u32, which: usize) {
        let now = self.now;
        let it = &mut self.nodes[node];
        if !it.is_running(process) || it.alarms[which].is_none_or(|scheduled| scheduled != now) {
            return;
        }
        it.alarms[which] = None;
        let clock = it.clock(now);
        if which == 1 {
            it.server.set_now(clock);
            it.server.advance(0);
            self.after_commit(node);
            return;
        }
        if let Some(machine) = &mut it.machine
            && machine.alarm().is_some_and(|(at, _)| at <= clock.mono)
        {
            let due = machine.alarm();
            machine.wake(clock);
            if self.checkers[node].on_wake(now, due) {
                self.drain_outputs(node);
            } else {
                self.report_violation(Violation::new(
                    "the machine does not wake itself without end",
                    format!("{due:?}"),
                ));
            }
            return;
        }
        self.schedule_alarm(node, 0);
    }

    fn on_message_arrival(&mut self, connection: ConnectionId, message: OutgoingMessage) {
        let relay = self.connections[connection.0].relay;
        match self.relays[relay].processing_delay(&message) {
            0 => self.relay_handles(connection, &message),
            lag => self.schedule_in(lag, WorldStep::RelayHandles(connection, message)),
        }
    }

    fn relay_handles(&mut self, connection: ConnectionId, message: &OutgoingMessage) {
        if self.connections[connection.0].state != ConnectionState::Open {
            return;
        }
        let relay = self.connections[connection.0].relay;
        let response = self.relays[relay].handle(self.now, connection, message, &mut self.rng);
        self.send_response(connection, response);
    }

    /// Sends the response of a relay.
    pub fn send_response(&mut self, connection: ConnectionId, response: RelayResponse) {
        let relay = self.connections[connection.0].relay;
        let latency = self.relays[relay].profile.random_latency(&mut self.rng);
        for (frame, nth) in response.frames.into_iter().zip(0..) {
            self.send_to_node(connection, latency + nth / 20, InboundItem::Frame(frame));
        }
        if response.disconnects {
            self.relays[relay].disconnect(connection);
            self.send_to_node(connection, latency, InboundItem::Closed(DisconnectReason::Ended));
            self.connections[connection.0].state = ConnectionState::Closed;
        }
    }

    /// Sends new events to subscribers.
    pub fn deliver(&mut self, relay: usize, deliveries: Vec<(ConnectionId, RelayFrame)>) {
        for (connection, frame) in deliveries {
            let latency = self.relays[relay].profile.random_latency(&mut self.rng);
            self.send_to_node(connection, latency, InboundItem::Frame(frame));
        }
    }

    fn send_to_node(&mut self, connection: ConnectionId, latency: Time, item: InboundItem) {
        if let Some(at) = self.connections[connection.0].send(self.now, latency, item) {
            self.queue.schedule(at, WorldStep::FrameArrives(connection));
        }
    }

    fn on_frame_arrival(&mut self, id: ConnectionId) {
        let now = self.now;
        let connection = &mut self.connections[id.0];
        connection.is_arrival_scheduled = false;
        let (node, session) = (connection.node, connection.session);
        if !self.nodes[node].is_running(connection.process) || self.nodes[node].sessions.get(&session) != Some(&id) {
            connection.inbound.clear();
            return;
        }
        let Some((at, item)) = connection.inbound.front().cloned() else { return };
        if at > now {
            connection.is_arrival_scheduled = true;
            self.queue.schedule(at, WorldStep::FrameArrives(id));
            return;
        }
        let message = match item {
            InboundItem::Closed(reason) => {
                connection.state = ConnectionState::Closed;
                connection.inbound.clear();
                self.on_disconnect(node, session, reason);
                return;
            }
            InboundItem::Frame(frame) => {
                let known = match &frame {
                    RelayFrame::Event(_, index, _) if self.nodes[node].has_event(corpus().event(*index).id) => {
                        Some(*index)
                    }
                    _ => None,
                };
                known.map(|index| self.nodes[node].decided.insert(index));
                frame.to_message(if known.is_some() { EventPresence::Known } else { EventPresence::New })
            }
        };
        if matches!(message, IncomingMessage::Event(_, _, EventPresence::New)) && !self.nodes[node].take_permit(session)
        {
            self.stall_connection(id);
            return;
        }
        let connection = &mut self.connections[id.0];
        connection.inbound.pop_front();
        if let Some((at, _)) = connection.inbound.front() {
            connection.is_arrival_scheduled = true;
            self.queue.schedule((*at).max(now), WorldStep::FrameArrives(id));
        }
        self.handle_input(node, SyncInput::Message(session, message));
    }

    /// Stops reading a connection until there is a permit. Some relays close it after a while.
    fn stall_connection(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id.0];
        connection.is_stalled = true;
        if self.relays[connection.relay].profile.disconnects_stalled_clients {
            self.schedule_in(STALL_TIMEOUT, WorldStep::Incident(Box::new(Incident::StallTimeout(id))));
        }
    }

    /// Resumes reading connections that had no permit.
    pub fn resume_connections(&mut self, node: usize) {
        let now = self.now;
        for connection in self.nodes[node].sessions.values() {
            let connection = &mut self.connections[connection.0];
            if std::mem::take(&mut connection.is_stalled)
                && !std::mem::replace(&mut connection.is_arrival_scheduled, true)
            {
                self.queue.schedule(now, WorldStep::FrameArrives(connection.id));
            }
        }
    }

    /// Reports the end of a connection to a node.
    pub fn on_disconnect(&mut self, node: usize, session: SessionId, reason: DisconnectReason) {
        self.nodes[node].sessions.remove(&session);
        self.pong_from_others(node);
        self.handle_input(node, SyncInput::Disconnected(session, reason));
    }

    /// Breaks a connection. Items on their way are lost.
    pub fn break_connection(&mut self, id: ConnectionId, reason: DisconnectReason) {
        let connection = &mut self.connections[id.0];
        let was_closed = std::mem::replace(&mut connection.state, ConnectionState::Closed) == ConnectionState::Closed;
        connection.inbound.clear();
        let (node, process, session, relay) =
            (connection.node, connection.process, connection.session, connection.relay);
        self.relays[relay].disconnect(id);
        if self.nodes[node].is_running(process) && self.nodes[node].sessions.get(&session) == Some(&id) && !was_closed {
            self.on_disconnect(node, session, reason);
        }
    }

    fn on_dial_result(&mut self, node: usize, process: u32, session: SessionId, relay: Option<usize>) {
        let it = &mut self.nodes[node];
        if !it.is_running(process) || !it.dialling.remove(&session) {
            return;
        }
        let Some(relay) = relay.filter(|relay| self.is_reachable(node, *relay)) else {
            self.pong_from_others(node);
            self.handle_input(node, SyncInput::Disconnected(session, DisconnectReason::Unreachable));
            return;
        };
        let id = ConnectionId(self.connections.len());
        self.connections.push(SimConnection::new(id, (node, process, session), relay, self.now));
        self.nodes[node].sessions.insert(session, id);
        let response = self.relays[relay].connect(id);
        let stated_limits = self.relays[relay].profile.stated_limits(self.relays[relay].session_count);
        let nip11 = self.relays[relay].nip11_document().and_then(|text| Nip11Info::parse(&text));
        self.checkers[node].on_stated_limits(session, stated_limits, relay);
        if self.relays[relay].profile.connection_lifetime > 0 {
            let restless = self.relays[relay].profile.connection_lifetime;
            let delay = self.random_between(restless / 4, restless * 2);
            self.schedule_in(delay, WorldStep::ConnectionBreaks(id, DisconnectReason::Ended));
        }
        self.send_response(id, response);
        self.handle_input(node, SyncInput::Connected(session, nip11));
    }

    /// Returns whether a node that dials a relay now can connect.
    #[must_use]
    pub fn is_reachable(&self, node: usize, relay: usize) -> bool {
        let own_node = self.node_of(relay);
        !self.is_offline[node]
            && !self.relays[relay].profile.is_unreachable
            && own_node.is_none_or(|other| self.nodes[other].machine.is_some() && !self.is_offline[other])
    }

    /// Returns the node whose events a relay serves.
    #[must_use]
    pub fn node_of(&self, relay: usize) -> Option<usize> {
        relay.checked_sub(self.relays.len() - self.nodes.len())
    }

    /// Returns the relay that serves the events of a node.
    #[must_use]
    pub fn node_relay(&self, node: usize) -> usize {
        self.relays.len() - self.nodes.len() + node
    }

    /// Returns the relay that answers under a URL.
    #[must_use]
    pub fn relay_at(&self, url: &RelayUrl) -> Option<usize> {
        self.hosts.get(url.host()).copied()
    }

    /// Delivers pongs to a node. Real relays send one every half minute. Here they arrive only when it matters that a
    /// relay was alive recently, so that idle worlds cost little.
    pub fn deliver_pongs(&mut self, node: usize) {
        self.inspect(node);
        for id in self.nodes[node].sessions.values().copied().collect::<Vec<_>>() {
            let connection = &self.connections[id.0];
            let (session, state) = (connection.session, connection.state);
            if state == ConnectionState::Open {
                self.handle_input(node, SyncInput::Message(session, IncomingMessage::Alive));
            }
        }
    }
}

impl World {
    /// Delivers pongs of two other relays, as if they had arrived within the last half minute. Called when it matters
    /// whether other relays are alive.
    fn pong_from_others(&mut self, node: usize) {
        let open = |connection: &&ConnectionId| self.connections[connection.0].state == ConnectionState::Open;
        let others: Vec<SessionId> = self.nodes[node]
            .sessions
            .values()
            .filter(open)
            .take(2)
            .map(|connection| self.connections[connection.0].session)
            .collect();
        for session in others {
            self.handle_input(node, SyncInput::Message(session, IncomingMessage::Alive));
        }
    }
}
