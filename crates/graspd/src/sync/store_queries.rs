//! What the store answers to the machine's questions.

use grasp_core::admission::io::Summary;
use grasp_core::limits;
use grasp_core::nostr::{EventId, Filter};
use grasp_core::repo::RepoId;
use grasp_core::sync::io::{AskId, Input, LocalIds};
use grasp_store::Store;
use tracing::error;

/// All roots of a repository.
pub(super) fn roots(store: &Store, repo: RepoId) -> Input {
    let roots = store.roots(&repo).unwrap_or_else(|problem| {
        error!(%repo, %problem, "cannot read what belongs to a repository");
        Vec::new()
    });
    Input::Roots(repo, roots)
}

/// What is here that matches. If that cannot be read, nothing is compared and pages are used.
pub(super) fn ids(store: &Store, ask: AskId, filter: &Filter) -> Input {
    let ids = store.newest_ids(filter, limits::MAX_SYNC_ITEMS).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        LocalIds { items: Vec::new(), down_to: None }
    });
    Input::Ids(ask, ids)
}

/// What is not here. If that cannot be read, everything is fetched.
pub(super) fn missing(store: &Store, ask: AskId, ids: Vec<EventId>) -> Input {
    let missing = store.missing(&ids).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        ids
    });
    Input::Missing(ask, missing)
}

/// Events that both sides have, in short. If they cannot be read, nothing is known of them.
pub(super) fn states(store: &Store, ids: &[EventId]) -> Vec<Summary> {
    store.summaries(ids).unwrap_or_else(|problem| {
        error!(%problem, "cannot read what is here");
        Vec::new()
    })
}
