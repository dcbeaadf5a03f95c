//! The world: relays, nodes, wires between them, and one clock.

use std::collections::BTreeMap;

use grasp_core::nostr::Filter;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::RepoId;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{
    DisconnectReason, EventPresence, IncomingMessage, OutgoingMessage, QueryId, SessionId, SyncInput,
};
use grasp_core::sync::relay_limits::Nip11Info;
use grasp_core::sync::relay_url::RelayUrl;

use super::connection::{Conn, Parcel, Wire};
use super::corpus::{Ix, corpus};
use super::fault_injection::Fault;
use super::invariants::{Broken, Watch};
use super::node::{Node, Offer};
use super::queue::{Queue, Time};
use super::relay::{Answer, ConnId, Relay};
use super::trace::Trace;
use super::wire::Frame;
use crate::random::Chance;

/// Milliseconds after which a relay ends a connection that is not read.
const KICK: Time = 10_000;

/// What can happen.
#[derive(Debug)]
pub enum Happening {
    /// The machine wants to be woken (0), or the registrar (1).
    Alarm(usize, u32, usize),
    /// The first frame on its way to a node arrives.
    Arrives(ConnId),
    /// A message reaches a relay.
    Reaches(ConnId, OutgoingMessage),
    /// A relay looks at a message.
    Looks(ConnId, OutgoingMessage),
    /// Bytes have left a node.
    Left(ConnId, usize),
    /// An attempt to connect ends.
    Dialled(usize, u32, SessionId, Option<usize>),
    /// A signature has been checked.
    Checked(usize, u32, Box<Offer>),
    /// A batch is on disk.
    Written(usize, u32),
    /// Rows are on disk.
    Saved(usize, u32),
    /// The store answers.
    Answers(usize, u32, Box<Question>),
    /// An event comes to a relay.
    Published(usize, Ix),
    /// A client offers an event to a node.
    Offered(usize, Ix),
    /// The git data of an event comes to a node.
    DataComes(usize, Ix),
    /// A connection ends without a word.
    Breaks(ConnId, DisconnectReason),
    /// Something goes wrong, or right again.
    Fault(Box<Fault>),
}

/// What the machine asks the store.
#[derive(Debug)]
pub enum Question {
    /// The roots of a repository.
    Roots(RepoId),
    /// What is here that matches.
    Ids(QueryId, Filter),
    /// What of this is not here.
    Missing(QueryId, Vec<EventId>),
}

/// The world.
pub struct World {
    /// Where chance began.
    pub seed: u64,
    /// The time.
    pub now: Time,
    /// What is to happen.
    pub queue: Queue<Happening>,
    /// Chance.
    pub chance: Chance,
    /// What happened.
    pub trace: Trace,
    /// Relays; the faces of nodes are the last of them.
    pub relays: Vec<Relay>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// What each node's machine has done, and whether it was lawful.
    pub watches: Vec<Watch>,
    /// Which relay answers under a name.
    pub hosts: BTreeMap<String, usize>,
    /// All connections that ever were.
    pub conns: Vec<Conn>,
    /// Nodes whose network is away.
    pub offline: Vec<bool>,
    /// Whose git data never comes.
    pub dataless: Vec<Ix>,
    /// Which relays get which events of stories.
    pub told: Vec<(usize, Ix)>,
    /// How the first law was broken, if any was.
    pub broken: Option<Broken>,
    /// Everybody is honest from here on.
    pub healed: bool,
}

impl World {
    /// Lets everything happen up to a time, unless a law is broken before.
    pub fn run(&mut self, end: Time) {
        while self.broken.is_none() {
            let Some((at, what)) = self.queue.next(end) else { break };
            self.now = at;
            self.step(what);
        }
        if self.broken.is_none() {
            self.now = self.now.max(end);
        }
    }

    fn step(&mut self, what: Happening) {
        if self.trace.is_read() {
            self.describe(&what);
        }
        self.trace.step(self.now, what.tag());
        match what {
            Happening::Alarm(node, life, which) => self.ring(node, life, which),
            Happening::Arrives(conn) => self.arrive(conn),
            Happening::Reaches(conn, say) => self.reach(conn, say),
            Happening::Looks(conn, say) => self.look(conn, &say),
            Happening::Left(conn, bytes) => self.left(conn, bytes),
            Happening::Dialled(node, life, session, relay) => self.dialled(node, life, session, relay),
            Happening::Checked(node, life, offer) => self.checked(node, life, *offer),
            Happening::Written(node, life) => self.written(node, life),
            Happening::Saved(node, life) => {
                if self.nodes[node].lives(life) {
                    let written = self.nodes[node].rows.commit();
                    self.check_rows(node, &written);
                }
            }
            Happening::Answers(node, life, question) => self.answer(node, life, *question),
            Happening::Published(relay, ix) => {
                let deliveries = self.relays[relay].publish(self.now, ix, &mut self.chance);
                self.trace.say(self.now, || format!("  and shows it to {deliveries:?}"));
                self.deliver(relay, deliveries);
            }
            Happening::Offered(node, ix) => self.offered(node, ix),
            Happening::DataComes(node, ix) => self.data_comes(node, ix),
            Happening::Breaks(conn, loss) => self.breaks(conn, loss),
            Happening::Fault(fault) => self.fault(*fault),
        }
    }

    /// Plans something for so many milliseconds from now.
    pub fn after(&mut self, delay: Time, what: Happening) {
        self.queue.plan(self.now + delay, what);
    }

    /// A number between two others.
    pub fn between(&mut self, least: Time, most: Time) -> Time {
        least + self.chance.draw() % (most - least).max(1)
    }

    /// Tells a node's machine something, and does what it wants.
    pub fn tell(&mut self, node: usize, input: SyncInput) {
        let now = self.now;
        if self.nodes[node].syncer.is_none() {
            return;
        }
        if self.trace.is_read() {
            let line = format!("node {node} <- {}", super::text::input(&input));
            self.trace.say(now, || line);
        }
        let clock = self.nodes[node].clock(now);
        self.watches[node].input(now, clock, &input);
        self.nodes[node].handle(now, input);
        self.settle(node);
    }

    /// Does everything that a node's machine wants, and plans its alarm.
    pub fn settle(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].poll() {
            if self.trace.is_read() {
                let line = format!("node {node} -> {}", super::text::output(&output));
                self.trace.say(self.now, || line);
            }
            let clock = self.nodes[node].clock(self.now);
            self.watches[node].output(self.now, clock, &output);
            self.act(node, output);
        }
        if let Some(broken) = self.watches[node].broken() {
            self.break_law(broken);
        }
        self.plan_alarm(node, 0);
    }

    /// A law is broken.
    pub fn break_law(&mut self, broken: Broken) {
        self.trace.say(self.now, || format!("BROKEN: {broken}"));
        self.broken.get_or_insert(broken);
    }

    /// Sees to it that a node is woken when it wants to be.
    pub fn plan_alarm(&mut self, node: usize, which: usize) {
        let it = &mut self.nodes[node];
        let Some(syncer) = &it.syncer else { return };
        let alarm = if which == 0 { syncer.alarm() } else { it.house.admission().alarm() };
        let Some((moment, _)) = alarm else { return };
        let at = it.time_of(moment).max(self.now);
        if it.alarms[which].is_none_or(|planned| planned > at) {
            it.alarms[which] = Some(at);
            let life = it.life;
            self.queue.plan(at, Happening::Alarm(node, life, which));
        }
    }

    fn ring(&mut self, node: usize, life: u32, which: usize) {
        let now = self.now;
        let it = &mut self.nodes[node];
        if !it.lives(life) || it.alarms[which].is_none_or(|planned| planned != now) {
            return;
        }
        it.alarms[which] = None;
        let clock = it.clock(now);
        if which == 1 {
            it.house.set_now(clock);
            it.house.advance(0);
            self.after_house(node);
            return;
        }
        if let Some(syncer) = &mut it.syncer
            && syncer.alarm().is_some_and(|(at, _)| at <= clock.mono)
        {
            let due = syncer.alarm();
            syncer.wake(clock);
            if self.watches[node].woke(now, due) {
                self.settle(node);
            } else {
                self.break_law(Broken::new("an alarm that never stops", format!("{due:?}")));
            }
            return;
        }
        self.plan_alarm(node, 0);
    }

    fn reach(&mut self, conn: ConnId, say: OutgoingMessage) {
        let relay = self.conns[conn.0].relay;
        match self.relays[relay].lag(&say) {
            0 => self.look(conn, &say),
            lag => self.after(lag, Happening::Looks(conn, say)),
        }
    }

    fn look(&mut self, conn: ConnId, say: &OutgoingMessage) {
        if self.conns[conn.0].state != Wire::Open {
            return;
        }
        let relay = self.conns[conn.0].relay;
        let answer = self.relays[relay].hear(self.now, conn, say, &mut self.chance);
        self.reply(conn, answer);
    }

    /// Sends what a relay says.
    pub fn reply(&mut self, conn: ConnId, answer: Answer) {
        let relay = self.conns[conn.0].relay;
        let travel = self.relays[relay].persona.travel(&mut self.chance);
        for (frame, nth) in answer.frames.into_iter().zip(0..) {
            self.send(conn, travel + nth / 20, Parcel::Frame(frame));
        }
        if answer.hangs_up {
            self.relays[relay].part(conn);
            self.send(conn, travel, Parcel::End(DisconnectReason::Ended));
            self.conns[conn.0].state = Wire::Closed;
        }
    }

    /// Sends new events to whom they go.
    pub fn deliver(&mut self, relay: usize, deliveries: Vec<(ConnId, Frame)>) {
        for (conn, frame) in deliveries {
            let travel = self.relays[relay].persona.travel(&mut self.chance);
            self.send(conn, travel, Parcel::Frame(frame));
        }
    }

    fn send(&mut self, conn: ConnId, travel: Time, parcel: Parcel) {
        if let Some(at) = self.conns[conn.0].send(self.now, travel, parcel) {
            self.queue.plan(at, Happening::Arrives(conn));
        }
    }

    fn arrive(&mut self, id: ConnId) {
        let now = self.now;
        let conn = &mut self.conns[id.0];
        conn.planned = false;
        let (node, session) = (conn.node, conn.session);
        if !self.nodes[node].lives(conn.life) || self.nodes[node].sessions.get(&session) != Some(&id) {
            conn.inward.clear();
            return;
        }
        let Some((at, parcel)) = conn.inward.front().cloned() else { return };
        if at > now {
            conn.planned = true;
            self.queue.plan(at, Happening::Arrives(id));
            return;
        }
        let heard = match parcel {
            Parcel::End(loss) => {
                conn.state = Wire::Closed;
                conn.inward.clear();
                self.down(node, session, loss);
                return;
            }
            Parcel::Frame(frame) => {
                let known = match &frame {
                    Frame::Event(_, ix, _) if self.nodes[node].knows(corpus().event(*ix).id) => Some(*ix),
                    _ => None,
                };
                known.map(|ix| self.nodes[node].judged.insert(ix));
                frame.heard(if known.is_some() { EventPresence::Known } else { EventPresence::New })
            }
        };
        if matches!(heard, IncomingMessage::Event(_, _, EventPresence::New)) && !self.nodes[node].take_permit(session) {
            self.stall(id);
            return;
        }
        let conn = &mut self.conns[id.0];
        conn.inward.pop_front();
        if let Some((at, _)) = conn.inward.front() {
            conn.planned = true;
            self.queue.plan((*at).max(now), Happening::Arrives(id));
        }
        self.tell(node, SyncInput::Message(session, heard));
    }

    /// A connection is not read until there is a permit. Some relays do not wait for that.
    fn stall(&mut self, id: ConnId) {
        let conn = &mut self.conns[id.0];
        conn.stalled = true;
        if self.relays[conn.relay].persona.impatient {
            self.after(KICK, Happening::Fault(Box::new(Fault::Kick(id))));
        }
    }

    /// Lets connections be read again for which there was no permit.
    pub fn unstall(&mut self, node: usize) {
        let now = self.now;
        for conn in self.nodes[node].sessions.values() {
            let conn = &mut self.conns[conn.0];
            if std::mem::take(&mut conn.stalled) && !std::mem::replace(&mut conn.planned, true) {
                self.queue.plan(now, Happening::Arrives(conn.id));
            }
        }
    }

    /// Tells a node that a connection is no more.
    pub fn down(&mut self, node: usize, session: SessionId, loss: DisconnectReason) {
        self.nodes[node].sessions.remove(&session);
        self.pong_elsewhere(node);
        self.tell(node, SyncInput::Disconnected(session, loss));
    }

    /// A connection breaks: what is on the way is lost.
    pub fn breaks(&mut self, id: ConnId, loss: DisconnectReason) {
        let conn = &mut self.conns[id.0];
        let over = std::mem::replace(&mut conn.state, Wire::Closed) == Wire::Closed;
        conn.inward.clear();
        let (node, life, session, relay) = (conn.node, conn.life, conn.session, conn.relay);
        self.relays[relay].part(id);
        if self.nodes[node].lives(life) && self.nodes[node].sessions.get(&session) == Some(&id) && !over {
            self.down(node, session, loss);
        }
    }

    fn dialled(&mut self, node: usize, life: u32, session: SessionId, relay: Option<usize>) {
        let it = &mut self.nodes[node];
        if !it.lives(life) || !it.dialling.remove(&session) {
            return;
        }
        let Some(relay) = relay.filter(|relay| self.is_reachable(node, *relay)) else {
            self.pong_elsewhere(node);
            self.tell(node, SyncInput::Disconnected(session, DisconnectReason::Unreachable));
            return;
        };
        let id = ConnId(self.conns.len());
        self.conns.push(Conn::new(id, (node, life, session), relay, self.now));
        self.nodes[node].sessions.insert(session, id);
        let greeting = self.relays[relay].greet(id);
        let stated = self.relays[relay].persona.stated(self.relays[relay].sessions);
        let nip11 = self.relays[relay].document().and_then(|text| Nip11Info::parse(&text));
        self.watches[node].stated(session, stated, relay);
        if self.relays[relay].persona.restless > 0 {
            let restless = self.relays[relay].persona.restless;
            let delay = self.between(restless / 4, restless * 2);
            self.after(delay, Happening::Breaks(id, DisconnectReason::Ended));
        }
        self.reply(id, greeting);
        self.tell(node, SyncInput::Connected(session, nip11));
    }

    /// Whether a node that dials a relay now gets through.
    #[must_use]
    pub fn is_reachable(&self, node: usize, relay: usize) -> bool {
        let face = self.face_of(relay);
        !self.offline[node]
            && !self.relays[relay].persona.gone
            && face.is_none_or(|other| self.nodes[other].syncer.is_some() && !self.offline[other])
    }

    /// The node whose face a relay is.
    #[must_use]
    pub fn face_of(&self, relay: usize) -> Option<usize> {
        relay.checked_sub(self.relays.len() - self.nodes.len())
    }

    /// The relay that is a node's face.
    #[must_use]
    pub fn face(&self, node: usize) -> usize {
        self.relays.len() - self.nodes.len() + node
    }

    /// The relay that answers under a URL.
    #[must_use]
    pub fn relay_at(&self, url: &RelayUrl) -> Option<usize> {
        self.hosts.get(url.host()).copied()
    }

    /// Pongs come in. The real ones come every half minute; here they come when it matters that somebody was heard
    /// lately, because idle worlds should cost little.
    pub fn pongs(&mut self, node: usize) {
        self.inspect(node);
        for id in self.nodes[node].sessions.values().copied().collect::<Vec<_>>() {
            let conn = &self.conns[id.0];
            let (session, state) = (conn.session, conn.state);
            if state == Wire::Open {
                self.tell(node, SyncInput::Message(session, IncomingMessage::Alive));
            }
        }
    }
}

impl World {
    /// Others have been heard within the last half minute, as pongs come, when it matters whether they were.
    fn pong_elsewhere(&mut self, node: usize) {
        let open = |conn: &&ConnId| self.conns[conn.0].state == Wire::Open;
        let others: Vec<SessionId> =
            self.nodes[node].sessions.values().filter(open).take(2).map(|conn| self.conns[conn.0].session).collect();
        for session in others {
            self.tell(node, SyncInput::Message(session, IncomingMessage::Alive));
        }
    }
}
