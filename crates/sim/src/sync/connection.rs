//! A websocket between a node and a relay: ordered in both directions, with latency.

use std::collections::VecDeque;

use grasp_core::sync::io::{DisconnectReason, SessionId};

use super::relay::ConnectionId;
use super::wire::RelayFrame;
use crate::simulation::queue::Time;

/// Something on its way from a relay to a node.
#[derive(Clone, Debug)]
pub enum InboundItem {
    /// A message.
    Frame(RelayFrame),
    /// The end of the connection.
    Closed(DisconnectReason),
}

/// A simulated connection.
#[derive(Debug)]
pub struct SimConnection {
    /// Id of the connection.
    pub id: ConnectionId,
    /// The node that dialled.
    pub node: usize,
    /// Number of the node's process that dialled.
    pub process: u32,
    /// Session id of the node.
    pub session: SessionId,
    /// The relay.
    pub relay: usize,
    /// Whether messages still arrive.
    pub state: ConnectionState,
    /// Items on their way to the node, with their arrival times.
    pub inbound: VecDeque<(Time, InboundItem)>,
    /// Arrival time of the last item sent to the node. Items do not overtake each other.
    pub last_inbound_at: Time,
    /// Arrival time of the last message sent to the relay.
    pub last_outbound_at: Time,
    /// Whether the arrival of the first item is scheduled.
    pub is_arrival_scheduled: bool,
    /// Whether the node does not read because it has no permits left.
    pub is_stalled: bool,
    /// Bytes in the send buffer of the node.
    pub unsent_bytes: usize,
    /// Upload rate of the node. 0 means unlimited.
    pub bytes_per_sec: usize,
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionState {
    /// Messages arrive in both directions.
    Open,
    /// Messages are lost in both directions, and neither side has noticed it.
    HalfOpen,
    /// The connection has ended.
    Closed,
}

impl SimConnection {
    /// Creates an open connection of a node, its process and its session.
    pub fn new(id: ConnectionId, owner: (usize, u32, SessionId), relay: usize, now: Time) -> Self {
        let (node, process, session) = owner;
        Self {
            id,
            node,
            process,
            session,
            relay,
            state: ConnectionState::Open,
            inbound: VecDeque::new(),
            last_inbound_at: now,
            last_outbound_at: now,
            is_arrival_scheduled: false,
            is_stalled: false,
            unsent_bytes: 0,
            bytes_per_sec: 0,
        }
    }

    /// Sends an item to the node. Returns the time at which an arrival must be scheduled, unless one is scheduled
    /// already or the node does not read.
    pub fn send(&mut self, now: Time, latency: Time, item: InboundItem) -> Option<Time> {
        if self.state != ConnectionState::Open {
            return None;
        }
        self.last_inbound_at = self.last_inbound_at.max(now + latency);
        self.inbound.push_back((self.last_inbound_at, item));
        if self.is_stalled || std::mem::replace(&mut self.is_arrival_scheduled, true) {
            return None;
        }
        self.inbound.front().map(|(at, _)| *at)
    }

    /// Returns when a message that is sent now reaches the relay.
    pub fn reserve_outbound(&mut self, now: Time, latency: Time) -> Time {
        self.last_outbound_at = self.last_outbound_at.max(now + latency);
        self.last_outbound_at
    }
}
