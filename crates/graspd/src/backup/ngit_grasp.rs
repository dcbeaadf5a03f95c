//! Import of the data of ngit-grasp: events in its database, and repositories as bare git folders.
//!
//! Nothing is written to its data folder. For each repository name, announcements and states are imported first, and
//! then its branches are pushed to the running server like any other push, so events and git data are served together,
//! and nothing is accepted that the events do not allow. Pull requests follow in the same way, because they need a
//! served repository, and then all other events. A working folder keeps the sorted events and the progress, so an
//! interrupted import can be continued.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{Event, PublicKey, SignedEvent, Verifier, kinds};
use grasp_core::repo::catalog::{Catalog, EventStatus};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Announcement, Identifier, RepoId};
use grasp_core::time::Timestamp;
use grasp_git::layout::identifier_file_name;
use grasp_store::read_nostr_lmdb;
use serde::Serialize;

use super::tree::ignore_missing;
use super::{ProgressFn, tree};

/// Maximum number of open files while events are sorted.
const MAX_OPEN: usize = 64;

/// The data folders of ngit-grasp.
#[derive(Clone, Debug)]
pub(crate) struct NgitGraspData {
    events: PathBuf,
    git: PathBuf,
}

/// A repository of ngit-grasp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NgitGraspRepo {
    pub(crate) repo: RepoId,
    pub(crate) folder: PathBuf,
}

/// What the data contains, and what would be rejected.
#[derive(Default, Serialize)]
pub(crate) struct NgitGraspSurvey {
    pub(crate) kinds: BTreeMap<u16, u64>,
    pub(crate) events: u64,
    /// Events that would certainly be rejected, by reason.
    #[serde(rename = "would_be_rejected")]
    pub(crate) rejected: BTreeMap<String, u64>,
    pub(crate) repositories: u64,
    #[serde(rename = "repository_bytes")]
    pub(crate) bytes: u64,
    /// Repositories without an announcement that lists this service.
    #[serde(rename = "repositories_without_announcement")]
    pub(crate) unlisted: Vec<String>,
}

impl NgitGraspData {
    /// Finds the folders in a data folder, or uses the given ones.
    pub(crate) fn open(data: &Path, relay: Option<&Path>, git: Option<&Path>) -> Result<Self> {
        let relays = [relay.map(Path::to_owned), Some(data.join("relay")), Some(data.to_owned())];
        let found = relays.into_iter().flatten().find(|folder| folder.join("data.mdb").is_file());
        let events = found.with_context(|| {
            format!("{} has no relay/data.mdb: is it the data folder of ngit-grasp? See --relay-of", data.display())
        })?;
        if events.join("events").join("data.mdb").exists() {
            bail!("{} is a data folder of graspd; see `graspd restore`", events.display());
        }
        let gits = [git.map(Path::to_owned), Some(data.join("git")), Some(data.join("repos"))];
        let git = gits.into_iter().flatten().find(|folder| folder.is_dir()).with_context(|| {
            format!("{} has no folder git: is it the data folder of ngit-grasp? See --git-of", data.display())
        })?;
        Ok(Self { events, git })
    }

    /// Returns when the events were last modified. If that changes while they are read, ngit-grasp is running.
    pub(crate) fn modified_at(&self) -> Result<SystemTime> {
        Ok(fs::metadata(self.events.join("data.mdb"))?.modified()?)
    }

    /// Returns a fingerprint of the event database and its current content.
    fn fingerprint(&self) -> Result<String> {
        let file = self.events.join("data.mdb");
        let about = fs::metadata(&file)?;
        let at = about.modified()?.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Ok(format!("{}\n{} bytes\n{at}\n", file.canonicalize()?.display(), about.len()))
    }

    /// Passes every readable event with a valid signature to `on_event`; returns the number of the others by reason.
    fn for_each_event(&self, mut on_event: impl FnMut(SignedEvent) -> Result<()>) -> Result<BTreeMap<String, u64>> {
        let mut verifier = Verifier::default();
        let mut invalid_events: BTreeMap<String, u64> = BTreeMap::new();
        let mut result = Ok(());
        read_nostr_lmdb(&self.events, |event| {
            let event = event.map_err(|_| "unreadable".to_owned());
            match event.and_then(|event| verifier.verify(event).map_err(|_| "forged".to_owned())) {
                Ok(event) if result.is_ok() => result = on_event(event),
                Ok(_) => {}
                Err(why) => *invalid_events.entry(why).or_default() += 1,
            }
        })
        .with_context(|| format!("cannot read the events in {}", self.events.display()))?;
        result.map(|()| invalid_events)
    }

    /// Returns the repositories: `<npub>/<identifier>.git`.
    pub(crate) fn repositories(&self) -> Result<Vec<NgitGraspRepo>> {
        let mut found = Vec::new();
        for owner in fs::read_dir(&self.git)? {
            let owner = owner?;
            let name = owner.file_name();
            let Some(npub) = name.to_str().filter(|name| PublicKey::from_npub(name).is_some()) else { continue };
            for folder in fs::read_dir(owner.path())? {
                let folder = folder?;
                let Some(repo) = folder.file_name().to_str().and_then(|name| RepoId::from_segments(npub, name)) else {
                    continue;
                };
                if folder.path().join("HEAD").exists() {
                    found.push(NgitGraspRepo { repo, folder: folder.path() });
                }
            }
        }
        found.sort_by(|one, other| one.repo.cmp(&other.repo));
        Ok(found)
    }

    /// Counts what the data contains, without changing anything.
    pub(crate) fn survey(
        &self,
        policy: &AdmissionPolicy,
        now: Timestamp,
        on_progress: &mut ProgressFn<'_>,
    ) -> Result<NgitGraspSurvey> {
        let mut survey = NgitGraspSurvey::default();
        let mut catalog = Catalog::default();
        let mut states: Vec<(PublicKey, Identifier)> = Vec::new();
        let count_rejection = |survey: &mut NgitGraspSurvey, why: String| *survey.rejected.entry(why).or_default() += 1;
        let invalid_events = self.for_each_event(|event| {
            survey.events += 1;
            *survey.kinds.entry(event.kind).or_default() += 1;
            if let Some(why) = policy.precheck(&event, event.json().len(), now) {
                count_rejection(&mut survey, why.label().to_owned());
            } else if event.is_protected() {
                count_rejection(&mut survey, "protected".to_owned());
            } else if event.kind == kinds::ANNOUNCEMENT {
                if let Some(announcement) = Announcement::from_event(&event, &policy.service) {
                    catalog.put_announcement(EventStatus::Served, announcement);
                }
            } else if event.kind == kinds::STATE {
                states.extend(event.tag("d").and_then(Identifier::new).map(|name| (event.pubkey, name)));
            }
            if survey.events.is_multiple_of(1_000) {
                on_progress("reading events", survey.events, None)
            } else {
                Ok(())
            }
        })?;
        for (why, count) in invalid_events {
            *survey.rejected.entry(why).or_default() += count;
        }
        let strict = policy.strict_maintainers;
        for (repo, slots) in catalog.repositories() {
            let listed = slots.newest().is_some_and(|best| best.is_listed);
            let invited = || catalog.group(&repo.identifier)?.invitation(repo.owner, strict);
            if !listed && invited().is_none() {
                count_rejection(&mut survey, "not_listed".to_owned());
            }
        }
        for (author, name) in states {
            let hosts = catalog.group(&name).map(|group| group.maintained_by(author, strict).count());
            match hosts {
                None => count_rejection(&mut survey, "no_announcement".to_owned()),
                Some(0) => count_rejection(&mut survey, "not_maintainer".to_owned()),
                Some(_) => {}
            }
        }
        for repository in self.repositories()? {
            survey.repositories += 1;
            survey.bytes += dir_bytes(&repository.folder)?;
            let group = catalog.group(&repository.repo.identifier);
            if !group.is_some_and(|group| group.is_hosted(repository.repo.owner)) {
                survey.unlisted.push(repository.repo.to_string());
            }
            on_progress("measuring repositories", survey.repositories, None)?;
        }
        Ok(survey)
    }
}

/// File that contains the fingerprint of the sorted events.
const SOURCE_FILE: &str = "source";

/// The working folder, with the sorted events and the progress.
pub(crate) struct MigrationDir {
    folder: PathBuf,
    done: BTreeSet<String>,
}

impl MigrationDir {
    /// Opens the working folder. If it is new, all events are read and sorted into one file per name and one for all
    /// others.
    pub(crate) fn open(folder: &Path, source: &NgitGraspData, on_progress: &mut ProgressFn<'_>) -> Result<Self> {
        let sorted = folder.join("sorted");
        let fingerprint = source.fingerprint()?;
        if sorted.exists() && fs::read_to_string(sorted.join(SOURCE_FILE)).ok().as_deref() != Some(fingerprint.as_str())
        {
            // The events are those of another database, or have changed since.
            fs::remove_dir_all(&sorted)?;
            ignore_missing(fs::remove_file(folder.join("done")))?;
        }
        if !sorted.exists() {
            let draft = folder.join("sorting");
            ignore_missing(fs::remove_dir_all(&draft))?;
            fs::create_dir_all(draft.join("names")).with_context(|| format!("cannot use {}", folder.display()))?;
            sort(source, &draft, on_progress)?;
            fs::write(draft.join(SOURCE_FILE), &fingerprint)?;
            tree::sync(&draft)?;
            fs::rename(&draft, &sorted)?;
        }
        let done = match fs::read_to_string(folder.join("done")) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(problem) if problem.kind() == ErrorKind::NotFound => BTreeSet::new(),
            Err(problem) => return Err(problem.into()),
        };
        Ok(Self { folder: folder.to_owned(), done })
    }

    /// Returns the names that have events, as they occur in file names.
    pub(crate) fn names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(self.folder.join("sorted/names"))? {
            let file = entry?.file_name();
            // Other files are checkpoints.
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".jsonl")) else { continue };
            names.insert(name.strip_suffix(".pulls").unwrap_or(name).to_owned());
        }
        Ok(names)
    }

    /// Returns the file with the announcements and states of a name, if there are any.
    pub(crate) fn events(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(format!("sorted/names/{name}.jsonl"))).filter(|path| path.exists())
    }

    /// Returns the file with the pull requests of a name, if there are any.
    pub(crate) fn pull_requests(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(format!("sorted/names/{name}.pulls.jsonl"))).filter(|path| path.exists())
    }

    /// Returns the file with all other events.
    pub(crate) fn other_events(&self) -> PathBuf {
        self.folder.join("sorted/rest.jsonl")
    }

    /// Returns whether a step was done by an earlier run.
    pub(crate) fn is_done(&self, what: &str) -> bool {
        self.done.contains(what)
    }

    /// Records that a step is done. If the record is lost, the step is repeated, which changes nothing.
    pub(crate) fn mark_done(&mut self, what: &str) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join("done"))?;
        writeln!(file, "{what}")?;
        self.done.insert(what.to_owned());
        Ok(())
    }
}

/// Sorts all events: announcements, states and pull requests by name; then issues and patches, all others, and
/// deletions last.
fn sort(source: &NgitGraspData, into: &Path, on_progress: &mut ProgressFn<'_>) -> Result<()> {
    let mut rest = BufWriter::new(File::create(into.join("rest.jsonl"))?);
    for rank in 0..6 {
        let mut open: BTreeMap<String, BufWriter<File>> = BTreeMap::new();
        let mut seen = 0;
        source.for_each_event(|event| {
            seen += 1;
            if seen % 1_000 == 0 {
                on_progress("sorting events", seen, None)?;
            }
            if import_order(event.kind) != rank {
                return Ok(());
            }
            let Some(name) = events_file_name(&event) else { return Ok(writeln!(rest, "{}", event.json())?) };
            if open.len() >= MAX_OPEN && !open.contains_key(&name) {
                for (_, mut file) in std::mem::take(&mut open) {
                    file.flush()?;
                }
            }
            if !open.contains_key(&name) {
                let path = into.join("names").join(format!("{name}.jsonl"));
                open.insert(name.clone(), BufWriter::new(OpenOptions::new().create(true).append(true).open(path)?));
            }
            if let Some(file) = open.get_mut(&name) {
                writeln!(file, "{}", event.json())?;
            }
            Ok(())
        })?;
        for (_, mut file) in open {
            file.flush()?;
        }
    }
    Ok(rest.flush()?)
}

fn import_order(kind: u16) -> u8 {
    match kind {
        kinds::ANNOUNCEMENT => 0,
        kinds::STATE => 1,
        kind if kinds::is_pull_request(kind) => 2,
        kinds::PATCH | kinds::ISSUE => 3,
        kinds::DELETION | kinds::VANISH => 5,
        _ => 4,
    }
}

/// Returns the base name of the file of an event that needs git data.
fn events_file_name(event: &Event) -> Option<String> {
    let identifier = match event.kind {
        kinds::ANNOUNCEMENT | kinds::STATE => Identifier::new(event.tag("d")?)?,
        _ => {
            let request = PullRequest::from_any_event(event)?;
            return Some(format!("{}.pulls", identifier_file_name(&request.targets.first()?.identifier)));
        }
    };
    Some(identifier_file_name(&identifier))
}

/// Returns the size of all files below a folder.
fn dir_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}
