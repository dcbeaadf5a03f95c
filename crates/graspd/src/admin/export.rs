//! `export`: sends served events in the order of their arrival.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Event, EventId, PublicKey, hex, kinds};
use grasp_core::repo::RepoId;
use grasp_store::{EventRecord, Store};
use serde_json::{Value, json};

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};

/// Number of events that are read in one transaction. No transaction is open while the client is slow.
const BATCH_SIZE: usize = 256;

/// Number of sequence numbers between two progress lines.
const PROGRESS_EVERY_SEQS: u64 = 4_096;

/// Which events are exported.
struct ExportFilter {
    kinds: BTreeSet<u64>,
    authors: BTreeSet<PublicKey>,
    repo: Option<String>,
    since: u64,
    until: u64,
    /// Ids of the exported events of the repository. Events that refer to one of them are exported, too.
    repo_event_ids: BTreeSet<EventId>,
}

/// Sends the events after a sequence number, each with its own number, and then the held events, if they are requested.
pub(super) async fn export(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    let mut filter = ExportFilter::from_arguments(&arguments)?;
    let after = arguments["after"].as_u64().unwrap_or(0);
    let include_held = arguments["held"] == true;
    let store = admin.store.clone();
    let id = hex::encode(&store.id());
    if arguments["store"].as_str().is_some_and(|known| known != id) {
        let text = "the server has another store than at the start of this export, with other sequence numbers; start \
                    a new export";
        return Err(AdminError::new("other_store", text));
    }
    writer.send_item(json!({ "store": id })).await?;
    let work = move || run(&store, &mut filter, (after, include_held), &writer);
    let failed = |problem: String| AdminError::new("failed", problem);
    tokio::task::spawn_blocking(work).await.map_err(|problem| failed(problem.to_string()))?
}

fn run(
    store: &Store,
    filter: &mut ExportFilter,
    (after, include_held): (u64, bool),
    writer: &ResponseWriter,
) -> Result<Value, AdminError> {
    let failed = |problem: grasp_store::StoreError| AdminError::new("failed", problem.to_string());
    // Which events belong to a repository depends on earlier events.
    let mut at = if filter.repo.is_some() { 0 } else { after };
    let last = store.last_seq();
    let (mut next, mut count) = (at, 0_u64);
    while at < last {
        let mut slice = Vec::with_capacity(BATCH_SIZE);
        let on_record = |seq: u64, record: EventRecord<'_>| {
            let text = filter.matching_json(&record).filter(|_| seq > after);
            slice.extend(text.map(|text| (seq, text)));
        };
        let Some(reached) = store.visible_events_since(at, BATCH_SIZE, on_record).map_err(failed)? else { break };
        at = reached;
        for (seq, text) in slice {
            writer.send_item_blocking(json!({ "seq": seq, "event": text }))?;
            count += 1;
        }
        if at >= next {
            writer.send_progress_blocking("reading events", at, Some(last))?;
            next = at + PROGRESS_EVERY_SEQS;
        }
    }
    if include_held {
        let mut held_events = Vec::new();
        let snapshot = store.snapshot().map_err(failed)?;
        snapshot.for_each_held(|record| held_events.extend(filter.matching_json(&record))).map_err(failed)?;
        drop(snapshot);
        for text in held_events {
            writer.send_item_blocking(json!({ "event": text }))?;
            count += 1;
        }
    }
    Ok(json!({ "last_seq": at, "events": count }))
}

impl ExportFilter {
    fn from_arguments(arguments: &Value) -> Result<Self, AdminError> {
        let invalid = |what: &str| AdminError::new("bad_request", format!("{what} is invalid"));
        let list = |name: &str| arguments[name].as_array().cloned().unwrap_or_default();
        let kinds: Result<_, AdminError> =
            list("kinds").iter().map(|kind| kind.as_u64().ok_or_else(|| invalid("a kind"))).collect();
        let author = |text: &Value| {
            let text = text.as_str()?;
            PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text))
        };
        let authors: Result<_, AdminError> =
            list("authors").iter().map(|text| author(text).ok_or_else(|| invalid("an author"))).collect();
        Ok(Self {
            kinds: kinds?,
            authors: authors?,
            repo: arguments["repo"].as_str().map(str::to_owned),
            since: arguments["since"].as_u64().unwrap_or(0),
            until: arguments["until"].as_u64().unwrap_or(u64::MAX),
            repo_event_ids: BTreeSet::new(),
        })
    }

    /// Returns the JSON of an event that matches.
    fn matching_json(&mut self, record: &EventRecord<'_>) -> Option<String> {
        let created_at = record.created_at().0;
        let is_match = (self.kinds.is_empty() || self.kinds.contains(&u64::from(record.kind())))
            && (self.authors.is_empty() || self.authors.contains(&record.author()))
            && (self.since..=self.until).contains(&created_at);
        if !is_match && self.repo.is_none() {
            return None;
        }
        let event = record.event().ok()?;
        if let Some(name) = self.repo.clone() {
            if !self.belongs_to_repo(&event, &name) {
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
