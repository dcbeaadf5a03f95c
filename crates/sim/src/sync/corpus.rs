//! All events of all worlds: signed once per process, numbered newest first, with everything that a relay looks up.
//!
//! A world uses a few hundred of them. Because numbers follow the order in which relays answer, a set of numbers
//! ([`Bits`]) is an answer, and a filter is a set.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use grasp_core::nostr::event::{Coordinate, Event, EventId, supersedes};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds};
use grasp_core::sync::relay_url::RelayUrl;

use super::event_set::{Bits, MOST};
use super::repo_history;
use super::repo_history::{SERVICES, Tale};

/// The wall time at which every world begins.
pub const EPOCH: u64 = 1_700_000_000;

/// The number of an event: the newest is the first.
pub type Ix = u16;

/// All events.
pub struct Corpus {
    events: Vec<Arc<SignedEvent>>,
    plain: Vec<Arc<Event>>,
    forged: Vec<Arc<Event>>,
    ids: BTreeMap<EventId, Ix>,
    by_kind: BTreeMap<u16, Bits>,
    by_author: BTreeMap<PublicKey, Bits>,
    /// By letter and value.
    by_tag: BTreeMap<u8, BTreeMap<String, Bits>>,
    rivals: Vec<Bits>,
    losers: Vec<Bits>,
    victims: Vec<Bits>,
    expiring: Vec<(u64, Ix)>,
    tales: Vec<Tale>,
    strays: Vec<Ix>,
    urls: BTreeMap<String, Named>,
}

/// A relay as an announcement names it.
#[derive(Clone, Debug)]
pub struct Named {
    /// What is dialled for it; nothing if that cannot be.
    pub url: Option<RelayUrl>,
    /// Whether it means the node of that number.
    pub own: [bool; SERVICES.len()],
}

static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let (tales, strays) = repo_history::all();
    Corpus::new(tales, strays)
});

/// The events of this process.
#[must_use]
pub fn corpus() -> &'static Corpus {
    &CORPUS
}

impl Corpus {
    fn new(mut tales: Vec<Tale>, strays: Vec<Arc<SignedEvent>>) -> Self {
        let mut events: Vec<Arc<SignedEvent>> =
            tales.iter().flat_map(Tale::events).chain(strays.iter().cloned()).collect();
        events.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id));
        events.dedup_by_key(|event| event.id);
        assert!(events.len() <= MOST, "too many events for a set: {}", events.len());
        let ids: BTreeMap<EventId, Ix> = events.iter().zip(0..).map(|(event, ix)| (event.id, ix)).collect();
        for tale in &mut tales {
            tale.number(&ids);
        }
        let strays = strays.iter().map(|event| ids[&event.id]).collect();
        let mut corpus = Self {
            plain: events.iter().map(|event| Arc::new(event.event().clone())).collect(),
            forged: events.iter().map(|event| Arc::new(Event { sig: [7; 64], ..event.event().clone() })).collect(),
            by_kind: BTreeMap::new(),
            by_author: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            rivals: Vec::new(),
            losers: Vec::new(),
            victims: Vec::new(),
            expiring: Vec::new(),
            urls: BTreeMap::new(),
            events,
            ids,
            tales,
            strays,
        };
        corpus.index();
        corpus
    }

    fn index(&mut self) {
        for (event, ix) in self.events.iter().zip(0..) {
            self.by_kind.entry(event.kind).or_default().insert(ix);
            self.by_author.entry(event.pubkey).or_default().insert(ix);
            for (letter, value) in event.indexed_tags() {
                let values = self.by_tag.entry(letter).or_default();
                values.entry(value.to_owned()).or_default().insert(ix);
            }
            self.expiring.extend(event.expires_at().map(|at| (at.0, ix)));
        }
        self.expiring.sort_unstable();
        let named = self.events.iter().filter(|event| event.kind == kinds::ANNOUNCEMENT);
        for text in named.flat_map(|event| event.tags.iter().filter(|tag| tag[0] == "relays").flatten()) {
            let own = std::array::from_fn(|node| repo_history::service(node).is_own_relay_url(text));
            self.urls.entry(text.clone()).or_insert_with(|| Named { url: RelayUrl::parse(text), own });
        }
        let mut versions: BTreeMap<Coordinate, Bits> = BTreeMap::new();
        for (event, ix) in self.events.iter().zip(0..) {
            if let Some(at) = event.coordinate() {
                versions.entry(at).or_default().insert(ix);
            }
        }
        for event in &self.events {
            let all = event.coordinate().and_then(|at| versions.get(&at)).copied().unwrap_or_default();
            let mut losers = Bits::default();
            for ix in all.iter().filter(|ix| supersedes(event.version(), self.events[usize::from(*ix)].version())) {
                losers.insert(ix);
            }
            let mut rivals = all.without(&losers);
            rivals.remove(self.ids[&event.id]);
            self.rivals.push(rivals);
            self.losers.push(losers);
            self.victims.push(self.victims_of(event, &versions));
        }
    }

    /// What a deletion request takes away, wherever it is.
    fn victims_of(&self, event: &Event, versions: &BTreeMap<Coordinate, Bits>) -> Bits {
        let mut victims = Bits::default();
        if event.kind != kinds::DELETION {
            return victims;
        }
        let by_id = event.values("e").filter_map(EventId::from_hex).filter_map(|id| self.ids.get(&id)).copied();
        let by_address = event.values("a").filter_map(Coordinate::parse).filter_map(|at| versions.get(&at));
        let older = |ix: &Ix| self.events[usize::from(*ix)].created_at <= event.created_at;
        for ix in by_id.chain(by_address.flat_map(Bits::iter).filter(older)) {
            if self.events[usize::from(ix)].pubkey == event.pubkey {
                victims.insert(ix);
            }
        }
        victims
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// An event.
    #[must_use]
    pub fn event(&self, ix: Ix) -> &Arc<SignedEvent> {
        &self.events[usize::from(ix)]
    }

    /// An event as it comes over a wire.
    #[must_use]
    pub fn plain(&self, ix: Ix) -> &Arc<Event> {
        &self.plain[usize::from(ix)]
    }

    /// The same event with a wrong signature.
    #[must_use]
    pub fn forged(&self, ix: Ix) -> &Arc<Event> {
        &self.forged[usize::from(ix)]
    }

    /// The number of an event.
    #[must_use]
    pub fn ix(&self, id: &EventId) -> Option<Ix> {
        self.ids.get(id).copied()
    }

    /// The other versions of an event that win against it.
    #[must_use]
    pub fn rivals(&self, ix: Ix) -> &Bits {
        &self.rivals[usize::from(ix)]
    }

    /// The other versions of an event that lose against it.
    #[must_use]
    pub fn losers(&self, ix: Ix) -> &Bits {
        &self.losers[usize::from(ix)]
    }

    /// What a deletion request takes away.
    #[must_use]
    pub fn victims(&self, ix: Ix) -> &Bits {
        &self.victims[usize::from(ix)]
    }

    /// When events ask to be forgotten, the soonest first.
    #[must_use]
    pub fn expiring(&self) -> &[(u64, Ix)] {
        &self.expiring
    }

    /// The repositories and all that belongs to them.
    #[must_use]
    pub fn tales(&self) -> &[Tale] {
        &self.tales
    }

    /// Events that belong to nothing.
    #[must_use]
    pub fn strays(&self) -> &[Ix] {
        &self.strays
    }

    /// What a relay's name in an announcement means: reading URLs takes long.
    #[must_use]
    pub fn named(&self, text: &str) -> Option<&Named> {
        self.urls.get(text)
    }

    /// All events of an author.
    #[must_use]
    pub fn by(&self, author: &PublicKey) -> Bits {
        self.by_author.get(author).copied().unwrap_or_default()
    }

    /// All events that fulfil a filter, whoever has them. Its limit is another matter.
    #[must_use]
    pub fn matching(&self, filter: &Filter) -> Bits {
        // Newest first: what is not after `until` comes later in the order, what is not before `since` sooner.
        let from = filter.until.map_or(0, |until| self.events.partition_point(|event| event.created_at > until));
        let to = filter
            .since
            .map_or(self.events.len(), |since| self.events.partition_point(|event| event.created_at >= since));
        let mut found = Bits::range(from, to);
        if let Some(ids) = &filter.ids {
            found = found.and(&ids.iter().filter_map(|id| self.ix(id)).collect());
        }
        if let Some(authors) = &filter.authors {
            found = found.and(&union(authors.iter().filter_map(|author| self.by_author.get(author))));
        }
        if let Some(kinds) = &filter.kinds {
            found = found.and(&union(kinds.iter().filter_map(|kind| self.by_kind.get(kind))));
        }
        for (letter, values) in &filter.tags {
            let known = self.by_tag.get(letter);
            found = found.and(&union(values.iter().filter_map(|value| known?.get(value))));
        }
        found
    }
}

fn union<'a>(sets: impl Iterator<Item = &'a Bits>) -> Bits {
    let mut all = Bits::default();
    sets.for_each(|set| all.extend(set));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::time::Timestamp;

    #[test]
    fn a_set_has_what_a_filter_matches() {
        let corpus = corpus();
        assert!(corpus.len() > 1_800, "{}", corpus.len());
        let mut tried = 0;
        for ix in (0..corpus.len() as u16).step_by(97) {
            let event = corpus.event(ix);
            let tags = event.indexed_tags().take(1).map(|(letter, value)| (letter, vec![value.to_owned()])).collect();
            for filter in [
                Filter { ids: Some(vec![event.id]), ..Filter::default() },
                Filter { kinds: Some(vec![1, event.kind]), since: Some(event.created_at), ..Filter::default() },
                Filter { authors: Some(vec![event.pubkey]), until: Some(event.created_at), ..Filter::default() },
                Filter { tags, until: Some(Timestamp(EPOCH)), ..Filter::default() },
            ] {
                let found = corpus.matching(&filter);
                for other in 0..corpus.len() as u16 {
                    let matches = filter.matches(corpus.event(other));
                    assert_eq!(
                        found.contains(other),
                        matches,
                        "{} and {}",
                        filter.to_json(),
                        corpus.event(other).json()
                    );
                    tried += usize::from(matches);
                }
            }
        }
        assert!(tried > 1_000, "{tried}");
    }
}
