//! What goes wrong, and right again.

use grasp_core::sync::io::{DisconnectReason, RelayCommand, SessionId, SyncInput};

use super::connection::Wire;
use super::queue::{MINUTE, SECOND, Time};
use super::relay::ConnId;
use super::relay_profile::Persona;
use super::world::{Happening, World};
use crate::store_contract::Shelf;

/// Something that happens to the world and not because somebody in it wants it.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Pongs come to a node from everybody it is connected to.
    Pongs(usize),
    /// An attempt to connect that was given up is over.
    HungUp(usize, u32, SessionId),
    /// A node's process ends.
    Crash(usize),
    /// A node's process begins.
    Start(usize),
    /// A node's network goes away, or comes back.
    Outage(usize, bool),
    /// A node's clock is wrong by so many seconds from now on.
    Clock(usize, i64),
    /// A node's disk becomes very slow, or fast again.
    Slow(usize, bool),
    /// All connections of a relay end.
    Drop(usize),
    /// All connections of a relay fall silent.
    Freeze(usize),
    /// A relay loses all its events.
    Empty(usize),
    /// A relay changes.
    Habits(usize, Box<Persona>),
    /// The operator of a node wants something.
    Command(usize, RelayCommand),
    /// Events of a node expire.
    Expiry(usize),
    /// A relay ends a connection if it is still not read.
    Kick(ConnId),
}

/// Milliseconds until a node notices that a connection is silent.
const SILENCE: (Time, Time) = (60 * SECOND, 90 * SECOND);

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Pongs(node) => self.pongs(node),
            Fault::HungUp(node, life, session) => {
                if self.nodes[node].lives(life) && self.nodes[node].leaving.remove(&session) {
                    self.tell(node, SyncInput::Disconnected(session, DisconnectReason::ClosedByUs));
                }
            }
            Fault::Crash(node) => self.crash(node),
            Fault::Start(node) => self.start(node),
            Fault::Outage(node, away) => self.outage(node, away),
            Fault::Clock(node, skew) => {
                self.nodes[node].skew = skew;
                self.nodes[node].unsettled = true;
                self.watches[node].clock_stepped();
            }
            Fault::Slow(node, slow) => self.nodes[node].slow = slow,
            Fault::Drop(relay) => {
                for conn in self.relays[relay].guests() {
                    self.last_pong(conn);
                    self.breaks(conn, DisconnectReason::Ended);
                }
            }
            Fault::Freeze(relay) => {
                for conn in self.relays[relay].guests() {
                    self.freeze(conn);
                }
            }
            Fault::Empty(relay) => {
                self.relays[relay].book.clear();
                self.fault(Fault::Drop(relay));
            }
            Fault::Habits(relay, persona) => {
                let gone = persona.gone;
                self.relays[relay].change(*persona);
                if gone {
                    self.fault(Fault::Drop(relay));
                }
            }
            Fault::Command(node, order) => self.tell(node, SyncInput::Command(order)),
            Fault::Expiry(node) => self.expire(node),
            Fault::Kick(conn) => {
                if self.conns[conn.0].stalled {
                    self.breaks(conn, DisconnectReason::Ended);
                }
            }
        }
    }

    /// The last sign of life before a connection ends: real ones come every half minute.
    fn last_pong(&mut self, id: ConnId) {
        let conn = &self.conns[id.0];
        let (node, life, session) = (conn.node, conn.life, conn.session);
        if conn.state == Wire::Open && self.nodes[node].lives(life) {
            self.tell(node, SyncInput::Message(session, grasp_core::sync::io::IncomingMessage::Alive));
        }
    }

    fn freeze(&mut self, id: ConnId) {
        self.last_pong(id);
        let conn = &mut self.conns[id.0];
        if conn.state != Wire::Open {
            return;
        }
        conn.state = Wire::HalfOpen;
        conn.inward.clear();
        let relay = conn.relay;
        self.relays[relay].part(id);
        let delay = self.between(SILENCE.0, SILENCE.1);
        self.after(delay, Happening::Breaks(id, DisconnectReason::Ended));
    }

    fn outage(&mut self, node: usize, away: bool) {
        self.offline[node] = away;
        let now = self.now;
        self.watches[node].outage(now, away);
        if !away {
            return;
        }
        for conn in self.nodes[node].sessions.values().copied().collect::<Vec<_>>() {
            if self.chance.one_in(3) {
                self.breaks(conn, DisconnectReason::Ended);
            } else {
                self.freeze(conn);
            }
        }
        for conn in self.relays[self.face(node)].guests() {
            self.freeze(conn);
        }
    }

    fn crash(&mut self, node: usize) {
        if self.nodes[node].syncer.is_none() {
            return;
        }
        // What the writer was about to write may be on disk, though nobody was told.
        if !self.nodes[node].writing.is_empty() && self.chance.one_in(2) {
            self.commit(node);
            self.nodes[node].house.bells();
        }
        for conn in self.nodes[node].end() {
            self.conns[conn.0].state = Wire::Closed;
            self.conns[conn.0].inward.clear();
            let relay = self.conns[conn.0].relay;
            self.relays[relay].part(conn);
        }
        for conn in self.relays[self.face(node)].guests() {
            self.breaks(conn, DisconnectReason::Ended);
        }
        let now = self.now;
        self.watches[node].ended(now);
    }

    /// A process begins with what is on disk.
    pub fn start(&mut self, node: usize) {
        let now = self.now;
        if self.nodes[node].syncer.is_some() {
            return;
        }
        self.nodes[node].begin(now);
        let clock = self.nodes[node].clock(now);
        self.watches[node].began(now, clock, &self.nodes[node].rows);
        for restored in self.nodes[node].rows.restored().collect::<Vec<_>>() {
            self.tell(node, SyncInput::Restored(restored));
        }
        self.nodes[node].house.bells();
        let catalog = self.nodes[node].house.admission().catalog();
        let mut names: Vec<_> = catalog.repositories().map(|(repo, _)| repo.identifier.clone()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let followed = self.nodes[node].house.followed(&name);
            self.tell(node, SyncInput::RepoNeeds(name, followed));
        }
        let newest = self.nodes[node].house.memory().served_after(0).last().map_or(0, |(seq, _)| *seq);
        self.nodes[node].told = newest;
        self.show_face(node, &[]);
        self.tell(node, SyncInput::Ready);
        self.plan_alarm(node, 1);
        // What waits for its git data is looked for again.
        for held in self.nodes[node].house.memory().held() {
            if let Some(ix) = super::corpus::corpus().ix(&held.0)
                && !self.dataless.contains(&ix)
            {
                self.nodes[node].fetching.insert(ix);
                self.after(MINUTE, Happening::DataComes(node, ix));
            }
        }
    }

    fn expire(&mut self, node: usize) {
        if self.nodes[node].syncer.is_none() {
            return;
        }
        let now = self.now;
        let it = &mut self.nodes[node];
        it.house.set_now(it.clock(now));
        it.house.advance(0);
        self.after_house(node);
    }
}
