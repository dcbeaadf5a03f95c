//! `export`: sends served events in the order of their arrival.

use std::collections::BTreeSet;

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Event, EventId, PublicKey, hex, kinds};
use grasp_core::repo::RepoId;
use grasp_store::{EventRecord, Store};

use super::AdminState;
use super::api::{ErrorCode, ExportFilter, ExportItem, ExportRequest, ExportResult, JobProgress};
use super::client::ResponseLine;
use super::wire::{AdminError, ResponseWriter};

/// Number of events that are read in one transaction. No transaction is open while the client is slow.
const BATCH_SIZE: usize = 256;

/// Number of sequence numbers between two progress lines.
const PROGRESS_EVERY_SEQS: u64 = 4_096;

/// Selects the exported events.
struct EventSelector {
    filter: ExportFilter,
    authors: BTreeSet<PublicKey>,
    /// Ids of the exported events of the repository. Events that refer to one of them are exported, too.
    repo_event_ids: BTreeSet<EventId>,
}

/// Sends the events after a sequence number, each with its own number, and then the held events, if they are requested.
pub(super) async fn export(
    admin: &AdminState,
    request: ExportRequest,
    writer: ResponseWriter<ExportItem>,
) -> Result<ExportResult, AdminError> {
    let store = admin.store.clone();
    let work = move || {
        export_from(&store, request, &mut |line| match line {
            ResponseLine::Item(item) => writer.send_item_blocking(&item),
            ResponseLine::Progress(progress) => writer.send_progress_blocking(&progress),
        })
    };
    tokio::task::spawn_blocking(work).await.map_err(AdminError::failed)?
}

/// Passes the events after a sequence number to `on_line`, and then the held events, if they are requested.
pub(crate) fn export_from<E: From<AdminError>>(
    store: &Store,
    request: ExportRequest,
    on_line: &mut impl FnMut(ResponseLine<ExportItem>) -> Result<(), E>,
) -> Result<ExportResult, E> {
    let mut selector = EventSelector::new(request.filter)?;
    let id = hex::encode(&store.id());
    if request.store.is_some_and(|known| known != id) {
        let text = "the server has another store than at the start of this export, with other sequence numbers; start \
                    a new export";
        return Err(AdminError::new(ErrorCode::OtherStore, text).into());
    }
    on_line(ResponseLine::Item(ExportItem::Store { store: id }))?;
    // Which events belong to a repository depends on earlier events.
    let after = request.after;
    let mut at = if selector.filter.repo.is_some() { 0 } else { after };
    let last = store.last_seq();
    let (mut next, mut events) = (at, 0_u64);
    while at < last {
        let mut slice = Vec::with_capacity(BATCH_SIZE);
        let on_record = |seq: u64, record: EventRecord<'_>| {
            let event = selector.matching_json(&record).filter(|_| seq > after);
            slice.extend(event.map(|event| ExportItem::Served { event, seq }));
        };
        let reached = store.visible_events_since(at, BATCH_SIZE, on_record).map_err(AdminError::failed)?;
        let Some(reached) = reached else { break };
        at = reached;
        for item in slice {
            on_line(ResponseLine::Item(item))?;
            events += 1;
        }
        if at >= next {
            let progress = JobProgress { what: "reading events".to_owned(), done: at, total: Some(last) };
            on_line(ResponseLine::Progress(progress))?;
            next = at + PROGRESS_EVERY_SEQS;
        }
    }
    if selector.filter.held {
        let mut held_events = Vec::new();
        let snapshot = store.snapshot().map_err(AdminError::failed)?;
        let collected = snapshot.for_each_held(|record| held_events.extend(selector.matching_json(&record)));
        collected.map_err(AdminError::failed)?;
        drop(snapshot);
        for event in held_events {
            on_line(ResponseLine::Item(ExportItem::Held { event }))?;
            events += 1;
        }
    }
    Ok(ExportResult { last_seq: at, events })
}

impl EventSelector {
    fn new(filter: ExportFilter) -> Result<Self, AdminError> {
        let author = |text: &String| {
            let key = PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text));
            key.ok_or_else(|| AdminError::new(ErrorCode::BadRequest, "an author is invalid"))
        };
        let authors = filter.authors.iter().map(author).collect::<Result<_, _>>()?;
        Ok(Self { filter, authors, repo_event_ids: BTreeSet::new() })
    }

    /// Returns the JSON of an event that matches.
    fn matching_json(&mut self, record: &EventRecord<'_>) -> Option<String> {
        let ExportFilter { kinds, since, until, repo, .. } = &self.filter;
        let created_at = record.created_at().0;
        let is_match = (kinds.is_empty() || kinds.contains(&u64::from(record.kind())))
            && (self.authors.is_empty() || self.authors.contains(&record.author()))
            && (since.unwrap_or(0)..=until.unwrap_or(u64::MAX)).contains(&created_at);
        if !is_match && repo.is_none() {
            return None;
        }
        let event = record.event().ok()?;
        if let Some(name) = repo {
            if !self.belongs_to_repo(&event, name) {
                return None;
            }
            self.repo_event_ids.insert(event.id);
        }
        is_match.then(|| event.json().to_owned())
    }

    /// Returns whether an event belongs to a repository of this name, or refers to an event that does.
    fn belongs_to_repo(&self, event: &Event, name: &str) -> bool {
        if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
            return event.tag("d") == Some(name);
        }
        let names = |text: &str| {
            Coordinate::parse(text)
                .and_then(|at| RepoId::from_coordinate(&at))
                .is_some_and(|repo| repo.identifier.as_str() == name)
        };
        ["a", "A", "q"].iter().any(|tag| event.all_values(tag).any(names))
            || ["e", "E", "q"].iter().any(|tag| {
                event
                    .all_values(tag)
                    .any(|id| EventId::from_hex(id).is_some_and(|id| self.repo_event_ids.contains(&id)))
            })
    }
}
