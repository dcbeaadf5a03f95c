//! What does what the machine wants: dials, wires, verify threads, the writer, tables.

use grasp_core::admission::io::EventSource;
use grasp_core::nostr::{Decision, kinds};
use grasp_core::repo::RepoState;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::sync::io::{
    DisconnectReason, OutgoingMessage, SessionId, SubmitResult, SyncInput, SyncOutput, SyncSubmissionId,
};

use super::connection::Wire;
use super::corpus::{Ix, corpus};
use super::event_set::Bits;
use super::node::{Node, Offer};
use super::queue::{MINUTE, SECOND, Time};
use super::relay::ConnId;
use super::world::{Happening, Question, World};
use super::{local_events, wire};
use crate::store_contract::Shelf;

/// Events on their way to a verdict, in all and of one relay.
const IN_FLIGHT: usize = 2_048;
/// See [`IN_FLIGHT`].
const IN_FLIGHT_PER_LINK: usize = 256;

/// Events of one batch.
const BATCH: usize = 64;
/// Events of one batch on a disk that is very slow.
const SLOW_BATCH: usize = 4;

impl Node {
    /// Takes a permit for an event of a session, if there is one.
    pub fn take_permit(&mut self, session: SessionId) -> bool {
        let taken = self.permits.entry(session).or_default();
        if self.out >= IN_FLIGHT || *taken >= IN_FLIGHT_PER_LINK {
            return false;
        }
        *taken += 1;
        self.out += 1;
        true
    }

    /// Gives a permit back. False if there was none.
    fn free_permit(&mut self, session: SessionId) -> bool {
        let Some(taken) = self.permits.get_mut(&session).filter(|taken| **taken > 0) else { return false };
        *taken -= 1;
        self.out -= 1;
        if *taken == 0 {
            self.permits.remove(&session);
        }
        true
    }
}

impl World {
    /// Does what a machine wants.
    pub(super) fn act(&mut self, node: usize, output: SyncOutput) {
        let life = self.nodes[node].life;
        match output {
            SyncOutput::Dial(session, url) => self.dial(node, session, self.relay_at(&url)),
            SyncOutput::Disconnect(session) => self.hang_up(node, session),
            SyncOutput::Send(session, say) => self.say(node, session, say),
            SyncOutput::QueryRootEvents(repo) => self.ask(node, life, Question::Roots(repo)),
            SyncOutput::QueryLocalIds(ask, filter) => self.ask(node, life, Question::Ids(ask, filter)),
            SyncOutput::QueryMissingIds(ask, ids) => self.ask(node, life, Question::Missing(ask, ids)),
            SyncOutput::Submit(submission) => {
                let real = corpus().ix(&submission.event.id).map(|ix| corpus().plain(ix));
                let genuine = real.is_some_and(|real| real.sig == submission.event.sig);
                // Many threads check; what came first need not be done first.
                let delay = if self.chance.one_in(20) { self.between(5, 60) } else { self.between(0, 4) };
                self.after(delay, Happening::Checked(node, life, Box::new(Offer { submission, genuine })));
            }
            SyncOutput::ReleasePermit(session) => self.free(node, Some(session)),
            SyncOutput::StoreRow(row) => {
                if self.nodes[node].rows.put(row) {
                    let delay = self.between(20, 1_500);
                    self.after(delay, Happening::Saved(node, life));
                }
            }
            SyncOutput::DeleteRow(key) => {
                if self.nodes[node].rows.drop(key) {
                    let delay = self.between(20, 1_500);
                    self.after(delay, Happening::Saved(node, life));
                }
            }
            SyncOutput::Note(_) => {}
        }
    }

    fn ask(&mut self, node: usize, life: u32, question: Question) {
        let delay = self.between(1, 12);
        self.after(delay, Happening::Answers(node, life, Box::new(question)));
    }

    fn dial(&mut self, node: usize, session: SessionId, relay: Option<usize>) {
        self.nodes[node].dialling.insert(session);
        let life = self.nodes[node].life;
        let reachable = relay.is_some_and(|relay| self.is_reachable(node, relay));
        let delay = match relay.filter(|_| reachable) {
            Some(relay) => 3 * self.relays[relay].persona.travel(&mut self.chance),
            // Refused at once, or no answer in time.
            None if self.chance.one_in(2) => self.between(20, 400),
            None => 5 * SECOND,
        };
        self.after(delay, Happening::Dialled(node, life, session, relay));
    }

    fn hang_up(&mut self, node: usize, session: SessionId) {
        let it = &mut self.nodes[node];
        if it.dialling.remove(&session) {
            let life = it.life;
            it.leaving.insert(session);
            self.after(1, Happening::Fault(Box::new(super::fault_injection::Fault::HungUp(node, life, session))));
        } else if let Some(conn) = it.sessions.get(&session).copied() {
            self.after(1, Happening::Breaks(conn, DisconnectReason::ClosedByUs));
        }
    }

    fn say(&mut self, node: usize, session: SessionId, say: OutgoingMessage) {
        let Some(id) = self.nodes[node].sessions.get(&session).copied() else { return };
        let travel = self.relays[self.conns[id.0].relay].persona.travel(&mut self.chance);
        let now = self.now;
        let conn = &mut self.conns[id.0];
        if conn.state != Wire::Open {
            return;
        }
        let narrow = conn.narrow;
        if narrow > 0 {
            let bytes = wire::bytes(&say);
            conn.unsent += bytes;
            let gone = conn.reach(now, (conn.unsent * 1_000).checked_div(narrow).unwrap_or(0) as Time);
            self.queue.plan(gone, Happening::Left(id, bytes));
        }
        let conn = &mut self.conns[id.0];
        let at = conn.reach(now, travel);
        self.queue.plan(at, Happening::Reaches(id, say));
    }

    pub(super) fn left(&mut self, id: ConnId, bytes: usize) {
        let conn = &mut self.conns[id.0];
        conn.unsent = conn.unsent.saturating_sub(bytes);
        let (node, life, session, unsent) = (conn.node, conn.life, conn.session, conn.unsent);
        if conn.state == Wire::Open && self.nodes[node].lives(life) {
            self.tell(node, SyncInput::Unsent(session, unsent));
        }
    }

    /// Gives a permit back and lets whoever waits for one go on.
    fn free(&mut self, node: usize, session: Option<SessionId>) {
        let Some(session) = session else { return };
        if !self.nodes[node].free_permit(session) {
            self.watches[node].law("a permit is given back once", || format!("{session:?} has none"));
        }
        self.unstall(node);
    }

    pub(super) fn answer(&mut self, node: usize, life: u32, question: Question) {
        if !self.nodes[node].lives(life) {
            return;
        }
        let house = &mut self.nodes[node].house;
        let input = match question {
            Question::Roots(repo) => {
                let roots = local_events::roots(house, &repo);
                SyncInput::RootEvents(repo, roots)
            }
            Question::Ids(ask, filter) => SyncInput::LocalIds(ask, local_events::local_ids(house, &filter)),
            Question::Missing(ask, ids) => {
                SyncInput::MissingIds(ask, ids.into_iter().filter(|id| !house.memory().is_known(*id)).collect())
            }
        };
        self.tell(node, input);
    }

    pub(super) fn checked(&mut self, node: usize, life: u32, offer: Offer) {
        if !self.nodes[node].lives(life) {
            return;
        }
        if offer.genuine {
            self.nodes[node].line.push_back(offer);
            self.write(node);
        } else {
            let (ticket, session) = (offer.submission.id, offer.submission.session);
            self.judged(node, ticket, session, SubmitResult::InvalidSignature);
        }
    }

    fn judged(&mut self, node: usize, ticket: SyncSubmissionId, session: Option<SessionId>, judgement: SubmitResult) {
        self.free(node, session);
        self.tell(node, SyncInput::SubmitResult(ticket, judgement));
    }

    /// Lets the writer begin a batch, if it is idle and something waits.
    fn write(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        if !it.writing.is_empty() || it.line.is_empty() {
            return;
        }
        let most = it.line.len().min(if it.slow { SLOW_BATCH } else { BATCH });
        it.writing = it.line.drain(..most).collect();
        Node::sort(&mut it.writing);
        let (life, slow) = (it.life, it.slow);
        let delay = match self.chance.one_in(30) {
            _ if slow => self.between(5 * SECOND, 40 * SECOND),
            true => self.between(100, 900),
            false => self.between(2, 25),
        };
        self.after(delay, Happening::Written(node, life));
    }

    pub(super) fn written(&mut self, node: usize, life: u32) {
        if !self.nodes[node].lives(life) {
            return;
        }
        let batch = self.commit(node);
        self.after_house(node);
        for (offer, verdict) in batch {
            let judgement = match verdict {
                Decision::Accept | Decision::Broadcast => SubmitResult::Stored,
                Decision::Hold(_) => SubmitResult::Held,
                Decision::Known(_) => SubmitResult::Known,
                Decision::Reject(refusal) => SubmitResult::Rejected(refusal),
            };
            self.judged(node, offer.submission.id, offer.submission.session, judgement);
        }
        self.write(node);
    }

    /// Judges what the writer has, and commits.
    pub(super) fn commit(&mut self, node: usize) -> Vec<(Offer, Decision)> {
        let now = self.now;
        let it = &mut self.nodes[node];
        let offers = std::mem::take(&mut it.writing);
        it.house.set_now(it.clock(now));
        let events: Vec<_> = offers
            .iter()
            .filter_map(|offer| {
                let ix = corpus().ix(&offer.submission.event.id)?;
                Some((corpus().event(ix).clone(), EventSource::Relay(offer.submission.relay.to_string())))
            })
            .collect();
        it.judged.extend(&offers.iter().filter_map(|offer| corpus().ix(&offer.submission.event.id)).collect());
        let verdicts = it.house.submit_all(&events);
        for ((event, _), verdict) in events.iter().zip(&verdicts) {
            if matches!(verdict, Decision::Hold(_))
                && let Some(ix) = corpus().ix(&event.id)
            {
                self.expect_data(node, ix);
            }
        }
        offers.into_iter().zip(verdicts).collect()
    }

    /// The git data of a held event is everywhere: it comes after a while, unless it exists nowhere.
    fn expect_data(&mut self, node: usize, ix: Ix) {
        if self.dataless.contains(&ix) || !self.nodes[node].fetching.insert(ix) {
            return;
        }
        let delay = if self.chance.one_in(8) { self.between(MINUTE, 20 * MINUTE) } else { self.between(300, 8_000) };
        self.after(delay, Happening::DataComes(node, ix));
    }

    pub(super) fn data_comes(&mut self, node: usize, ix: Ix) {
        if self.nodes[node].syncer.is_none() {
            self.after(10 * MINUTE, Happening::DataComes(node, ix));
            return;
        }
        let now = self.now;
        let it = &mut self.nodes[node];
        it.fetching.remove(&ix);
        it.house.set_now(it.clock(now));
        bring_data(&mut it.house, ix);
        self.after_house(node);
    }

    pub(super) fn offered(&mut self, node: usize, ix: Ix) {
        if self.nodes[node].syncer.is_none() {
            self.after(MINUTE, Happening::Offered(node, ix));
            return;
        }
        let now = self.now;
        let it = &mut self.nodes[node];
        it.house.set_now(it.clock(now));
        let event = corpus().event(ix);
        it.judged.insert(ix);
        it.offered.insert(ix);
        let verdict = it.house.submit_from(event, EventSource::Client(vec![event.pubkey]));
        if matches!(verdict, Decision::Hold(_)) {
            self.expect_data(node, ix);
        }
        self.after_house(node);
    }

    /// Tells everybody what a commit has changed: interest, then what is served.
    pub(super) fn after_house(&mut self, node: usize) {
        if self.nodes[node].syncer.is_none() {
            return;
        }
        let (names, _) = self.nodes[node].house.bells();
        let named = !names.is_empty();
        for name in names {
            let followed = self.nodes[node].house.followed(&name);
            self.tell(node, SyncInput::RepoNeeds(name, followed));
        }
        let told = self.nodes[node].told;
        let newer = self.nodes[node].house.memory().served_after(told);
        if let Some((last, _)) = newer.last() {
            self.nodes[node].told = *last;
        }
        if named || !newer.is_empty() {
            self.nodes[node].claims.clear();
        }
        for (seq, event) in &newer {
            self.tell(node, SyncInput::Served(local_events::arrived(*seq, event)));
        }
        if self.nodes.len() > 1 {
            let shown: Vec<Ix> = newer.iter().filter_map(|(_, event)| corpus().ix(&event.id)).collect();
            self.show_face(node, &shown);
        }
        self.plan_alarm(node, 1);
    }

    /// What a node serves has changed: others who listen to it hear of it.
    pub(super) fn show_face(&mut self, node: usize, newer: &[Ix]) {
        let mut served = Bits::default();
        for event in self.nodes[node].house.memory().served_events() {
            corpus().ix(&event.id).map(|ix| served.insert(ix));
        }
        let face = self.face(node);
        self.relays[face].mirror(self.now, served, newer);
        for ix in newer {
            let deliveries = self.relays[face].show(*ix, &mut self.chance);
            self.deliver(face, deliveries);
        }
    }
}

/// Lets the git data of an event come to wherever it is wanted.
pub fn bring_data(house: &mut crate::test_server::House, ix: Ix) {
    let event = corpus().event(ix);
    if event.kind == kinds::STATE {
        let Some(state) = RepoState::from_event(event) else { return };
        for repo in house.repos_of(&state.identifier, state.author) {
            house.data_found(event.id, repo);
        }
    } else if let Some(request) = PullRequest::from_any_event(event) {
        for repo in request.targets {
            house.data_found(event.id, repo);
        }
    }
}
