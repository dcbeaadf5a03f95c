//! Bounds of the state that the machine keeps (`limits.rs`), checked at intervals.

use grasp_core::limits;
use grasp_core::sync::SyncSnapshot;
use grasp_core::sync::relay::ConnectionStatus;

use crate::simulation::Violation;
use crate::simulation::queue::{HOUR, Time};
use crate::sync::relay_profile::EoseBehavior;
use crate::sync::world::SyncWorld;

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
