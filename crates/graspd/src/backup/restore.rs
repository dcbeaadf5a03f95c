//! Restores a backup into empty data folders.
//!
//! A marker file exists until everything is on disk: the server does not start while it exists, and a restore that
//! finds it starts from the beginning. The store gets a new id. The first start makes the ref files equal to the rows of
//! the store. Git data can be newer than the store, and a backup of a version that kept refs in files only has no such
//! rows: repositories without a row are recorded to be aligned.

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_core::admission::io::Todo;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::hex;
use grasp_core::repo::RepoPath;
use grasp_core::repo::pull_request::PullRequest;
use grasp_git::crash_point;
use grasp_git::layout::{CONFIG, Layout};
use grasp_git::refs::read_refs;
use grasp_store::Store;

use super::manifest::{KEY, Manifest, ManifestEntry};
use super::{ProgressFn, UNFINISHED, create, tree};
use crate::admin::deferred_events;
use crate::config::Config;
use crate::data_lock::DataLocks;
use crate::repo_row_migration::hashed_identifiers;

/// Files that an empty data folder may contain.
const ALLOWED_FILES: [&str; 5] = ["lock", "children.lock", "store-id", "store-id.new", UNFINISHED];

/// Folders that a restore creates, in the relay's data folder and in that of git.
const RESTORED_DIRS: [&[&str]; 2] =
    [&["events"], &["repos", "prs", "staged", "incoming", "trash", "snapshot", "empty.git"]];

/// Restores a backup. Returns its manifest.
pub(crate) fn restore(
    from: &Path,
    config: &Config,
    policy: &AdmissionPolicy,
    on_progress: &mut ProgressFn<'_>,
) -> Result<Manifest> {
    let manifest = Manifest::read(from)?;
    let (relay, git) = (&config.relay_data_path, &config.git_data_path);
    let _locks = DataLocks::acquire(relay, git)?;
    prepare_target(config)?;
    let mut done = 0;
    manifest.for_each_file(from, |entry| {
        let to = target_path(&entry.path, config);
        restore_file(from, &entry, &to)?;
        done += 1;
        crash_point::point("restore.copying");
        on_progress("restoring files", done, Some(manifest.files))
    })?;
    ensure!(done == manifest.files, "the list of files has {done} entries instead of {}", manifest.files);
    crash_point::point("restore.copied");
    let todos = startup_todos(config, policy)?;
    let store_id = Store::prepare_restored_copy(&relay.join("events"), todos.into_iter())?;
    Layout::open(git)?.set_store_id(&hex::encode(&store_id))?;
    crash_point::point("restore.anew");
    for folder in [relay, git] {
        tree::sync(folder).with_context(|| format!("cannot sync {} to disk", folder.display()))?;
    }
    fs::remove_file(relay.join(UNFINISHED))?;
    File::open(relay)?.sync_all()?;
    Ok(manifest)
}

/// Checks that the data folders are empty, after removing what an interrupted restore has left.
fn prepare_target(config: &Config) -> Result<()> {
    let (relay, git) = (&config.relay_data_path, &config.git_data_path);
    let marker = relay.join(UNFINISHED);
    if marker.exists() {
        for (folder, made) in [relay, git].into_iter().zip(RESTORED_DIRS) {
            for name in made {
                tree::ignore_missing(fs::remove_dir_all(folder.join(name)))?;
            }
        }
        let _ = fs::remove_file(config.owner_file());
        let _ = fs::remove_file(relay.join(deferred_events::FILE_NAME));
    }
    for folder in [relay, git] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_ours = ALLOWED_FILES.iter().any(|ours| path.ends_with(ours)) || [relay, git].contains(&&path);
            if !is_ours {
                bail!("{} is not empty: it contains {}. Restore into empty folders", folder.display(), path.display());
            }
        }
    }
    File::create(&marker)?.sync_all()?;
    Ok(File::open(relay)?.sync_all()?)
}

fn target_path(path: &Path, config: &Config) -> PathBuf {
    match path.strip_prefix("git") {
        Ok(below) => config.git_data_path.join(below),
        Err(_) if path == Path::new(KEY) => config.owner_file(),
        Err(_) => config.relay_data_path.join(path),
    }
}

fn restore_file(root: &Path, entry: &ManifestEntry, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
        // Each repository has a `config`; HEAD is missing in a folder that only has a pool.
        if entry.path.ends_with("config") {
            grasp_git::layout::create_repo_folders(folder)?;
        }
    }
    let checksum = create::copy_file(&root.join(&entry.path), to, 0o600)?;
    let bytes = fs::metadata(to)?.len();
    ensure!(
        checksum == entry.checksum && bytes == entry.bytes,
        "{} is damaged: its checksum is wrong",
        entry.path.display()
    );
    // A git configuration of another program could make git run commands.
    let is_ours = !entry.path.ends_with("config") || fs::read(to)? == CONFIG;
    ensure!(is_ours, "{} is not a git configuration of graspd", entry.path.display());
    Ok(())
}

/// Returns what the first start must do: align the repositories that have a folder and no row, because they were created
/// after the snapshot of the store. If the backup has refs in files only, these are all repositories, and refs of pull
/// requests may be missing, too.
fn startup_todos(config: &Config, policy: &AdmissionPolicy) -> Result<BTreeSet<Todo>> {
    let layout = Layout::open(&config.git_data_path)?;
    let store = Store::open(
        &config.relay_data_path.join("events"),
        grasp_store::StoreOptions { readers: 1, reserve_bytes: 0 },
    )?;
    let is_without_rows = store.needs_repo_rows()?;
    let mut todos = BTreeSet::new();
    for repo_path in layout.all_repos(&hashed_identifiers(&store)?)? {
        if store.repo(&repo_path)?.is_none() {
            todos.insert(Todo { repo_path, pull_request: None });
        }
    }
    store.snapshot()?.for_each_event(|seq, record| {
        let Ok(event) = record.event() else { return };
        let Some(request) = PullRequest::from_any_event(&event).filter(|_| seq.is_some() && is_without_rows) else {
            return;
        };
        let announced = request.targets.iter().cloned().map(RepoPath::Announced);
        for repo_path in announced.chain(policy.submission_paths(event.pubkey, &request)) {
            let refs = read_refs(&layout.repo_dir(&repo_path)).unwrap_or_default();
            let at = refs.get(&format!("refs/nostr/{}", event.id)).map(|target| target.oid.as_str());
            if at != Some(request.tip.as_str()) {
                todos.insert(Todo { repo_path, pull_request: Some(event.id) });
            }
        }
    })?;
    Ok(todos)
}
