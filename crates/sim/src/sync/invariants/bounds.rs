//! How much a machine may keep: the constants of `limits.rs`, looked at from time to time.

use grasp_core::limits;
use grasp_core::sync::SyncSnapshot;
use grasp_core::sync::relay::ConnectionStatus;

use super::Broken;
use crate::sync::queue::{HOUR, Time};
use crate::sync::relay_profile::Eose;
use crate::sync::world::World;

/// What is new is asked for within so many milliseconds of a relay that takes it.
const SOON: Time = HOUR;

impl World {
    /// Looks at what a node's machine keeps.
    pub(in crate::sync) fn inspect(&mut self, node: usize) {
        let Some(view) = self.nodes[node].syncer.as_ref().map(|syncer| syncer.snapshot()) else { return };
        let held =
            view.relays.iter().filter(|link| link.repositories == 0 && link.held > 0 && !link.is_bootstrap).count();
        let kept = [
            ("links", view.relays.len(), limits::MAX_SYNC_RELAYS),
            ("links of waiting repositories", held, limits::MAX_SYNC_RELAYS_OF_HELD_REPOS),
            ("events in flight", view.in_flight, limits::SYNC_PERMITS),
            ("refused events", view.rejected.0, self.nodes[node].config.rejected.cold_rows),
            ("texts of refused events", view.rejected.1, self.nodes[node].config.rejected.hot_events),
        ];
        for (what, count, most) in kept {
            if count > most {
                self.break_law(Broken::new("what is kept is bounded", format!("{count} {what} of {most}")));
            }
        }
        self.inspect_waiting(node, &view);
        for link in &view.relays {
            let slots = limits::MAX_RELAY_SUBSCRIPTIONS as usize;
            if link.subscriptions.0 + link.subscriptions.1 > slots || link.covered > link.repositories {
                let detail = format!("{}: {link:?}", link.url);
                self.break_law(Broken::new("what is kept is bounded", detail));
            }
        }
    }

    /// What is new does not wait for the next reconciliation.
    fn inspect_waiting(&mut self, node: usize, view: &SyncSnapshot) {
        let now = self.now;
        let mut waiting = std::mem::take(&mut self.nodes[node].waiting);
        waiting.retain(|place, _| view.relays.iter().any(|link| link.url.without_scheme() == place));
        for link in &view.relays {
            let relay = self.relay_at(&link.url).map(|relay| &self.relays[relay].persona);
            let takes = relay.is_some_and(|it| it.rate.is_none() && !it.mute && it.eose != Eose::Never);
            let waits = link.status == ConnectionStatus::Connected && link.queued > 0 && !link.is_reconciling && takes;
            if !waits || self.nodes[node].slow {
                waiting.remove(link.url.without_scheme());
            } else if *waiting.entry(link.url.without_scheme().to_owned()).or_insert(now) + SOON <= now {
                let detail = format!("node {node}, {}: {} are left", link.url, link.queued);
                self.break_law(Broken::new("what is new is asked for soon", detail));
            }
        }
        self.nodes[node].waiting = waiting;
    }
}
