//! Generated events of a run.

use anyhow::Result;

use crate::event::{Author, SignedEvent};
use crate::progress::{Progress, in_parallel};
use crate::repository;
use crate::repository::Repository;

/// Number of authors who own repositories and write events.
const AUTHORS: u64 = 64;

/// First random stream of authors: above all streams of repositories.
const AUTHOR_STREAMS: u64 = 1 << 40;

/// The events of a seed, up to a number of events. A smaller corpus is a prefix of a larger one of the same seed.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The seed.
    pub seed: u64,
    /// The repositories. All but the last one are complete.
    pub repositories: Vec<Repository>,
}

impl Corpus {
    /// Generates and signs `events` events, on all cores.
    pub fn generate(seed: u64, events: u64) -> Result<Self> {
        let authors =
            (0..AUTHORS).map(|index| Author::from_seed(seed, AUTHOR_STREAMS + index)).collect::<Result<Vec<_>>>()?;
        let count = events.div_ceil(repository::EVENTS);
        let progress = Progress::start("signing", events);
        let repositories = in_parallel(count, |index| {
            let limit = repository::EVENTS.min(events - index * repository::EVENTS);
            let repository = Repository::generate(seed, index, &authors, limit as usize)?;
            progress.advance(limit);
            Ok(repository)
        })?;
        Ok(Self { seed, repositories })
    }

    /// Iterates over all events, repository by repository.
    pub fn events(&self) -> impl Iterator<Item = &SignedEvent> {
        self.repositories.iter().flat_map(|repository| &repository.events)
    }

    /// Returns the number of events.
    pub fn len(&self) -> u64 {
        self.repositories.iter().map(|repository| repository.events.len() as u64).sum()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.repositories.is_empty()
    }

    /// Splits into the first `events` events, rounded up to whole repositories, and the rest.
    pub fn split(mut self, events: u64) -> (Self, Self) {
        let count = events.div_ceil(repository::EVENTS) as usize;
        let rest = self.repositories.split_off(count.min(self.repositories.len()));
        let rest = Self { seed: self.seed, repositories: rest };
        (self, rest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nostr::event::Event;

    use super::*;
    use crate::repository::{ANNOUNCEMENT, STATE, YEAR, YEAR_START};

    fn corpus(seed: u64, events: u64) -> Corpus {
        Corpus::generate(seed, events).expect("generates")
    }

    fn messages(corpus: &Corpus) -> Vec<&str> {
        corpus.events().map(|event| event.message.as_str()).collect()
    }

    #[test]
    fn same_seed_gives_same_bytes() {
        let (first, again, other) = (corpus(1, 250), corpus(1, 250), corpus(2, 250));
        assert_eq!(first.len(), 250);
        assert_eq!(messages(&first), messages(&again));
        let ids: HashSet<_> = first.events().map(|event| event.id).collect();
        assert_eq!(ids.len(), 250);
        assert!(other.events().all(|event| !ids.contains(&event.id)));
    }

    #[test]
    fn smaller_corpus_is_a_prefix_of_a_larger_one() {
        let (small, large) = (corpus(1, 130), corpus(1, 250));
        assert_eq!(messages(&small)[..], messages(&large)[..130]);
    }

    #[test]
    fn events_are_valid_and_of_realistic_size() {
        let corpus = corpus(1, 100);
        for signed in corpus.events() {
            let event: Event = serde_json::from_str(signed.json()).expect("parses");
            event.verify().expect("id and signature");
            assert_eq!(event.id, signed.id);
            assert!((YEAR_START..YEAR_START + YEAR).contains(&signed.created_at));
        }
        let mean = messages(&corpus).iter().map(|message| message.len()).sum::<usize>() / 100;
        assert!((700..950).contains(&mean), "mean size is {mean}");
    }

    #[test]
    fn events_follow_the_events_they_refer_to() {
        for repository in &corpus(1, 200).repositories {
            let kinds: Vec<u16> = repository.events.iter().map(|event| event.kind).collect();
            assert_eq!(kinds[..2], [ANNOUNCEMENT, STATE]);
            let mut published = HashSet::new();
            for signed in &repository.events {
                let event: Event = serde_json::from_str(signed.json()).expect("parses");
                for tag in event.tags.iter().map(|tag| tag.as_slice()) {
                    if matches!(tag[0].as_str(), "e" | "E") {
                        assert!(published.contains(&tag[1]), "{tag:?} of kind {}", signed.kind);
                    }
                }
                published.insert(signed.id.to_hex());
            }
            assert!(repository.events.is_sorted_by_key(|event| event.created_at));
        }
    }
}
