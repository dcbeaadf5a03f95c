//! Convergence: the state that every node must have reached some time after all relays and networks became healthy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::limits;
use grasp_core::nostr::{Decision, EventId, SignedEvent, kinds};
use grasp_core::repo::RepoState;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::sync::relay_url::RelayUrl;

use super::corpus::{EventIndex, corpus};
use super::driver::deliver_git_data;
use super::event_set::EventSet;
use super::expected_targets;
use super::relay_profile::NegentropySupport;
use super::world::SyncWorld;
use crate::simulation::Violation;
use crate::store_contract::StoreUnderTest;
use crate::test_server::TestServer;

impl SyncWorld {
    /// Returns the relays that a node must follow and that exist, without those that the operator paused.
    fn expected_relays(&mut self, node: usize) -> Vec<(RelayUrl, usize)> {
        let needs = expected_targets::all_repo_needs(&mut self.nodes[node].server);
        let served = needs.iter().filter(|repo| repo.status == EventStatus::Served);
        let listed = served.flat_map(|repo| expected_targets::relays_of(node, repo)).cloned();
        let mut urls: Vec<RelayUrl> = listed.chain(self.nodes[node].config.bootstrap.iter().cloned()).collect();
        urls.sort_by(|left, right| left.without_scheme().cmp(right.without_scheme()));
        urls.dedup_by(|left, right| left.without_scheme() == right.without_scheme());
        let paused: BTreeSet<String> = self.pause_states(node).into_iter().filter(|it| it.1).map(|it| it.0).collect();
        let own = self.node_relay(node);
        urls.into_iter()
            .filter(|url| !paused.contains(url.without_scheme()))
            .filter_map(|url| self.relay_at(&url).map(|relay| (url, relay)))
            .filter(|(_, relay)| *relay != own)
            .collect()
    }

    /// Returns the relays of a node, and whether they are paused.
    fn pause_states(&self, node: usize) -> Vec<(String, bool)> {
        let snapshot = self.nodes[node].snapshot().unwrap_or_default();
        snapshot
            .relays
            .iter()
            .map(|relay_snapshot| (relay_snapshot.url.without_scheme().to_owned(), relay_snapshot.is_paused))
            .collect()
    }

    pub(super) fn check_served(&mut self, node: usize) {
        let now = self.sim.now;
        let clock = self.nodes[node].process.clock(now);
        self.nodes[node].server.set_now(clock);
        let mut fork = self.nodes[node].server.fork();
        let mut before = fork.event_ids().0;
        let needs = expected_targets::all_repo_needs(&mut self.nodes[node].server);
        let mut missing: Vec<(EventIndex, String)> = Vec::new();
        let mut seen = EventSet::default();
        for (url, relay) in self.expected_relays(node) {
            let mut expected = expected_targets::announcements_and_states();
            expected.extend(&expected_targets::related_events(
                &mut self.nodes[node],
                &needs,
                url.without_scheme(),
                u64::MAX,
            ));
            let unpageable = self.unpageable_events(node, relay, &expected);
            let fetched = self.relays[relay].visible_events(now).and(&expected).without(&unpageable);
            for index in fetched.without(corpus().unparsable()).iter() {
                if seen.insert(index) && !before.contains(&corpus().event(index).id) {
                    missing.push((index, url.to_string()));
                }
            }
        }
        missing.sort_by_key(|(index, _)| match corpus().event(*index).kind {
            kinds::ANNOUNCEMENT => 0,
            kinds::STATE => 1,
            _ => 2,
        });
        for (index, url) in missing {
            let event = corpus().event(index);
            let decision = fork.submit_from(event, EventSource::Relay(url.clone()));
            if matches!(decision, Decision::Hold(_) | Decision::Known(grasp_core::nostr::rejection::KnownAs::Held))
                && !self.events_without_data.contains(&index)
            {
                deliver_git_data(&mut fork, index);
            }
            let after = fork.event_ids().0;
            // An event without git data expires after half an hour. Events that arrive hours apart, because their
            // relays are reconciled hours apart, are never present together.
            if matches!(decision, Decision::Hold(_)) && self.nodes[node].decided.contains(index) {
                before = after;
                continue;
            }
            if after != before && self.is_lasting(node, &fork) {
                let new: Vec<_> = after.difference(&before).filter_map(|id| corpus().index_of(id)).collect();
                let gone: Vec<_> = before.difference(&after).filter_map(|id| corpus().index_of(id)).collect();
                let detail = format!(
                    "node {node} would serve {new:?}, not {gone:?}, with event {index} (kind {}) of {url}: {decision:?}",
                    event.kind
                );
                self.sim.report(Violation::new("a healed world converges", detail));
                return;
            }
        }
    }

    /// Returns whether a server still serves something different after everything without git data has expired.
    fn is_lasting(&self, node: usize, fork: &TestServer) -> bool {
        let later = |server: &TestServer| {
            let mut later = server.fork();
            later.advance(limits::PURGATORY_EXPIRY_SECS + 60);
            later.event_ids().0
        };
        later(fork) != later(&self.nodes[node].server)
    }

    /// Checks that a node serves nothing else: an empty server that gets every event this node ever decided, repeatedly
    /// until nothing changes, must serve all of it as well.
    pub(super) fn check_justified(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let served: Vec<EventIndex> = it.server.event_ids().0.iter().filter_map(|id| corpus().index_of(id)).collect();
        let source = |index: &EventIndex| match it.from_clients.contains(*index) {
            true => EventSource::Client(vec![corpus().event(*index).pubkey]),
            false => EventSource::Relay("wss://somewhere.example".to_owned()),
        };
        let parsed = it.decided.without(corpus().unparsable());
        let mut all: Vec<_> = parsed.iter().map(|index| (corpus().event(index).clone(), source(&index))).collect();
        // Events that an older version of another event admitted may stay, so both orders (newest first, oldest first)
        // are valid.
        let newest_first = self.rebuild(node, &all);
        all.reverse();
        let oldest_first = self.rebuild(node, &all);
        let (rebuilt_server, before) = (newest_first, oldest_first.event_ids().0);
        let other = rebuilt_server.event_ids().0;
        // A state that was the newest when it arrived stays until its author publishes another one.
        let is_retained = |index: &EventIndex| {
            let state =
                RepoState::from_event(corpus().event(*index)).filter(|_| corpus().event(*index).kind == kinds::STATE);
            state.is_some_and(|state| !rebuilt_server.repos_maintained_by(&state.identifier, state.author).is_empty())
        };
        let admitted = |id: &EventId| before.contains(id) || other.contains(id);
        let unexplained = |index: &EventIndex| !admitted(&corpus().event(*index).id) && !is_retained(index);
        let mut extra: Vec<EventIndex> = served.iter().copied().filter(unexplained).collect();
        if !extra.is_empty() {
            // A newer version that expired without git data is forgotten, and then the older one may be accepted. A
            // deletion of an unknown event is rejected, and does not have to be fetched again after it is gone from its
            // relay.
            let is_irrelevant = |index: EventIndex| {
                let is_newer_version = extra.iter().any(|old| corpus().newer_versions(*old).contains(index));
                !served.contains(&index) && (is_newer_version || is_removal(corpus().event(index).kind))
            };
            all.retain(|(event, _)| corpus().index_of(&event.id).is_none_or(|index| !is_irrelevant(index)));
            let rebuilt = self.rebuild(node, &all).event_ids().0;
            extra.retain(|index| !rebuilt.contains(&corpus().event(*index).id));
        }
        if !extra.is_empty() {
            self.sim.report(Violation::new("no other event is served", {
                let kinds: Vec<u16> = extra.iter().map(|index| corpus().event(*index).kind).collect();
                format!("node {node} serves {extra:?} of kinds {kinds:?}")
            }));
        }
    }

    /// Returns a new server that gets these events repeatedly until nothing changes.
    fn rebuild(&self, node: usize, all: &[(Arc<SignedEvent>, EventSource)]) -> TestServer {
        let server = &self.nodes[node].server;
        let mut rebuilt_server = TestServer::new(server.admission().policy().clone());
        rebuilt_server.skip_invariants(true);
        rebuilt_server.set_now(server.now());
        // Deletions come last, because events that reference the deleted ones may stay.
        let is_no_removal = |event: &&(Arc<SignedEvent>, EventSource)| !is_removal(event.0.kind);
        let mut events: Vec<_> = all.iter().filter(is_no_removal).cloned().collect();
        // Held events count too: events that depend on them may have been submitted before them.
        let mut before = (BTreeSet::new(), BTreeSet::new());
        loop {
            rebuilt_server.submit_all(&events);
            for (id, _) in rebuilt_server.store().held() {
                if let Some(index) = corpus().index_of(&id).filter(|index| !self.events_without_data.contains(index)) {
                    deliver_git_data(&mut rebuilt_server, index);
                }
            }
            let after = rebuilt_server.event_ids();
            if after == before && events.len() == all.len() {
                return rebuilt_server;
            }
            if after == before {
                events = all.to_vec();
            }
            before = after;
        }
    }

    pub(super) fn check_statuses(&mut self, node: usize) {
        let needs = expected_targets::all_repo_needs(&mut self.nodes[node].server);
        for (url, relay) in self.expected_relays(node) {
            let snapshot = self.nodes[node].snapshot().unwrap_or_default();
            let Some(relay_snapshot) = snapshot
                .relays
                .iter()
                .find(|relay_snapshot| relay_snapshot.url.without_scheme() == url.without_scheme())
            else {
                self.sim.report(Violation::new("every relay of a repository is tracked", url.to_string()));
                return;
            };
            let expected =
                expected_targets::related_events(&mut self.nodes[node], &needs, url.without_scheme(), u64::MAX);
            let unpageable = !self.unpageable_events(node, relay, &expected).is_empty();
            let is_expected = match relay_snapshot.status {
                ConnectionStatus::Connected => !unpageable,
                ConnectionStatus::ConnectedHistoricSyncFailures => {
                    unpageable || self.page_looks_cut(node, relay, &expected)
                }
                _ => false,
            };
            // The next reconciliation may have started.
            if relay_snapshot.queued > 0 && !relay_snapshot.is_reconciling {
                let detail = format!("node {node}, {url}: {} requests are queued", relay_snapshot.queued);
                self.sim.report(Violation::new("all needs are requested in the end", detail));
                return;
            }
            if !is_expected {
                let detail = format!(
                    "node {node}, {url}: {:?}, unpageable {unpageable}: {relay_snapshot:?}",
                    relay_snapshot.status
                );
                self.sim.report(Violation::new("every relay of a repository is connected in the end", detail));
                return;
            }
        }
    }

    /// Checks the counters of the relays. Rows that were not written are lost, so the counters may be too small.
    pub(super) fn check_totals(&mut self, node: usize) {
        let snapshot = self.nodes[node].snapshot().unwrap_or_default();
        let received: u64 = snapshot.relays.iter().map(|relay| relay.totals.received).sum();
        let new_events = self.checkers[node].new_events();
        if received > new_events {
            let detail = format!("node {node}: {received} counted, {new_events} submitted");
            self.sim.report(Violation::new("a new event is counted for one relay", detail));
        }
        // A crash can hide that an event was stored.
        let mut served = self.nodes[node].ever_served;
        let ids = self.nodes[node].server.event_ids().0;
        ids.iter().filter_map(|id| corpus().index_of(id)).for_each(|index| {
            served.insert(index);
        });
        let served = served.len() as u64;
        for relay in snapshot.relays.iter().filter(|relay| relay.totals.compared > served) {
            let detail = format!("node {node}, {}: {:?}, {served} events were served", relay.url, relay.totals);
            self.sim.report(Violation::new("only served events are compared with a relay", detail));
        }
    }

    /// Returns the events that cannot be fetched completely: a tag value has more of them in one second than the relay
    /// sends in a page, and more than it compares by negentropy.
    fn unpageable_events(&mut self, node: usize, relay: usize, expected: &EventSet) -> EventSet {
        let profile = &self.relays[relay].profile;
        let negentropy_max = if self.uses_negentropy(node, relay) { profile.max_negentropy_records } else { 0 };
        let cap = profile.max_page.min(500).max(negentropy_max + 1);
        let mut unpageable = EventSet::default();
        let by_second = self.events_by_second(relay, expected);
        by_second.into_iter().filter(|events| events.len() >= cap).for_each(|events| unpageable.extend(&events));
        unpageable
    }

    /// Returns whether a page full of events of one second looks as if it was cut although it was complete. That cannot
    /// be distinguished unless the relay sends a hint or supports negentropy.
    fn page_looks_cut(&self, node: usize, relay: usize, expected: &EventSet) -> bool {
        let is_clear = self.relays[relay].profile.sends_eose_hint || self.uses_negentropy(node, relay);
        !is_clear
            && self.events_by_second(relay, expected).iter().any(|events| events.len() >= limits::MIN_CUT_PAGE_EVENTS)
    }

    fn uses_negentropy(&self, node: usize, relay: usize) -> bool {
        self.relays[relay].profile.negentropy == NegentropySupport::Supported && self.nodes[node].config.use_negentropy
    }

    /// Returns the events of each tag value in each second.
    fn events_by_second(&self, relay: usize, expected: &EventSet) -> Vec<EventSet> {
        let mut by_second: BTreeMap<(u64, &str, u8), EventSet> = BTreeMap::new();
        for index in self.relays[relay].visible_events(self.sim.now).and(expected).iter() {
            let event = corpus().event(index);
            for (letter, value) in event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter)) {
                by_second.entry((event.created_at.0, value, letter)).or_default().insert(index);
            }
        }
        by_second.into_values().collect()
    }
}

fn is_removal(kind: u16) -> bool {
    matches!(kind, kinds::DELETION | kinds::VANISH)
}
