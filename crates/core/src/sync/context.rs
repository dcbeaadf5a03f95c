//! The parts of the sync machine that a relay may use while it runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::RequestId;
use super::io::{OutgoingMessage, QueryId, SubscriptionId, SyncNote, SyncOutput};
use super::rejected::RejectedEventsIndex;
use super::relay::{Connection, RelayId};
use super::targets::RepoSyncIndex;
use super::{SyncConfig, live};
use crate::limits;
use crate::random::Rng;
use crate::time::Now;

/// The parts of the sync machine that a relay may use while it runs.
pub(super) struct SyncContext<'a> {
    pub(super) now: Now,
    pub(super) config: &'a SyncConfig,
    pub(super) repo_index: &'a RepoSyncIndex,
    pub(super) rejected: &'a RejectedEventsIndex,
    pub(super) outputs: &'a mut VecDeque<SyncOutput>,
    pub(super) next_id: &'a mut u64,
    pub(super) queries: &'a mut BTreeMap<QueryId, (RelayId, RequestId)>,
    /// Number of open negentropy exchanges on all relays.
    pub(super) open_negentropy: &'a mut usize,
    /// Relays that wait for another negentropy exchange to end.
    pub(super) waiting_for_negentropy: &'a mut BTreeSet<RelayId>,
    pub(super) rng: &'a mut Rng,
}

impl SyncContext<'_> {
    /// Returns an id that was not used before.
    pub(super) fn new_id(&mut self) -> u64 {
        *self.next_id += 1;
        *self.next_id
    }

    pub(super) fn next_subscription_id(&mut self) -> SubscriptionId {
        SubscriptionId(self.new_id())
    }

    /// Registers a query to the store for a request.
    pub(super) fn new_query(&mut self, relay: RelayId, request: RequestId) -> QueryId {
        let query = QueryId(self.new_id());
        self.queries.insert(query, (relay, request));
        query
    }

    /// Sends a message and counts its approximate size.
    pub(super) fn send(&mut self, connection: &mut Connection, message: OutgoingMessage) {
        connection.bytes_this_step += match &message {
            OutgoingMessage::Req(_, filters) => filters.iter().map(live::json_bytes).sum(),
            OutgoingMessage::NegOpen(_, filter, bytes) => live::json_bytes(filter) + 2 * bytes.len(),
            OutgoingMessage::NegMsg(_, bytes) => 2 * bytes.len(),
            OutgoingMessage::Close(_) | OutgoingMessage::NegClose(_) | OutgoingMessage::Auth(_) => 0,
        };
        self.outputs.push_back(SyncOutput::Send(connection.session, message));
    }

    pub(super) fn note(&mut self, note: SyncNote) {
        self.outputs.push_back(SyncOutput::Note(note));
    }

    /// Returns `secs` ± 20 %.
    pub(super) fn jitter(&mut self, secs: u64) -> u64 {
        secs * (80 + self.rng.next_u64() % 41) / 100
    }

    /// Returns the seconds until the next full reconciliation: 23 to 25 hours.
    pub(super) fn daily_interval_secs(&mut self) -> u64 {
        limits::DAILY_RECONCILIATION_SECS - 3_600 + self.rng.next_u64() % 7_200
    }
}
