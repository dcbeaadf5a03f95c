//! One graspd without sockets: the real admission machine on the models of store and git, and the real sync machine.
//! The verification threads, the writer and the tables between them are simulated in [`driver`](super::driver).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{EventPresence, Seq, SessionId, SyncSubmission};
use grasp_core::sync::{SyncConfig, SyncMachine, SyncSnapshot};

use super::corpus::EventIndex;
use super::event_set::EventSet;
use super::relay::ConnectionId;
use super::repo_history;
use super::tables::SyncTables;
use crate::simulation::process::Process;
use crate::simulation::queue::Time;
use crate::test_server::{TestServer, default_policy};

/// A simulated graspd.
pub struct Node {
    /// Its index in [`SyncWorld::nodes`](super::world::SyncWorld::nodes).
    pub index: usize,
    /// The admission machine, the store and git.
    pub server: TestServer,
    /// The process with the sync machine.
    pub process: Process<SyncMachine>,
    /// Settings of the sync machine.
    pub config: SyncConfig,
    /// Its open connections.
    pub sessions: BTreeMap<SessionId, ConnectionId>,
    /// Permits in use, by session.
    pub permits_by_session: BTreeMap<SessionId, usize>,
    /// Permits in use, in total.
    pub permits_in_use: usize,
    /// Verified events that wait for the writer.
    pub writer_queue: VecDeque<PendingSubmission>,
    /// The batch of the writer.
    pub batch: Vec<PendingSubmission>,
    /// The tables of sync.
    pub tables: SyncTables,
    /// Sequence number of the last served event that was reported to the sync machine.
    pub reported_seq: Seq,
    /// Scheduled wakes of the sync machine (0) and of the admission machine (1).
    pub alarms: [Option<Time>; 2],
    /// Events whose git data is being fetched.
    pub fetching: BTreeSet<EventIndex>,
    /// Connection attempts in progress.
    pub dialling: BTreeSet<SessionId>,
    /// Cancelled connection attempts.
    pub cancelled_dials: BTreeSet<SessionId>,
    /// All events that were ever decided.
    pub decided: EventSet,
    /// All events that were ever served.
    pub ever_served: EventSet,
    /// All events that clients ever submitted.
    pub from_clients: EventSet,
    /// Whether its clock was ever set.
    pub clock_was_set: bool,
    /// Whether its disk is very slow.
    pub has_slow_disk: bool,
    /// Relays that were ever polled because they allow too few subscriptions.
    pub polled_relays: BTreeSet<String>,
    /// Since when a relay that a held repository lists waits to be dialled.
    pub untried_since: BTreeMap<String, Time>,
    /// Since when requests are queued, by relay.
    pub pending_since: BTreeMap<String, Time>,
    /// Largest possible coverage of a relay, by relay. Cleared when something changes.
    pub claims: BTreeMap<String, EventSet>,
}

/// An event on its way to the admission machine.
#[derive(Clone, Debug)]
pub struct PendingSubmission {
    /// The submission of the sync machine.
    pub submission: SyncSubmission,
    /// Whether its signature is valid.
    pub is_genuine: bool,
}

impl Node {
    /// Creates a node that has never been started.
    pub fn new(index: usize, config: SyncConfig) -> Self {
        let (service, max_event_bytes) = (repo_history::service(index), repo_history::MAX_EVENT_BYTES);
        let mut server = TestServer::new(AdmissionPolicy { service, max_event_bytes, ..default_policy() });
        server.skip_invariants(true);
        Self {
            index,
            server,
            process: Process::default(),
            config,
            sessions: BTreeMap::new(),
            permits_by_session: BTreeMap::new(),
            permits_in_use: 0,
            writer_queue: VecDeque::new(),
            batch: Vec::new(),
            tables: SyncTables::default(),
            reported_seq: 0,
            alarms: [None, None],
            fetching: BTreeSet::new(),
            dialling: BTreeSet::new(),
            cancelled_dials: BTreeSet::new(),
            decided: EventSet::default(),
            ever_served: EventSet::default(),
            from_clients: EventSet::default(),
            clock_was_set: false,
            has_slow_disk: false,
            polled_relays: BTreeSet::new(),
            untried_since: BTreeMap::new(),
            pending_since: BTreeMap::new(),
            claims: BTreeMap::new(),
        }
    }

    /// Returns the state of the sync machine, while the process runs.
    pub fn snapshot(&self) -> Option<SyncSnapshot> {
        self.process.machine().map(SyncMachine::snapshot)
    }

    /// Starts a process. Its sync machine has no state yet.
    pub fn start(&mut self, now: Time) {
        self.process.start(now, |number| {
            let seed = self.config.seed.wrapping_add(u64::from(number));
            SyncMachine::new(SyncConfig { seed, ..self.config.clone() })
        });
        self.server.set_now(self.process.clock(now));
        if self.process.number() > 1 {
            self.server.restart();
        }
        self.alarms = [None, None];
    }

    /// Ends the process. Rows that were not written are lost. Returns its connections.
    pub fn crash(&mut self) -> Vec<ConnectionId> {
        self.process.stop();
        self.permits_by_session.clear();
        self.permits_in_use = 0;
        self.writer_queue.clear();
        self.batch.clear();
        self.tables.crash();
        self.reported_seq = 0;
        self.pending_since.clear();
        self.untried_since.clear();
        self.dialling.clear();
        self.cancelled_dials.clear();
        self.alarms = [None, None];
        std::mem::take(&mut self.sessions).into_values().collect()
    }

    /// Returns whether an event is served or held here.
    pub fn has_event(&mut self, id: EventId) -> bool {
        self.presence(id) != EventPresence::New
    }

    /// Returns whether an event is new, served or held.
    pub fn presence(&mut self, id: EventId) -> EventPresence {
        use crate::store_contract::StoreUnderTest;
        match self.server.store().event(id).map(|(_, status)| status) {
            None => EventPresence::New,
            Some(EventStatus::Served) => EventPresence::Known,
            Some(EventStatus::Held) => EventPresence::Held,
        }
    }

    /// Sorts a batch into the order in which it is decided: announcements, states, root events, all others.
    pub fn sort_batch(batch: &mut [PendingSubmission]) {
        batch.sort_by_key(|pending| rank(pending.submission.event.kind));
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
