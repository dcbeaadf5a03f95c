//! Queries of the sync machine to the store.

use grasp_core::admission::io::EventSummary;
use grasp_core::limits;
use grasp_core::nostr::{EventId, Filter};
use grasp_core::repo::RepoId;
use grasp_core::sync::io::{LocalIds, QueryId, SyncInput};
use grasp_store::{Store, StoreError};
use tracing::error;

/// Returns all root events of a repository and their descendants, or the repository if the store cannot be read.
pub(super) fn root_events(store: &Store, repo: RepoId, descendant_limit: usize) -> Result<SyncInput, RepoId> {
    let read = || {
        let roots = store.root_events(&repo)?;
        let descendants = store.descendants(&repo, &roots, descendant_limit)?;
        Ok::<_, StoreError>((roots, descendants))
    };
    match read() {
        Ok((roots, descendants)) => Ok(SyncInput::RootEvents(repo, roots, descendants)),
        Err(error) => {
            error!(target: "sync", %repo, %error, "cannot read the root events of a repository");
            Err(repo)
        }
    }
}

/// Returns the ids of stored events that match a filter. If the store cannot be read, the result is empty and sync uses
/// pages.
pub(super) fn local_ids(store: &Store, query: QueryId, filter: &Filter) -> SyncInput {
    let ids = store.newest_ids(filter, limits::MAX_RECONCILIATION_ITEMS).unwrap_or_else(|error| {
        error!(target: "sync", %error, "cannot read stored event ids");
        LocalIds { items: Vec::new(), complete_since: None }
    });
    SyncInput::LocalIds(query, ids)
}

/// Returns the ids that are not stored. If the store cannot be read, all of them, so that all are fetched.
pub(super) fn missing_ids(store: &Store, query: QueryId, ids: Vec<EventId>) -> SyncInput {
    let missing = store.missing_ids(&ids).unwrap_or_else(|error| {
        error!(target: "sync", %error, "cannot read stored event ids");
        ids
    });
    SyncInput::MissingIds(query, missing)
}

/// Returns those of the events that are served. If the store cannot be read, none.
pub(super) fn served_events(store: &Store, query: QueryId, ids: &[EventId]) -> SyncInput {
    let events = store.served_events(ids).unwrap_or_else(|error| {
        error!(target: "sync", %error, "cannot read served events");
        Vec::new()
    });
    SyncInput::ServedEvents(query, events)
}

/// Returns summaries of events that both sides have. If the store cannot be read, the result is empty.
pub(super) fn state_summaries(store: &Store, ids: &[EventId]) -> Vec<EventSummary> {
    store.summaries(ids).unwrap_or_else(|error| {
        error!(target: "sync", %error, "cannot read stored event ids");
        Vec::new()
    })
}
