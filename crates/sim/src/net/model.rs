//! Where a healed world must come to: nothing that a wanted relay serves would change what a node serves.

use std::collections::BTreeSet;

use grasp_core::nostr::{Verdict, kinds};
use grasp_core::registrar::io::Source;
use grasp_core::repo::catalog::Place;
use grasp_core::sync::link::Status;
use grasp_core::sync::url::RelayUrl;

use super::bits::Bits;
use super::corpus::{Ix, corpus};
use super::hands::bring_data;
use super::law::Broken;
use super::persona::Negentropy;
use super::wish;
use super::world::World;

impl World {
    /// Checks that every node has what it should have.
    pub fn check_converged(&mut self) {
        for node in 0..self.nodes.len() {
            self.check_served(node);
            self.check_statuses(node);
        }
    }

    /// The relays that a node wants and that are there, by place.
    fn wanted(&mut self, node: usize) -> Vec<(RelayUrl, usize)> {
        let followed = wish::all_followed(&mut self.nodes[node].house);
        let served = followed.iter().filter(|repo| repo.place == Place::Served);
        let named = served.flat_map(|repo| wish::relays_of(node, repo)).cloned();
        let mut wanted: Vec<RelayUrl> = named.chain(self.nodes[node].config.bootstrap.iter().cloned()).collect();
        wanted.sort_by(|a, b| a.place().cmp(b.place()));
        wanted.dedup_by(|a, b| a.place() == b.place());
        let paused: BTreeSet<String> = self.view(node).into_iter().filter(|it| it.1).map(|it| it.0).collect();
        let own = self.face(node);
        wanted
            .into_iter()
            .filter(|url| !paused.contains(url.place()))
            .filter_map(|url| self.relay_at(&url).map(|relay| (url, relay)))
            .filter(|(_, relay)| *relay != own)
            .collect()
    }

    /// Places, and whether they are paused.
    fn view(&self, node: usize) -> Vec<(String, bool)> {
        let view = self.nodes[node].syncer.as_ref().map(|syncer| syncer.view()).unwrap_or_default();
        view.links.iter().map(|link| (link.url.place().to_owned(), link.paused)).collect()
    }

    fn check_served(&mut self, node: usize) {
        let now = self.now;
        let clock = self.nodes[node].clock(now);
        self.nodes[node].house.set_now(clock);
        let mut fork = self.nodes[node].house.fork();
        let before = fork.sets().0;
        let followed = wish::all_followed(&mut self.nodes[node].house);
        let mut offered: Vec<(Ix, String)> = Vec::new();
        let mut seen = Bits::default();
        for (url, relay) in self.wanted(node) {
            let mut wish = wish::layer_one();
            wish.extend(&wish::related(&mut self.nodes[node], &followed, url.place(), u64::MAX));
            for ix in self.relays[relay].shown(now).and(&wish).iter() {
                if seen.insert(ix) && !before.contains(&corpus().event(ix).id) {
                    offered.push((ix, url.to_string()));
                }
            }
        }
        offered.sort_by_key(|(ix, _)| match corpus().event(*ix).kind {
            kinds::ANNOUNCEMENT => 0,
            kinds::STATE => 1,
            _ => 2,
        });
        for (ix, url) in offered {
            let event = corpus().event(ix);
            let verdict = fork.submit_from(event, Source::Relay(url.clone()));
            if matches!(verdict, Verdict::Hold(_) | Verdict::Known(grasp_core::nostr::reason::Known::Held))
                && !self.dataless.contains(&ix)
            {
                bring_data(&mut fork, ix);
            }
            let after = fork.sets().0;
            if after != before {
                let new: Vec<_> = after.difference(&before).filter_map(|id| corpus().ix(id)).collect();
                let gone: Vec<_> = before.difference(&after).filter_map(|id| corpus().ix(id)).collect();
                let detail = format!(
                    "node {node} would serve {new:?} and not {gone:?} if it heard ix {ix} (kind {}) of {url}: {verdict:?}",
                    event.kind
                );
                self.break_law(Broken::new("a healed world converges", detail));
                return;
            }
        }
    }

    fn check_statuses(&mut self, node: usize) {
        let followed = wish::all_followed(&mut self.nodes[node].house);
        for (url, relay) in self.wanted(node) {
            let view = self.nodes[node].syncer.as_ref().map(|syncer| syncer.view()).unwrap_or_default();
            let Some(link) = view.links.iter().find(|link| link.url.place() == url.place()) else {
                self.break_law(Broken::new("every wanted relay has a link", url.to_string()));
                return;
            };
            let overfull = self.is_overfull(node, relay, url.place(), &followed);
            let fine = match link.status {
                Status::Connected => !overfull,
                Status::ConnectedHistoricSyncFailures => overfull,
                _ => false,
            };
            if !fine {
                let detail = format!("node {node}, {url}: {:?}, overfull {overfull}: {link:?}", link.status);
                self.break_law(Broken::new("every wanted relay is connected in the end", detail));
                return;
            }
        }
    }

    /// Whether a single value has more events in one second than a page of this relay takes, and it cannot reconcile.
    fn is_overfull(
        &mut self,
        node: usize,
        relay: usize,
        place: &str,
        followed: &[grasp_core::sync::io::Followed],
    ) -> bool {
        let persona = &self.relays[relay].persona;
        if persona.negentropy == Negentropy::Spoken && self.nodes[node].config.negentropy {
            return false;
        }
        let cap = persona.cap.min(500);
        let shown = self.relays[relay].shown(self.now);
        let wish = wish::related(&mut self.nodes[node], followed, place, u64::MAX);
        let mut seconds: std::collections::BTreeMap<(u64, &str, u8), usize> = std::collections::BTreeMap::new();
        for ix in shown.and(&wish).iter() {
            let event = corpus().event(ix);
            for (letter, value) in event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter)) {
                *seconds.entry((event.created_at.0, value, letter)).or_default() += 1;
            }
        }
        seconds.into_values().any(|count| count >= cap)
    }
}
