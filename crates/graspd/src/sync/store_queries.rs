//! Queries of the sync machine to the store.

use std::fmt::Display;

use grasp_core::admission::io::EventSummary;
use grasp_core::limits;
use grasp_core::nostr::{EventId, Filter};
use grasp_core::repo::RepoId;
use grasp_core::sync::io::{Descendants, LocalIds, QueryId, RootEvent, SyncInput};
use grasp_store::{Store, StoreError};
use tracing::error;

/// Root events of a repository, and their descendants.
type RootsAndDescendants = (Vec<RootEvent>, Descendants);

/// Returns all root events of a repository and their descendants.
pub(super) fn root_events(
    store: &Store,
    repo: &RepoId,
    descendant_limit: usize,
) -> Result<RootsAndDescendants, StoreError> {
    let roots = store.root_events(repo)?;
    let descendants = store.descendants(repo, &roots, descendant_limit)?;
    Ok((roots, descendants))
}

/// Repositories whose root events could not be read. Without them the repository would not be synced until the next
/// start, so they are read again.
#[derive(Debug, Default)]
pub(super) struct UnreadRoots(Vec<RepoId>);

impl UnreadRoots {
    /// Reads the root events of a repository. If that fails, the repository is kept for [`retry`](Self::retry).
    pub(super) fn read<E: Display>(
        &mut self,
        repo: RepoId,
        read: impl FnOnce(&RepoId) -> Result<RootsAndDescendants, E>,
    ) -> Option<SyncInput> {
        match read(&repo) {
            Ok((roots, descendants)) => Some(SyncInput::RootEvents(repo, roots, descendants)),
            Err(error) => {
                error!(target: "sync", %repo, %error, "cannot read the root events of a repository");
                self.0.push(repo);
                None
            }
        }
    }

    /// Reads the root events again that could not be read before.
    pub(super) fn retry<E: Display>(
        &mut self,
        read: impl Fn(&RepoId) -> Result<RootsAndDescendants, E>,
    ) -> Vec<SyncInput> {
        std::mem::take(&mut self.0).into_iter().filter_map(|repo| self.read(repo, &read)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::Identifier;

    #[test]
    fn roots_that_cannot_be_read_are_read_again() {
        let repo = |name| RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new(name).expect("valid") };
        let roots = |_: &RepoId| Ok((vec![RootEvent { seq: 7, id: EventId([7; 32]) }], Descendants::default()));
        let failure = |_: &RepoId| Err("the store has no reader left");
        let mut unread = UnreadRoots::default();
        assert!(unread.read::<&str>(repo("readable"), roots).is_some());
        assert!(unread.retry::<&str>(roots).is_empty(), "a repository that was read is not read again");
        assert!(unread.read(repo("first"), failure).is_none());
        assert!(unread.read(repo("second"), failure).is_none());
        assert!(unread.retry(failure).is_empty());
        let answers =
            unread.retry::<&str>(|repo| if repo.identifier.as_str() == "first" { roots(repo) } else { failure(repo) });
        let [SyncInput::RootEvents(read, roots_of_first, _)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((read, roots_of_first.len()), (&repo("first"), 1));
        let answers = unread.retry::<&str>(roots);
        assert!(matches!(&answers[..], [SyncInput::RootEvents(read, ..)] if *read == repo("second")), "{answers:?}");
        assert!(unread.retry::<&str>(roots).is_empty());
    }
}
