//! All events of all worlds: signed once per process, numbered from the newest to the oldest, with the indexes that a
//! relay needs.
//!
//! A world uses a few hundred of them. The numbers follow the order in which relays send events, so an [`EventSet`] is
//! both the answer to a request and the meaning of a filter.

use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "see `TagIndex`")]
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use grasp_core::nostr::event::{Coordinate, Event, EventId, supersedes};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds, relay_message};
use grasp_core::sync::io::IncomingMessage;
use grasp_core::sync::relay_url::RelayUrl;

use super::event_set::{CAPACITY, EventSet};
use super::repo_history;
use super::repo_history::{EventRole, MAX_EVENT_BYTES, RepoHistory, SERVICES};
use super::wire::EventCopy;

/// Number of an event. The newest event has number 0.
pub(super) type EventIndex = u16;

/// All events, with indexes.
pub(super) struct Corpus {
    events: Vec<Arc<SignedEvent>>,
    unverified: Vec<Arc<Event>>,
    /// The events as a node parses them, for subscription 0.
    received: Vec<IncomingMessage>,
    /// Events that no node can parse.
    unparsable: EventSet,
    forged: Vec<Arc<Event>>,
    ids: BTreeMap<EventId, EventIndex>,
    by_kind: BTreeMap<u16, EventSet>,
    by_author: BTreeMap<PublicKey, EventSet>,
    by_tag: TagIndex,
    newer_versions: Vec<EventSet>,
    older_versions: Vec<EventSet>,
    deletion_targets: Vec<EventSet>,
    expiring: Vec<(u64, EventIndex)>,
    histories: Vec<RepoHistory>,
    unrelated_events: Vec<EventIndex>,
    relay_references: BTreeMap<String, RelayReference>,
}

/// A relay URL in an announcement.
#[derive(Clone, Debug)]
pub(super) struct RelayReference {
    /// The URL to dial, or `None` if it is invalid.
    pub url: Option<RelayUrl>,
    /// Whether it is an address of the node with this index.
    pub is_own: [bool; SERVICES.len()],
}

static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let (histories, unrelated_events) = repo_history::all();
    Corpus::new(histories, unrelated_events)
});

/// Returns the events of this process.
pub(super) fn corpus() -> &'static Corpus {
    &CORPUS
}

impl Corpus {
    fn new(mut histories: Vec<RepoHistory>, unrelated_events: Vec<Arc<SignedEvent>>) -> Self {
        let mut events: Vec<Arc<SignedEvent>> =
            histories.iter().flat_map(RepoHistory::signed_events).chain(unrelated_events.iter().cloned()).collect();
        events.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id));
        events.dedup_by_key(|event| event.id);
        assert!(events.len() <= CAPACITY, "too many events for a set: {}", events.len());
        let ids: BTreeMap<EventId, EventIndex> =
            events.iter().zip(0..).map(|(event, index)| (event.id, index)).collect();
        for history in &mut histories {
            history.set_indexes(&ids);
        }
        let unrelated_events = unrelated_events.iter().map(|event| ids[&event.id]).collect();
        let with_roles = histories.iter().flat_map(RepoHistory::events);
        let unparsable: EventSet =
            with_roles.filter(|(role, _)| *role == EventRole::Unparsable).map(|(_, index)| *index).collect();
        let received = events.iter().zip(0..).map(|(event, index)| parse(event, unparsable.contains(index))).collect();
        let mut corpus = Self {
            unverified: events.iter().map(|event| Arc::new(event.event().clone())).collect(),
            forged: events.iter().map(|event| Arc::new(Event { sig: [7; 64], ..event.event().clone() })).collect(),
            received,
            unparsable,
            by_kind: BTreeMap::new(),
            by_author: BTreeMap::new(),
            by_tag: TagIndex::default(),
            newer_versions: Vec::new(),
            older_versions: Vec::new(),
            deletion_targets: Vec::new(),
            expiring: Vec::new(),
            relay_references: BTreeMap::new(),
            events,
            ids,
            histories,
            unrelated_events,
        };
        corpus.build_indexes();
        corpus
    }

    fn build_indexes(&mut self) {
        for (event, index) in self.events.iter().zip(0..) {
            self.by_kind.entry(event.kind).or_default().insert(index);
            self.by_author.entry(event.pubkey).or_default().insert(index);
            for (letter, value) in event.indexed_tags() {
                self.by_tag.insert(letter, value, index);
            }
            self.expiring.extend(event.expires_at().map(|at| (at.0, index)));
        }
        self.expiring.sort_unstable();
        let announcements = self.events.iter().filter(|event| event.kind == kinds::ANNOUNCEMENT);
        for text in announcements.flat_map(|event| event.tags.iter().filter(|tag| tag[0] == "relays").flatten()) {
            let is_own = std::array::from_fn(|node| repo_history::service(node).is_own_relay_url(text));
            self.relay_references
                .entry(text.clone())
                .or_insert_with(|| RelayReference { url: RelayUrl::parse(text), is_own });
        }
        let mut versions: BTreeMap<Coordinate, EventSet> = BTreeMap::new();
        for (event, index) in self.events.iter().zip(0..) {
            if let Some(at) = event.coordinate() {
                versions.entry(at).or_default().insert(index);
            }
        }
        for event in &self.events {
            let versions_of_event = event.coordinate().and_then(|at| versions.get(&at)).copied().unwrap_or_default();
            let mut older_versions = EventSet::default();
            for index in versions_of_event
                .iter()
                .filter(|index| supersedes(event.version(), self.events[usize::from(*index)].version()))
            {
                older_versions.insert(index);
            }
            let mut newer_versions = versions_of_event.without(&older_versions);
            newer_versions.remove(self.ids[&event.id]);
            self.newer_versions.push(newer_versions);
            self.older_versions.push(older_versions);
            self.deletion_targets.push(self.find_deletion_targets(event, &versions));
        }
    }

    /// Returns the events that a deletion request deletes, in any store.
    fn find_deletion_targets(&self, event: &Event, versions: &BTreeMap<Coordinate, EventSet>) -> EventSet {
        let mut deletion_targets = EventSet::default();
        if event.kind != kinds::DELETION {
            return deletion_targets;
        }
        let by_id = event.values("e").filter_map(EventId::from_hex).filter_map(|id| self.ids.get(&id)).copied();
        let by_address = event.values("a").filter_map(Coordinate::parse).filter_map(|at| versions.get(&at));
        let older = |index: &EventIndex| self.events[usize::from(*index)].created_at <= event.created_at;
        for index in by_id.chain(by_address.flat_map(EventSet::iter).filter(older)) {
            if self.events[usize::from(index)].pubkey == event.pubkey {
                deletion_targets.insert(index);
            }
        }
        deletion_targets
    }

    /// Returns an event.
    pub(super) fn event(&self, index: EventIndex) -> &Arc<SignedEvent> {
        &self.events[usize::from(index)]
    }

    /// Returns an event as it arrives from a relay.
    pub(super) fn unverified(&self, index: EventIndex) -> &Arc<Event> {
        &self.unverified[usize::from(index)]
    }

    /// Returns an event as a node parses it, for subscription 0.
    pub(super) fn received(&self, index: EventIndex) -> &IncomingMessage {
        &self.received[usize::from(index)]
    }

    /// Returns the events that no node can parse.
    pub(super) fn unparsable(&self) -> &EventSet {
        &self.unparsable
    }

    /// Returns a copy of an event.
    pub(super) fn copy(&self, index: EventIndex, copy: EventCopy) -> &Arc<Event> {
        match copy {
            EventCopy::Real => &self.unverified[usize::from(index)],
            EventCopy::Forged => &self.forged[usize::from(index)],
        }
    }

    /// Returns the number of an event.
    pub(super) fn index_of(&self, id: &EventId) -> Option<EventIndex> {
        self.ids.get(id).copied()
    }

    /// Returns the other versions of an event that supersede it.
    pub(super) fn newer_versions(&self, index: EventIndex) -> &EventSet {
        &self.newer_versions[usize::from(index)]
    }

    /// Returns the other versions of an event that it supersedes.
    pub(super) fn older_versions(&self, index: EventIndex) -> &EventSet {
        &self.older_versions[usize::from(index)]
    }

    /// Returns the events that a deletion request deletes.
    pub(super) fn deletion_targets(&self, index: EventIndex) -> &EventSet {
        &self.deletion_targets[usize::from(index)]
    }

    /// Returns the events with an expiration time, the earliest first.
    pub(super) fn expiring(&self) -> &[(u64, EventIndex)] {
        &self.expiring
    }

    /// Returns the histories of all repositories.
    pub(super) fn histories(&self) -> &[RepoHistory] {
        &self.histories
    }

    /// Returns the events that belong to no hosted repository.
    pub(super) fn unrelated_events(&self) -> &[EventIndex] {
        &self.unrelated_events
    }

    /// Returns a relay URL of an announcement in parsed form. It is parsed only once because that is slow.
    pub(super) fn relay_reference(&self, text: &str) -> Option<&RelayReference> {
        self.relay_references.get(text)
    }

    /// Returns all events of an author.
    pub(super) fn events_by(&self, author: &PublicKey) -> EventSet {
        self.by_author.get(author).copied().unwrap_or_default()
    }

    /// Returns all events that match a filter, in any store, regardless of its limit.
    pub(super) fn matching(&self, filter: &Filter) -> EventSet {
        // The newest is first: events at or before `until` start at `from`, and events at or after `since` end at `to`.
        let from = filter.until.map_or(0, |until| self.events.partition_point(|event| event.created_at > until));
        let to = filter
            .since
            .map_or(self.events.len(), |since| self.events.partition_point(|event| event.created_at >= since));
        let mut found = EventSet::range(from, to);
        if let Some(ids) = &filter.ids {
            found = found.and(&ids.iter().filter_map(|id| self.index_of(id)).collect());
        }
        if let Some(authors) = &filter.authors {
            found = found.and(&union(authors.iter().filter_map(|author| self.by_author.get(author))));
        }
        if let Some(kinds) = &filter.kinds {
            found = found.and(&union(kinds.iter().filter_map(|kind| self.by_kind.get(kind))));
        }
        for (letter, values) in &filter.tags {
            found = found.and(&self.by_tag.events(*letter, values));
        }
        found
    }
}

/// Events by tag letter and value.
///
/// Relays look up hundreds of values for each request, which is most of the work of a world.
#[derive(Default)]
#[expect(clippy::disallowed_types, reason = "a map that is never iterated has no order")]
struct TagIndex(BTreeMap<u8, HashMap<String, Vec<EventIndex>>>);

impl TagIndex {
    fn insert(&mut self, letter: u8, value: &str, index: EventIndex) {
        self.0.entry(letter).or_default().entry(value.to_owned()).or_default().push(index);
    }

    fn events(&self, letter: u8, values: &[String]) -> EventSet {
        let Some(by_value) = self.0.get(&letter) else { return EventSet::default() };
        values.iter().filter_map(|value| by_value.get(value)).flatten().copied().collect()
    }
}

fn union<'a>(sets: impl Iterator<Item = &'a EventSet>) -> EventSet {
    let mut all = EventSet::default();
    sets.for_each(|set| all.extend(set));
    all
}

/// Parses an event as a connection of the real server does. The kind of an unparsable event is out of range.
fn parse(event: &SignedEvent, is_unparsable: bool) -> IncomingMessage {
    let mut text = event.json().to_owned();
    if is_unparsable {
        text = text.replace("\"kind\":", "\"kind\":10000");
    }
    relay_message::parse(&format!("[\"EVENT\",\"g0\",{text}]"), MAX_EVENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::WORLD_START;
    use grasp_core::time::Timestamp;

    #[test]
    fn filters_select_matching_events() {
        let corpus = corpus();
        assert!(corpus.events.len() > 1_800, "{}", corpus.events.len());
        let mut match_count = 0;
        for index in (0..corpus.events.len() as u16).step_by(97) {
            let event = corpus.event(index);
            let tags =
                event.indexed_tags().take(1).map(|(letter, value)| (letter, vec![value.to_owned()].into())).collect();
            for filter in [
                Filter { ids: Some(vec![event.id]), ..Filter::default() },
                Filter { kinds: Some(vec![1, event.kind]), since: Some(event.created_at), ..Filter::default() },
                Filter { authors: Some(vec![event.pubkey]), until: Some(event.created_at), ..Filter::default() },
                Filter { tags, until: Some(Timestamp(WORLD_START)), ..Filter::default() },
            ] {
                let found = corpus.matching(&filter);
                for other in 0..corpus.events.len() as u16 {
                    let matches = filter.matches(corpus.event(other));
                    assert_eq!(
                        found.contains(other),
                        matches,
                        "{} and {}",
                        filter.to_json(),
                        corpus.event(other).json()
                    );
                    match_count += usize::from(matches);
                }
            }
        }
        assert!(match_count > 1_000, "{match_count}");
    }
}
