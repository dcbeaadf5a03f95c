//! Differential test: a store and the model get the same random writes and must give the same answers to the same
//! random queries.

use std::sync::Arc;

use grasp_core::admission::io::{EventLookups, NeededLookups, PendingUpload, StoreWrite, Todo, Tombstone};
use grasp_core::nostr::event::{Coordinate, EventId, EventVersion, supersedes};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds};
use grasp_core::repo::{Identifier, PackHash, PackManifest, RefTarget, Refs, RepoId, RepoPath};
use grasp_core::time::Timestamp;

use crate::failure_context::FailureContext;
use crate::random::Rng;
use crate::store_contract::{NO_LIMIT, RestoredSummary, StoreUnderTest, draft_owned, key, restored_summary};
use crate::store_model::ModelStore;

/// Number of filter sets queried after every step.
const QUERIES_PER_STEP: usize = 3;

/// Runs a random history of `steps` steps against a store and the model, compares them after every step, and returns
/// the number of compared filter sets. The store must be empty. A failure names the seed and the step.
pub fn run_differential(seed: u64, steps: usize, store: &mut dyn StoreUnderTest) -> u64 {
    let mut history = History { rng: Rng::new(seed), model: ModelStore::new(), pool: Vec::new(), compared: 0 };
    for step in 0..steps {
        let _context = FailureContext(format!("in the differential test: seed {seed}, step {step} of {steps}"));
        let writes = history.next_writes(store);
        history.write(store, &writes);
        match history.rng.below(24) {
            ending @ 0..=2 => {
                // The abort must bring back everything that was removed for an author.
                if ending == 0 {
                    let author = history.author();
                    let writes = history.vanish(author, Timestamp(TIMES.end));
                    history.write(store, &writes);
                }
                history.model.abort();
                store.abort();
            }
            3 => {
                history.model.restart();
                store.restart();
            }
            4..=14 => {
                history.model.commit();
                store.commit();
            }
            _ => {}
        }
        history.compare(store);
    }
    store.commit();
    history.model.commit();
    history.compare(store);
    history.compared
}

/// A random history and the model after it.
struct History {
    rng: Rng,
    model: ModelStore,
    /// Every generated event, stored or not.
    pool: Vec<Arc<SignedEvent>>,
    compared: u64,
}

const AUTHORS: u8 = 4;
const KINDS: &[u16] = &[
    0, 1, 1, 5, 5, 7, 62, 62, 1_059, 1_111, 1_618, 1_618, 1_619, 1_621, 10_317, 30_023, 30_617, 30_617, 30_618, 30_618,
];
const LETTERS: &[u8] = b"aAeEqptTdx";
const WORDS: &[&str] =
    &["", "x", "X", "xy", "a:b", "say \"hi\"", "back\\slash", "two\nlines\tand tabs", "\u{1}\u{1f}", "é🚀", "\u{7f}/"];
/// A short range, so that ties are frequent.
const TIMES: std::ops::Range<u64> = 100..110;

impl History {
    fn write(&mut self, store: &mut dyn StoreUnderTest, writes: &[StoreWrite]) {
        for write in writes {
            self.model.write(write);
            store.write(write);
        }
    }

    fn compare(&mut self, store: &mut dyn StoreUnderTest) {
        for _ in 0..4 {
            let Some(event) = self.rng.pick(&self.pool).cloned() else { break };
            self.compare_lookups(store, &event);
            let (model, real) = (self.model.event(event.id), store.event(event.id));
            assert_eq!(model, real, "the event {} (left: model)", event.json());
            assert_eq!(self.model.is_known(event.id), store.is_known(event.id), "whether known: {}", event.json());
        }
        for _ in 0..QUERIES_PER_STEP {
            let filters: Vec<Filter> = (0..1 + self.rng.below(3)).map(|_| self.filter()).collect();
            let default_limit = *self.rng.pick(&[1, 3, 20, NO_LIMIT]).expect("not empty");
            let now = self.random_time();
            let description = filters.iter().map(Filter::to_json).collect::<Vec<_>>().join(" ");
            let (model, real) =
                (self.model.query(&filters, default_limit, now), store.query(&filters, default_limit, now));
            assert_eq!(model, real, "query at {now}, default limit {default_limit}: {description} (left: model)");
            assert_eq!(self.model.count(&filters, now), store.count(&filters, now), "count at {now}: {description}");
            self.compared += 1;
        }
        let repo_path = self.repo_path();
        assert_eq!(self.model.packs(&repo_path), store.packs(&repo_path), "the packs of {repo_path} (left: model)");
        assert_eq!(self.model.repo(&repo_path), store.repo(&repo_path), "the repository {repo_path} (left: model)");
        let now = self.random_time();
        assert_eq!(sorted(self.model.due(now)), sorted(store.due(now)), "due at {now} (left: model)");
        assert_eq!(self.model.served(), store.served(), "served, in sequence (left: model)");
        assert_eq!(sorted(self.model.held()), sorted(store.held()), "held (left: model)");
        assert_eq!(restored_summary(&mut self.model), restored_summary(store), "restored at startup (left: model)");
        if self.rng.one_in(2) {
            let (mut model, mut real) = (self.model.removed_pulls(), store.removed_pulls());
            model.sort_unstable();
            real.sort_unstable();
            assert_eq!(model, real, "pull requests removed with their authors (left: model)");
        }
    }

    fn compare_lookups(&mut self, store: &mut dyn StoreUnderTest, event: &SignedEvent) -> EventLookups {
        let needed = NeededLookups {
            links: self.rng.one_in(2),
            author: self.rng.one_in(2),
            targets: event.kind == kinds::DELETION && !self.rng.one_in(4),
        };
        let lookups = self.model.lookups(event, needed);
        assert_eq!(lookups, store.lookups(event, needed), "lookups of {} with {needed:?} (left: model)", event.json());
        lookups
    }

    /// Returns the next writes. As those of the admission machine, they never contradict the store.
    fn next_writes(&mut self, store: &mut dyn StoreUnderTest) -> Vec<StoreWrite> {
        match self.rng.below(24) {
            0 => self.some_served().map(|event| StoreWrite::Remove(event.id)).into_iter().collect(),
            1 => self.some_held().map(|event| StoreWrite::DropHeld(event.id)).into_iter().collect(),
            2 | 3 => self.release(),
            4 | 5 => self.tombstone_writes(),
            6 => {
                let id = self.some_held().map_or(EventId([9; 32]), |event| event.id);
                vec![StoreWrite::ExtendHold(id, Timestamp(500 + self.rng.next_u64() % 5))]
            }
            7 => self.some_announcement().map(|event| StoreWrite::MarkException(event.id)).into_iter().collect(),
            8 => (0..1 + self.rng.below(3)).map(|_| self.todo()).collect(),
            9 => (0..1 + self.rng.below(3)).map(|_| self.repo_write()).collect(),
            10 | 11 => (0..1 + self.rng.below(3)).map(|_| self.stage()).collect(),
            _ => {
                let event = if self.pool.is_empty() || !self.rng.one_in(5) { self.event() } else { self.old_event() };
                let lookups = self.compare_lookups(store, &event);
                self.pool.push(event.clone());
                let wins = lookups.current.is_none_or(|current| supersedes(event.version(), current));
                match (lookups.stored, lookups.tombstone) {
                    (None, None) if wins && self.rng.one_in(4) => {
                        vec![StoreWrite::Hold(event, Timestamp(500 + self.rng.next_u64() % 5))]
                    }
                    (None, None) if wins => vec![StoreWrite::Put(event)],
                    _ => Vec::new(),
                }
            }
        }
    }

    fn release(&mut self) -> Vec<StoreWrite> {
        let Some(event) = self.some_held() else { return Vec::new() };
        let lookups = self.model.lookups(&event, NeededLookups::default());
        let wins = lookups.current.is_none_or(|current| supersedes(event.version(), current));
        vec![if wins && lookups.tombstone.is_none() {
            StoreWrite::Release(event.id)
        } else {
            StoreWrite::DropHeld(event.id)
        }]
    }

    fn tombstone_writes(&mut self) -> Vec<StoreWrite> {
        let event = if self.pool.is_empty() { self.event() } else { self.old_event() };
        let time = Timestamp(TIMES.start + self.rng.next_u64() % 12);
        let author = if self.rng.one_in(3) { self.author() } else { event.pubkey };
        let tombstone = match (self.rng.below(8), event.coordinate()) {
            (0..=2, _) => Tombstone::Event(author, event.id),
            (3 | 4, Some(at)) => Tombstone::Coordinate(at, time),
            (5 | 6, Some(at)) if RepoId::from_coordinate(&at).is_some() => {
                let repo = RepoId::from_coordinate(&at).expect("checked by the guard");
                Tombstone::Withdrawn(repo, EventVersion { created_at: time, id: event.id })
            }
            // Rare and mostly early, or the store would soon be empty.
            (7, _) if self.rng.one_in(2) => {
                let up_to = Timestamp(TIMES.start + self.rng.next_u64() % 6);
                return self.vanish(author, up_to);
            }
            _ => return Vec::new(),
        };
        vec![StoreWrite::AddTombstone(tombstone)]
    }

    fn vanish(&self, author: PublicKey, up_to: Timestamp) -> Vec<StoreWrite> {
        let held = self.model.held_events().filter(|held| held.pubkey == author && held.created_at <= up_to);
        let unhold = held.map(|held| StoreWrite::DropHeld(held.id));
        unhold.chain([StoreWrite::AddTombstone(Tombstone::Author(author, up_to))]).collect()
    }

    /// Adds or removes a todo row, mostly a stored one.
    fn todo(&mut self) -> StoreWrite {
        let stored = restored_summary(&mut self.model).into_iter().filter_map(|item| match item {
            RestoredSummary::Todo(todo) => Some(todo),
            _ => None,
        });
        let stored: Vec<Todo> = stored.collect();
        let pull = if self.rng.one_in(2) { None } else { Some(self.upload_id()) };
        let any = Todo { repo_path: self.repo_path(), pull_request: pull };
        if self.rng.one_in(2) {
            return StoreWrite::AddTodo(any);
        }
        StoreWrite::RemoveTodo(if self.rng.one_in(4) { any } else { self.rng.pick(&stored).unwrap_or(&any).clone() })
    }

    fn repo_write(&mut self) -> StoreWrite {
        let existing: Vec<RepoPath> = self.model.repos().map(|(repo_path, _)| repo_path.clone()).collect();
        let repo_path = if self.rng.one_in(2) { None } else { self.rng.pick(&existing).cloned() };
        let repo_path = repo_path.unwrap_or_else(|| self.repo_path());
        match self.rng.below(7) {
            6 => {
                let packs =
                    (0..self.rng.below(3)).map(|_| (PackHash([self.rng.below(4) as u8; 20]), self.rng.next_u64()));
                StoreWrite::SetPacks(repo_path, Arc::new(PackManifest(packs.collect())))
            }
            0 => StoreWrite::RemoveRefs(repo_path),
            1 => StoreWrite::SetDegraded(repo_path, None),
            2 => StoreWrite::SetDegraded(repo_path, Some("a pack is missing".to_owned())),
            count => {
                let mut refs = Refs::default();
                for nth in 3..count {
                    let oid = |rng: &mut Rng| format!("{:040x}", rng.next_u64());
                    let peeled = self.rng.one_in(2).then(|| oid(&mut self.rng));
                    refs.set(&format!("refs/tags/v{nth}"), RefTarget { oid: oid(&mut self.rng), peeled });
                }
                if self.rng.one_in(2) {
                    refs.set_head("refs/heads/🚀");
                }
                StoreWrite::SetRefs(repo_path, Arc::new(refs))
            }
        }
    }

    fn stage(&mut self) -> StoreWrite {
        let (repo_path, event) = (self.repo_path(), self.upload_id());
        if self.rng.one_in(3) {
            return StoreWrite::RemoveUpload(repo_path, event);
        }
        let network = if self.rng.one_in(3) { None } else { Some(WORDS[self.rng.below(WORDS.len())].to_owned()) };
        StoreWrite::AddUpload(PendingUpload {
            repo_path,
            event,
            tip: format!("{:040x}", self.rng.next_u64()),
            folder: self.rng.next_u64(),
            bytes: self.rng.next_u64(),
            network,
            deadline: Timestamp(500 + self.rng.next_u64() % 5),
        })
    }

    /// Few different values, so that rows collide.
    fn repo_path(&mut self) -> RepoPath {
        let name = ["x", "X", "é🚀"][self.rng.below(3)];
        let owner = key(1 + self.rng.below(2) as u8);
        let repo = RepoId { owner, identifier: Identifier::new(name).expect("valid identifier") };
        if self.rng.one_in(2) { RepoPath::Announced(repo) } else { RepoPath::PullRequests(repo) }
    }

    fn upload_id(&mut self) -> EventId {
        EventId([1 + self.rng.below(2) as u8; 32])
    }

    fn some_announcement(&mut self) -> Option<Arc<SignedEvent>> {
        let is_announcement = |event: &&Arc<SignedEvent>| event.kind == kinds::ANNOUNCEMENT;
        let announcements: Vec<_> = self.model.served_events().filter(is_announcement).cloned().collect();
        self.rng.pick(&announcements).cloned()
    }

    fn some_served(&mut self) -> Option<Arc<SignedEvent>> {
        let served: Vec<_> = self.model.served_events().cloned().collect();
        self.rng.pick(&served).cloned()
    }

    fn some_held(&mut self) -> Option<Arc<SignedEvent>> {
        let held: Vec<_> = self.model.held_events().cloned().collect();
        self.rng.pick(&held).cloned()
    }

    fn old_event(&mut self) -> Arc<SignedEvent> {
        self.rng.pick(&self.pool).expect("not empty").clone()
    }

    fn author(&mut self) -> PublicKey {
        key(1 + self.rng.below(usize::from(AUTHORS)) as u8)
    }

    fn random_time(&mut self) -> Timestamp {
        Timestamp(TIMES.start + self.rng.next_u64() % 30)
    }

    fn event(&mut self) -> Arc<SignedEvent> {
        let kind = *self.rng.pick(KINDS).expect("not empty");
        let created_at = TIMES.start + self.rng.next_u64() % (TIMES.end - TIMES.start);
        let author = 1 + self.rng.below(usize::from(AUTHORS)) as u8;
        let mut tags = if kind == kinds::DELETION { self.targets(key(author)) } else { Vec::new() };
        if kinds::class(kind) == kinds::KindClass::Addressable && !self.rng.one_in(10) {
            // Few different values, so that versions collide.
            let names = &["x", "X", "a:b"];
            let d = if self.rng.one_in(3) { self.word() } else { names[self.rng.below(3)].to_owned() };
            tags.push(vec!["d".to_owned(), d]);
        }
        if kinds::is_pull_request(kind) {
            tags.extend(self.pull_request_tags());
        }
        for _ in 0..self.rng.below(5) {
            let letter = *self.rng.pick(LETTERS).expect("not empty");
            let mut tag = vec![char::from(letter).to_string(), self.value(letter)];
            if self.rng.one_in(4) {
                tag.push(self.word());
            }
            if self.rng.one_in(10) {
                tag.truncate(1);
            }
            tags.push(tag);
        }
        if self.rng.one_in(5) {
            let at = if self.rng.one_in(6) { self.word() } else { (105 + self.rng.next_u64() % 25).to_string() };
            tags.push(vec!["expiration".to_owned(), at]);
        }
        if self.rng.one_in(6) {
            tags.push(vec!["subject".to_owned(), self.word()]);
        }
        // The number distinguishes events that are otherwise equal.
        let content = format!("{} {}", self.word(), self.rng.next_u64() % 1_000_000);
        draft_owned(author, kind, created_at, tags, content)
    }

    /// Returns the tags of a pull request: mostly one commit, for a few repositories.
    fn pull_request_tags(&mut self) -> Vec<Vec<String>> {
        let mut tags = Vec::new();
        for _ in 0..self.rng.below(3) {
            let commit = if self.rng.one_in(6) { self.word() } else { format!("{:040x}", self.rng.next_u64()) };
            tags.push(vec!["c".to_owned(), commit]);
        }
        for _ in 0..self.rng.below(4) {
            let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: self.author(), d: self.word() };
            tags.push(vec!["a".to_owned(), at.to_string()]);
        }
        tags
    }

    /// Returns the tags of a deletion request for existing events, mostly of its own author.
    fn targets(&mut self, author: PublicKey) -> Vec<Vec<String>> {
        let own: Vec<_> = self.pool.iter().filter(|event| event.pubkey == author || event.kind == 1).cloned().collect();
        let mut tags = Vec::new();
        for _ in 0..self.rng.below(5) {
            let Some(event) = self.rng.pick(&own).cloned() else { break };
            tags.push(match event.coordinate() {
                Some(at) if self.rng.one_in(2) => vec!["a".to_owned(), at.to_string()],
                _ => vec!["e".to_owned(), event.id.to_string()],
            });
        }
        tags
    }

    fn word(&mut self) -> String {
        match self.rng.below(30) {
            // Longer than the maximum key length of LMDB, and different only at the end.
            0 => format!("{}{}", "long ".repeat(120), self.rng.below(2)),
            _ => (*self.rng.pick(WORDS).expect("not empty")).to_owned(),
        }
    }

    /// Returns a value that fits a tag letter, mostly of an existing event.
    fn value(&mut self, letter: u8) -> String {
        match letter {
            b'e' | b'E' | b'q' if !self.pool.is_empty() && !self.rng.one_in(4) => self.old_event().id.to_string(),
            b'a' | b'A' | b'q' if !self.pool.is_empty() && !self.rng.one_in(4) => {
                let event = self.old_event();
                let mut text = event.coordinate().map_or_else(|| event.id.to_string(), |at| at.to_string());
                if self.rng.one_in(6) && text.ends_with(':') {
                    text.pop();
                }
                text
            }
            b'a' | b'A' => Coordinate { kind: 30_617, pubkey: self.author(), d: self.word() }.to_string(),
            b'p' if !self.rng.one_in(4) => self.author().to_string(),
            _ => self.word(),
        }
    }

    fn filter(&mut self) -> Filter {
        let mut filter = Filter::default();
        if self.rng.one_in(8) {
            let ids = (0..self.rng.below(4)).map(|_| self.pool_id()).collect();
            filter.ids = Some(sorted(ids));
        }
        if self.rng.one_in(3) {
            filter.authors = Some(sorted((0..self.small_count()).map(|_| self.author()).collect()));
        }
        if self.rng.one_in(3) {
            let kinds = (0..self.small_count()).map(|_| *self.rng.pick(KINDS).expect("not empty")).collect();
            filter.kinds = Some(sorted(kinds));
        }
        while self.rng.one_in(3) {
            let letter = *self.rng.pick(LETTERS).expect("not empty");
            let values = (0..self.small_count()).map(|_| self.value(letter)).collect();
            filter.tags.retain(|(other, _)| *other != letter);
            filter.tags.push((letter, sorted(values).into()));
        }
        filter.tags.sort();
        if self.rng.one_in(4) {
            filter.since = Some(Timestamp(TIMES.start + self.rng.next_u64() % 10));
        }
        if self.rng.one_in(4) {
            filter.until = Some(Timestamp(TIMES.start + self.rng.next_u64() % 10));
        }
        if self.rng.one_in(2) {
            filter.limit = Some(self.rng.below(12));
        }
        filter
    }

    /// Returns mostly one to three, sometimes zero: an empty list matches nothing.
    fn small_count(&mut self) -> usize {
        if self.rng.one_in(20) { 0 } else { 1 + self.rng.below(3) }
    }

    fn pool_id(&mut self) -> EventId {
        if self.pool.is_empty() || self.rng.one_in(5) { EventId([9; 32]) } else { self.old_event().id }
    }
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}
