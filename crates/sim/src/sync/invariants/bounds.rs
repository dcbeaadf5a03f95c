//! Bounds of the state that the machine keeps (`limits.rs`), checked at intervals.

use std::collections::BTreeSet;

use grasp_core::limits;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::SyncSnapshot;
use grasp_core::sync::io::{SyncNote, SyncOutput};
use grasp_core::sync::relay::ConnectionStatus;

use crate::simulation::Violation;
use crate::simulation::queue::{HOUR, Time};
use crate::sync::expected_targets::{all_repo_needs, relays_of};
use crate::sync::relay_profile::EoseBehavior;
use crate::sync::world::SyncWorld;

/// Maximum time until a relay of a held repository is tried.
const MAX_TRIAL_DELAY: Time = 2 * HOUR;

/// Maximum time until new needs are requested from a connected relay that accepts requests.
const MAX_REQUEST_DELAY: Time = HOUR;

impl SyncWorld {
    /// Checks the size of a machine's state.
    pub(in crate::sync) fn inspect(&mut self, node: usize) {
        let Some(snapshot) = self.nodes[node].snapshot() else { return };
        let held_relays = snapshot
            .relays
            .iter()
            .filter(|relay_snapshot| {
                relay_snapshot.repositories == 0 && relay_snapshot.held > 0 && !relay_snapshot.is_bootstrap
            })
            .count();
        let bounded = [
            ("links", snapshot.relays.len(), limits::MAX_SYNC_RELAYS),
            ("relays of held repositories", held_relays, limits::MAX_SYNC_RELAYS_OF_HELD_REPOS),
            ("events in flight", snapshot.in_flight, limits::SYNC_PERMITS),
            ("rejected events", snapshot.rejected.0, self.nodes[node].config.rejected.cold_rows),
            ("contents of rejected events", snapshot.rejected.1, self.nodes[node].config.rejected.hot_events),
        ];
        for (what, count, max) in bounded {
            if count > max {
                self.sim.report(Violation::new("state is bounded", format!("{count} {what} of {max}")));
            }
        }
        self.inspect_pending(node, &snapshot);
        self.inspect_held(node, &snapshot);
        for relay_snapshot in &snapshot.relays {
            let slots = limits::MAX_RELAY_SUBSCRIPTIONS as usize;
            if relay_snapshot.subscriptions.0 + relay_snapshot.subscriptions.1 > slots
                || relay_snapshot.covered > relay_snapshot.repositories
            {
                let detail = format!("{}: {relay_snapshot:?}", relay_snapshot.url);
                self.sim.report(Violation::new("state is bounded", detail));
            }
        }
    }

    /// Checks that a relay is parked only if it refused requests.
    pub(in crate::sync) fn check_parked(&mut self, node: usize, output: &SyncOutput) {
        let SyncOutput::Note(SyncNote::Parked(url, text)) = output else { return };
        if self.relay_at(url).is_some_and(|relay| !self.relays[relay].can_be_parked) {
            let detail = format!("node {node}, {url}: {text}");
            self.sim.report(Violation::new("only a relay that refuses requests is parked", detail));
        }
    }

    /// Checks that every relay that a held repository lists is tried, however many others cannot be reached.
    fn inspect_held(&mut self, node: usize, snapshot: &SyncSnapshot) {
        let now = self.sim.now;
        let mut untried_since = std::mem::take(&mut self.nodes[node].untried_since);
        let needs = all_repo_needs(&mut self.nodes[node].server);
        let held = needs.iter().filter(|repo| repo.status == EventStatus::Held);
        let listed: BTreeSet<&str> =
            held.flat_map(|repo| relays_of(node, repo)).map(|url| url.without_scheme()).collect();
        untried_since.retain(|relay_key, _| listed.contains(relay_key.as_str()));
        for relay_key in listed {
            let is_followed = snapshot.relays.iter().any(|relay| relay.url.without_scheme() == relay_key);
            if is_followed || self.checkers[node].must_not_dial(now, relay_key) {
                untried_since.remove(relay_key);
            } else if *untried_since.entry(relay_key.to_owned()).or_insert(now) + MAX_TRIAL_DELAY <= now {
                let detail = format!("node {node}: {relay_key}");
                self.sim.report(Violation::new("every relay of a held repository is tried", detail));
            }
        }
        self.nodes[node].untried_since = untried_since;
    }

    /// Checks that new needs are requested without waiting for the next reconciliation.
    fn inspect_pending(&mut self, node: usize, snapshot: &SyncSnapshot) {
        let now = self.sim.now;
        let mut pending_since = std::mem::take(&mut self.nodes[node].pending_since);
        pending_since.retain(|relay_key, _| {
            snapshot.relays.iter().any(|relay_snapshot| relay_snapshot.url.without_scheme() == relay_key)
        });
        for relay_snapshot in &snapshot.relays {
            let relay = self.relay_at(&relay_snapshot.url).map(|relay| &self.relays[relay].profile);
            let is_willing = relay.is_some_and(|it| {
                it.rate_limit.is_none() && !it.is_silent && it.lost_requests == 0 && it.eose != EoseBehavior::Never
            });
            let is_pending = relay_snapshot.status == ConnectionStatus::Connected
                && relay_snapshot.queued > 0
                // A slow relay that is polled has requests in its queue most of the time.
                && relay_snapshot.subscriptions.1 == 0
                && !relay_snapshot.is_reconciling
                && is_willing;
            if !is_pending || self.nodes[node].has_slow_disk {
                pending_since.remove(relay_snapshot.url.without_scheme());
            } else if *pending_since.entry(relay_snapshot.url.without_scheme().to_owned()).or_insert(now)
                + MAX_REQUEST_DELAY
                <= now
            {
                let detail =
                    format!("node {node}, {}: {} requests are queued", relay_snapshot.url, relay_snapshot.queued);
                self.sim.report(Violation::new("new needs are requested soon", detail));
            }
        }
        self.nodes[node].pending_since = pending_since;
    }
}
