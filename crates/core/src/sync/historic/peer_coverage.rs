//! Measures which of the local events a relay has too, during a run over all of its needs.

use std::collections::{BTreeMap, BTreeSet};

use super::super::io::ServedEvent;
use super::super::targets::{RepoKey, RepoSyncIndex};
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::kinds;
use crate::repo::{Identifier, RepoId};

/// Local events that were compared with a relay, each once although several filters match it.
///
/// Of more than [`limits::MAX_COVERAGE_SAMPLE_EVENTS`] events a sample is kept: those whose id ends in a number with
/// enough leading zeroes. The beginning of an id is not random, because authors search for ids that begin with zeroes.
#[derive(Debug, Default)]
pub(super) struct ComparedEvents {
    /// Whether the relay has the event.
    events: BTreeMap<EventId, bool>,
    /// Leading zeroes that a number must have. One event of `2^zeroes` is in the sample.
    zeroes: u32,
}

/// Result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::sync) struct PeerCoverage {
    /// Number of compared events.
    pub(in crate::sync) compared: u64,
    /// Number of those that the relay has.
    pub(in crate::sync) shared: u64,
    /// Number of events that the relay lacks, by repository.
    pub(in crate::sync) lacking: BTreeMap<RepoKey, u64>,
}

impl ComparedEvents {
    /// Adds an event that is here.
    pub(super) fn add_local(&mut self, id: EventId) {
        if !self.is_sampled(&id) || self.events.contains_key(&id) {
            return;
        }
        self.events.insert(id, false);
        while self.events.len() > limits::MAX_COVERAGE_SAMPLE_EVENTS {
            self.zeroes += 1;
            let mut events = std::mem::take(&mut self.events);
            events.retain(|id, _| self.is_sampled(id));
            self.events = events;
        }
    }

    /// Records that the relay has an event. It counts only if it is here too.
    pub(super) fn add_remote(&mut self, id: &EventId) {
        if let Some(is_remote) = self.events.get_mut(id) {
            *is_remote = true;
        }
    }

    fn is_sampled(&self, id: &EventId) -> bool {
        let number = id.0.last_chunk().map_or(0, |last| u64::from_be_bytes(*last));
        number.leading_zeros() >= self.zeroes
    }

    /// Returns the ids of all events of the sample.
    pub(super) fn ids(&self) -> Vec<EventId> {
        self.events.keys().copied().collect()
    }

    /// Returns the result. `served` are those of the events that are served, and not held. An event that the relay lacks
    /// counts only if it belongs to one of its repositories.
    pub(super) fn result(
        &self,
        served: &[ServedEvent],
        repo_index: &RepoSyncIndex,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> PeerCoverage {
        let has = |event: &&ServedEvent| self.events.get(&event.id).copied().unwrap_or(false);
        let scale = |count: usize| (count as u64) << self.zeroes.min(32);
        let shared = served.iter().filter(has).count();
        let lacking: Vec<&ServedEvent> = served.iter().filter(|event| !has(event)).collect();
        let mut counts: BTreeMap<RepoKey, usize> = BTreeMap::new();
        let mut attributed = 0;
        for mut repos in repos_of(&lacking, repo_index, &is_followed) {
            repos.retain(|repo| is_followed(*repo));
            attributed += usize::from(!repos.is_empty());
            repos.into_iter().for_each(|repo| *counts.entry(repo).or_default() += 1);
        }
        let lacking = counts.into_iter().map(|(repo, count)| (repo, scale(count))).collect();
        PeerCoverage { compared: scale(shared + attributed), shared: scale(shared), lacking }
    }
}

/// Returns the repositories that each event belongs to: by coordinate, by root event, or, for a deletion request without
/// either, by author.
fn repos_of(
    events: &[&ServedEvent],
    repo_index: &RepoSyncIndex,
    is_followed: impl Fn(RepoKey) -> bool,
) -> Vec<BTreeSet<RepoKey>> {
    let mut repos: Vec<BTreeSet<RepoKey>> = events.iter().map(|event| repos_by_coordinate(event, repo_index)).collect();
    let mut referring: BTreeMap<EventId, Vec<usize>> = BTreeMap::new();
    let mut removals = Vec::new();
    for (nth, event) in events.iter().enumerate().filter(|(nth, _)| repos[*nth].is_empty()) {
        event.ids.iter().for_each(|id| referring.entry(*id).or_default().push(nth));
        removals.extend(matches!(event.kind, kinds::DELETION | kinds::VANISH).then_some((nth, event.author)));
    }
    if referring.is_empty() && removals.is_empty() {
        return repos;
    }
    for (key, repo) in repo_index.iter().filter(|(key, _)| is_followed(*key)) {
        for nth in repo.roots.iter().filter_map(|root| referring.get(&root.id)).flatten() {
            repos[*nth].insert(key);
        }
        for (nth, _) in removals.iter().filter(|(_, author)| repo.authors.contains(author)) {
            repos[*nth].insert(key);
        }
    }
    repos
}

/// Returns the repositories that an event names, announces or describes.
fn repos_by_coordinate(event: &ServedEvent, repo_index: &RepoSyncIndex) -> BTreeSet<RepoKey> {
    let named = event.coordinates.iter().chain(&event.coordinate).filter(|at| at.kind == kinds::ANNOUNCEMENT);
    let repo_id = |owner, d: &str| Some(RepoId { owner, identifier: Identifier::new(d)? });
    let mut repos: BTreeSet<RepoKey> = named.filter_map(|at| repo_index.key(&repo_id(at.pubkey, &at.d)?)).collect();
    if event.kind == kinds::STATE
        && let Some(identifier) = event.coordinate.as_ref().and_then(|at| Identifier::new(&at.d))
    {
        let is_maintained = |key: &RepoKey| {
            repo_index
                .repo(*key)
                .is_some_and(|repo| repo.id.owner == event.author || repo.authors.contains(&event.author))
        };
        repos.extend(repo_index.repos_named(&identifier).iter().copied().filter(is_maintained));
    }
    repos
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> EventId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_be_bytes());
        id[24..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        EventId(id)
    }

    fn served(id: EventId) -> ServedEvent {
        let author = crate::nostr::PublicKey([1; 32]);
        ServedEvent { seq: 1, id, kind: 1, author, coordinate: None, ids: vec![], coordinates: vec![] }
    }

    /// Several filters match the same event, and rejected and held events are not served.
    #[test]
    fn each_served_event_counts_once() {
        let mut compared = ComparedEvents::default();
        for number in [1, 2, 1, 2, 3] {
            compared.add_local(id(number));
        }
        for number in [1, 1, 3, 9] {
            compared.add_remote(&id(number));
        }
        let index = RepoSyncIndex::default();
        let result = compared.result(&[served(id(1)), served(id(2))], &index, |_| true);
        assert_eq!((result.compared, result.shared), (1, 1), "event 2 belongs to no repository, 3 is held");
        assert_eq!(compared.ids(), vec![id(1), id(2), id(3)]);
    }

    #[test]
    fn sample_of_many_events_is_bounded_and_scaled() {
        let mut compared = ComparedEvents::default();
        let count = 10 * limits::MAX_COVERAGE_SAMPLE_EVENTS as u64;
        (0..count).for_each(|number| compared.add_local(id(number)));
        (0..count).for_each(|number| compared.add_remote(&id(number)));
        assert!(compared.events.len() <= limits::MAX_COVERAGE_SAMPLE_EVENTS);
        let events: Vec<ServedEvent> = compared.ids().into_iter().map(served).collect();
        let result = compared.result(&events, &RepoSyncIndex::default(), |_| true);
        assert_eq!(result.compared, result.shared);
        assert!(result.compared.abs_diff(count) < count / 10, "{}", result.compared);
    }
}
