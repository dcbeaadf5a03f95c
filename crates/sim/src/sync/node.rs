//! One graspd without sockets: the real registrar on the models of store and git, and the real sync machine. What joins
//! them (verify threads, the writer, tables) is modelled in [`hands`](super::driver).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::event::EventId;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{Seq, SessionId, SyncInput, SyncOutput, SyncSubmission};
use grasp_core::sync::{SyncConfig, SyncMachine};
use grasp_core::time::{MonoTime, Now, Timestamp};

use super::corpus::{EPOCH, Ix};
use super::event_set::Bits;
use super::queue::{SECOND, Time};
use super::relay::ConnId;
use super::repo_history;
use super::tables::Rows;
use crate::test_server::{House, rules};

/// A full node.
pub struct Node {
    /// Which one.
    pub nth: usize,
    /// The registrar, the store and git.
    pub house: House,
    /// The machine, while the process lives.
    pub syncer: Option<SyncMachine>,
    /// What the machine is told when a process begins.
    pub config: SyncConfig,
    /// How many processes there were.
    pub life: u32,
    /// When this one began.
    pub born: Time,
    /// By how many seconds its clock is wrong.
    pub skew: i64,
    /// Its connections.
    pub sessions: BTreeMap<SessionId, ConnId>,
    /// Permits that are out, by session.
    pub permits: BTreeMap<SessionId, usize>,
    /// Permits that are out.
    pub out: usize,
    /// Events that were checked and wait for the writer.
    pub line: VecDeque<Offer>,
    /// What the writer is writing.
    pub writing: Vec<Offer>,
    /// The tables of sync.
    pub rows: Rows,
    /// What was told to be served.
    pub told: Seq,
    /// When the machine, and the registrar, will be woken.
    pub alarms: [Option<Time>; 2],
    /// Events whose git data is on its way.
    pub fetching: BTreeSet<Ix>,
    /// Attempts to connect that are under way.
    pub dialling: BTreeSet<SessionId>,
    /// Attempts that were given up.
    pub leaving: BTreeSet<SessionId>,
    /// What was ever judged.
    pub judged: Bits,
    /// What clients ever offered.
    pub offered: Bits,
    /// Whether its clock was ever set.
    pub unsettled: bool,
    /// Whether its disk is very slow.
    pub slow: bool,
    /// Relays that were ever asked in turn for what had no place among their subscriptions.
    pub polls: BTreeSet<String>,
    /// Since when something waits to be asked for, by place.
    pub waiting: BTreeMap<String, Time>,
    /// The most that rows can claim by place, until something comes.
    pub claims: BTreeMap<String, Bits>,
}

/// An event on its way to the registrar.
#[derive(Clone, Debug)]
pub struct Offer {
    /// As the machine submitted it.
    pub submission: SyncSubmission,
    /// Whether its signature is right.
    pub genuine: bool,
}

impl Node {
    /// One that has never run.
    #[must_use]
    pub fn new(nth: usize, config: SyncConfig) -> Self {
        let mut house = House::new(AdmissionPolicy { service: repo_history::service(nth), ..rules() });
        house.be_lawless(true);
        Self {
            nth,
            house,
            syncer: None,
            config,
            life: 0,
            born: 0,
            skew: 0,
            sessions: BTreeMap::new(),
            permits: BTreeMap::new(),
            out: 0,
            line: VecDeque::new(),
            writing: Vec::new(),
            rows: Rows::default(),
            told: 0,
            alarms: [None, None],
            fetching: BTreeSet::new(),
            dialling: BTreeSet::new(),
            leaving: BTreeSet::new(),
            judged: Bits::default(),
            offered: Bits::default(),
            unsettled: false,
            slow: false,
            polls: BTreeSet::new(),
            waiting: BTreeMap::new(),
            claims: BTreeMap::new(),
        }
    }

    /// The time, as this node sees it.
    #[must_use]
    pub fn clock(&self, now: Time) -> Now {
        let wall = (EPOCH + now / SECOND).saturating_add_signed(self.skew);
        Now { mono: MonoTime(now - self.born), wall: Timestamp(wall) }
    }

    /// A moment of this process as a time of the world.
    #[must_use]
    pub fn time_of(&self, moment: MonoTime) -> Time {
        self.born.saturating_add(moment.0)
    }

    /// Tells the machine something.
    pub fn handle(&mut self, now: Time, input: SyncInput) {
        let clock = self.clock(now);
        if let Some(syncer) = &mut self.syncer {
            syncer.handle(clock, input);
        }
    }

    /// What the machine wants next.
    pub fn poll(&mut self) -> Option<SyncOutput> {
        self.syncer.as_mut()?.poll()
    }

    /// Begins a process; the machine knows nothing yet.
    pub fn begin(&mut self, now: Time) {
        self.life += 1;
        self.born = now;
        self.house.set_now(self.clock(now));
        if self.life > 1 {
            self.house.restart();
        }
        let seed = self.config.seed.wrapping_add(u64::from(self.life));
        self.syncer = Some(SyncMachine::new(SyncConfig { seed, ..self.config.clone() }));
        self.alarms = [None, None];
    }

    /// The process ends. What was not written is lost.
    pub fn end(&mut self) -> Vec<ConnId> {
        self.syncer = None;
        self.permits.clear();
        self.out = 0;
        self.line.clear();
        self.writing.clear();
        self.rows.crash();
        self.told = 0;
        self.waiting.clear();
        self.dialling.clear();
        self.leaving.clear();
        self.alarms = [None, None];
        std::mem::take(&mut self.sessions).into_values().collect()
    }

    /// Whether the process lives.
    #[must_use]
    pub fn lives(&self, life: u32) -> bool {
        self.syncer.is_some() && self.life == life
    }

    /// Whether an event is served or held here.
    pub fn knows(&mut self, id: EventId) -> bool {
        use crate::store_contract::Shelf;
        self.house.memory().is_known(id)
    }

    /// The order in which one batch is judged: announcements, states, roots, the rest.
    pub fn sort(offers: &mut [Offer]) {
        offers.sort_by_key(|offer| rank(offer.submission.event.kind));
    }
}

fn rank(kind: u16) -> u8 {
    use grasp_core::nostr::kinds;
    match kind {
        kinds::ANNOUNCEMENT => 0,
        kinds::STATE => 1,
        kind if super::local_events::is_root(kind) => 2,
        _ => 3,
    }
}
