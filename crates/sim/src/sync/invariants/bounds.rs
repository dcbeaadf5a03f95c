//! How much a machine may keep: the constants of `limits.rs`, looked at from time to time.

use grasp_core::limits;
use grasp_core::sync::View;
use grasp_core::sync::relay::Status;

use super::Broken;
use crate::sync::queue::{HOUR, Time};
use crate::sync::relay_profile::Eose;
use crate::sync::world::World;

/// What is new is asked for within so many milliseconds of a relay that takes it.
const SOON: Time = HOUR;

impl World {
    /// Looks at what a node's machine keeps.
    pub(in crate::sync) fn inspect(&mut self, node: usize) {
        let Some(view) = self.nodes[node].syncer.as_ref().map(|syncer| syncer.view()) else { return };
        let held = view.links.iter().filter(|link| link.repositories == 0 && link.held > 0 && !link.bootstrap).count();
        let kept = [
            ("links", view.links.len(), limits::SYNC_LINKS),
            ("links of waiting repositories", held, limits::SYNC_HELD_LINKS),
            ("events in flight", view.in_flight, limits::SYNC_IN_FLIGHT),
            ("refused events", view.refused.0, self.nodes[node].config.refused.cold_rows),
            ("texts of refused events", view.refused.1, self.nodes[node].config.refused.hot_events),
        ];
        for (what, count, most) in kept {
            if count > most {
                self.break_law(Broken::new("what is kept is bounded", format!("{count} {what} of {most}")));
            }
        }
        self.inspect_waiting(node, &view);
        for link in &view.links {
            let slots = limits::MAX_SYNC_SLOTS as usize;
            if link.subscriptions.0 + link.subscriptions.1 > slots || link.covered > link.repositories {
                let detail = format!("{}: {link:?}", link.url);
                self.break_law(Broken::new("what is kept is bounded", detail));
            }
        }
    }

    /// What is new does not wait for the next reconciliation.
    fn inspect_waiting(&mut self, node: usize, view: &View) {
        let now = self.now;
        let mut waiting = std::mem::take(&mut self.nodes[node].waiting);
        waiting.retain(|place, _| view.links.iter().any(|link| link.url.place() == place));
        for link in &view.links {
            let relay = self.relay_at(&link.url).map(|relay| &self.relays[relay].persona);
            let takes = relay.is_some_and(|it| it.rate.is_none() && !it.mute && it.eose != Eose::Never);
            let waits = link.status == Status::Connected && link.queued > 0 && !link.daily && takes;
            if !waits || self.nodes[node].slow {
                waiting.remove(link.url.place());
            } else if *waiting.entry(link.url.place().to_owned()).or_insert(now) + SOON <= now {
                let detail = format!("node {node}, {}: {} are left", link.url, link.queued);
                self.break_law(Broken::new("what is new is asked for soon", detail));
            }
        }
        self.nodes[node].waiting = waiting;
    }
}
