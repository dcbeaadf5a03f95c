//! What a machine writes down about a relay must be true: whatever the relay had when it was last heard has been judged.

use grasp_core::sync::relay_record::{CoverageRecord, RelayRecord};

use super::Broken;
use crate::sync::corpus::{EPOCH, corpus};
use crate::sync::event_set::Bits;
use crate::sync::expected_targets;
use crate::sync::queue::{SECOND, Time};
use crate::sync::relay_profile::{Eose, Zero};
use crate::sync::world::World;

/// What is on its way when a row is written has not been judged.
const ON_ITS_WAY: Time = 30 * SECOND;

/// What `since` reaches back for at least, after a short absence.
const OVERLAP: Time = 15 * 60 * SECOND;

impl World {
    /// Rows of a node have been written.
    pub(in crate::sync) fn check_rows(&mut self, node: usize, written: &[RelayRecord]) {
        if let Some(view) = self.nodes[node].syncer.as_ref().map(|syncer| syncer.snapshot()) {
            let polled =
                view.relays.iter().filter(|link| link.polled > 0).map(|link| link.url.without_scheme().to_owned());
            self.nodes[node].polls.extend(polled);
        }
        for peer in written {
            let Some(covered) = peer.covered.filter(|covered| !covered.failed) else { continue };
            if let Some(detail) = self.unjudged(node, peer, &covered) {
                self.break_law(Broken::new("a watermark vouches for what was judged only", detail));
                return;
            }
        }
    }

    /// The most that a row about a relay can claim.
    fn most_claimed(&mut self, node: usize, place: &str) -> Bits {
        let it = &mut self.nodes[node];
        if let Some(claimed) = it.claims.get(place) {
            return *claimed;
        }
        let followed = expected_targets::all_followed(&mut it.house);
        let mut claimed = expected_targets::related(it, &followed, place, u64::MAX);
        claimed.extend(&expected_targets::layer_one());
        it.claims.insert(place.to_owned(), claimed);
        claimed
    }

    /// What a row claims and what is not so.
    fn unjudged(&mut self, node: usize, peer: &RelayRecord, covered: &CoverageRecord) -> Option<String> {
        let relay = self.relay_at(&peer.url)?;
        if relay == self.face(node) || self.relays[relay].dishonest || self.nodes[node].unsettled {
            return None;
        }
        let clock = self.nodes[node].clock(self.now);
        let vouched = covered.since.unwrap_or(covered.lost_at).min(covered.lost_at);
        let age = clock.wall.secs_since(vouched) * SECOND;
        let until = self.now.checked_sub(age + ON_ITS_WAY)?;
        // Mostly nothing is missing of all that could be claimed: only if something is, the exact claim matters.
        let unseen = self.relays[relay].shown(self.now).without(&self.nodes[node].judged);
        if unseen.and(&self.most_claimed(node, peer.url.without_scheme())).is_empty() {
            return None;
        }
        let it = &mut self.nodes[node];
        let followed = expected_targets::all_followed(&mut it.house);
        let mut claimed = expected_targets::related(it, &followed, peer.url.without_scheme(), covered.up_to);
        if covered.announcements {
            claimed.extend(&expected_targets::layer_one());
        }
        let missing: Bits = unseen.and(&claimed);
        let gaps = self.watches[node].gaps(peer.url.without_scheme());
        for ix in missing.iter() {
            let event = corpus().event(ix);
            let came = self.relays[relay].came(ix);
            if came > until || self.nodes[node].knows(event.id) {
                continue;
            }
            // What came while nobody listened and looks older than that is left to the next full pass.
            let made = event.created_at.0 * SECOND;
            let at = |time: Time| EPOCH * SECOND + time;
            let excused = |gap: &(Time, Time)| {
                came + ON_ITS_WAY >= gap.0 && came <= gap.1 + ON_ITS_WAY && made + OVERLAP < at(gap.0) + ON_ITS_WAY
            };
            // Where a live subscription can only be had with `since`, it does not see what is older.
            let unseen = self.relays[relay].persona.zero == Zero::OneToo && made + OVERLAP < at(came);
            // The same where it has no place among the subscriptions and is asked for in turn.
            let unseen =
                unseen || (self.nodes[node].polls.contains(peer.url.without_scheme()) && made + OVERLAP < at(came));
            if unseen || gaps.iter().any(excused) {
                continue;
            }
            let url = &peer.url;
            return Some(format!("node {node}, {url}: ix {ix} (kind {}), there since {came}: {covered:?}", event.kind));
        }
        None
    }
}

/// Whether a relay's habits let it keep events from somebody who does everything right.
#[must_use]
pub fn is_dishonest(persona: &crate::sync::relay_profile::Persona) -> bool {
    persona.deaf > 0 || persona.censored.is_some() || persona.mute || persona.eose == Eose::Early
}
