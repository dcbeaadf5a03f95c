//! Makes a server of a backup, in data folders that are empty.
//!
//! A file says that it is under way, and goes when all is on the disk: a server does not start before, and a restore that
//! finds it begins anew. The store gets an id of its own. Refs may be newer than the store's moment, so every repository
//! is noted as one that must be brought into line, which the first start does before its doors open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_core::admission::io::Todo;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_git::crash_point;
use grasp_git::layout::{CONFIG, Layout, file_name};
use grasp_git::refs::Refs;
use grasp_store::Store;

use super::manifest::{KEY, Manifest, ManifestEntry};
use super::{ProgressFn, UNFINISHED, create, tree};
use crate::config::Config;
use crate::data_lock::DataLocks;

/// What an empty data folder may have.
const ALLOWED_FILES: [&str; 3] = ["lock", "children.lock", UNFINISHED];

/// What a restore makes, below the relay's folder and below git's.
const RESTORED_DIRS: [&[&str]; 2] =
    [&["events"], &["repos", "prs", "staged", "incoming", "trash", "snapshot", "empty.git"]];

/// Makes a server of a backup. Gives what the backup says about itself.
pub(crate) fn restore(
    from: &Path,
    config: &Config,
    rules: &AdmissionPolicy,
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
    ensure!(done == manifest.files, "the list of files has {done} instead of {}", manifest.files);
    crash_point::point("restore.copied");
    let todos = startup_todos(config, rules)?;
    Store::prepare_restored_copy(&relay.join("events"), todos.into_iter())?;
    crash_point::point("restore.anew");
    for folder in [relay, git] {
        tree::sync(folder).with_context(|| format!("{} could not be made durable", folder.display()))?;
    }
    fs::remove_file(relay.join(UNFINISHED))?;
    File::open(relay)?.sync_all()?;
    Ok(manifest)
}

/// Makes sure that nothing is there, but for what an interrupted restore has left, which goes.
fn prepare_target(config: &Config) -> Result<()> {
    let (relay, git) = (&config.relay_data_path, &config.git_data_path);
    let marker = relay.join(UNFINISHED);
    if marker.exists() {
        for (folder, made) in [relay, git].into_iter().zip(RESTORED_DIRS) {
            for name in made {
                match fs::remove_dir_all(folder.join(name)) {
                    Err(problem) if problem.kind() != std::io::ErrorKind::NotFound => return Err(problem.into()),
                    _ => {}
                }
            }
        }
        let _ = fs::remove_file(config.owner_file());
    }
    for folder in [relay, git] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_ours = ALLOWED_FILES.iter().any(|ours| path.ends_with(ours)) || [relay, git].contains(&&path);
            if !is_ours {
                bail!("{} is not empty: it has {}. Restore into empty folders", folder.display(), path.display());
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
        if entry.path.ends_with("HEAD") {
            grasp_git::backup::make_folders(folder)?;
        }
    }
    let seal = create::copy_file(&root.join(&entry.path), to, 0o600)?;
    let bytes = fs::metadata(to)?.len();
    ensure!(seal == entry.seal && bytes == entry.bytes, "{} is not as it was backed up", entry.path.display());
    // Git would do what it says.
    let is_ours = !entry.path.ends_with("config") || fs::read(to)? == CONFIG;
    ensure!(is_ours, "{} is none of this program", entry.path.display());
    Ok(())
}

/// What the first start has to do: to bring every repository into line, and pull requests whose ref is not there.
fn startup_todos(config: &Config, rules: &AdmissionPolicy) -> Result<BTreeSet<Todo>> {
    let layout = Layout::open(&config.git_data_path)?;
    let store =
        Store::open(&config.relay_data_path.join("events"), grasp_store::StoreOptions { readers: 1, reserve_bytes: 0 })?;
    let mut names = BTreeMap::new();
    let mut todos = BTreeSet::new();
    store.snapshot()?.for_each_event(|seq, record| {
        let Ok(event) = record.event() else { return };
        let d = event.coordinate().and_then(|coordinate| Identifier::new(&coordinate.d));
        let request = PullRequest::from_any_event(&event);
        let targets = request.iter().flat_map(|request| &request.targets).map(|repo| repo.identifier.clone());
        // Only those that became a hash are asked for.
        let long = targets.chain(d).map(|name| (file_name(&name), name)).filter(|(file, _)| file.starts_with('='));
        names.extend(long);
        let Some(request) = request.filter(|_| seq.is_some()) else { return };
        let announced = request.targets.iter().cloned().map(RepoPath::Announced);
        for repo_path in announced.chain(rules.submission_paths(event.pubkey, &request)) {
            let refs = Refs::read(&layout.repo_dir(&repo_path)).unwrap_or_default();
            let at = refs.get(&format!("refs/nostr/{}", event.id)).map(|target| target.oid.as_str());
            if at != Some(request.tip.as_str()) {
                todos.insert(Todo { repo_path, pull_request: Some(event.id) });
            }
        }
    })?;
    todos.extend(layout.repo_paths(&names)?.into_iter().map(|repo_path| Todo { repo_path, pull_request: None }));
    Ok(todos)
}
