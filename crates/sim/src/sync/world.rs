//! The world: relays, nodes, connections between them, and one clock.

use std::collections::BTreeMap;

use grasp_core::nostr::Filter;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::repo::RepoId;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::RelaySnapshot;
use grasp_core::sync::health::HealthStatus;
use grasp_core::sync::io::{
    DisconnectReason, EventPresence, IncomingMessage, OutgoingMessage, QueryId, SessionId, SyncInput,
};
use grasp_core::sync::relay_url::RelayUrl;

use super::connection::{ConnectionState, InboundItem, SimConnection};
use super::corpus::{EventIndex, corpus};
use super::incidents::Incident;
use super::invariants::{SyncChecker, SyncCounts};
use super::node::{Node, PendingSubmission};
use super::relay::{ConnectionId, RelayResponse, SimRelay};
use super::wire::RelayFrame;
use crate::simulation::queue::{DAY, HOUR, Time};
use crate::simulation::trace::Trace;
use crate::simulation::{Simulation, World};

/// Time after which some relays close a connection that is not read.
const STALL_TIMEOUT: Time = 10_000;

/// A scheduled step of the simulation. Most steps of a node have its index and the number of its process.
#[derive(Debug)]
pub enum SyncStep {
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
    /// Which of these events are served.
    ServedEvents(QueryId, Vec<EventId>),
}

/// Time after healing within which all nodes must have converged.
const CONVERGENCE_TIME: Time = 26 * HOUR;

/// Time after which a dead or parked relay has surely been dialled again.
const PROBE_INTERVAL: Time = 25 * HOUR;

/// Relays, nodes, and the connections between them.
pub struct SyncWorld {
    /// Time, scheduled steps, trace and violation.
    pub sim: Simulation<SyncStep>,
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
    /// Whether all relays and networks are healthy for the rest of the run.
    pub is_healed: bool,
}

impl World for SyncWorld {
    const NAME: &'static str = "sync";
    const HEALED_AT: Time = 7 * DAY;
    type Step = SyncStep;
    type Counts = SyncCounts;

    fn generate(seed: u64, trace: Trace) -> Self {
        Self::generate_world(seed, trace)
    }

    fn simulation(&mut self) -> &mut Simulation<SyncStep> {
        &mut self.sim
    }

    fn step(&mut self, step: SyncStep) {
        self.describe_step(&step);
        self.sim.trace.step(self.sim.now, step.tag());
        match step {
            SyncStep::Alarm(node, process, which) => self.on_alarm(node, process, which),
            SyncStep::FrameArrives(connection) => self.on_frame_arrival(connection),
            SyncStep::MessageArrives(connection, message) => self.on_message_arrival(connection, message),
            SyncStep::RelayHandles(connection, message) => self.relay_handles(connection, &message),
            SyncStep::BytesSent(connection, bytes) => self.on_bytes_sent(connection, bytes),
            SyncStep::DialEnds(node, process, session, relay) => self.on_dial_result(node, process, session, relay),
            SyncStep::Verified(node, process, pending) => self.on_verified(node, process, *pending),
            SyncStep::BatchCommitted(node, process) => self.on_batch_committed(node, process),
            SyncStep::RowsCommitted(node, process) => {
                if self.nodes[node].process.is_running(process) {
                    let written = self.nodes[node].tables.commit();
                    self.check_rows(node, &written);
                }
            }
            SyncStep::QueryAnswered(node, process, query) => self.answer_query(node, process, *query),
            SyncStep::Published(relay, index) => {
                let deliveries = self.relays[relay].publish(self.sim.now, index, &mut self.sim.rng);
                self.sim.trace.log(self.sim.now, || format!("  delivered to {deliveries:?}"));
                self.deliver(relay, deliveries);
            }
            SyncStep::ClientSubmits(node, index) => self.on_client_submission(node, index),
            SyncStep::GitDataArrives(node, index) => self.on_git_data(node, index),
            SyncStep::ConnectionBreaks(connection, reason) => self.break_connection(connection, reason),
            SyncStep::Incident(incident) => self.apply_incident(*incident),
        }
    }

    fn heal(&mut self) {
        self.is_healed = true;
        for relay in &mut self.relays {
            relay.profile.heal();
        }
        for node in 0..self.nodes.len() {
            self.is_offline[node] = false;
            self.checkers[node].on_outage(self.sim.now, false);
            self.nodes[node].clock_was_set |= self.nodes[node].process.clock_skew_secs != 0;
            self.nodes[node].process.clock_skew_secs = 0;
            self.nodes[node].has_slow_disk = false;
            self.start_node(node);
        }
    }

    fn convergence_time(&self) -> Time {
        let is_rarely_dialled = |relay: &RelaySnapshot| {
            relay.health == HealthStatus::Dead || relay.dial_in_millis.is_some_and(|millis| millis > 2 * HOUR)
        };
        let mut snapshots = self.nodes.iter().filter_map(Node::snapshot);
        let needs_probe = snapshots.any(|snapshot| snapshot.relays.iter().any(is_rarely_dialled));
        CONVERGENCE_TIME + if needs_probe { PROBE_INTERVAL } else { 0 }
    }

    fn check_converged(&mut self) {
        for node in 0..self.nodes.len() {
            self.check_served(node);
            self.check_justified(node);
            self.check_statuses(node);
            self.check_totals(node);
        }
    }

    fn counts(&self) -> SyncCounts {
        let mut maxima = SyncCounts::default();
        self.checkers.iter().for_each(|checker| maxima.merge_max(&checker.counts()));
        maxima
    }

    fn merge_counts(total: &mut SyncCounts, counts: SyncCounts) {
        total.merge_max(&counts);
    }
}

impl SyncWorld {
    /// Passes an input to a node's sync machine and carries out its outputs.
    pub fn handle_input(&mut self, node: usize, input: SyncInput) {
        let now = self.sim.now;
        if !self.nodes[node].process.is_started() {
            return;
        }
        self.sim.trace.log(now, || format!("node {node} <- {}", super::text::describe_input(&input)));
        self.checkers[node].on_input(now, &input);
        self.nodes[node].process.handle(now, input);
        self.drain_outputs(node);
    }

    /// Carries out all outputs of a node's sync machine and schedules its alarm.
    pub fn drain_outputs(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].process.poll() {
            self.sim.trace.log(self.sim.now, || format!("node {node} -> {}", super::text::describe_output(&output)));
            self.checkers[node].on_output(self.sim.now, &output);
            self.check_parked(node, &output);
            self.perform(node, output);
        }
        if let Some(violation) = self.checkers[node].take_violation() {
            self.sim.report(violation);
        }
        self.schedule_alarm(node, 0);
    }

    /// Schedules the next alarm of a node's sync machine (0) or admission machine (1).
    pub fn schedule_alarm(&mut self, node: usize, which: usize) {
        let it = &mut self.nodes[node];
        if !it.process.is_started() {
            return;
        }
        let alarm = match which {
            0 => it.process.alarm(),
            _ => it.server.admission().alarm().map(|(at, _)| it.process.time_of(at)),
        };
        let Some(at) = alarm.map(|at| at.max(self.sim.now)) else { return };
        if it.alarms[which].is_none_or(|scheduled| scheduled > at) {
            it.alarms[which] = Some(at);
            self.sim.queue.schedule(at, SyncStep::Alarm(node, it.process.number(), which));
        }
    }

    fn on_alarm(&mut self, node: usize, process: u32, which: usize) {
        let now = self.sim.now;
        let it = &mut self.nodes[node];
        if !it.process.is_running(process) || it.alarms[which].is_none_or(|scheduled| scheduled != now) {
            return;
        }
        it.alarms[which] = None;
        if which == 1 {
            it.server.set_now(it.process.clock(now));
            it.server.advance(0);
            self.after_commit(node);
        } else if it.process.alarm().is_some_and(|at| at <= now) {
            it.process.wake(now);
            self.checkers[node].on_wake(now);
            self.drain_outputs(node);
        } else {
            self.schedule_alarm(node, 0);
        }
    }

    fn on_message_arrival(&mut self, connection: ConnectionId, message: OutgoingMessage) {
        let relay = self.connections[connection.0].relay;
        match self.relays[relay].processing_delay(&message) {
            0 => self.relay_handles(connection, &message),
            lag => self.sim.schedule_in(lag, SyncStep::RelayHandles(connection, message)),
        }
    }

    fn relay_handles(&mut self, connection: ConnectionId, message: &OutgoingMessage) {
        if self.connections[connection.0].state != ConnectionState::Open {
            return;
        }
        let relay = self.connections[connection.0].relay;
        let response = self.relays[relay].handle(self.sim.now, connection, message, &mut self.sim.rng);
        self.send_response(connection, response);
    }

    /// Sends the response of a relay.
    pub fn send_response(&mut self, connection: ConnectionId, response: RelayResponse) {
        let relay = self.connections[connection.0].relay;
        let latency = self.relays[relay].profile.random_latency(&mut self.sim.rng);
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
            let latency = self.relays[relay].profile.random_latency(&mut self.sim.rng);
            self.send_to_node(connection, latency, InboundItem::Frame(frame));
        }
    }

    fn send_to_node(&mut self, connection: ConnectionId, latency: Time, item: InboundItem) {
        if let Some(at) = self.connections[connection.0].send(self.sim.now, latency, item) {
            self.sim.queue.schedule(at, SyncStep::FrameArrives(connection));
        }
    }

    fn on_frame_arrival(&mut self, id: ConnectionId) {
        let now = self.sim.now;
        let connection = &mut self.connections[id.0];
        connection.is_arrival_scheduled = false;
        let (node, session) = (connection.node, connection.session);
        if !self.nodes[node].process.is_running(connection.process)
            || self.nodes[node].sessions.get(&session) != Some(&id)
        {
            connection.inbound.clear();
            return;
        }
        let Some((at, item)) = connection.inbound.front().cloned() else { return };
        if at > now {
            connection.is_arrival_scheduled = true;
            self.sim.queue.schedule(at, SyncStep::FrameArrives(id));
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
                let mut presence = EventPresence::New;
                if let RelayFrame::Event(_, index, _) = &frame {
                    presence = self.nodes[node].presence(corpus().event(*index).id);
                    let is_known = presence != EventPresence::New;
                    if is_known || !matches!(corpus().received(*index), IncomingMessage::Event(..)) {
                        self.nodes[node].decided.insert(*index);
                    }
                }
                frame.to_message(presence)
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
            self.sim.queue.schedule((*at).max(now), SyncStep::FrameArrives(id));
        }
        self.handle_input(node, SyncInput::Message(session, message));
    }

    /// Stops reading a connection until there is a permit. Some relays close it after a while.
    fn stall_connection(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id.0];
        connection.is_stalled = true;
        if self.relays[connection.relay].profile.disconnects_stalled_clients {
            self.sim.schedule_in(STALL_TIMEOUT, SyncStep::Incident(Box::new(Incident::StallTimeout(id))));
        }
    }

    /// Resumes reading connections that had no permit.
    pub fn resume_connections(&mut self, node: usize) {
        let now = self.sim.now;
        for connection in self.nodes[node].sessions.values() {
            let connection = &mut self.connections[connection.0];
            if std::mem::take(&mut connection.is_stalled)
                && !std::mem::replace(&mut connection.is_arrival_scheduled, true)
            {
                self.sim.queue.schedule(now, SyncStep::FrameArrives(connection.id));
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
        if self.nodes[node].process.is_running(process)
            && self.nodes[node].sessions.get(&session) == Some(&id)
            && !was_closed
        {
            self.on_disconnect(node, session, reason);
        }
    }

    fn on_dial_result(&mut self, node: usize, process: u32, session: SessionId, relay: Option<usize>) {
        let it = &mut self.nodes[node];
        if !it.process.is_running(process) || !it.dialling.remove(&session) {
            return;
        }
        let Some(relay) = relay.filter(|relay| self.is_reachable(node, *relay)) else {
            self.pong_from_others(node);
            // A host that is up refuses some attempts and does not answer others.
            let is_refused = !self.is_offline[node] && session.0.is_multiple_of(2);
            let reason = if is_refused { DisconnectReason::Refused } else { DisconnectReason::Unreachable };
            self.handle_input(node, SyncInput::Disconnected(session, reason));
            return;
        };
        let id = ConnectionId(self.connections.len());
        self.connections.push(SimConnection::new(id, (node, process, session), relay, self.sim.now));
        self.nodes[node].sessions.insert(session, id);
        let response = self.relays[relay].connect(id);
        let stated_limits = self.relays[relay].profile.stated_limits(self.relays[relay].session_count);
        let nip11 = self.relays[relay].nip11_document().and_then(|text| Nip11Info::parse(&text));
        self.checkers[node].on_stated_limits(session, stated_limits, relay);
        if self.relays[relay].profile.connection_lifetime > 0 {
            let restless = self.relays[relay].profile.connection_lifetime;
            let delay = self.sim.random_between(restless / 4, restless * 2);
            self.sim.schedule_in(delay, SyncStep::ConnectionBreaks(id, DisconnectReason::Ended));
        }
        self.send_response(id, response);
        self.handle_input(node, SyncInput::Connected(session, nip11));
    }

    /// Returns whether a node that dials a relay now can connect.
    pub fn is_reachable(&self, node: usize, relay: usize) -> bool {
        let own_node = self.node_of(relay);
        !self.is_offline[node]
            && !self.relays[relay].profile.is_unreachable
            && own_node.is_none_or(|other| self.nodes[other].process.is_started() && !self.is_offline[other])
    }

    /// Returns the node whose events a relay serves.
    pub fn node_of(&self, relay: usize) -> Option<usize> {
        relay.checked_sub(self.relays.len() - self.nodes.len())
    }

    /// Returns the relay that serves the events of a node.
    pub fn node_relay(&self, node: usize) -> usize {
        self.relays.len() - self.nodes.len() + node
    }

    /// Returns the relay that answers under a URL.
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

impl SyncWorld {
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
