//! A websocket between a node and a relay: in order both ways, with time on the way.

use std::collections::VecDeque;

use grasp_core::sync::io::{DisconnectReason, SessionId};

use super::queue::Time;
use super::relay::ConnId;
use super::wire::Frame;

/// What comes out of a pipe.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// A frame.
    Frame(Frame),
    /// The end.
    End(DisconnectReason),
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// Its name.
    pub id: ConnId,
    /// Whose it is: node, life of its process, session.
    pub node: usize,
    /// See `node`.
    pub life: u32,
    /// See `node`.
    pub session: SessionId,
    /// The relay at the other end.
    pub relay: usize,
    /// Whether frames still go through.
    pub state: Wire,
    /// On the way to the node.
    pub inward: VecDeque<(Time, Parcel)>,
    /// When the last thing that was sent to the node arrives: nothing overtakes.
    pub inward_last: Time,
    /// The same the other way.
    pub outward_last: Time,
    /// Whether the arrival of the first frame is planned.
    pub planned: bool,
    /// The node does not read: it has no permits left.
    pub stalled: bool,
    /// Bytes that have not left the node.
    pub unsent: usize,
    /// Bytes that leave a second; zero for at once.
    pub narrow: usize,
}

/// Whether a connection works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// It does.
    Open,
    /// Neither side hears the other, and neither knows.
    HalfOpen,
    /// It has ended.
    Closed,
}

impl Conn {
    /// A new one.
    #[must_use]
    pub fn new(id: ConnId, owner: (usize, u32, SessionId), relay: usize, now: Time) -> Self {
        let (node, life, session) = owner;
        Self {
            id,
            node,
            life,
            session,
            relay,
            state: Wire::Open,
            inward: VecDeque::new(),
            inward_last: now,
            outward_last: now,
            planned: false,
            stalled: false,
            unsent: 0,
            narrow: 0,
        }
    }

    /// Sends something to the node. Gives the time for which an arrival is to be planned, if none is.
    pub fn send(&mut self, now: Time, travel: Time, parcel: Parcel) -> Option<Time> {
        if self.state != Wire::Open {
            return None;
        }
        self.inward_last = self.inward_last.max(now + travel);
        self.inward.push_back((self.inward_last, parcel));
        if self.stalled || std::mem::replace(&mut self.planned, true) {
            return None;
        }
        self.inward.front().map(|(at, _)| *at)
    }

    /// When something that is said now reaches the relay.
    pub fn reach(&mut self, now: Time, travel: Time) -> Time {
        self.outward_last = self.outward_last.max(now + travel);
        self.outward_last
    }
}
