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

use super::Registrar;
use super::io::{Input, Summary};
use super::policy::Rules;
use super::policy::lists::Lists;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::kinds::Class;
use crate::nostr::{PublicKey, Signed, kinds};
use crate::repo::RepoId;

/// Letters of tags that name an event by its id, and by its coordinate.
const BY_ID: [u8; 3] = *b"eEq";
const BY_COORDINATE: [u8; 3] = *b"aAq";

/// What a sweep reads: the served events, as the open batch leaves them.
pub trait Shelves {
    /// What can go wrong.
    type Problem;

    /// Events of an author, at most so many.
    fn of_author(&self, author: PublicKey, most: usize) -> Result<Vec<Summary>, Self::Problem>;

    /// An event in short.
    fn summary(&self, id: EventId) -> Result<Option<Summary>, Self::Problem>;

    /// An event; nothing also if it cannot be read.
    fn event(&self, id: EventId) -> Result<Option<Arc<Signed>>, Self::Problem>;

    /// The event at a coordinate.
    fn at(&self, coordinate: &Coordinate) -> Result<Option<EventId>, Self::Problem>;

    /// Events that have a tag, always in the same order, at most so many behind so many others.
    fn tagged(&self, letter: u8, value: &str, behind: usize, most: usize) -> Result<Vec<EventId>, Self::Problem>;
}

/// What is left to look up.
#[derive(Debug, Default)]
pub struct Sweep {
    authors: Vec<PublicKey>,
    events: Vec<EventId>,
    about: Option<About>,
}

impl Sweep {
    /// Everybody and everything that is unwanted. The registrar knows which repositories are.
    #[must_use]
    pub fn of(lists: &Lists) -> Self {
        let Lists { unwanted, .. } = lists;
        let (authors, events) = (unwanted.authors.iter().copied().collect(), unwanted.events.iter().copied().collect());
        Self { authors, events, about: None }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_over(&self, registrar: &Registrar) -> bool {
        self.authors.is_empty() && self.events.is_empty() && registrar.bereft(None).is_none()
    }

    /// What the registrar is to be told next. At most so many events go.
    pub fn next<S: Shelves>(
        &mut self,
        registrar: &Registrar,
        shelves: &S,
        most: usize,
    ) -> Result<Vec<Input>, S::Problem> {
        let mut told = Vec::new();
        for _ in 0..limits::UNWANTED_SLICE {
            let room = most.saturating_sub(told.len());
            if room == 0 {
                return Ok(told);
            }
            // An author stays in line until nothing of it is left.
            if let Some(author) = self.authors.last() {
                let its = shelves.of_author(*author, room)?;
                if its.len() < room {
                    self.authors.pop();
                }
                told.extend(its.into_iter().map(Input::Unwanted));
            } else if let Some(id) = self.events.pop() {
                told.extend(shelves.summary(id)?.map(Input::Unwanted));
            } else {
                self.look_about(registrar, shelves, most, &mut told)?;
                break;
            }
        }
        Ok(told)
    }

    /// Looks for what is about banned repositories.
    fn look_about<S: Shelves>(
        &mut self,
        registrar: &Registrar,
        shelves: &S,
        most: usize,
        told: &mut Vec<Input>,
    ) -> Result<(), S::Problem> {
        let reader = Reader { shelves, rules: registrar.rules(), rows: Cell::new(0), gone: RefCell::default() };
        let mut last: Option<RepoId> = None;
        while let Some(repo) = registrar.bereft(last.as_ref()) {
            let about = match &mut self.about {
                Some(about) if about.repo == *repo => about,
                other => other.insert(About::new(repo)),
            };
            while !about.is_over() {
                let room = most.saturating_sub(told.len());
                if room == 0 || reader.rows.get() >= limits::THREAD_SLICE {
                    return Ok(());
                }
                told.extend(about.step(&reader, room)?.into_iter().map(Input::Unwanted));
            }
            last = Some(repo.clone());
            told.push(Input::Swept(repo.clone()));
        }
        Ok(())
    }
}

/// Counts what is read.
struct Reader<'s, S> {
    shelves: &'s S,
    rules: &'s Rules,
    rows: Cell<usize>,
    /// What goes with this slice, and is still on the shelves.
    gone: RefCell<BTreeSet<EventId>>,
}

impl<S: Shelves> Reader<'_, S> {
    /// Counts reading; how much is read in vain and how long texts are counts as well.
    fn count(&self, rows: usize) {
        self.rows.set(self.rows.get().saturating_add(rows));
    }

    /// The rest is seen better when what goes has gone.
    fn end(&self) {
        self.count(limits::THREAD_SLICE);
    }

    fn event(&self, id: EventId) -> Result<Option<Arc<Signed>>, S::Problem> {
        let event = self.shelves.event(id)?;
        self.count(1 + event.as_ref().map_or(0, |event| event.json().len() / 1_024));
        Ok(event)
    }

    fn tagged(&self, (letter, value): &Tag, behind: usize, most: usize) -> Result<Vec<EventId>, S::Problem> {
        let found = self.shelves.tagged(*letter, value, behind, most)?;
        self.count(1 + found.len() + behind / 8);
        Ok(found)
    }

    /// What is here of what an event references, as far as that decides whether it is taken in.
    fn referenced_by(&self, event: &Event) -> Result<Vec<EventId>, S::Problem> {
        let references = event.indexed_tags().filter(|(letter, _)| BY_ID.contains(letter) || b"aA".contains(letter));
        let mut found = Vec::new();
        for (letter, value) in references.take(limits::MAX_REFERENCES) {
            self.count(1);
            let by_id = BY_ID.contains(&letter).then(|| EventId::from_hex(value)).flatten();
            let by_coordinate = BY_COORDINATE.contains(&letter).then(|| Coordinate::parse(value)).flatten();
            match (by_id, by_coordinate) {
                (Some(id), _) => found.extend(self.shelves.summary(id)?.map(|here| here.id)),
                (None, Some(coordinate)) => found.extend(self.shelves.at(&coordinate)?),
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
        let short = full.strip_suffix(':').filter(|_| kinds::class(event.kind) == Class::Replaceable);
        for text in [Some(full.as_str()), short].into_iter().flatten() {
            tags.extend(BY_COORDINATE.iter().map(|letter| (*letter, text.to_owned())));
        }
    }
    tags
}

/// The search for what is about one repository.
#[derive(Debug)]
struct About {
    repo: RepoId,
    /// The tags by which it is referenced; the last one is being looked at.
    tags: Vec<Tag>,
    /// How many events with that tag stay.
    staying: usize,
    /// Events that stay, as far as they are known.
    kept: BTreeSet<EventId>,
    thread: Thread,
}

impl About {
    fn new(repo: &RepoId) -> Self {
        let address =
            |kind| Coordinate { kind, pubkey: repo.owner, d: repo.identifier.as_str().to_owned() }.to_string();
        let addresses = [kinds::STATE, kinds::ANNOUNCEMENT].map(address);
        let tags = addresses.iter().flat_map(|address| BY_COORDINATE.map(|letter| (letter, address.clone())));
        let (repo, tags, kept) = (repo.clone(), tags.collect(), BTreeSet::new());
        Self { repo, tags, staying: 0, kept, thread: Thread::default() }
    }

    fn is_over(&self) -> bool {
        self.tags.is_empty() && self.thread.found.is_empty()
    }

    /// Does a little. Gives events that go.
    fn step<S: Shelves>(&mut self, reader: &Reader<'_, S>, most: usize) -> Result<Vec<Summary>, S::Problem> {
        if self.thread.found.is_empty() {
            self.begin_thread(reader)?;
        } else if self.thread.is_read() {
            return self.thread.go(reader, most);
        } else if self.thread.read_on(reader, &self.kept)? {
            if self.kept.len() > limits::MAX_THREAD {
                self.kept.clear();
            }
            self.kept.append(&mut std::mem::take(&mut self.thread).met);
        }
        Ok(Vec::new())
    }

    /// Finds the next event that references the repository and is not known to stay.
    fn begin_thread<S: Shelves>(&mut self, reader: &Reader<'_, S>) -> Result<(), S::Problem> {
        let Some(tag) = self.tags.last() else { return Ok(()) };
        let gone = reader.gone.borrow();
        let most = limits::THREAD_PAGE + gone.len();
        let page = reader.tagged(tag, self.staying, most)?;
        let next = page.iter().position(|id| !self.kept.contains(id) && !gone.contains(id));
        if let Some(at) = next {
            self.thread = Thread::of(page[at]);
        } else if page.len() < most {
            self.tags.pop();
            self.staying = 0;
            return Ok(());
        } else if !gone.is_empty() {
            reader.end();
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
struct Thread {
    /// In the order in which they were found: the first references the repository, each other one hangs on an earlier one.
    found: Vec<EventId>,
    /// Those, and whatever else was come across.
    met: BTreeSet<EventId>,
    /// How many have been read; of the next one, how many tags that name it; of the next tag, how many events have it.
    read: (usize, usize, usize),
}

impl Thread {
    fn of(first: EventId) -> Self {
        Self { found: vec![first], met: BTreeSet::from([first]), read: (0, 0, 0) }
    }

    fn is_read(&self) -> bool {
        self.read.0 >= self.found.len()
    }

    /// Reads on. True if it turns out that all of it stays.
    fn read_on<S: Shelves>(&mut self, reader: &Reader<'_, S>, kept: &BTreeSet<EventId>) -> Result<bool, S::Problem> {
        let (nth, ..) = self.read;
        // Requests stay, and being named by one is no reason to be here.
        let is_link = |event: &Arc<Signed>| !matches!(event.kind, kinds::DELETION | kinds::VANISH);
        let Some(event) = reader.event(self.found[nth])?.filter(is_link) else {
            self.found.remove(nth);
            self.read = (nth, 0, 0);
            return Ok(self.found.is_empty());
        };
        let mut near = Vec::new();
        if self.read == (nth, 0, 0) {
            if reader.rules.stands_alone(&event) {
                return Ok(true);
            }
            near = reader.referenced_by(&event)?;
        }
        let tags = tags_naming(&event);
        while let Some(tag) = tags.get(self.read.1) {
            let page = reader.tagged(tag, self.read.2, limits::SLICE_ROWS)?;
            let is_full = page.len() == limits::SLICE_ROWS;
            near.extend(page);
            if is_full {
                self.read.2 += limits::SLICE_ROWS;
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
        Ok(self.met.len() > limits::MAX_THREAD)
    }

    /// All of it goes: gives the last that were found.
    fn go<S: Shelves>(&mut self, reader: &Reader<'_, S>, most: usize) -> Result<Vec<Summary>, S::Problem> {
        let mut gone = Vec::new();
        let goes_on = |gone: usize| gone < most && reader.rows.get() < limits::THREAD_SLICE;
        while let Some(id) = self.found.last().filter(|_| goes_on(gone.len())) {
            if let Some(event) = reader.event(*id)? {
                let mut near = reader.referenced_by(&event)?;
                for tag in tags_naming(&event) {
                    let named = reader.tagged(&tag, 0, limits::THREAD_PAGE)?;
                    if named.len() == limits::THREAD_PAGE && !reader.gone.borrow().is_empty() {
                        reader.end();
                        return Ok(gone);
                    }
                    near.extend(named);
                }
                if !near.iter().all(|id| self.met.contains(id)) {
                    // Something has come meanwhile: perhaps that changes everything.
                    *self = Self::of(self.found[0]);
                    return Ok(gone);
                }
                reader.gone.borrow_mut().insert(event.id);
                gone.push(Summary::of(&event));
            }
            self.found.pop();
        }
        Ok(gone)
    }
}
