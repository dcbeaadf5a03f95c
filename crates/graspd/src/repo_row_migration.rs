//! Creates the rows of repositories in a store of a version that kept refs in files only.
//!
//! The files were what counted then. They are read at the start, before anything else uses the repositories. An
//! interrupted migration starts from the beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use grasp_core::admission::io::{StoreWrite, Todo};
use grasp_core::nostr::kinds;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoId, RepoPath, RepoState};
use grasp_git::crash_point;
use grasp_git::layout::{Layout, identifier_file_name};
use grasp_git::refs::read_refs;
use grasp_store::Store;
use tracing::{info, warn};

/// Repositories whose rows are written in one transaction.
const BATCH_REPOS: usize = 500;

/// The file that marked a degraded repository. It contained the reason.
const DEGRADED_FILE: &str = "degraded";

/// Creates the rows if they are missing. Returns whether they were.
///
/// # Errors
/// Fails if the git folder has no repositories although the store has events that need some, if it cannot be listed, or
/// if the store cannot be written.
pub(crate) fn migrate(store: &Store, layout: &Layout) -> Result<bool> {
    if !store.needs_repo_rows()? {
        return Ok(false);
    }
    let git_folder = layout.root().display();
    let mut repo_paths = layout.all_repos(&hashed_identifiers(store)?).context("cannot list the repositories")?;
    repo_paths.retain(|repo_path| layout.has_refs(repo_path));
    if repo_paths.is_empty()
        && let Some(event) = find_event_with_git_data(store)?
    {
        bail!(
            "the git data folder {git_folder} has no repositories, but the event store has events that need some, for \
             example {event}. No event was changed. If the folder is on another disk, mount it; if it was moved, set \
             NGIT_GIT_DATA_PATH. Otherwise see \"When data is lost\" in docs/how-to.md"
        );
    }
    info!(target: "admin", repositories = repo_paths.len(), "reading refs into the event store");
    let mut txn = store.begin()?;
    // An earlier version may have run since an interrupted migration.
    txn.clear_repo_rows()?;
    txn.commit()?;
    for (nth, batch) in repo_paths.chunks(BATCH_REPOS).enumerate() {
        let mut txn = store.begin()?;
        for repo_path in batch {
            for write in rows_of(layout, repo_path) {
                txn.write(&write).with_context(|| format!("cannot store the refs of {repo_path}"))?;
            }
            crash_point::point("migration.row");
        }
        txn.commit()?;
        crash_point::point("migration.batch");
        info!(target: "admin", done = nth * BATCH_REPOS + batch.len(), total = repo_paths.len(), "refs read");
    }
    let mut txn = store.begin()?;
    for todo in lost_pull_requests(store, layout, &repo_paths)? {
        txn.write(&StoreWrite::AddTodo(todo))?;
    }
    txn.set_repo_rows_complete()?;
    txn.commit()?;
    crash_point::point("migration.done");
    for repo_path in &repo_paths {
        // The row has it now.
        let _ = fs::remove_file(layout.repo_dir(repo_path).join(DEGRADED_FILE));
    }
    Ok(true)
}

/// Returns the rows of a repository, from its folder. If a file cannot be read, the repository is degraded: its refs are
/// set again from the signed state.
fn rows_of(layout: &Layout, repo_path: &RepoPath) -> [StoreWrite; 3] {
    let folder = layout.repo_dir(repo_path);
    let refs = read_refs(&folder);
    let degraded = match (&refs, &degraded_reason(&folder)) {
        (Err(error), _) | (_, Err(error)) => {
            warn!(target: "admin", repo = %repo_path, %error, "cannot read the refs of a repository, it is degraded");
            Some(format!("its refs could not be read: {error}"))
        }
        (Ok(_), Ok(reason)) => reason.clone(),
    };
    // What cannot be read now is recorded by the check at the start.
    let packs = layout.packs(repo_path).unwrap_or_default();
    [
        StoreWrite::SetRefs(repo_path.clone(), Arc::new(refs.unwrap_or_default())),
        StoreWrite::SetDegraded(repo_path.clone(), degraded),
        StoreWrite::SetPacks(repo_path.clone(), Arc::new(packs)),
    ]
}

/// Returns why a repository is degraded, from the file that marks it.
fn degraded_reason(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(DEGRADED_FILE)) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the work to create the refs of served pull requests again in repositories whose refs could not be read.
fn lost_pull_requests(store: &Store, layout: &Layout, repo_paths: &[RepoPath]) -> Result<BTreeSet<Todo>> {
    let mut todos = BTreeSet::new();
    let unreadable: BTreeSet<&RepoPath> =
        repo_paths.iter().filter(|repo_path| read_refs(&layout.repo_dir(repo_path)).is_err()).collect();
    if unreadable.is_empty() {
        return Ok(todos);
    }
    store.snapshot()?.for_each_event(|seq, record| {
        if seq.is_none() || !kinds::is_pull_request(record.kind()) {
            return;
        }
        let Ok(event) = record.event() else { return };
        let targets = PullRequest::from_any_event(&event).into_iter().flat_map(|request| request.targets);
        for target in targets {
            let submission = RepoId { owner: event.pubkey, identifier: target.identifier.clone() };
            for repo_path in [RepoPath::Announced(target), RepoPath::PullRequests(submission)] {
                if unreadable.contains(&repo_path) {
                    todos.insert(Todo { repo_path, pull_request: Some(event.id) });
                }
            }
        }
    })?;
    Ok(todos)
}

/// Returns a served event that needs git data, if there is one.
fn find_event_with_git_data(store: &Store) -> Result<Option<String>> {
    let mut found = None;
    store.snapshot()?.for_each_event(|seq, record| {
        if found.is_some() || seq.is_none() || !(record.kind() == kinds::STATE || kinds::is_pull_request(record.kind()))
        {
            return;
        }
        let Ok(event) = record.event() else { return };
        let has_refs = RepoState::from_event(&event).is_some_and(|state| !state.refs.is_empty());
        if has_refs || PullRequest::from_any_event(&event).is_some() {
            found = Some(event.id.to_string());
        }
    })?;
    Ok(found)
}

/// Returns the identifiers whose file name is a hash, by file name: what a folder cannot tell about its repository.
pub(crate) fn hashed_identifiers(store: &Store) -> Result<BTreeMap<String, Identifier>> {
    let mut names = BTreeMap::new();
    store.snapshot()?.for_each_event(|_, record| {
        let Ok(event) = record.event() else { return };
        let own = event.coordinate().and_then(|coordinate| Identifier::new(&coordinate.d));
        let request = PullRequest::from_any_event(&event);
        let targets = request.into_iter().flat_map(|request| request.targets).map(|repo| repo.identifier);
        let named = targets.chain(own).map(|identifier| (identifier_file_name(&identifier), identifier));
        names.extend(named.filter(|(file_name, _)| file_name.starts_with('=')));
    })?;
    Ok(names)
}
