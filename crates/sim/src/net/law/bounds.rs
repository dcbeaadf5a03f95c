//! How much a machine may keep: the constants of `limits.rs`, looked at from time to time.

use grasp_core::limits;

use super::Broken;
use crate::net::world::World;

impl World {
    /// Looks at what a node's machine keeps.
    pub(in crate::net) fn inspect(&mut self, node: usize) {
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
        for link in &view.links {
            let slots = limits::MAX_SYNC_SLOTS as usize;
            if link.subscriptions.0 + link.subscriptions.1 > slots || link.covered > link.repositories {
                let detail = format!("{}: {link:?}", link.url);
                self.break_law(Broken::new("what is kept is bounded", detail));
            }
        }
    }
}
