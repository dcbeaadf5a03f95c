//! What has no place here any more, looked up in slices: whatever is served of unwanted authors, unwanted events, and what
//! is about banned repositories.
//!
//! It begins anew at every start and with every change of the rules, so that what a process leaves undone the next one
//! does. An author or a repository that has nothing here costs a lookup or a few.
//!
//! What is about a repository hangs on its address, or on something that does, by references in either direction: that is
//! how it was taken in ([`related`](super::policy)). All that hangs together is a thread. It stays if any part of it would
//! be taken in for another reason, because then all of it would; otherwise it goes, last found first. So whatever is left
//! of it at any time still hangs on the address, and is found from there.

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

/// Letters of tags that name an event by its id, and by its coordinate.
const BY_ID: [u8; 3] = *b"eEq";
const BY_COORDINATE: [u8; 3] = *b"aAq";

/// What a sweep reads: the served events, as the open batch leaves them.
pub trait ServedEvents {
    /// What can go wrong.
    type Error;

    /// Events of an author, at most so many.
    fn by_author(&self, author: PublicKey, most: usize) -> Result<Vec<EventSummary>, Self::Error>;

    /// An event in short.
    fn summary(&self, id: EventId) -> Result<Option<EventSummary>, Self::Error>;

    /// An event; nothing also if it cannot be read.
    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>, Self::Error>;

    /// The event at a coordinate.
    fn at_coordinate(&self, coordinate: &Coordinate) -> Result<Option<EventId>, Self::Error>;

    /// Events that have a tag, always in the same order, at most so many behind so many others.
    fn by_tag(&self, letter: u8, value: &str, behind: usize, most: usize) -> Result<Vec<EventId>, Self::Error>;
}

/// What is left to look up.
#[derive(Debug, Default)]
pub struct ModerationScan {
    authors: Vec<PublicKey>,
    events: Vec<EventId>,
    repo_scan: Option<RepoScan>,
}

impl ModerationScan {
    /// Everybody and everything that is unwanted. The registrar knows which repositories are.
    #[must_use]
    pub fn new(lists: &ModerationLists) -> Self {
        let ModerationLists { banned_events, .. } = lists;
        let (authors, events) =
            (banned_events.authors.iter().copied().collect(), banned_events.events.iter().copied().collect());
        Self { authors, events, repo_scan: None }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_done(&self, admission: &Admission) -> bool {
        self.authors.is_empty() && self.events.is_empty() && admission.next_repo_to_scan(None).is_none()
    }

    /// What the registrar is to be told next. At most so many events go.
    pub fn next_inputs<S: ServedEvents>(
        &mut self,
        admission: &Admission,
        served_events: &S,
        most: usize,
    ) -> Result<Vec<AdmissionInput>, S::Error> {
        let mut inputs = Vec::new();
        for _ in 0..limits::MODERATION_SLICE_ENTRIES {
            let room = most.saturating_sub(inputs.len());
            if room == 0 {
                return Ok(inputs);
            }
            // An author stays in line until nothing of it is left.
            if let Some(author) = self.authors.last() {
                let its = served_events.by_author(*author, room)?;
                if its.len() < room {
                    self.authors.pop();
                }
                inputs.extend(its.into_iter().map(AdmissionInput::BannedEvent));
            } else if let Some(id) = self.events.pop() {
                inputs.extend(served_events.summary(id)?.map(AdmissionInput::BannedEvent));
            } else {
                self.scan_repos(admission, served_events, most, &mut inputs)?;
                break;
            }
        }
        Ok(inputs)
    }

    /// Looks for what is about banned repositories.
    fn scan_repos<S: ServedEvents>(
        &mut self,
        admission: &Admission,
        served_events: &S,
        most: usize,
        inputs: &mut Vec<AdmissionInput>,
    ) -> Result<(), S::Error> {
        let reader =
            CountingReader { served_events, policy: admission.policy(), rows: Cell::new(0), gone: RefCell::default() };
        let mut last: Option<RepoId> = None;
        while let Some(repo) = admission.next_repo_to_scan(last.as_ref()) {
            let repo_scan = match &mut self.repo_scan {
                Some(repo_scan) if repo_scan.repo == *repo => repo_scan,
                other => other.insert(RepoScan::new(repo)),
            };
            while !repo_scan.is_done() {
                let room = most.saturating_sub(inputs.len());
                if room == 0 || reader.rows.get() >= limits::THREAD_SLICE_ROWS {
                    return Ok(());
                }
                inputs.extend(repo_scan.step(&reader, room)?.into_iter().map(AdmissionInput::BannedEvent));
            }
            last = Some(repo.clone());
            inputs.push(AdmissionInput::BannedRepoScanned(repo.clone()));
        }
        Ok(())
    }
}

/// Counts what is read.
struct CountingReader<'s, S> {
    served_events: &'s S,
    policy: &'s AdmissionPolicy,
    rows: Cell<usize>,
    /// What goes with this slice, and is still on the shelves.
    gone: RefCell<BTreeSet<EventId>>,
}

impl<S: ServedEvents> CountingReader<'_, S> {
    /// Counts reading; how much is read in vain and how long texts are counts as well.
    fn count(&self, rows: usize) {
        self.rows.set(self.rows.get().saturating_add(rows));
    }

    /// The rest is seen better when what goes has gone.
    fn end_slice(&self) {
        self.count(limits::THREAD_SLICE_ROWS);
    }

    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>, S::Error> {
        let event = self.served_events.event(id)?;
        self.count(1 + event.as_ref().map_or(0, |event| event.json().len() / 1_024));
        Ok(event)
    }

    fn by_tag(&self, (letter, value): &Tag, behind: usize, most: usize) -> Result<Vec<EventId>, S::Error> {
        let found = self.served_events.by_tag(*letter, value, behind, most)?;
        self.count(1 + found.len() + behind / 8);
        Ok(found)
    }

    /// What is here of what an event references, as far as that decides whether it is taken in.
    fn referenced_by(&self, event: &Event) -> Result<Vec<EventId>, S::Error> {
        let references = event.indexed_tags().filter(|(letter, _)| BY_ID.contains(letter) || b"aA".contains(letter));
        let mut found = Vec::new();
        for (letter, value) in references.take(limits::MAX_EVENT_REFERENCES) {
            self.count(1);
            let by_id = BY_ID.contains(&letter).then(|| EventId::from_hex(value)).flatten();
            let by_coordinate = BY_COORDINATE.contains(&letter).then(|| Coordinate::parse(value)).flatten();
            match (by_id, by_coordinate) {
                (Some(id), _) => found.extend(self.served_events.summary(id)?.map(|here| here.id)),
                (None, Some(coordinate)) => found.extend(self.served_events.at_coordinate(&coordinate)?),
                (None, None) => {}
            }
        }
        Ok(found)
    }
}

/// A tag: its letter and its value.
type Tag = (u8, String);

/// The tags by which others reference an event.
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

/// The search for what is about one repository.
#[derive(Debug)]
struct RepoScan {
    repo: RepoId,
    /// The tags by which it is referenced; the last one is being looked at.
    tags: Vec<Tag>,
    /// How many events with that tag stay.
    staying: usize,
    /// Events that stay, as far as they are known.
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

    /// Does a little. Gives events that go.
    fn step<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        most: usize,
    ) -> Result<Vec<EventSummary>, S::Error> {
        if self.thread.found.is_empty() {
            self.start_thread(reader)?;
        } else if self.thread.is_read() {
            return self.thread.remove_events(reader, most);
        } else if self.thread.read_more(reader, &self.kept)? {
            if self.kept.len() > limits::MAX_THREAD_EVENTS {
                self.kept.clear();
            }
            self.kept.append(&mut std::mem::take(&mut self.thread).met);
        }
        Ok(Vec::new())
    }

    /// Finds the next event that references the repository and is not known to stay.
    fn start_thread<S: ServedEvents>(&mut self, reader: &CountingReader<'_, S>) -> Result<(), S::Error> {
        let Some(tag) = self.tags.last() else { return Ok(()) };
        let gone = reader.gone.borrow();
        let most = limits::THREAD_PAGE_EVENTS + gone.len();
        let page = reader.by_tag(tag, self.staying, most)?;
        let next = page.iter().position(|id| !self.kept.contains(id) && !gone.contains(id));
        if let Some(at) = next {
            self.thread = EventThread::new(page[at]);
        } else if page.len() < most {
            self.tags.pop();
            self.staying = 0;
            return Ok(());
        } else if !gone.is_empty() {
            reader.end_slice();
        }
        // Those before it all stay, unless some of them are going.
        if gone.is_empty() {
            self.staying += next.unwrap_or(page.len());
        }
        Ok(())
    }
}

/// Everything that hangs together.
#[derive(Debug, Default)]
struct EventThread {
    /// In the order in which they were found: the first references the repository, each other one hangs on an earlier one.
    found: Vec<EventId>,
    /// Those, and whatever else was come across.
    met: BTreeSet<EventId>,
    /// How many have been read; of the next one, how many tags that name it; of the next tag, how many events have it.
    read: (usize, usize, usize),
}

impl EventThread {
    fn new(first: EventId) -> Self {
        Self { found: vec![first], met: BTreeSet::from([first]), read: (0, 0, 0) }
    }

    fn is_read(&self) -> bool {
        self.read.0 >= self.found.len()
    }

    /// Reads on. True if it turns out that all of it stays.
    fn read_more<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        kept: &BTreeSet<EventId>,
    ) -> Result<bool, S::Error> {
        let (nth, ..) = self.read;
        // Requests stay, and being named by one is no reason to be here.
        let is_link = |event: &Arc<SignedEvent>| !matches!(event.kind, kinds::DELETION | kinds::VANISH);
        let Some(event) = reader.event(self.found[nth])?.filter(is_link) else {
            self.found.remove(nth);
            self.read = (nth, 0, 0);
            return Ok(self.found.is_empty());
        };
        let mut near = Vec::new();
        if self.read == (nth, 0, 0) {
            if reader.policy.is_accepted_unlinked(&event) {
                return Ok(true);
            }
            near = reader.referenced_by(&event)?;
        }
        let tags = tags_naming(&event);
        while let Some(tag) = tags.get(self.read.1) {
            let page = reader.by_tag(tag, self.read.2, limits::SCAN_SLICE_ROWS)?;
            let is_full = page.len() == limits::SCAN_SLICE_ROWS;
            near.extend(page);
            if is_full {
                self.read.2 += limits::SCAN_SLICE_ROWS;
                break;
            }
            self.read = (nth, self.read.1 + 1, 0);
        }
        if self.read.1 == tags.len() {
            self.read = (nth + 1, 0, 0);
        }
        for id in near {
            if kept.contains(&id) {
                return Ok(true);
            }
            if self.met.insert(id) {
                self.found.push(id);
            }
        }
        Ok(self.met.len() > limits::MAX_THREAD_EVENTS)
    }

    /// All of it goes: gives the last that were found.
    fn remove_events<S: ServedEvents>(
        &mut self,
        reader: &CountingReader<'_, S>,
        most: usize,
    ) -> Result<Vec<EventSummary>, S::Error> {
        let mut gone = Vec::new();
        let goes_on = |gone: usize| gone < most && reader.rows.get() < limits::THREAD_SLICE_ROWS;
        while let Some(id) = self.found.last().filter(|_| goes_on(gone.len())) {
            if let Some(event) = reader.event(*id)? {
                let mut near = reader.referenced_by(&event)?;
                for tag in tags_naming(&event) {
                    let named = reader.by_tag(&tag, 0, limits::THREAD_PAGE_EVENTS)?;
                    if named.len() == limits::THREAD_PAGE_EVENTS && !reader.gone.borrow().is_empty() {
                        reader.end_slice();
                        return Ok(gone);
                    }
                    near.extend(named);
                }
                if !near.iter().all(|id| self.met.contains(id)) {
                    // Something has come meanwhile: perhaps that changes everything.
                    *self = Self::new(self.found[0]);
                    return Ok(gone);
                }
                reader.gone.borrow_mut().insert(event.id);
                gone.push(EventSummary::new(&event));
            }
            self.found.pop();
        }
        Ok(gone)
    }
}
