//! The events to sync: repositories, issues, and a comment on each. Signed once and kept in a file.

use std::fs;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::nips::nip19::ToBech32;

use crate::event::{Author, Draft, SignedEvent};
use crate::progress::{Progress, in_parallel};
use crate::random::Random;
use crate::repository::{ANNOUNCEMENT, COMMENT, ISSUE, STATE, YEAR, YEAR_START, tag};
use crate::sample_text;

/// First random stream of owners' keys, which no other corpus uses.
const OWNER_STREAMS: u64 = 1 << 42;

/// First random stream of writers' keys.
const WRITER_STREAMS: u64 = 1 << 43;

/// Number of authors who write issues and comments.
const WRITER_COUNT: u64 = 64;

/// First line of the file. Events in another format are signed again.
const FORMAT: &str = "sync corpus 2";

/// Size of the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CorpusSize {
    /// Seed of keys and content.
    pub(super) seed: u64,
    /// Number of repositories.
    pub(super) repositories: u64,
    /// Issues per repository, each with one comment.
    pub(super) roots: u64,
}

impl CorpusSize {
    /// Returns the number of all events, including announcements and states.
    pub(super) fn events(self) -> u64 {
        self.repositories * (2 + 2 * self.roots)
    }
}

/// A repository.
#[derive(Debug, Clone)]
pub(super) struct Project {
    /// Its owner.
    pub(super) owner: Author,
    /// The owner's npub, as in git paths.
    pub(super) npub: String,
    /// Its identifier.
    pub(super) identifier: String,
    /// Timestamp of its announcement. Unique, because more announcements with the same timestamp than a page holds
    /// could not be paged.
    pub(super) announced_at: u64,
}

impl Project {
    fn new(seed: u64, index: u64) -> Result<Self> {
        let owner = Author::from_seed(seed, OWNER_STREAMS + index)?;
        let npub = PublicKey::from_hex(&owner.public_key)?.to_bech32()?;
        Ok(Self { owner, npub, identifier: format!("tool-{index}"), announced_at: YEAR_START + index })
    }

    /// Returns `30617:…`, as in tags.
    pub(super) fn coordinate(&self) -> String {
        format!("{ANNOUNCEMENT}:{}:{}", self.owner.public_key, self.identifier)
    }

    /// Signs an announcement with these servers as clone URLs and relays.
    pub(super) fn announcement(&self, clones: &[&str], relays: &[&str]) -> Result<SignedEvent> {
        let words = |name: &str, words: Vec<String>| [vec![name.to_owned()], words].concat();
        let path = |place: &&str| format!("http://{place}/{}/{}.git", self.npub, self.identifier);
        let tags = vec![
            tag(["d", &self.identifier]),
            tag(["name", &self.identifier]),
            words("clone", clones.iter().map(path).collect()),
            words("relays", relays.iter().map(|place| format!("ws://{place}")).collect()),
        ];
        self.owner.sign(Draft { kind: ANNOUNCEMENT, created_at: self.announced_at, tags, content: String::new() })
    }
}

/// The signed events.
#[derive(Debug)]
pub(super) struct SyncCorpus {
    /// Size of the corpus.
    pub(super) size: CorpusSize,
    /// The repositories.
    pub(super) projects: Vec<Project>,
    /// The state of each repository.
    pub(super) states: Vec<SignedEvent>,
    /// Issues and comments of each repository, alternating.
    pub(super) discussions: Vec<Vec<SignedEvent>>,
}

impl SyncCorpus {
    /// Reads the events from a file in `folder`, or signs them and writes the file. In every state, the main branch is
    /// at `commit`.
    pub(super) fn load_or_sign(folder: &Path, size: CorpusSize, commit: &str) -> Result<Self> {
        let CorpusSize { seed, repositories, roots } = size;
        let path = folder.join(format!("events-{seed}-{repositories}x{roots}"));
        let heading = format!("{FORMAT} {commit}");
        let projects = (0..repositories).map(|index| Project::new(seed, index)).collect::<Result<Vec<_>>>()?;
        let events = match read(&path, &heading)? {
            Some(events) => events,
            None => {
                let events = sign(size, &projects, commit)?;
                write(&path, &heading, &events)?;
                events
            }
        };
        if events.len() as u64 != repositories * (1 + 2 * roots) {
            bail!("{} is damaged; remove it", path.display());
        }
        let mut states = Vec::with_capacity(projects.len());
        let mut discussions = Vec::with_capacity(projects.len());
        let mut events = events.into_iter();
        for _ in 0..repositories {
            states.extend(events.next());
            discussions.push(events.by_ref().take(2 * roots as usize).collect());
        }
        Ok(Self { size, projects, states, discussions })
    }

    /// Returns the bytes of one list of all tag values in filters: three tag names for repositories, three for root
    /// events.
    pub(super) fn filter_bytes(&self) -> u64 {
        let coordinates: usize = self.projects.iter().map(|project| project.coordinate().len() + 3).sum();
        3 * (coordinates as u64 + self.size.repositories * self.size.roots * 67)
    }
}

/// Signs a comment on an event.
pub(super) fn comment(
    project: &Project,
    root: &SignedEvent,
    author: &Author,
    draft: (u64, String),
) -> Result<SignedEvent> {
    let (created_at, content) = draft;
    let (id, kind) = (root.id.to_hex(), root.kind.to_string());
    let tags = vec![
        tag(["A", &project.coordinate()]),
        tag(["E", &id]),
        tag(["K", &kind]),
        tag(["P", &project.owner.public_key]),
        tag(["e", &id]),
        tag(["k", &kind]),
        tag(["p", &project.owner.public_key]),
    ];
    author.sign(Draft { kind: COMMENT, created_at, tags, content })
}

/// Returns author number `index` of issues and comments.
pub(super) fn writer(seed: u64, index: u64) -> Result<Author> {
    Author::from_seed(seed, WRITER_STREAMS + index)
}

fn sign(size: CorpusSize, projects: &[Project], commit: &str) -> Result<Vec<SignedEvent>> {
    let writers = (0..WRITER_COUNT).map(|index| writer(size.seed, index)).collect::<Result<Vec<_>>>()?;
    let progress = Progress::start("signing", size.events());
    let events = in_parallel(size.repositories, |index| {
        let events = sign_repository(size, index, &projects[index as usize], (&writers, commit))?;
        progress.advance(events.len() as u64);
        Ok(events)
    })?;
    Ok(events.concat())
}

fn sign_repository(
    size: CorpusSize,
    index: u64,
    project: &Project,
    (writers, commit): (&[Author], &str),
) -> Result<Vec<SignedEvent>> {
    let mut random = Random::new(size.seed, OWNER_STREAMS + index);
    let tags =
        vec![tag(["d", &project.identifier]), tag(["HEAD", "ref: refs/heads/main"]), tag(["refs/heads/main", commit])];
    let state = Draft { kind: STATE, created_at: project.announced_at, tags, content: String::new() };
    let mut events = vec![project.owner.sign(state)?];
    for _ in 0..size.roots {
        let created_at = YEAR_START + random.below(YEAR - 3_600);
        let tags = vec![
            tag(["a", &project.coordinate()]),
            tag(["p", &project.owner.public_key]),
            tag(["subject", &sample_text::title(&mut random, 8)]),
        ];
        let content = sample_text::paragraphs(&mut random, 260);
        let root = random.pick(writers).sign(Draft { kind: ISSUE, created_at, tags, content })?;
        let draft = (created_at + 1 + random.below(3_599), sample_text::paragraphs(&mut random, 60));
        let answer = comment(project, &root, random.pick(writers), draft)?;
        events.extend([root, answer]);
    }
    Ok(events)
}

/// Reads the file. Returns `None` if it does not exist or has another heading.
fn read(path: &Path, heading: &str) -> Result<Option<Vec<SignedEvent>>> {
    let Ok(file) = File::open(path) else { return Ok(None) };
    let mut lines = BufReader::new(file).lines();
    if lines.next().transpose()?.as_deref() != Some(heading) {
        return Ok(None);
    }
    let damaged = || format!("{} is damaged; remove it", path.display());
    let mut events = Vec::new();
    for line in lines {
        let line = line?;
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().with_context(damaged);
        let (id, kind, created_at) = (EventId::from_hex(word()?)?, word()?.parse()?, word()?.parse()?);
        events.push(SignedEvent { id, kind, created_at, message: word()?.into() });
    }
    Ok(Some(events))
}

fn write(path: &Path, heading: &str, events: &[SignedEvent]) -> Result<()> {
    // An interrupted run leaves no incomplete file.
    let draft = path.with_extension("draft");
    let mut to = BufWriter::new(File::create(&draft).with_context(|| format!("cannot create {}", draft.display()))?);
    writeln!(to, "{heading}")?;
    for SignedEvent { id, kind, created_at, message } in events {
        writeln!(to, "{} {kind} {created_at} {message}", id.to_hex())?;
    }
    to.flush()?;
    Ok(fs::rename(draft, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_events_are_read_from_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let size = CorpusSize { seed: 1, repositories: 3, roots: 2 };
        let messages = |commit: &str| {
            let corpus = SyncCorpus::load_or_sign(folder.path(), size, commit).expect("signs or reads");
            assert_eq!((corpus.states.len(), corpus.discussions.len()), (3, 3));
            let discussions =
                corpus.discussions.iter().flatten().inspect(|event| assert!(matches!(event.kind, ISSUE | COMMENT)));
            corpus.states.iter().chain(discussions).map(|event| event.message.to_string()).collect::<Vec<_>>()
        };
        let (first, again, other) = (messages("aa"), messages("aa"), messages("bb"));
        assert_eq!(first.len(), 15);
        assert_eq!(first, again);
        assert_ne!(first[..3], other[..3], "states name another commit");
        assert_eq!(first[3..], other[3..]);
    }
}
