//! A generated repository: its announcement, its state and its discussion threads.

use anyhow::Result;
pub use grasp_core::nostr::kinds::{ANNOUNCEMENT, ISSUE, PATCH, STATE};

use crate::event::{Author, Draft, SignedEvent};
use crate::random::Random;
use crate::sample_text;

/// Status "open" (NIP-34).
pub const STATUS: u16 = 1630;
/// Comment (NIP-22).
pub const COMMENT: u16 = 1111;

/// Start of the year 2025. All events are dated within this year: a fixed one, because timestamps are part of event ids
/// and a seed must always give the same ids; a past one, because relays reject events from the future.
pub const YEAR_START: u64 = 1_735_689_600;
/// Length of that year in seconds.
pub const YEAR: u64 = 365 * 86_400;

/// Events per repository. All repositories have the same number, so that the cost of a query for one repository does
/// not depend on the size of the store.
pub const EVENTS: u64 = 2 + THREADS * THREAD_EVENTS;
const THREADS: u64 = 14;
/// A root event, comments and a status.
const THREAD_EVENTS: u64 = 2 + COMMENTS;
const COMMENTS: u64 = 5;

const RELAY_HINT: &str = "wss://relay.example.com";

/// A repository and its events, in the order of publication.
#[derive(Debug, Clone)]
pub struct Repository {
    /// `30617:<owner>:<identifier>`, as in `a` and `A` tags.
    pub coordinate: String,
    /// Announcement and state first. Every event follows the events that it refers to.
    pub events: Vec<SignedEvent>,
}

impl Repository {
    /// Generates and signs the first `limit` events of repository number `index`.
    pub fn generate(seed: u64, index: u64, authors: &[Author], limit: usize) -> Result<Self> {
        let mut writer = RepositoryWriter::new(seed, index, authors, limit);
        writer.announce()?;
        for thread in 0..THREADS {
            writer.add_thread(thread)?;
        }
        Ok(Self { coordinate: writer.coordinate, events: writer.events })
    }

    /// Returns the number of events that refer to the repository, and so match a query for its discussion.
    pub fn thread_events(&self) -> usize {
        self.events.iter().filter(|event| !matches!(event.kind, ANNOUNCEMENT | STATE)).count()
    }
}

/// Generates the events of a repository in order.
struct RepositoryWriter<'a> {
    random: Random,
    authors: &'a [Author],
    owner: &'a Author,
    identifier: String,
    coordinate: String,
    started: u64,
    limit: usize,
    events: Vec<SignedEvent>,
}

/// The event that a reply refers to.
struct ParentEvent<'a> {
    id: String,
    kind: u16,
    author: &'a Author,
}

impl<'a> RepositoryWriter<'a> {
    fn new(seed: u64, index: u64, authors: &'a [Author], limit: usize) -> Self {
        let mut random = Random::new(seed, index);
        let owner = random.pick(authors);
        let identifier = format!("tool-{index}");
        Self {
            coordinate: format!("{ANNOUNCEMENT}:{}:{identifier}", owner.public_key),
            started: YEAR_START + random.below(YEAR / 2),
            random,
            authors,
            owner,
            identifier,
            limit,
            events: Vec::with_capacity(limit.min(EVENTS as usize)),
        }
    }

    fn announce(&mut self) -> Result<()> {
        let identifier = self.identifier.clone();
        let clone = format!("https://git.example.com/{}/{identifier}.git", self.owner.public_key);
        let description = sample_text::title(&mut self.random, 24);
        let tags = vec![
            tag(["d", &identifier]),
            tag(["name", &identifier]),
            tag(["description", &description]),
            tag(["clone", &clone]),
            tag(["relays", RELAY_HINT]),
            tag(["web", "https://git.example.com"]),
            tag(["r", &self.random.hex(40), "euc"]),
            tag(["maintainers", &self.random.pick(self.authors).public_key]),
        ];
        self.publish(self.owner, ANNOUNCEMENT, tags, String::new())?;

        let mut tags = vec![tag(["d", &identifier]), tag(["HEAD", "ref: refs/heads/main"])];
        for branch in ["main", "next", "fix/parser", "feature/cache"] {
            tags.push(tag([&format!("refs/heads/{branch}"), &self.random.hex(40)]));
        }
        self.publish(self.owner, STATE, tags, String::new())?;
        Ok(())
    }

    /// Adds a thread: a root event, comments that reply to one another, and a status.
    fn add_thread(&mut self, thread: u64) -> Result<()> {
        let author = self.random.pick(self.authors);
        let (kind, mut tags, content) = if thread % 7 < 4 { self.issue() } else { self.patch() };
        tags.insert(0, tag(["a", &self.coordinate, RELAY_HINT]));
        tags.insert(1, tag(["p", &self.owner.public_key]));
        let Some(id) = self.publish(author, kind, tags, content)? else {
            return Ok(());
        };
        let root = ParentEvent { id, kind, author };

        let mut parent = ParentEvent { id: root.id.clone(), kind, author };
        for _ in 0..COMMENTS {
            let Some(next) = self.comment(&root, &parent)? else {
                return Ok(());
            };
            parent = next;
        }

        let tags = vec![
            tag(["e", &root.id, "", "root"]),
            tag(["a", &self.coordinate, RELAY_HINT]),
            tag(["p", &self.owner.public_key]),
            tag(["p", &root.author.public_key]),
        ];
        let content = sample_text::paragraphs(&mut self.random, 160);
        self.publish(self.owner, STATUS, tags, content)?;
        Ok(())
    }

    fn issue(&mut self) -> (u16, Vec<Vec<String>>, String) {
        let label = *self.random.pick(&["bug", "enhancement", "question"]);
        let tags = vec![tag(["subject", &sample_text::title(&mut self.random, 8)]), tag(["t", label])];
        (ISSUE, tags, sample_text::paragraphs(&mut self.random, 260))
    }

    fn patch(&mut self) -> (u16, Vec<Vec<String>>, String) {
        let (commit, parent) = (self.random.hex(40), self.random.hex(40));
        let subject = sample_text::title(&mut self.random, 5);
        let content = sample_text::patch(&mut self.random, &commit, &subject);
        let tags = vec![tag(["t", "root"]), tag(["commit", &commit]), tag(["parent-commit", &parent])];
        (PATCH, tags, content)
    }

    fn comment(&mut self, root: &ParentEvent<'a>, parent: &ParentEvent<'a>) -> Result<Option<ParentEvent<'a>>> {
        let author = self.random.pick(self.authors);
        let tags = vec![
            tag(["A", &self.coordinate]),
            tag(["E", &root.id, RELAY_HINT]),
            tag(["K", &root.kind.to_string()]),
            tag(["P", &root.author.public_key]),
            tag(["e", &parent.id, RELAY_HINT]),
            tag(["k", &parent.kind.to_string()]),
            tag(["p", &parent.author.public_key]),
        ];
        let content = sample_text::paragraphs(&mut self.random, 60);
        let id = self.publish(author, COMMENT, tags, content)?;
        Ok(id.map(|id| ParentEvent { id, kind: COMMENT, author }))
    }

    /// Signs and stores an event and returns its id, or `None` if the limit is reached. Timestamps increase from event
    /// to event and stay within the year.
    fn publish(
        &mut self,
        author: &Author,
        kind: u16,
        tags: Vec<Vec<String>>,
        content: String,
    ) -> Result<Option<String>> {
        if self.events.len() >= self.limit {
            return Ok(None);
        }
        let step = YEAR / 2 / EVENTS;
        let created_at = self.started + self.events.len() as u64 * step + self.random.below(step);
        let event = author.sign(Draft { kind, created_at, tags, content })?;
        let id = event.id.to_hex();
        self.events.push(event);
        Ok(Some(id))
    }
}

/// Creates a tag from borrowed strings.
pub fn tag<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(String::from).to_vec()
}
