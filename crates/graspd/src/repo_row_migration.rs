//! Creates the rows of repositories in a store of a version that kept refs in files only.
//!
//! The files were what counted then. They are read at the start, before anything else uses the repositories. An
//! interrupted migration starts again: a row that exists already gets the same content.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, Result};
use grasp_core::admission::io::StoreWrite;
use grasp_core::repo::Identifier;
use grasp_core::repo::pull_request::PullRequest;
use grasp_git::crash_point;
use grasp_git::layout::{Layout, identifier_file_name};
use grasp_git::refs::read_refs;
use grasp_store::Store;
use tracing::info;

/// Repositories whose rows are written in one transaction.
const BATCH_REPOS: usize = 500;

/// The file that marked a degraded repository. It contained the reason.
const DEGRADED_FILE: &str = "degraded";

/// Creates the rows if they are missing.
///
/// # Errors
/// Fails if a repository cannot be read or the store cannot be written.
pub(crate) fn migrate(store: &Store, layout: &Layout) -> Result<()> {
    if !store.needs_repo_rows()? {
        return Ok(());
    }
    let mut repo_paths = layout.all_repos(&hashed_identifiers(store)?).context("cannot list the repositories")?;
    repo_paths.retain(|repo_path| layout.repo_dir(repo_path).join("HEAD").exists());
    info!(target: "admin", repositories = repo_paths.len(), "reading refs into the event store");
    for (nth, batch) in repo_paths.chunks(BATCH_REPOS).enumerate() {
        let mut txn = store.begin()?;
        for repo_path in batch {
            let folder = layout.repo_dir(repo_path);
            let cannot_read = || format!("cannot read the refs of {repo_path} in {}", folder.display());
            let refs = read_refs(&folder).with_context(cannot_read)?;
            txn.write(&StoreWrite::SetRefs(repo_path.clone(), Arc::new(refs)))?;
            let degraded = degraded_reason(&folder).with_context(cannot_read)?;
            txn.write(&StoreWrite::SetDegraded(repo_path.clone(), degraded))?;
            crash_point::point("migration.row");
        }
        txn.commit()?;
        crash_point::point("migration.batch");
        info!(target: "admin", done = nth * BATCH_REPOS + batch.len(), total = repo_paths.len(), "refs read");
    }
    let mut txn = store.begin()?;
    txn.set_repo_rows_complete()?;
    txn.commit()?;
    crash_point::point("migration.done");
    for repo_path in &repo_paths {
        // The row has it now.
        let _ = fs::remove_file(layout.repo_dir(repo_path).join(DEGRADED_FILE));
    }
    Ok(())
}

/// Returns why a repository is degraded, from the file that marks it.
fn degraded_reason(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(DEGRADED_FILE)) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
