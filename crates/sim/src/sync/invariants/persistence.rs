//! The stored coverage of a relay must be true: every event that the relay had when it was last connected has been
//! decided.

use grasp_core::sync::relay_record::{CoverageRecord, RelayRecord};

use crate::simulation::Violation;
use crate::simulation::WORLD_START;
use crate::simulation::queue::{SECOND, Time};
use crate::sync::corpus::{EventIndex, corpus};
use crate::sync::event_set::EventSet;
use crate::sync::expected_targets;
use crate::sync::relay_profile::{EoseBehavior, LimitZero};
use crate::sync::world::SyncWorld;

/// Events that arrived within this time before a row was written may still be undecided.
const IN_TRANSIT: Time = 30 * SECOND;

/// Minimum overlap of `since` after a short absence.
const OVERLAP: Time = 15 * 60 * SECOND;

impl SyncWorld {
    /// Checks the rows of relays that a node has written.
    pub(in crate::sync) fn check_rows(&mut self, node: usize, written: &[RelayRecord]) {
        if let Some(snapshot) = self.nodes[node].snapshot() {
            let polled_keys = snapshot
                .relays
                .iter()
                .filter(|relay_snapshot| relay_snapshot.polled > 0)
                .map(|relay_snapshot| relay_snapshot.url.without_scheme().to_owned());
            self.nodes[node].polled_relays.extend(polled_keys);
        }
        for record in written {
            let Some(covered) = record.covered.filter(|covered| !covered.failed) else { continue };
            if let Some(detail) = self.undecided_event(node, record, &covered) {
                self.sim.report(Violation::new("stored coverage includes only decided events", detail));
                return;
            }
        }
    }

    /// Returns the largest set of events that a row about a relay can cover.
    fn max_claimed(&mut self, node: usize, relay_key: &str) -> EventSet {
        let it = &mut self.nodes[node];
        if let Some(claimed) = it.claims.get(relay_key) {
            return *claimed;
        }
        let needs = expected_targets::all_repo_needs(&mut it.server);
        let mut claimed = expected_targets::related_events(it, &needs, relay_key, u64::MAX);
        claimed.extend(&expected_targets::announcements_and_states());
        it.claims.insert(relay_key.to_owned(), claimed);
        claimed
    }

    /// Returns a description of an event that a row covers although it has not been decided.
    fn undecided_event(&mut self, node: usize, record: &RelayRecord, covered: &CoverageRecord) -> Option<String> {
        let relay = self.relay_at(&record.url)?;
        if relay == self.node_relay(node) || self.relays[relay].is_dishonest || self.nodes[node].clock_was_set {
            return None;
        }
        let clock = self.nodes[node].process.clock(self.sim.now);
        let covered_until = covered.since.unwrap_or(covered.lost_at).min(covered.lost_at);
        let age = clock.wall.secs_since(covered_until) * SECOND;
        let until = self.sim.now.checked_sub(age + IN_TRANSIT)?;
        let relay_key = record.url.without_scheme();
        let unseen = self.relays[relay].visible_events(self.sim.now).without(&self.nodes[node].decided);
        let gaps = self.checkers[node].gaps(relay_key).to_vec();
        let is_polled = self.nodes[node].polled_relays.contains(relay_key);
        let is_missed = |world: &mut Self, index: EventIndex| {
            let event = corpus().event(index);
            let arrived_at = world.relays[relay].arrived_at(index);
            if arrived_at > until || world.nodes[node].has_event(event.id) {
                return false;
            }
            // An event that arrived without a connection and is dated long before it is found by the next full pass.
            let created_at = event.created_at.0 * SECOND;
            let at = |time: Time| WORLD_START * SECOND + time;
            let is_excused = |gap: &(Time, Time)| {
                arrived_at + IN_TRANSIT >= gap.0
                    && arrived_at <= gap.1 + IN_TRANSIT
                    && created_at + OVERLAP < at(gap.0) + IN_TRANSIT
            };
            // A live subscription with `since` does not deliver older events. Neither does polling, which is used if
            // there are not enough subscriptions.
            let has_since = is_polled || world.relays[relay].profile.limit_zero == LimitZero::OneRejectedToo;
            let is_unseen = has_since && created_at + OVERLAP < at(arrived_at);
            !is_unseen && !gaps.iter().any(is_excused)
        };
        // Usually no event is missing from the largest possible coverage. The exact coverage is computed only if one
        // is.
        let possible = unseen.and(&self.max_claimed(node, relay_key));
        let missed: EventSet = possible.iter().filter(|index| is_missed(self, *index)).collect();
        if missed.is_empty() {
            return None;
        }
        let it = &mut self.nodes[node];
        let needs = expected_targets::all_repo_needs(&mut it.server);
        let mut claimed = expected_targets::related_events(it, &needs, relay_key, covered.up_to);
        if covered.announcements {
            claimed.extend(&expected_targets::announcements_and_states());
        }
        let index = missed.and(&claimed).iter().next()?;
        Some(format!(
            "node {node}, {}: event {index} (kind {}), on the relay since {}: {covered:?}",
            record.url,
            corpus().event(index).kind,
            self.relays[relay].arrived_at(index)
        ))
    }
}

/// Returns whether a relay with this profile can withhold events from a client without fault.
pub(crate) fn is_dishonest(profile: &crate::sync::relay_profile::RelayProfile) -> bool {
    profile.live_loss > 0 || profile.hidden_author.is_some() || profile.is_silent || profile.eose == EoseBehavior::Early
}
