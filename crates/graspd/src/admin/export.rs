//! `export`: served events as text, in the order in which they came.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Event, EventId, PublicKey, hex, kinds};
use grasp_core::repo::RepoId;
use grasp_store::{Record, Store};
use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Request, Teller};

/// Events that are read at once: no transaction is open while a slow reader is waited for.
const SLICE: usize = 256;

/// How often it is told how far it is, in sequence numbers.
const EVERY: u64 = 4_096;

/// Which events are wanted.
struct Wanted {
    kinds: BTreeSet<u64>,
    authors: BTreeSet<PublicKey>,
    repo: Option<String>,
    since: u64,
    until: u64,
    /// Events of the repository so far: what refers to one of them is wanted, too.
    family: BTreeSet<EventId>,
}

/// Tells events behind a sequence number, each with its own, and at last those that are held, if they are wanted.
pub(super) async fn export(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let arguments = request.arguments().await?;
    let mut wanted = Wanted::read(&arguments)?;
    let after = arguments["after"].as_u64().unwrap_or(0);
    let held = arguments["held"] == true;
    let store = admin.house.rooms.store.clone();
    let id = hex::encode(&store.id());
    if arguments["store"].as_str().is_some_and(|known| known != id) {
        let text = "the server has another store than when this export was begun, and counts from another beginning: begin anew";
        return Err(Complaint::new("other_store", text));
    }
    tell.item(json!({ "store": id })).await?;
    let work = move || run(&store, &mut wanted, (after, held), &tell);
    let failed = |problem: String| Complaint::new("failed", problem);
    tokio::task::spawn_blocking(work).await.map_err(|problem| failed(problem.to_string()))?
}

fn run(store: &Store, wanted: &mut Wanted, (after, held): (u64, bool), tell: &Teller) -> Result<Value, Complaint> {
    let failed = |problem: grasp_store::StoreError| Complaint::new("failed", problem.to_string());
    // What belongs to a repository is told by what came before.
    let mut at = if wanted.repo.is_some() { 0 } else { after };
    let last = store.last_seq();
    let (mut next, mut told) = (at, 0_u64);
    while at < last {
        let mut slice = Vec::with_capacity(SLICE);
        let show = |seq: u64, record: Record<'_>| {
            let text = wanted.text(&record).filter(|_| seq > after);
            slice.extend(text.map(|text| (seq, text)));
        };
        let Some(reached) = store.shown_since(at, SLICE, show).map_err(failed)? else { break };
        at = reached;
        for (seq, text) in slice {
            tell.item_blocking(json!({ "seq": seq, "event": text }))?;
            told += 1;
        }
        if at >= next {
            tell.progress_blocking("reading events", at, Some(last))?;
            next = at + EVERY;
        }
    }
    if held {
        let mut waiting = Vec::new();
        let moment = store.moment().map_err(failed)?;
        moment.held(|record| waiting.extend(wanted.text(&record))).map_err(failed)?;
        drop(moment);
        for text in waiting {
            tell.item_blocking(json!({ "event": text }))?;
            told += 1;
        }
    }
    Ok(json!({ "last_seq": at, "events": told }))
}

impl Wanted {
    fn read(arguments: &Value) -> Result<Self, Complaint> {
        let wrong = |what: &str| Complaint::new("bad_request", format!("{what} cannot be understood"));
        let list = |name: &str| arguments[name].as_array().cloned().unwrap_or_default();
        let kinds: Result<_, Complaint> =
            list("kinds").iter().map(|kind| kind.as_u64().ok_or_else(|| wrong("a kind"))).collect();
        let author = |text: &Value| {
            let text = text.as_str()?;
            PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text))
        };
        let authors: Result<_, Complaint> =
            list("authors").iter().map(|text| author(text).ok_or_else(|| wrong("an author"))).collect();
        Ok(Self {
            kinds: kinds?,
            authors: authors?,
            repo: arguments["repo"].as_str().map(str::to_owned),
            since: arguments["since"].as_u64().unwrap_or(0),
            until: arguments["until"].as_u64().unwrap_or(u64::MAX),
            family: BTreeSet::new(),
        })
    }

    /// The text of an event that is wanted.
    fn text(&mut self, record: &Record<'_>) -> Option<String> {
        let made = record.created_at().0;
        let fits = (self.kinds.is_empty() || self.kinds.contains(&u64::from(record.kind())))
            && (self.authors.is_empty() || self.authors.contains(&record.author()))
            && (self.since..=self.until).contains(&made);
        if !fits && self.repo.is_none() {
            return None;
        }
        let event = record.event().ok()?;
        if let Some(name) = self.repo.clone() {
            if !self.belongs(&event, &name) {
                return None;
            }
            self.family.insert(event.id);
        }
        fits.then(|| event.json().to_owned())
    }

    /// Whether an event is of a repository of this name, or refers to one that is.
    fn belongs(&self, event: &Event, name: &str) -> bool {
        if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
            return event.tag("d") == Some(name);
        }
        let names = |text: &str| {
            Coordinate::parse(text).and_then(|at| RepoId::of(&at)).is_some_and(|repo| repo.identifier.as_str() == name)
        };
        ["a", "A", "q"].iter().any(|tag| event.all_values(tag).any(names))
            || ["e", "E", "q"].iter().any(|tag| {
                event.all_values(tag).any(|id| EventId::from_hex(id).is_some_and(|id| self.family.contains(&id)))
            })
    }
}
