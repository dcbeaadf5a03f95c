//! Search for served events that must be removed, in slices: events of banned authors, banned events, and events about
//! banned repositories.
//!
//! The writer runs a [`ModerationScan`] after every start and after every change of the policy, so that a scan that was
//! interrupted by a restart is repeated. An author or a repository without events here costs a few lookups.
//!
//! An event is about a repository if it is linked, directly or through other events, to the repository's coordinate: by
//! such links it was accepted ([`policy`](super::policy), docs/protocol.md#related-events). All events that are linked
//! to each other form a thread. A thread stays if any of its events would be accepted for another reason, because then
//! all of them would be; otherwise it is removed, starting with the event that was found last. So the rest of a partly
//! removed thread is always linked to the coordinate, and is found from there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Admission;
use super::io::{AdmissionInput, EventSummary};
use super::policy::AdmissionPolicy;
use super::policy::lists::ModerationLists;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::kinds::KindClass;
use crate::nostr::{PublicKey, SignedEvent, kinds};
use crate::repo::RepoId;

/// Letters of the tags that reference an event by its id.
const BY_ID: [u8; 3] = *b"eEq";
/// Letters of the tags that reference an event by its coordinate.
const BY_COORDINATE: [u8; 3] = *b"aAq";

/// Read access to the served events, including the changes of the open transaction.
pub trait ServedEvents {
    /// The error of a failed read.
    type Error;

    /// Returns at most `limit` events of an author.
    fn by_author(&self, author: PublicKey, limit: usize) -> Result<Vec<EventSummary>, Self::Error>;

    /// Returns the summary of an event.
    fn summary(&self, id: EventId) -> Result<Option<EventSummary>, Self::Error>;

    /// Returns an event, or `None` if it is not served or not readable.
    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>, Self::Error>;

    /// Returns the event at a coordinate.
    fn at_coordinate(&self, coordinate: &Coordinate) -> Result<Option<EventId>, Self::Error>;

    /// Returns at most `limit` events that have a tag, in a stable order, after skipping `offset` of them.
    fn by_tag(&self, letter: u8, value: &str, offset: usize, limit: usize) -> Result<Vec<EventId>, Self::Error>;
}

/// The progress of a scan for events that must be removed.
#[derive(Debug, Default)]
pub struct ModerationScan {
    authors: Vec<PublicKey>,
    events: Vec<EventId>,
    repo_scan: Option<RepoScan>,
}

impl ModerationScan {
    /// Starts a scan for everything that the lists ban. The repositories are found through
    /// [`Admission::next_repo_to_scan`].
    #[must_use]
    pub fn new(lists: &ModerationLists) -> Self {
        let ModerationLists { banned_events, .. } = lists;
        let (authors, events) =
            (banned_events.authors.iter().copied().collect(), banned_events.events.iter().copied().collect());
        Self { authors, events, repo_scan: None }
    }

    /// Whether nothing is left to scan.
    #[must_use]
    pub fn is_done(&self, admission: &Admission) -> bool {
        self.authors.is_empty() && self.events.is_empty() && admission.next_repo_to_scan(None).is_none()
    }

    /// Returns the next inputs for [`Admission`]. At most `limit` events are removed by them.
    ///
    /// # Errors
    ///
    /// Returns the error of the first failed read.
    pub fn next_inputs<S: ServedEvents>(
        &mut self,
        admission: &Admission,
        served_events: &S,
        limit: usize,
    ) -> Result<Vec<AdmissionInput>, S::Error> {
        let mut inputs = Vec::new();
        for _ in 0..limits::MODERATION_SLICE_ENTRIES {
            let remaining = limit.saturating_sub(inputs.len());
            if remaining == 0 {
                return Ok(inputs);
            }
            // An author is done when it has no events left.
            if let Some(author) = self.authors.last() {
                let events = served_events.by_author(*author, remaining)?;
                if events.len() < remaining {
                    self.authors.pop();
                }
                inputs.extend(events.into_iter().map(AdmissionInput::BannedEvent));
            } else if let Some(id) = self.events.pop() {
                inputs.extend(served_events.summary(id)?.map(AdmissionInput::BannedEvent));
            } else {
                self.scan_repos(admission, served_events, limit, &mut inputs)?;
                break;
            }
        }
        Ok(inputs)
    }

    /// Searches for events about banned repositories.
    fn scan_repos<S: ServedEvents>(
        &mut self,
        admission: &Admission,
        served_events: &S,
        limit: usize,
        inputs: &mut Vec<AdmissionInput>,
    ) -> Result<(), S::Error> {
        let reader = CountingReader {
            served_events,
            policy: admission.policy(),
            rows: Cell::new(0),
            removed: RefCell::default(),
        };
        let mut last: Option<RepoId> = None;
        while let Some(repo) = admission.next_repo_to_scan(last.as_ref()) {
            let repo_scan = match &mut self.repo_scan {
                Some(repo_scan) if repo_scan.repo == *repo => repo_scan,
                other => other.insert(RepoScan::new(repo)),
            };
            while !repo_scan.is_done() {
                let remaining = limit.saturating_sub(inputs.len());
                if remaining == 0 || reader.rows.get() >= limits::THREAD_SLICE_ROWS {
                    return Ok(());
                }
                inputs.extend(repo_scan.step(&reader, remaining)?.into_iter().map(AdmissionInput::BannedEvent));
            }
            last = Some(repo.clone());
            inputs.push(AdmissionInput::BannedRepoScanned(repo.clone()));
        }
        Ok(())
    }
}

/// Reads served events and counts the rows, to bound the work of a slice.
struct CountingReader<'s, S> {
    served_events: &'s S,
    policy: &'s AdmissionPolicy,
    rows: Cell<usize>,
    /// The events that are removed at the end of this slice. They can still be read.
    removed: RefCell<BTreeSet<EventId>>,
}

impl<S: ServedEvents> CountingReader<'_, S> {
    /// Counts rows. Reads without a result and long texts count, too.
    fn count(&self, rows: usize) {
        self.rows.set(self.rows.get().saturating_add(rows));
    }

    /// Ends the slice. The rest is easier to find when the removed events are gone.
    fn end_slice(&self) {
        self.count(limits::THREAD_SLICE_ROWS);
    }

    /// Reads an event.
    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>, S::Error> {
        let event = self.served_events.event(id)?;
        self.count(1 + event.as_ref().map_or(0, |event| event.json().len() / 1_024));
        Ok(event)
    }

    /// Reads the events that have a tag.
    fn by_tag(&self, (letter, value): &Tag, offset: usize, limit: usize) -> Result<Vec<EventId>, S::Error> {
        let found = self.served_events.by_tag(*letter, value, offset, limit)?;
        self.count(1 + found.len() + offset / 8);
        Ok(found)
    }

    /// Returns the served events that an event references, as far as these references count as links.
    fn referenced_by(&self, event: &Event) -> Result<Vec<EventId>, S::Error> {
        let references = event.indexed_tags().filter(|(letter, _)| BY_ID.contains(letter) || b"aA".contains(letter));
        let mut found = Vec::new();
        for (letter, value) in references.take(limits::MAX_EVENT_REFERENCES) {
            self.count(1);
            let by_id = BY_ID.contains(&letter).then(|| EventId::from_hex(value)).flatten();
            let by_coordinate = BY_COORDINATE.contains(&letter).then(|| Coordinate::parse(value)).flatten();
            match (by_id, by_coordinate) {
                (Some(id), _) => found.extend(self.served_events.summary(id)?.map(|served| served.id)),
                (None, Some(coordinate)) => found.extend(self.served_events.at_coordinate(&coordinate)?),
                (None, None) => {}
            }
        }
        Ok(found)
    }
}

/// A tag: its letter and its value.
type Tag = (u8, String);

/// Returns the tags by which other events reference an event.
fn tags_naming(event: &Event) -> Vec<Tag> {
    let mut tags: Vec<Tag> = BY_ID.iter().map(|letter| (*letter, event.id.to_string())).collect();
    if let Some(coordinate) = event.coordinate() {
        let full = coordinate.to_string();
        let short = full.strip_suffix(':').filter(|_| kinds::class(event.kind) == KindClass::Replaceable);
        for text in [Some(full.as_str()), short].into_iter().flatten() {
            tags.extend(BY_COORDINATE.iter().map(|letter| (*letter, text.to_owned())));
        }
    }
    tags
}

/// The search for events about one repository.
#[derive(Debug)]
struct RepoScan {
    repo: RepoId,
    /// The tags that reference the repository. The last one is being scanned.
    tags: Vec<Tag>,
    /// The number of events at the start of the scanned tag's list that stay.
    staying: usize,
    /// Known events that stay.
    kept: BTreeSet<EventId>,
    thread: EventThread,
}

impl RepoScan {
    fn new(repo: &RepoId) -> Self {
        let address =
            |kind| Coordinate { kind, pubkey: repo.owner, d: repo.identifier.as_str().to_owned() }.to_string();
        let addresses = [kinds::STATE, kinds::ANNOUNCEMENT].map(address);
        let tags = addresses.iter().flat_map(|address| BY_COORDINATE.map(|letter| (letter, address.clone())));
        let (repo, tags, kept) = (repo.clone(), tags.collect(), BTreeSet::new());
        Self { repo, tags, staying: 0, kept, thread: EventThread::default() }
    }

    fn is_done(&self) -> bool {
        self.tags.is_empty() && self.thread.found.is_empty()
    }

    /// Does a limited amount of work. Returns events that must be removed.
    fn step<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        limit: usize,
    ) -> Result<Vec<EventSummary>, S::Error> {
        if self.thread.found.is_empty() {
            self.start_thread(reader)?;
        } else if self.thread.is_read() {
            return self.thread.remove_events(reader, limit);
        } else if self.thread.read_more(reader, &self.kept)? {
            if self.kept.len() > limits::MAX_THREAD_EVENTS {
                self.kept.clear();
            }
            self.kept.append(&mut std::mem::take(&mut self.thread).seen);
        }
        Ok(Vec::new())
    }

    /// Starts a thread at the next event that references the repository and is not known to stay.
    fn start_thread<S: ServedEvents>(&mut self, reader: &CountingReader<'_, S>) -> Result<(), S::Error> {
        let Some(tag) = self.tags.last() else { return Ok(()) };
        let removed = reader.removed.borrow();
        let limit = limits::THREAD_PAGE_EVENTS + removed.len();
        let page = reader.by_tag(tag, self.staying, limit)?;
        let next = page.iter().position(|id| !self.kept.contains(id) && !removed.contains(id));
        if let Some(at) = next {
            self.thread = EventThread::new(page[at]);
        } else if page.len() < limit {
            self.tags.pop();
            self.staying = 0;
            return Ok(());
        } else if !removed.is_empty() {
            reader.end_slice();
        }
        // All events before it stay, unless some of them are being removed.
        if removed.is_empty() {
            self.staying += next.unwrap_or(page.len());
        }
        Ok(())
    }
}

/// Events that are linked to each other.
#[derive(Debug, Default)]
struct EventThread {
    /// The events in the order in which they were found. The first references the repository; each other one is linked
    /// to an earlier one.
    found: Vec<EventId>,
    /// These events, and others that were found but do not belong to the thread.
    seen: BTreeSet<EventId>,
    /// Progress: the number of events that have been read; the number of tags that have been read for the next event;
    /// the number of events that have been read for the next tag.
    progress: (usize, usize, usize),
}

impl EventThread {
    fn new(first: EventId) -> Self {
        Self { found: vec![first], seen: BTreeSet::from([first]), progress: (0, 0, 0) }
    }

    fn is_read(&self) -> bool {
        self.progress.0 >= self.found.len()
    }

    /// Reads more events. Returns true if the whole thread stays.
    fn read_more<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        kept: &BTreeSet<EventId>,
    ) -> Result<bool, S::Error> {
        let (nth, ..) = self.progress;
        // Deletion and vanish requests stay, and a reference from one is not a link.
        let is_link = |event: &Arc<SignedEvent>| !matches!(event.kind, kinds::DELETION | kinds::VANISH);
        let Some(event) = reader.event(self.found[nth])?.filter(is_link) else {
            self.found.remove(nth);
            self.progress = (nth, 0, 0);
            return Ok(self.found.is_empty());
        };
        let mut linked = Vec::new();
        if self.progress == (nth, 0, 0) {
            if reader.policy.is_accepted_unlinked(&event) {
                return Ok(true);
            }
            linked = reader.referenced_by(&event)?;
        }
        let tags = tags_naming(&event);
        while let Some(tag) = tags.get(self.progress.1) {
            let page = reader.by_tag(tag, self.progress.2, limits::SCAN_SLICE_ROWS)?;
            let is_full = page.len() == limits::SCAN_SLICE_ROWS;
            linked.extend(page);
            if is_full {
                self.progress.2 += limits::SCAN_SLICE_ROWS;
                break;
            }
            self.progress = (nth, self.progress.1 + 1, 0);
        }
        if self.progress.1 == tags.len() {
            self.progress = (nth + 1, 0, 0);
        }
        for id in linked {
            if kept.contains(&id) {
                return Ok(true);
            }
            if self.seen.insert(id) {
                self.found.push(id);
            }
        }
        Ok(self.seen.len() > limits::MAX_THREAD_EVENTS)
    }

    /// Removes the thread, from its end. Returns the events that must be removed now.
    fn remove_events<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        limit: usize,
    ) -> Result<Vec<EventSummary>, S::Error> {
        let mut summaries = Vec::new();
        let has_budget = |removed: usize| removed < limit && reader.rows.get() < limits::THREAD_SLICE_ROWS;
        while let Some(id) = self.found.last().filter(|_| has_budget(summaries.len())) {
            if let Some(event) = reader.event(*id)? {
                let mut linked = reader.referenced_by(&event)?;
                for tag in tags_naming(&event) {
                    let referencing = reader.by_tag(&tag, 0, limits::THREAD_PAGE_EVENTS)?;
                    if referencing.len() == limits::THREAD_PAGE_EVENTS && !reader.removed.borrow().is_empty() {
                        reader.end_slice();
                        return Ok(summaries);
                    }
                    linked.extend(referencing);
                }
                if !linked.iter().all(|id| self.seen.contains(id)) {
                    // An event was added since the thread was read. The thread is read again, because it may stay now.
                    *self = Self::new(self.found[0]);
                    return Ok(summaries);
                }
                reader.removed.borrow_mut().insert(event.id);
                summaries.push(EventSummary::new(&event));
            }
            self.found.pop();
        }
        Ok(summaries)
    }
}
