//! Imported events that are deferred: they belong to a repository or pull request that is held until its git data
//! arrives, or there was no space for them in purgatory.
//!
//! They are kept in a file in the relay's data folder. When events have left purgatory, those in the file are submitted
//! again. An event stays in the file as long as it is related to a held event, directly or through other events in the
//! file. After that its outcome is known: it was accepted, or nothing that it belongs to was.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::kinds;
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_git::crash_point;
use grasp_store::Store;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};
use tokio::task::block_in_place;
use tokio::time::Instant;
use tracing::{info, warn};

use super::AdminState;
use super::import::may_be_accepted_later;
use crate::writer::queue::EventQueue;
use crate::writer::submission::QueuedEvent;

/// Interval at which the number of held events is read, which costs one lookup.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Time after which the deferred events are submitted again even if the number of held events is the same as before.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// The pause after a pass is at least this multiple of its duration, so that many deferred events do not slow the server
/// down.
const PAUSE_FACTOR: u32 = 20;

/// Events that are submitted at once.
const CHUNK_EVENTS: usize = 256;

/// Name of the file in the relay's data folder.
pub(crate) const FILE_NAME: &str = "deferred-events.jsonl";

/// Extensions of unfinished versions of the file: with all candidates, and with those that are kept.
const UNFINISHED: [&str; 2] = ["partial", "kept"];

/// Deferred events of imports.
pub(crate) struct DeferredEvents {
    path: PathBuf,
    /// Held while the file is replaced.
    lock: Mutex<()>,
    count: AtomicU64,
}

impl DeferredEvents {
    /// Reads how many events are deferred. `folder` is the relay's data folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let deferred = Self { path, lock: Mutex::default(), count: AtomicU64::new(0) };
        deferred.remove_unfinished();
        let count = deferred.events()?.try_fold(0, |count, event| event.map(|_| count + 1));
        let count = count.with_context(|| format!("cannot read {}", deferred.path.display()))?;
        deferred.count.store(count, Ordering::Relaxed);
        Ok(deferred)
    }

    fn remove_unfinished(&self) {
        for extension in UNFINISHED {
            let _ = fs::remove_file(self.path.with_extension(extension));
        }
    }

    /// Opens the file for a backup; `None` if no events are deferred. `folder` is the relay's data folder.
    pub(crate) fn open_file(folder: &Path) -> io::Result<Option<File>> {
        match File::open(folder.join(FILE_NAME)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of deferred events.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Iterates over the events in the file. After an error the iterator must not be used.
    fn events(&self) -> Result<impl Iterator<Item = io::Result<DeferredEvent>> + use<>> {
        let folder = self.path.parent().unwrap_or(&self.path);
        let file = Self::open_file(folder).with_context(|| format!("cannot read {}", self.path.display()))?;
        let lines = file.into_iter().flat_map(|file| BufReader::new(file).lines());
        Ok(lines.filter_map(|line| line.map(|line| DeferredEvent::from_line(&line)).transpose()))
    }

    /// Begins to write a new file, which replaces the old one at the end. Until then no event is submitted by
    /// [`run`].
    pub(super) async fn begin(&self, store: &Store) -> Result<DeferredFile<'_>> {
        let guard = self.lock.lock().await;
        let path = self.path.with_extension(UNFINISHED[0]);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(DeferredFile {
            deferred: self,
            _guard: guard,
            path,
            file: BufWriter::new(file),
            bytes: 0,
            excess: 0,
            candidates: Vec::new(),
            numbers: HashMap::new(),
            held: block_in_place(|| held_keys(store))?,
        })
    }
}

/// An event in the file.
pub(super) struct DeferredEvent {
    pub(super) text: String,
    /// Whether the event counts as sent by its author.
    pub(super) is_from_author: bool,
}

impl DeferredEvent {
    fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let is_from_author = value["is_from_author"].as_bool()?;
        Some(Self { text: value["event"].as_str()?.to_owned(), is_from_author })
    }

    fn to_line(&self) -> String {
        format!("{}\n", json!({ "event": self.text, "is_from_author": self.is_from_author }))
    }
}

/// The file that replaces the current one, with events that may be deferred.
pub(super) struct DeferredFile<'d> {
    deferred: &'d DeferredEvents,
    _guard: MutexGuard<'d, ()>,
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    /// Number of events beyond [`limits::MAX_DEFERRED_EVENT_BYTES`].
    excess: u64,
    candidates: Vec<Candidate>,
    /// Positions of the candidates, by id.
    numbers: HashMap<EventId, usize>,
    /// Keys of the events that were held at the beginning. One of them may be served after an event that belongs to it
    /// was rejected.
    held: HashSet<u64>,
}

/// What is known about an event in the new file.
struct Candidate {
    /// Why it was rejected; `None` if it was not submitted.
    reason: Option<&'static str>,
    /// Whether it is kept even if it is related to no held event: it waits for space in purgatory, or it was not submitted.
    is_kept: bool,
    keys: Vec<u64>,
}

impl DeferredFile<'_> {
    /// Takes over the events of the current file. They are not submitted now.
    pub(super) fn add_current(&mut self) -> Result<()> {
        for event in self.deferred.events()? {
            self.write(&event?, None)?;
        }
        Ok(())
    }

    /// Adds an event that was rejected. It is kept if it turns out to be related to a held one.
    pub(super) fn add(&mut self, event: &DeferredEvent, why: &Rejection) -> Result<()> {
        self.write(event, Some(why))
    }

    fn write(&mut self, event: &DeferredEvent, why: Option<&Rejection>) -> Result<()> {
        let Ok(parsed) = Event::parse(&event.text) else { return Ok(()) };
        if let Some(nth) = self.numbers.get(&parsed.id) {
            // An earlier import has the same event.
            self.candidates[*nth].reason = why.map(Rejection::label);
            return Ok(());
        }
        let line = event.to_line();
        if self.bytes + line.len() as u64 > limits::MAX_DEFERRED_EVENT_BYTES {
            self.excess += 1;
            return Ok(());
        }
        self.numbers.insert(parsed.id, self.candidates.len());
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.candidates.push(Candidate {
            reason: why.map(Rejection::label),
            is_kept: why.is_none_or(is_lack_of_space),
            keys: keys_of(&parsed),
        });
        Ok(())
    }

    /// Replaces the current file by the events that are related to a held event. Returns the number of those that were
    /// rejected now and are deferred, by reason.
    pub(super) fn finish(mut self, store: &Store) -> Result<BTreeMap<String, u64>> {
        let held = std::mem::take(&mut self.held).into_iter().chain(held_keys(store)?);
        let is_related = related(&self.candidates, held);
        self.file.flush()?;
        let (count, reasons) =
            self.replace(&is_related).with_context(|| format!("cannot write {}", self.deferred.path.display()))?;
        self.deferred.count.store(count, Ordering::Relaxed);
        if self.excess > 0 {
            let (events, bytes) = (self.excess, limits::MAX_DEFERRED_EVENT_BYTES);
            warn!(target: "admin", events, bytes, "too many imported events wait for others, some are not kept");
        }
        Ok(reasons)
    }

    /// Writes the related events and renames the new file.
    fn replace(&self, is_related: &[bool]) -> io::Result<(u64, BTreeMap<String, u64>)> {
        let current = &self.deferred.path;
        let kept_path = current.with_extension(UNFINISHED[1]);
        let mut kept = BufWriter::new(File::create(&kept_path)?);
        let mut reasons = BTreeMap::new();
        let mut count = 0;
        let lines = BufReader::new(File::open(&self.path)?).lines();
        for ((line, candidate), _) in lines.zip(&self.candidates).zip(is_related).filter(|(_, related)| **related) {
            writeln!(kept, "{}", line?)?;
            count += 1;
            if let Some(reason) = candidate.reason {
                *reasons.entry(reason.to_owned()).or_default() += 1;
            }
        }
        kept.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        crash_point::point("deferred_events.written");
        if count > 0 {
            fs::rename(&kept_path, current)?;
        } else if current.exists() {
            fs::remove_file(current)?;
        }
        if let Some(folder) = current.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok((count, reasons))
    }
}

impl Drop for DeferredFile<'_> {
    fn drop(&mut self) {
        self.deferred.remove_unfinished();
    }
}

/// Returns for each candidate whether it is related to one of the held keys, directly or through other candidates, or is
/// kept in any case.
fn related(candidates: &[Candidate], held: impl Iterator<Item = u64>) -> Vec<bool> {
    let numbered = candidates.iter().enumerate();
    let mut by_key: Vec<(u64, usize)> =
        numbered.flat_map(|(nth, candidate)| candidate.keys.iter().map(move |key| (*key, nth))).collect();
    by_key.sort_unstable();
    let kept = candidates.iter().filter(|candidate| candidate.is_kept);
    let mut keys: Vec<u64> = held.chain(kept.flat_map(|candidate| candidate.keys.clone())).collect();
    let mut followed = HashSet::new();
    let mut is_related: Vec<bool> = vec![false; candidates.len()];
    while let Some(key) = keys.pop() {
        if !followed.insert(key) {
            continue;
        }
        let first = by_key.partition_point(|(other, _)| *other < key);
        for (_, nth) in by_key[first..].iter().take_while(|(other, _)| *other == key) {
            if !std::mem::replace(&mut is_related[*nth], true) {
                keys.extend(&candidates[*nth].keys);
            }
        }
    }
    is_related
}

/// Returns the keys of all held events.
fn held_keys(store: &Store) -> Result<HashSet<u64>> {
    let mut keys = HashSet::new();
    store.snapshot()?.for_each_held(|record| {
        if let Ok(event) = record.event() {
            keys.extend(keys_of(&event));
        }
    })?;
    Ok(keys)
}

/// Returns hashes of everything by which an event is related to others: its id and coordinate, what it refers to, and the
/// identifier of an announcement or state.
fn keys_of(event: &Event) -> Vec<u64> {
    let key = |kind: &str, text: &str| {
        let mut hasher = DefaultHasher::new();
        (kind, text).hash(&mut hasher);
        hasher.finish()
    };
    let references = event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter));
    let references = references.map(|(_, value)| key("event", value));
    let mut keys: Vec<u64> = references.take(limits::MAX_EVENT_REFERENCES).collect();
    keys.push(key("event", &event.id.to_string()));
    keys.extend(event.coordinate().map(|coordinate| key("event", &coordinate.to_string())));
    if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
        keys.extend(event.tag("d").map(|identifier| key("identifier", identifier)));
    }
    keys
}

/// Whether an event was rejected only because there was no space for it in purgatory.
fn is_lack_of_space(why: &Rejection) -> bool {
    matches!(
        why,
        Rejection::TooManyHeld
            | Rejection::TooManyHeldFromNetwork
            | Rejection::PurgatoryFull
            | Rejection::TooManyEarlyRequests
    )
}

/// Submits the deferred events again whenever events have left purgatory.
pub(crate) async fn run(admin: Arc<AdminState>, mut shutdown: watch::Receiver<bool>) {
    let (mut held_before, mut last_pass, mut pause) = (None, Instant::now(), Duration::ZERO);
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            _ = shutdown.changed() => return,
        }
        admin.status.metrics.server().set_deferred_events(admin.deferred.count());
        let elapsed = last_pass.elapsed();
        let held = admin.store.held_count().ok();
        let is_due = held != held_before || elapsed >= RETRY_INTERVAL;
        if admin.deferred.count() == 0 || !is_due || elapsed < pause {
            continue;
        }
        (held_before, last_pass) = (held, Instant::now());
        if let Err(error) = run_pass(&admin).await {
            warn!(target: "admin", error = format!("{error:#}"), "cannot import deferred events");
        }
        pause = last_pass.elapsed() * PAUSE_FACTOR;
        last_pass = Instant::now();
    }
}

/// Submits all deferred events, again and again while some are accepted. Those that are still related to a held event
/// stay.
async fn run_pass(admin: &AdminState) -> Result<()> {
    let before = admin.deferred.count();
    let mut accepted = 0;
    loop {
        let mut file = admin.deferred.begin(&admin.store).await?;
        let progress = submit_all(admin, &mut file).await?;
        block_in_place(|| file.finish(&admin.store))?;
        accepted += progress;
        if progress == 0 || admin.deferred.count() == 0 {
            break;
        }
    }
    let deferred = admin.deferred.count();
    if deferred != before {
        let rejected = before.saturating_sub(deferred + accepted);
        info!(target: "admin", accepted, rejected, deferred, "imported deferred events");
    }
    Ok(())
}

/// Submits all events of the current file once, and adds those that may be accepted later to the new one. Returns the
/// number of those that were accepted.
async fn submit_all(admin: &AdminState, file: &mut DeferredFile<'_>) -> Result<u64> {
    let mut accepted = 0;
    let mut events = admin.deferred.events()?;
    loop {
        let chunk: Vec<DeferredEvent> = events.by_ref().take(CHUNK_EVENTS).collect::<io::Result<_>>()?;
        if chunk.is_empty() {
            return Ok(accepted);
        }
        let decisions = submit(&admin.event_queue, &chunk).await?;
        for (event, decision) in chunk.iter().zip(decisions) {
            match decision {
                Decision::Reject(why) if may_be_accepted_later(&why) => file.add(event, &why)?,
                Decision::Remember => file.add(event, &Rejection::Unrelated)?,
                // Nothing was decided.
                Decision::Reject(why @ (Rejection::DiskFull | Rejection::StoreFailed)) => {
                    anyhow::bail!("{why}");
                }
                Decision::Reject(_) => {}
                Decision::Accept | Decision::Hold(_) | Decision::Known(_) | Decision::Broadcast => accepted += 1,
            }
        }
    }
}

/// Submits events and returns the decisions about them.
async fn submit(queue: &EventQueue, events: &[DeferredEvent]) -> Result<Vec<Decision>> {
    let (sender, mut results) = mpsc::unbounded_channel();
    for (number, event) in events.iter().enumerate() {
        let permit = queue.reserve(event.text.len()).await.context("the server is stopping")?;
        let reply = (number as u64, sender.clone());
        queue.push(QueuedEvent::from_operator(event.text.clone(), reply, event.is_from_author, permit));
    }
    drop(sender);
    let mut decisions = BTreeMap::new();
    while let Some((number, decision)) = results.recv().await {
        decisions.insert(number, decision);
    }
    anyhow::ensure!(decisions.len() == events.len(), "the server is stopping");
    Ok(decisions.into_values().collect())
}
