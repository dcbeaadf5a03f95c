//! What the store answers to the machine's questions.

use grasp_core::admission::io::EventSummary;
use grasp_core::limits;
use grasp_core::nostr::{EventId, Filter};
use grasp_core::repo::RepoId;
use grasp_core::sync::io::{LocalIds, QueryId, SyncInput};
use grasp_store::Store;
use tracing::error;

/// All roots of a repository.
pub(super) fn roots(store: &Store, repo: RepoId) -> SyncInput {
    let roots = store.root_events(&repo).unwrap_or_else(|problem| {
        error!(%repo, %problem, "cannot read what belongs to a repository");
        Vec::new()
    });
    SyncInput::RootEvents(repo, roots)
}

/// What is here that matches. If that cannot be read, nothing is compared and pages are used.
pub(super) fn ids(store: &Store, ask: QueryId, filter: &Filter) -> SyncInput {
    let ids = store.newest_ids(filter, limits::MAX_RECONCILIATION_ITEMS).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        LocalIds { items: Vec::new(), complete_since: None }
    });
    SyncInput::LocalIds(ask, ids)
}

/// What is not here. If that cannot be read, everything is fetched.
pub(super) fn missing(store: &Store, ask: QueryId, ids: Vec<EventId>) -> SyncInput {
    let missing = store.missing_ids(&ids).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        ids
    });
    SyncInput::MissingIds(ask, missing)
}

/// Events that both sides have, in short. If they cannot be read, nothing is known of them.
pub(super) fn states(store: &Store, ids: &[EventId]) -> Vec<EventSummary> {
    store.summaries(ids).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        Vec::new()
    })
}
