//! What the sync machine learns from the local store: served events, root events and known ids.

use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{Filter, SignedEvent, kinds};
use grasp_core::repo::RepoId;
use grasp_core::sync::descendants;
use grasp_core::sync::io::{Descendants, LocalIds, RootEvent, Seq, ServedEvent};
use grasp_core::time::Timestamp;

use super::corpus::corpus;
use crate::store_contract::StoreUnderTest;
use crate::test_server::TestServer;

/// Maximum number of descendants of one event that references a repository or a root event. No discussion of the corpus
/// has as many.
pub(super) const DESCENDANT_LIMIT: usize = 500;

/// Returns the parts of a served event that are reported to the sync machine.
pub(super) fn served_event(seq: Seq, event: &SignedEvent) -> ServedEvent {
    let (mut ids, mut coordinates) = (Vec::new(), Vec::new());
    for (letter, value) in event.indexed_tags() {
        if b"eEq".contains(&letter) {
            ids.extend(EventId::from_hex(value));
        }
        if b"aAq".contains(&letter) {
            coordinates.extend(Coordinate::parse(value));
        }
    }
    let coordinate = event.coordinate();
    ServedEvent { seq, id: event.id, kind: event.kind, author: event.pubkey, coordinate, ids, coordinates }
}

/// Returns those of the events that are served.
pub(super) fn served_events(server: &mut TestServer, ids: &[EventId]) -> Vec<ServedEvent> {
    let found = ids.iter().filter_map(|id| {
        let seq = server.store().seq_of(*id)?;
        Some(served_event(seq, corpus().event(corpus().index_of(id)?)))
    });
    found.collect()
}

/// Returns whether events of a kind are root events, to which others reply.
pub(super) fn is_root(kind: u16) -> bool {
    matches!(kind, kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE)
}

/// Returns the root events of a repository in order of arrival.
pub(super) fn root_events(server: &mut TestServer, repo: &RepoId) -> Vec<RootEvent> {
    let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.owner, d: repo.identifier.as_str().to_owned() };
    let kinds = Some(vec![kinds::PATCH, kinds::PULL_REQUEST, kinds::ISSUE]);
    let mut roots = Vec::new();
    for letter in *b"aAq" {
        let filter =
            Filter { kinds: kinds.clone(), tags: vec![(letter, vec![at.to_string()].into())], ..Filter::default() };
        for event in corpus().matching(&filter).iter().map(|index| corpus().event(index)) {
            if let Some(seq) = server.store().seq_of(event.id) {
                roots.push(RootEvent { seq, id: event.id });
            }
        }
    }
    roots.sort_unstable();
    roots.dedup();
    roots
}

/// Returns the descendants of a repository, derived like those of the server.
pub(super) fn descendants(server: &mut TestServer, repo: &RepoId, roots: &[RootEvent]) -> Descendants {
    let collected = descendants::collect(repo, roots, DESCENDANT_LIMIT, |filter| {
        let events = corpus().matching(filter);
        let events = events.iter().map(|index| corpus().event(index));
        let served = events.filter_map(|event| {
            let seq = server.store().seq_of(event.id)?;
            Some((event.created_at, served_event(seq, event)))
        });
        Ok::<_, std::convert::Infallible>(served.collect())
    });
    collected.unwrap_or_default()
}

/// Returns the served and held events that match a filter, for a negentropy exchange. If there are too many, only the
/// newest.
pub(super) fn local_ids(server: &mut TestServer, filter: &Filter) -> LocalIds {
    let events = corpus().matching(filter);
    let events = events.iter().map(|index| corpus().event(index)).filter(|event| server.store().is_known(event.id));
    let mut items: Vec<NegentropyItem> =
        events.map(|event| NegentropyItem { created_at: event.created_at.0, id: event.id.0 }).collect();
    items.sort_unstable();
    let extra = items.len().saturating_sub(limits::MAX_RECONCILIATION_ITEMS);
    let complete_since = (extra > 0).then(|| Timestamp(items[extra].created_at + 1));
    items.drain(..extra);
    LocalIds { items, complete_since }
}
