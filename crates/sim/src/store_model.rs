//! Model of the store: maps and linear scans. The real store is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use grasp_core::admission::io::{
    DeletionTarget, EarlyRequest, EventLookups, EventSummary, NeededLookups, PendingUpload, PullRequestPage,
    RestoredItem, StoreWrite, Todo, Tombstone, TombstoneKind,
};
use grasp_core::admission::moderation::ServedEvents;
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, Event, EventId, EventVersion, supersedes};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{PackManifest, Refs, RepoId, RepoPath};
use grasp_core::time::Timestamp;

use crate::store_contract::StoreUnderTest;

/// An in-memory store.
#[derive(Clone, Debug, Default)]
pub struct ModelStore {
    /// Rows with the writes since the last commit.
    rows: Rows,
    /// Rows of the last commit, if anything was written since.
    committed: Option<Box<Rows>>,
    /// Pull requests that were removed with their vanished authors in committed batches and were not taken yet.
    removed_pulls: Vec<EventSummary>,
}

#[derive(Clone, Debug, Default)]
struct Rows {
    served: BTreeMap<EventId, Served>,
    held: BTreeMap<EventId, (Arc<SignedEvent>, Timestamp)>,
    deleted: BTreeSet<(PublicKey, EventId)>,
    deleted_until: BTreeMap<Coordinate, Timestamp>,
    vanished_until: BTreeMap<PublicKey, Timestamp>,
    withdrawn: BTreeMap<RepoId, EventVersion>,
    exceptions: BTreeSet<EventId>,
    repos: BTreeMap<RepoPath, (Arc<Refs>, Option<String>)>,
    packs: BTreeMap<RepoPath, PackManifest>,
    todo: BTreeSet<Todo>,
    staged: BTreeMap<(RepoPath, EventId), PendingUpload>,
    early_requests: BTreeMap<EventId, EarlyRequest>,
    /// The same for the open batch.
    removed_pulls: Vec<EventSummary>,
    next_seq: u64,
}

#[derive(Clone, Debug)]
struct Served {
    event: Arc<SignedEvent>,
    seq: u64,
}

impl ModelStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns what the admission machine restores at startup: served announcements and states, all held events, todo
    /// rows, upload rows and requests of unknown keys.
    pub fn restored(&self) -> Vec<RestoredItem> {
        let rows = self.readable();
        let served = rows.in_sequence().filter(|event| matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE));
        let held = rows.held.values().map(|(event, deadline)| RestoredItem::Held(event.clone(), *deadline));
        let as_served = |event: &Arc<SignedEvent>| match rows.exceptions.contains(&event.id) {
            true => RestoredItem::Exception(event.clone()),
            false => RestoredItem::Served(event.clone()),
        };
        let degraded = rows.repos.iter().filter(|(_, (_, degraded))| degraded.is_some());
        let degraded = degraded.map(|(repo_path, _)| RestoredItem::Degraded(repo_path.clone()));
        let todo = rows.todo.iter().cloned().map(RestoredItem::Todo);
        let staged = rows.staged.values().cloned().map(RestoredItem::Upload);
        let early = rows.early_requests.values().cloned().map(RestoredItem::EarlyRequest);
        served.map(as_served).chain(held).chain(degraded).chain(todo).chain(staged).chain(early).collect()
    }

    /// Returns the served events in the order of their sequence numbers.
    pub fn served_events(&self) -> impl Iterator<Item = &Arc<SignedEvent>> {
        self.readable().in_sequence()
    }

    /// Returns the repositories that exist, with their refs.
    pub fn repos(&self) -> impl Iterator<Item = (&RepoPath, &Arc<Refs>)> {
        self.readable().repos.iter().map(|(repo_path, (refs, _))| (repo_path, refs))
    }

    /// Returns the refs of a repository; none if it does not exist.
    pub fn refs(&self, repo_path: &RepoPath) -> Arc<Refs> {
        self.readable().repos.get(repo_path).map(|(refs, _)| refs.clone()).unwrap_or_default()
    }

    /// Returns the requests of unknown keys.
    pub fn early_requests(&self) -> &BTreeMap<EventId, EarlyRequest> {
        &self.readable().early_requests
    }

    /// Returns the held events, by id.
    pub fn held_events(&self) -> impl Iterator<Item = &Arc<SignedEvent>> {
        self.readable().held.values().map(|(event, _)| event)
    }

    /// Returns whether an event is served or held, and the kind of tombstone that covers it.
    pub fn status_and_tombstone(&self, event: &Event) -> (Option<EventStatus>, Option<TombstoneKind>) {
        let rows = self.readable();
        (rows.status(event.id), rows.tombstone(event))
    }

    /// Returns the sequence number of a served event.
    pub fn seq_of(&self, id: EventId) -> Option<u64> {
        self.readable().served.get(&id).map(|served| served.seq)
    }

    /// Returns an event that is served or held.
    pub fn event_by_id(&self, id: EventId) -> Option<Arc<SignedEvent>> {
        self.readable().find(id).cloned()
    }

    /// Returns the events with a higher sequence number, in order.
    pub fn served_after(&self, seq: u64) -> Vec<(u64, Arc<SignedEvent>)> {
        let newer = self.readable().served.values().filter(|served| served.seq > seq);
        let mut newer: Vec<_> = newer.map(|served| (served.seq, served.event.clone())).collect();
        newer.sort_unstable_by_key(|(seq, _)| *seq);
        newer
    }

    fn readable(&self) -> &Rows {
        self.committed.as_deref().unwrap_or(&self.rows)
    }
}

impl StoreUnderTest for ModelStore {
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        self.rows.lookups(event, needed)
    }

    fn write(&mut self, write: &StoreWrite) {
        if self.committed.is_none() {
            self.committed = Some(Box::new(self.rows.clone()));
        }
        self.rows.apply(write);
    }

    fn repo(&mut self, repo_path: &RepoPath) -> Option<(Arc<Refs>, Option<String>)> {
        self.rows.repos.get(repo_path).cloned()
    }

    fn packs(&mut self, repo_path: &RepoPath) -> Option<PackManifest> {
        self.rows.packs.get(repo_path).cloned()
    }

    fn commit(&mut self) {
        self.committed = None;
        self.removed_pulls.append(&mut self.rows.removed_pulls);
    }

    fn abort(&mut self) {
        if let Some(committed) = self.committed.take() {
            self.rows = *committed;
        }
    }

    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)> {
        Some((self.rows.find(id)?.clone(), self.rows.status(id)?))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        self.rows.find(id).is_some()
    }

    fn pull_requests_for(
        &mut self,
        repo: &RepoId,
        page: PullRequestPage,
    ) -> (Vec<Arc<SignedEvent>>, Option<EventVersion>) {
        // Small pages, so that simulated repositories have several.
        const PAGE: usize = 2;
        let is_after = |event: &EventVersion| match page {
            PullRequestPage::First => true,
            PullRequestPage::After(last) => supersedes(last, *event),
        };
        let targets = |event: &Event| PullRequest::from_any_event(event).map(|request| request.targets);
        let addressed = |event: &&Arc<SignedEvent>| targets(event).is_some_and(|targets| targets.contains(repo));
        let mut found: Vec<Arc<SignedEvent>> = self.rows.events().filter(addressed).cloned().collect();
        found.retain(|event| is_after(&event.version()));
        found.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id));
        let has_more = found.len() > PAGE;
        found.truncate(PAGE);
        let next = found.last().filter(|_| has_more).map(|event| event.version());
        (found, next)
    }

    fn removed_pulls(&mut self) -> Vec<EventSummary> {
        let mut removed = std::mem::take(&mut self.removed_pulls);
        removed.append(&mut self.rows.removed_pulls);
        removed
    }

    fn restored(&mut self) -> Vec<RestoredItem> {
        ModelStore::restored(self)
    }

    fn restart(&mut self) {
        self.abort();
        self.removed_pulls.clear();
    }

    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId> {
        let rows = self.readable();
        let mut found = BTreeSet::new();
        for filter in filters {
            let mut matches: Vec<_> = rows.matches(filter, now).collect();
            matches.sort_unstable();
            found.extend(matches.into_iter().take(filter.limit.unwrap_or(default_limit).min(default_limit)));
        }
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64 {
        let rows = self.readable();
        filters.iter().flat_map(|filter| rows.matches(filter, now)).collect::<BTreeSet<_>>().len() as u64
    }

    fn due(&mut self, now: Timestamp) -> Vec<EventSummary> {
        let rows = self.readable();
        rows.events().filter(|event| is_expired(event, now)).map(|event| EventSummary::new(event)).collect()
    }

    fn served(&mut self) -> Vec<EventId> {
        self.served_events().map(|event| event.id).collect()
    }

    fn held(&mut self) -> Vec<(EventId, Timestamp)> {
        self.readable().held.iter().map(|(id, (_, deadline))| (*id, *deadline)).collect()
    }
}

impl ServedEvents for ModelStore {
    type Error = Infallible;

    fn by_author(&self, author: PublicKey, most: usize) -> Result<Vec<EventSummary>, Infallible> {
        let its = self.rows.events().filter(|event| event.pubkey == author);
        Ok(its.take(most).map(|event| EventSummary::new(event)).collect())
    }

    fn summary(&self, id: EventId) -> Result<Option<EventSummary>, Infallible> {
        Ok(self.rows.served.get(&id).map(|served| EventSummary::new(&served.event)))
    }

    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>, Infallible> {
        Ok(self.rows.served.get(&id).map(|served| served.event.clone()))
    }

    fn at_coordinate(&self, coordinate: &Coordinate) -> Result<Option<EventId>, Infallible> {
        Ok(self.rows.served_at(coordinate).map(|event| event.id))
    }

    fn by_tag(&self, letter: u8, value: &str, behind: usize, most: usize) -> Result<Vec<EventId>, Infallible> {
        let has = |event: &&Arc<SignedEvent>| event.indexed_tags().any(|tag| tag == (letter, value));
        Ok(self.rows.events().filter(has).skip(behind).take(most).map(|event| event.id).collect())
    }
}

fn is_expired(event: &Event, now: Timestamp) -> bool {
    event.expires_at().is_some_and(|expires_at| expires_at <= now)
}

/// Sorts newest first, and in the same second the lowest id first.
type NewestFirst = (std::cmp::Reverse<Timestamp>, EventId);

impl Rows {
    fn events(&self) -> impl Iterator<Item = &Arc<SignedEvent>> {
        self.served.values().map(|served| &served.event)
    }

    fn in_sequence(&self) -> impl Iterator<Item = &Arc<SignedEvent>> {
        let mut served: Vec<&Served> = self.served.values().collect();
        served.sort_unstable_by_key(|served| served.seq);
        served.into_iter().map(|served| &served.event)
    }

    fn matches(&self, filter: &Filter, now: Timestamp) -> impl Iterator<Item = NewestFirst> {
        self.events()
            .filter(move |event| filter.matches(event) && !is_expired(event, now))
            .map(|event| (std::cmp::Reverse(event.created_at), event.id))
    }

    fn status(&self, id: EventId) -> Option<EventStatus> {
        if self.served.contains_key(&id) {
            Some(EventStatus::Served)
        } else {
            self.held.contains_key(&id).then_some(EventStatus::Held)
        }
    }

    fn find(&self, id: EventId) -> Option<&Arc<SignedEvent>> {
        let held = self.held.get(&id).map(|(event, _)| event);
        self.served.get(&id).map(|served| &served.event).or(held)
    }

    fn served_at(&self, coordinate: &Coordinate) -> Option<&Arc<SignedEvent>> {
        let Coordinate { kind, pubkey, d } = coordinate;
        let near = |event: &&Arc<SignedEvent>| event.kind == *kind && event.pubkey == *pubkey;
        self.events().filter(near).find(|event| event.coordinate().is_some_and(|at| at.d == *d))
    }

    fn tombstone(&self, event: &Event) -> Option<TombstoneKind> {
        let coordinate = event.coordinate();
        let until = |time: Option<&Timestamp>| time.is_some_and(|time| event.created_at <= *time);
        let withdrawn = || {
            let repo =
                coordinate.as_ref().filter(|at| at.kind == kinds::ANNOUNCEMENT).and_then(RepoId::from_coordinate)?;
            self.withdrawn.get(&repo).copied()
        };
        if until(self.vanished_until.get(&event.pubkey)) {
            Some(TombstoneKind::Vanished)
        } else if self.deleted.contains(&(event.pubkey, event.id))
            || until(coordinate.as_ref().and_then(|at| self.deleted_until.get(at)))
        {
            Some(TombstoneKind::Deleted)
        } else {
            withdrawn().filter(|version| supersedes(*version, event.version())).map(|_| TombstoneKind::Withdrawn)
        }
    }

    fn lookups(&self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        let by_author = |other: &Arc<SignedEvent>| other.pubkey == event.pubkey;
        EventLookups {
            stored: self.status(event.id),
            tombstone: self.tombstone(event),
            current: event.coordinate().and_then(|at| self.served_at(&at)).map(|served| served.version()),
            references_served: needed.links && self.references_served(event),
            referenced_by_served: needed.links && !self.references_served(event) && self.is_referenced_by_served(event),
            author_has_events: needed.author
                && (self.events().any(by_author) || self.held.values().any(|(event, _)| by_author(event))),
            targets: if needed.targets { self.targets(event) } else { Vec::new() },
        }
    }

    fn references_served(&self, event: &Event) -> bool {
        let references = event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter));
        references.take(limits::MAX_EVENT_REFERENCES).any(|(letter, value)| {
            let by_id = || b"eEq".contains(&letter) && EventId::from_hex(value).is_some_and(|id| self.is_served(id));
            let by_coordinate =
                || b"aAq".contains(&letter) && Coordinate::parse(value).is_some_and(|at| self.served_at(&at).is_some());
            by_id() || by_coordinate()
        })
    }

    fn is_referenced_by_served(&self, event: &Event) -> bool {
        let id = event.id.to_string();
        let mut addresses: Vec<String> = event.coordinate().iter().map(ToString::to_string).collect();
        if kinds::class(event.kind) == kinds::KindClass::Replaceable {
            addresses.push(format!("{}:{}", event.kind, event.pubkey));
        }
        self.events().flat_map(|served| served.indexed_tags()).any(|(letter, value)| {
            (b"eEq".contains(&letter) && value == id)
                || (b"aAq".contains(&letter) && addresses.iter().any(|address| address == value))
        })
    }

    fn is_served(&self, id: EventId) -> bool {
        self.served.contains_key(&id)
    }

    fn targets(&self, request: &Event) -> Vec<DeletionTarget> {
        let target = |event: &Event| {
            let status = self.status(event.id)?;
            Some(DeletionTarget { event: EventSummary::new(event), status })
        };
        let by_id = request.values("e").filter_map(EventId::from_hex).filter_map(|id| self.find(id));
        let by_coordinate = request
            .values("a")
            .filter_map(Coordinate::parse)
            .filter(|at| at.pubkey == request.pubkey)
            .filter_map(|at| self.served_at(&at))
            .filter(|event| event.created_at <= request.created_at);
        let found: BTreeSet<DeletionTarget> = by_id.chain(by_coordinate).filter_map(|event| target(event)).collect();
        found.into_iter().collect()
    }

    fn apply(&mut self, write: &StoreWrite) {
        match write {
            StoreWrite::Put(event) => self.serve(event.clone()),
            StoreWrite::MarkException(id) => {
                self.exceptions.insert(*id);
            }
            StoreWrite::Hold(event, deadline) => {
                self.held.insert(event.id, (event.clone(), *deadline));
            }
            StoreWrite::ExtendHold(id, deadline) => {
                if let Some((_, until)) = self.held.get_mut(id) {
                    *until = *deadline;
                }
            }
            StoreWrite::HoldServed(id, deadline) => {
                if let Some(event) = self.unserve(*id) {
                    self.held.insert(*id, (event, *deadline));
                }
            }
            StoreWrite::Release(id) => {
                if let Some((event, _)) = self.held.remove(id) {
                    self.serve(event);
                }
            }
            StoreWrite::DropHeld(id) => {
                self.held.remove(id);
            }
            StoreWrite::Remove(id) => drop(self.unserve(*id)),
            StoreWrite::AddTombstone(tombstone) => self.add_tombstone(tombstone),
            StoreWrite::SetRefs(repo_path, refs) => {
                self.repos.entry(repo_path.clone()).or_default().0 = refs.clone();
            }
            StoreWrite::RemoveRefs(repo_path) => {
                self.repos.remove(repo_path);
            }
            StoreWrite::SetPacks(repo_path, packs) if packs.is_empty() => {
                self.packs.remove(repo_path);
            }
            StoreWrite::SetPacks(repo_path, packs) => {
                self.packs.insert(repo_path.clone(), PackManifest::clone(packs));
            }
            StoreWrite::SetDegraded(repo_path, reason) => {
                if let Some((_, degraded)) = self.repos.get_mut(repo_path) {
                    degraded.clone_from(reason);
                }
            }
            StoreWrite::AddTodo(todo) => {
                self.todo.insert(todo.clone());
            }
            StoreWrite::RemoveTodo(todo) => {
                self.todo.remove(todo);
            }
            StoreWrite::AddUpload(upload) => {
                self.staged.insert((upload.repo_path.clone(), upload.event), upload.clone());
            }
            StoreWrite::RemoveUpload(repo_path, event) => {
                self.staged.remove(&(repo_path.clone(), *event));
            }
            StoreWrite::AddEarlyRequest(request) => {
                self.early_requests.insert(request.event.id, request.clone());
            }
            StoreWrite::RemoveEarlyRequest(id) => {
                self.early_requests.remove(id);
            }
        }
    }

    /// Removes a served event, and its mark as a maintainer exception.
    fn unserve(&mut self, id: EventId) -> Option<Arc<SignedEvent>> {
        let served = self.served.remove(&id)?;
        self.exceptions.remove(&id);
        Some(served.event)
    }

    fn serve(&mut self, event: Arc<SignedEvent>) {
        let replaced = event.coordinate().and_then(|at| self.served_at(&at)).map(|old| old.id);
        if let Some(old) = replaced {
            self.unserve(old);
        }
        self.next_seq += 1;
        self.served.insert(event.id, Served { event, seq: self.next_seq });
    }

    fn add_tombstone(&mut self, tombstone: &Tombstone) {
        match tombstone {
            Tombstone::Event(author, id) => {
                self.deleted.insert((*author, *id));
            }
            Tombstone::Coordinate(at, up_to) => {
                let until = self.deleted_until.entry(at.clone()).or_insert(*up_to);
                *until = (*until).max(*up_to);
            }
            Tombstone::Withdrawn(repo, version) => {
                let kept = self.withdrawn.entry(repo.clone()).or_insert(*version);
                if supersedes(*version, *kept) {
                    *kept = *version;
                }
            }
            Tombstone::Author(author, up_to) => {
                let until = self.vanished_until.entry(*author).or_insert(*up_to);
                *until = (*until).max(*up_to);
                let hex = author.to_string();
                let is_removed = |event: &&Arc<SignedEvent>| {
                    let own = event.pubkey == *author && event.kind != kinds::VANISH;
                    let wrapped = event.kind == kinds::GIFT_WRAP && event.values("p").any(|key| key == hex);
                    event.created_at <= *up_to && (own || wrapped)
                };
                for id in self.events().filter(is_removed).map(|event| event.id).collect::<Vec<_>>() {
                    let gone = self.unserve(id).filter(|event| kinds::is_pull_request(event.kind));
                    self.removed_pulls.extend(gone.map(|event| EventSummary::new(&event)));
                }
            }
        }
    }
}
