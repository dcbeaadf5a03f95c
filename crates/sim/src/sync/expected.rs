//! Where a healed world must come to: nothing that a wanted relay serves would change what a node serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::limits;
use grasp_core::nostr::{Decision, EventId, SignedEvent, kinds};
use grasp_core::repo::RepoState;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::sync::relay_url::RelayUrl;

use super::corpus::{Ix, corpus};
use super::driver::bring_data;
use super::event_set::Bits;
use super::expected_targets;
use super::invariants::Broken;
use super::relay_profile::Negentropy;
use super::world::World;
use crate::store_contract::Shelf;
use crate::test_server::House;

impl World {
    /// Checks that every node has what it should have.
    pub fn check_converged(&mut self) {
        for node in 0..self.nodes.len() {
            self.check_served(node);
            self.check_justified(node);
            self.check_statuses(node);
        }
    }

    /// The relays that a node wants and that are there, by place.
    fn wanted(&mut self, node: usize) -> Vec<(RelayUrl, usize)> {
        let followed = expected_targets::all_followed(&mut self.nodes[node].house);
        let served = followed.iter().filter(|repo| repo.status == EventStatus::Served);
        let named = served.flat_map(|repo| expected_targets::relays_of(node, repo)).cloned();
        let mut wanted: Vec<RelayUrl> = named.chain(self.nodes[node].config.bootstrap.iter().cloned()).collect();
        wanted.sort_by(|a, b| a.without_scheme().cmp(b.without_scheme()));
        wanted.dedup_by(|a, b| a.without_scheme() == b.without_scheme());
        let paused: BTreeSet<String> = self.view(node).into_iter().filter(|it| it.1).map(|it| it.0).collect();
        let own = self.face(node);
        wanted
            .into_iter()
            .filter(|url| !paused.contains(url.without_scheme()))
            .filter_map(|url| self.relay_at(&url).map(|relay| (url, relay)))
            .filter(|(_, relay)| *relay != own)
            .collect()
    }

    /// Places, and whether they are paused.
    fn view(&self, node: usize) -> Vec<(String, bool)> {
        let view = self.nodes[node].syncer.as_ref().map(|syncer| syncer.snapshot()).unwrap_or_default();
        view.relays.iter().map(|link| (link.url.without_scheme().to_owned(), link.is_paused)).collect()
    }

    fn check_served(&mut self, node: usize) {
        let now = self.now;
        let clock = self.nodes[node].clock(now);
        self.nodes[node].house.set_now(clock);
        let mut fork = self.nodes[node].house.fork();
        let mut before = fork.sets().0;
        let followed = expected_targets::all_followed(&mut self.nodes[node].house);
        let mut offered: Vec<(Ix, String)> = Vec::new();
        let mut seen = Bits::default();
        for (url, relay) in self.wanted(node) {
            let mut wish = expected_targets::layer_one();
            wish.extend(&expected_targets::related(&mut self.nodes[node], &followed, url.without_scheme(), u64::MAX));
            let overfull = self.overfull(node, relay, &wish);
            for ix in self.relays[relay].shown(now).and(&wish).without(&overfull).iter() {
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
            let verdict = fork.submit_from(event, EventSource::Relay(url.clone()));
            if matches!(verdict, Decision::Hold(_) | Decision::Known(grasp_core::nostr::rejection::KnownAs::Held))
                && !self.dataless.contains(&ix)
            {
                bring_data(&mut fork, ix);
            }
            let after = fork.sets().0;
            // What waits in vain is forgotten after half an hour: parts that come hours apart, from relays that are
            // reconciled hours apart, do not meet.
            if matches!(verdict, Decision::Hold(_)) && self.nodes[node].judged.contains(ix) {
                before = after;
                continue;
            }
            if after != before && self.is_for_good(node, &fork) {
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

    /// Whether something is served that stays when all that waits in vain is gone.
    fn is_for_good(&self, node: usize, fork: &House) -> bool {
        let later = |house: &House| {
            let mut later = house.fork();
            later.advance(limits::PURGATORY_EXPIRY_SECS + 60);
            later.sets().0
        };
        later(fork) != later(&self.nodes[node].house)
    }

    /// Nothing else is served: a fresh registrar that hears everything this one ever heard, again and again until
    /// nothing changes any more, serves all of it, too.
    fn check_justified(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let served: Vec<Ix> = it.house.sets().0.iter().filter_map(|id| corpus().ix(id)).collect();
        let source = |ix: &Ix| match it.offered.contains(*ix) {
            true => EventSource::Client(vec![corpus().event(*ix).pubkey]),
            false => EventSource::Relay("wss://somewhere.example".to_owned()),
        };
        let mut all: Vec<_> = it.judged.iter().map(|ix| (corpus().event(ix).clone(), source(&ix))).collect();
        // What an older version of something let in may stay: newest first, or oldest first, both may be right.
        let newest_first = self.fresh(node, &all);
        all.reverse();
        let oldest_first = self.fresh(node, &all);
        let (fresh, before) = (newest_first, oldest_first.sets().0);
        let other = fresh.sets().0;
        // A state that was the newest when it came stays until its own author has another one.
        let stays = |ix: &Ix| {
            let state = RepoState::from_event(corpus().event(*ix)).filter(|_| corpus().event(*ix).kind == kinds::STATE);
            state.is_some_and(|state| !fresh.repos_of(&state.identifier, state.author).is_empty())
        };
        let admitted = |id: &EventId| before.contains(id) || other.contains(id);
        let strange = |ix: &Ix| !admitted(&corpus().event(*ix).id) && !stays(ix);
        let mut extra: Vec<Ix> = served.iter().copied().filter(strange).collect();
        if !extra.is_empty() {
            // A newer version that waited in vain is forgotten, and then the older one may come. A deletion of what was not
            // here yet is refused, and nobody has to ask for it again if it is gone.
            let vain = |ix: Ix| {
                let rival = extra.iter().any(|old| corpus().rivals(*old).contains(ix));
                !served.contains(&ix) && (rival || is_removal(corpus().event(ix).kind))
            };
            all.retain(|(event, _)| corpus().ix(&event.id).is_none_or(|ix| !vain(ix)));
            let without = self.fresh(node, &all).sets().0;
            extra.retain(|ix| !without.contains(&corpus().event(*ix).id));
        }
        if !extra.is_empty() {
            self.break_law(Broken::new("nothing else is served", {
                let kinds: Vec<u16> = extra.iter().map(|ix| corpus().event(*ix).kind).collect();
                format!("node {node} serves {extra:?} of kinds {kinds:?}")
            }));
        }
    }

    /// A node that knows nothing and hears all of this until nothing changes any more.
    fn fresh(&self, node: usize, all: &[(Arc<SignedEvent>, EventSource)]) -> House {
        let house = &self.nodes[node].house;
        let mut fresh = House::new(house.admission().policy().clone());
        fresh.be_lawless(true);
        fresh.set_now(house.now());
        // What takes things away comes last: what was said about them may stay.
        let kept = |offer: &&(Arc<SignedEvent>, EventSource)| !is_removal(offer.0.kind);
        let mut now: Vec<_> = all.iter().filter(kept).cloned().collect();
        // What waits counts, too: what needs it may have come before it.
        let mut before = (BTreeSet::new(), BTreeSet::new());
        loop {
            fresh.submit_all(&now);
            for (id, _) in fresh.memory().held() {
                if let Some(ix) = corpus().ix(&id).filter(|ix| !self.dataless.contains(ix)) {
                    bring_data(&mut fresh, ix);
                }
            }
            let after = fresh.sets();
            if after == before && now.len() == all.len() {
                return fresh;
            }
            if after == before {
                now = all.to_vec();
            }
            before = after;
        }
    }

    fn check_statuses(&mut self, node: usize) {
        let followed = expected_targets::all_followed(&mut self.nodes[node].house);
        for (url, relay) in self.wanted(node) {
            let view = self.nodes[node].syncer.as_ref().map(|syncer| syncer.snapshot()).unwrap_or_default();
            let Some(link) = view.relays.iter().find(|link| link.url.without_scheme() == url.without_scheme()) else {
                self.break_law(Broken::new("every wanted relay has a link", url.to_string()));
                return;
            };
            let wish = expected_targets::related(&mut self.nodes[node], &followed, url.without_scheme(), u64::MAX);
            let overfull = !self.overfull(node, relay, &wish).is_empty();
            let fine = match link.status {
                ConnectionStatus::Connected => !overfull,
                ConnectionStatus::ConnectedHistoricSyncFailures => overfull || self.is_unclear(node, relay, &wish),
                _ => false,
            };
            // The next reconciliation may have begun.
            if link.queued > 0 && !link.is_reconciling {
                let detail = format!("node {node}, {url}: {} are left", link.queued);
                self.break_law(Broken::new("everything that is wanted is asked for in the end", detail));
                return;
            }
            if !fine {
                let detail = format!("node {node}, {url}: {:?}, overfull {overfull}: {link:?}", link.status);
                self.break_law(Broken::new("every wanted relay is connected in the end", detail));
                return;
            }
        }
    }

    /// The events of values that have more of them in one second than a page of this relay takes, and more than it
    /// compares: nobody can be sure to have all of them.
    fn overfull(&mut self, node: usize, relay: usize, wish: &Bits) -> Bits {
        let persona = &self.relays[relay].persona;
        let compared = if self.compares(node, relay) { persona.most_records } else { 0 };
        let cap = persona.cap.min(500).max(compared + 1);
        let mut overfull = Bits::default();
        let seconds = self.seconds(relay, wish);
        seconds.into_iter().filter(|events| events.len() >= cap).for_each(|events| overfull.extend(&events));
        overfull
    }

    /// Whether a page that is full of one second looks as if it had been cut, although it was not: nobody can tell, unless
    /// the relay says so or had a larger one.
    fn is_unclear(&self, node: usize, relay: usize, wish: &Bits) -> bool {
        let clear = self.relays[relay].persona.says_more || self.compares(node, relay);
        !clear && self.seconds(relay, wish).iter().any(|events| events.len() >= limits::MIN_CUT_PAGE_EVENTS)
    }

    fn compares(&self, node: usize, relay: usize) -> bool {
        self.relays[relay].persona.negentropy == Negentropy::Spoken && self.nodes[node].config.use_negentropy
    }

    /// The events of each value in each second.
    fn seconds(&self, relay: usize, wish: &Bits) -> Vec<Bits> {
        let mut seconds: BTreeMap<(u64, &str, u8), Bits> = BTreeMap::new();
        for ix in self.relays[relay].shown(self.now).and(wish).iter() {
            let event = corpus().event(ix);
            for (letter, value) in event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter)) {
                seconds.entry((event.created_at.0, value, letter)).or_default().insert(ix);
            }
        }
        seconds.into_values().collect()
    }
}

fn is_removal(kind: u16) -> bool {
    matches!(kind, kinds::DELETION | kinds::VANISH)
}
