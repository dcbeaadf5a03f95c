//! Carries out the outputs of the sync machine: connections, verification threads, the writer and the tables.

use grasp_core::admission::io::EventSource;
use grasp_core::nostr::{Decision, Rejection, kinds};
use grasp_core::repo::RepoState;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::sync::io::{
    DisconnectReason, OutgoingMessage, SessionId, SubmitResult, SyncInput, SyncOutput, SyncSubmissionId,
};

use super::connection::ConnectionState;
use super::corpus::{EventIndex, corpus};
use super::event_set::EventSet;
use super::node::{Node, PendingSubmission};
use super::relay::ConnectionId;
use super::world::{StoreQuery, SyncStep, SyncWorld};
use super::{local_events, wire};
use crate::simulation::queue::{MINUTE, SECOND, Time};
use crate::store_contract::StoreUnderTest;

/// Maximum number of submitted events without result.
const MAX_IN_FLIGHT: usize = 2_048;
/// The same for one relay.
const MAX_IN_FLIGHT_PER_RELAY: usize = 256;

/// Maximum number of events of one batch.
const MAX_BATCH: usize = 64;
/// The same on a very slow disk.
const MAX_SLOW_BATCH: usize = 4;

impl Node {
    /// Takes a permit for an event of a session. Returns `false` if there is none left.
    pub fn take_permit(&mut self, session: SessionId) -> bool {
        let taken = self.permits_by_session.entry(session).or_default();
        if self.permits_in_use >= MAX_IN_FLIGHT || *taken >= MAX_IN_FLIGHT_PER_RELAY {
            return false;
        }
        *taken += 1;
        self.permits_in_use += 1;
        true
    }

    /// Returns a permit. Returns `false` if none was taken.
    fn return_permit(&mut self, session: SessionId) -> bool {
        let Some(taken) = self.permits_by_session.get_mut(&session).filter(|taken| **taken > 0) else { return false };
        *taken -= 1;
        self.permits_in_use -= 1;
        if *taken == 0 {
            self.permits_by_session.remove(&session);
        }
        true
    }
}

impl SyncWorld {
    /// Carries out an output of a node's machine.
    pub(super) fn perform(&mut self, node: usize, output: SyncOutput) {
        let process = self.nodes[node].process.number();
        match output {
            SyncOutput::Dial { session, url, .. } => self.dial(node, session, self.relay_at(&url)),
            // Simulated relays have no floods, so the rate does not matter.
            SyncOutput::SetEventRate(..) => {}
            SyncOutput::Disconnect(session) => self.disconnect(node, session),
            SyncOutput::Send(session, message) => self.send_to_relay(node, session, message),
            SyncOutput::QueryRootEvents(repo) => self.query_store(node, process, StoreQuery::RootEvents(repo)),
            SyncOutput::QueryLocalIds(query_id, filter) => {
                self.query_store(node, process, StoreQuery::LocalIds(query_id, filter))
            }
            SyncOutput::QueryMissingIds(query_id, ids) => {
                self.query_store(node, process, StoreQuery::MissingIds(query_id, ids))
            }
            SyncOutput::QueryServedEvents(query_id, ids) => {
                self.query_store(node, process, StoreQuery::ServedEvents(query_id, ids))
            }
            SyncOutput::Submit(submission) => {
                let real = corpus().index_of(&submission.event.id).map(|index| corpus().unverified(index));
                let is_genuine = real.is_some_and(|real| real.sig == submission.event.sig);
                // Signatures are verified by several threads, so the order can change.
                let delay = if self.sim.rng.one_in(20) {
                    self.sim.random_between(5, 60)
                } else {
                    self.sim.random_between(0, 4)
                };
                self.sim.schedule_in(
                    delay,
                    SyncStep::Verified(node, process, Box::new(PendingSubmission { submission, is_genuine })),
                );
            }
            SyncOutput::HeldEventSeen(_) => {}
            SyncOutput::ReleasePermit(session) => self.release_permit(node, Some(session)),
            SyncOutput::StoreRow(row) => {
                if self.nodes[node].tables.store(row) {
                    let delay = self.sim.random_between(20, 1_500);
                    self.sim.schedule_in(delay, SyncStep::RowsCommitted(node, process));
                }
            }
            SyncOutput::DeleteRow(key) => {
                if self.nodes[node].tables.delete(key) {
                    let delay = self.sim.random_between(20, 1_500);
                    self.sim.schedule_in(delay, SyncStep::RowsCommitted(node, process));
                }
            }
            SyncOutput::Note(_) => {}
        }
    }

    fn query_store(&mut self, node: usize, process: u32, query: StoreQuery) {
        let delay = self.sim.random_between(1, 12);
        self.sim.schedule_in(delay, SyncStep::QueryAnswered(node, process, Box::new(query)));
    }

    fn dial(&mut self, node: usize, session: SessionId, relay: Option<usize>) {
        self.nodes[node].dialling.insert(session);
        let process = self.nodes[node].process.number();
        let reachable = relay.is_some_and(|relay| self.is_reachable(node, relay));
        let delay = match relay.filter(|_| reachable) {
            Some(relay) => 3 * self.relays[relay].profile.random_latency(&mut self.sim.rng),
            // The connection is refused at once, or times out.
            None if self.sim.rng.one_in(2) => self.sim.random_between(20, 400),
            None => 5 * SECOND,
        };
        self.sim.schedule_in(delay, SyncStep::DialEnds(node, process, session, relay));
    }

    fn disconnect(&mut self, node: usize, session: SessionId) {
        let it = &mut self.nodes[node];
        if it.dialling.remove(&session) {
            let process = it.process.number();
            it.cancelled_dials.insert(session);
            self.sim.schedule_in(
                1,
                SyncStep::Incident(Box::new(super::incidents::Incident::DialCancelled(node, process, session))),
            );
        } else if let Some(connection) = it.sessions.get(&session).copied() {
            self.sim.schedule_in(1, SyncStep::ConnectionBreaks(connection, DisconnectReason::ClosedByUs));
        }
    }

    fn send_to_relay(&mut self, node: usize, session: SessionId, message: OutgoingMessage) {
        let Some(id) = self.nodes[node].sessions.get(&session).copied() else { return };
        let latency = self.relays[self.connections[id.0].relay].profile.random_latency(&mut self.sim.rng);
        let now = self.sim.now;
        let connection = &mut self.connections[id.0];
        if connection.state != ConnectionState::Open {
            return;
        }
        let bytes_per_sec = connection.bytes_per_sec;
        if bytes_per_sec > 0 {
            let bytes = wire::message_bytes(&message);
            connection.unsent_bytes += bytes;
            let sent_at = connection.reserve_outbound(
                now,
                (connection.unsent_bytes * 1_000).checked_div(bytes_per_sec).unwrap_or(0) as Time,
            );
            self.sim.queue.schedule(sent_at, SyncStep::BytesSent(id, bytes));
        }
        let connection = &mut self.connections[id.0];
        let at = connection.reserve_outbound(now, latency);
        self.sim.queue.schedule(at, SyncStep::MessageArrives(id, message));
    }

    pub(super) fn on_bytes_sent(&mut self, id: ConnectionId, bytes: usize) {
        let connection = &mut self.connections[id.0];
        connection.unsent_bytes = connection.unsent_bytes.saturating_sub(bytes);
        let (node, process, session, unsent_bytes) =
            (connection.node, connection.process, connection.session, connection.unsent_bytes);
        if connection.state == ConnectionState::Open && self.nodes[node].process.is_running(process) {
            self.handle_input(node, SyncInput::Unsent(session, unsent_bytes));
        }
    }

    /// Returns a permit and resumes the connections that wait for one.
    fn release_permit(&mut self, node: usize, session: Option<SessionId>) {
        let Some(session) = session else { return };
        if !self.nodes[node].return_permit(session) {
            self.checkers[node].report("a permit is released once", || format!("{session:?} has none"));
        }
        self.resume_connections(node);
    }

    pub(super) fn answer_query(&mut self, node: usize, process: u32, query: StoreQuery) {
        if !self.nodes[node].process.is_running(process) {
            return;
        }
        let server = &mut self.nodes[node].server;
        let input = match query {
            StoreQuery::RootEvents(repo) => {
                let roots = local_events::root_events(server, &repo);
                let descendants = local_events::descendants(server, &repo, &roots);
                SyncInput::RootEvents(repo, roots, descendants)
            }
            StoreQuery::LocalIds(query_id, filter) => {
                SyncInput::LocalIds(query_id, local_events::local_ids(server, &filter))
            }
            StoreQuery::MissingIds(query_id, ids) => {
                SyncInput::MissingIds(query_id, ids.into_iter().filter(|id| !server.store().is_known(*id)).collect())
            }
            StoreQuery::ServedEvents(query_id, ids) => {
                SyncInput::ServedEvents(query_id, local_events::served_events(server, &ids))
            }
        };
        self.handle_input(node, input);
    }

    pub(super) fn on_verified(&mut self, node: usize, process: u32, pending: PendingSubmission) {
        if !self.nodes[node].process.is_running(process) {
            return;
        }
        if pending.is_genuine {
            self.nodes[node].writer_queue.push_back(pending);
            self.start_batch(node);
        } else {
            let (submission_id, session) = (pending.submission.id, pending.submission.session);
            self.send_result(node, submission_id, session, SubmitResult::InvalidSignature);
        }
    }

    fn send_result(
        &mut self,
        node: usize,
        submission_id: SyncSubmissionId,
        session: Option<SessionId>,
        result: SubmitResult,
    ) {
        self.release_permit(node, session);
        self.handle_input(node, SyncInput::SubmitResult(submission_id, result));
    }

    /// Starts a batch of the writer if it is idle and events are queued.
    fn start_batch(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        if !it.batch.is_empty() || it.writer_queue.is_empty() {
            return;
        }
        let count = it.writer_queue.len().min(if it.has_slow_disk { MAX_SLOW_BATCH } else { MAX_BATCH });
        it.batch = it.writer_queue.drain(..count).collect();
        Node::sort_batch(&mut it.batch);
        let (process, is_slow) = (it.process.number(), it.has_slow_disk);
        let delay = match self.sim.rng.one_in(30) {
            _ if is_slow => self.sim.random_between(5 * SECOND, 40 * SECOND),
            true => self.sim.random_between(100, 900),
            false => self.sim.random_between(2, 25),
        };
        self.sim.schedule_in(delay, SyncStep::BatchCommitted(node, process));
    }

    pub(super) fn on_batch_committed(&mut self, node: usize, process: u32) {
        if !self.nodes[node].process.is_running(process) {
            return;
        }
        let batch = self.commit_batch(node);
        self.after_commit(node);
        for (pending, decision) in batch {
            let result = match decision {
                Decision::Accept | Decision::Broadcast => SubmitResult::Stored,
                Decision::Hold(_) => SubmitResult::Held,
                Decision::Known(_) => SubmitResult::Known,
                Decision::Remember => SubmitResult::Rejected(Rejection::Unrelated),
                Decision::Reject(rejection) => SubmitResult::Rejected(rejection),
            };
            self.send_result(node, pending.submission.id, pending.submission.session, result);
        }
        self.start_batch(node);
    }

    /// Decides the batch of the writer and commits it.
    pub(super) fn commit_batch(&mut self, node: usize) -> Vec<(PendingSubmission, Decision)> {
        let now = self.sim.now;
        let it = &mut self.nodes[node];
        let batch = std::mem::take(&mut it.batch);
        it.server.set_now(it.process.clock(now));
        let events: Vec<_> = batch
            .iter()
            .filter_map(|pending| {
                let index = corpus().index_of(&pending.submission.event.id)?;
                Some((corpus().event(index).clone(), EventSource::Relay(pending.submission.relay.to_string())))
            })
            .collect();
        it.decided
            .extend(&batch.iter().filter_map(|pending| corpus().index_of(&pending.submission.event.id)).collect());
        let violations = it.server.submit_all(&events);
        for ((event, _), decision) in events.iter().zip(&violations) {
            if matches!(decision, Decision::Hold(_))
                && let Some(index) = corpus().index_of(&event.id)
            {
                self.schedule_git_data(node, index);
            }
        }
        batch.into_iter().zip(violations).collect()
    }

    /// Schedules the arrival of the git data of a held event, unless it does not exist anywhere.
    fn schedule_git_data(&mut self, node: usize, index: EventIndex) {
        if self.events_without_data.contains(&index) || !self.nodes[node].fetching.insert(index) {
            return;
        }
        let delay = if self.sim.rng.one_in(8) {
            self.sim.random_between(MINUTE, 20 * MINUTE)
        } else {
            self.sim.random_between(300, 8_000)
        };
        self.sim.schedule_in(delay, SyncStep::GitDataArrives(node, index));
    }

    pub(super) fn on_git_data(&mut self, node: usize, index: EventIndex) {
        if !self.nodes[node].process.is_started() {
            self.sim.schedule_in(10 * MINUTE, SyncStep::GitDataArrives(node, index));
            return;
        }
        let now = self.sim.now;
        let it = &mut self.nodes[node];
        it.fetching.remove(&index);
        it.server.set_now(it.process.clock(now));
        deliver_git_data(&mut it.server, index);
        self.after_commit(node);
    }

    pub(super) fn on_client_submission(&mut self, node: usize, index: EventIndex) {
        if !self.nodes[node].process.is_started() {
            self.sim.schedule_in(MINUTE, SyncStep::ClientSubmits(node, index));
            return;
        }
        let now = self.sim.now;
        if !self.is_offline[node] {
            let contact = self.nodes[node].process.clock(now).mono;
            self.handle_input(node, SyncInput::NetworkContact(contact));
        }
        let it = &mut self.nodes[node];
        it.server.set_now(it.process.clock(now));
        let event = corpus().event(index);
        it.decided.insert(index);
        it.from_clients.insert(index);
        let decision = it.server.submit_from(event, EventSource::Client(vec![event.pubkey]));
        if matches!(decision, Decision::Hold(_)) {
            self.schedule_git_data(node, index);
        }
        self.after_commit(node);
    }

    /// Reports the changes of a commit to the machine (repository needs first, then served events) and to the
    /// subscribers of the node.
    pub(super) fn after_commit(&mut self, node: usize) {
        if !self.nodes[node].process.is_started() {
            return;
        }
        let (names, _) = self.nodes[node].server.take_notifications();
        let needs_changed = !names.is_empty();
        for name in names {
            let followed = self.nodes[node].server.repo_needs(&name);
            self.handle_input(node, SyncInput::RepoNeeds(name, followed));
        }
        let reported = self.nodes[node].reported_seq;
        let newer = self.nodes[node].server.store().served_after(reported);
        if let Some((last, _)) = newer.last() {
            self.nodes[node].reported_seq = *last;
        }
        if needs_changed || !newer.is_empty() {
            self.nodes[node].claims.clear();
        }
        let served = newer.iter().filter_map(|(_, event)| corpus().index_of(&event.id)).collect();
        self.nodes[node].ever_served.extend(&served);
        for (seq, event) in &newer {
            self.handle_input(node, SyncInput::Served(local_events::served_event(*seq, event)));
        }
        if self.nodes.len() > 1 {
            let new_events: Vec<EventIndex> =
                newer.iter().filter_map(|(_, event)| corpus().index_of(&event.id)).collect();
            self.update_node_relay(node, &new_events);
        }
        self.schedule_alarm(node, 1);
    }

    /// Updates the relay that serves the events of a node, and sends new events to its subscribers.
    pub(super) fn update_node_relay(&mut self, node: usize, newer: &[EventIndex]) {
        let mut served = EventSet::default();
        for event in self.nodes[node].server.store().served_events() {
            corpus().index_of(&event.id).map(|index| served.insert(index));
        }
        let relay = self.node_relay(node);
        self.relays[relay].mirror(self.sim.now, served, newer);
        for index in newer {
            let deliveries = self.relays[relay].live_deliveries(*index, &mut self.sim.rng);
            self.deliver(relay, deliveries);
        }
    }
}

/// Delivers the git data of an event to every repository that needs it.
pub(super) fn deliver_git_data(server: &mut crate::test_server::TestServer, index: EventIndex) {
    let event = corpus().event(index);
    if event.kind == kinds::STATE {
        let Some(state) = RepoState::from_event(event) else { return };
        for repo in server.repos_maintained_by(&state.identifier, state.author) {
            server.add_objects_of_event(event.id, repo);
        }
    } else if let Some(request) = PullRequest::from_any_event(event) {
        for repo in request.targets {
            server.add_objects_of_event(event.id, repo);
        }
    }
}
