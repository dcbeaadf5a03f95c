//! Checks a backup, or the data of a server: checksums of files, signatures of events, and that everything that is
//! served has its git data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use grasp_core::admission::Admission;
use grasp_core::admission::io::AdmissionInput;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{EventId, Verifier, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Refs, RepoPath, RepoState};
use grasp_core::state_machine::StateMachine;
use grasp_git::backup::{FileChecksum, RepoVerifier};
use grasp_git::layout::Layout;
use grasp_git::refs::read_refs;
use grasp_store::Store;
use serde::Serialize;

use super::manifest::{FILES, KEY, MANIFEST, Manifest};
use super::{ProgressFn, tree};
use crate::admin::api::SnapshotInfo;
use crate::clock::Clock;

/// Maximum number of problems that are listed; further ones are counted.
const MAX_PROBLEMS: usize = 200;

/// Result of a verification.
#[derive(Default, Serialize)]
pub(crate) struct VerifyReport {
    /// Number of files, and their size.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) served: u64,
    pub(crate) held: u64,
    pub(crate) last_seq: u64,
    /// Number of repositories, states and pull requests whose git data was checked.
    pub(crate) repositories: u64,
    pub(crate) states: u64,
    pub(crate) pull_requests: u64,
    /// Problems that were found.
    pub(crate) problems: Vec<String>,
    /// Number of further problems.
    #[serde(rename = "more_problems")]
    pub(crate) more: u64,
    /// Whether a file of the event store is damaged. Then the store is not opened.
    #[serde(skip)]
    pub(crate) store_is_damaged: bool,
}

/// Objects that must exist, and the repositories that may contain them.
struct RequiredObjects {
    oids: BTreeSet<String>,
    /// Repositories that may contain them.
    repo_paths: Vec<RepoPath>,
}

/// Git data that served events need.
#[derive(Default)]
struct RequiredGitData {
    states: BTreeMap<EventId, BTreeSet<String>>,
    pull_requests: BTreeMap<EventId, RequiredObjects>,
}

impl VerifyReport {
    pub(crate) fn add_problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS { self.problems.push(problem) } else { self.more += 1 }
    }
}

/// Checks the files of a backup against its manifest.
pub(crate) fn check_files(
    folder: &Path,
    manifest: &Manifest,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let mut known = BTreeSet::new();
    manifest.for_each_file(folder, |entry| {
        let path = folder.join(&entry.path);
        let before = report.problems.len() as u64 + report.more;
        match fs::metadata(&path) {
            Err(problem) => report.add_problem(format!("{}: {problem}", entry.path.display())),
            Ok(found) if found.len() != entry.bytes => {
                let text = format!("{}: {} bytes instead of {}", entry.path.display(), found.len(), entry.bytes);
                report.add_problem(text);
            }
            Ok(_) => match entry.checksum.matches_file(&path) {
                Ok(true) => {}
                Ok(false) => report.add_problem(format!("{}: wrong checksum", entry.path.display())),
                Err(problem) => report.add_problem(format!("{}: {problem}", entry.path.display())),
            },
        }
        let is_wrong = report.problems.len() as u64 + report.more > before;
        report.store_is_damaged |= is_wrong && entry.path.starts_with("events");
        report.files += 1;
        report.bytes += entry.bytes;
        known.insert(entry.path);
        on_progress("reading files", report.files, Some(manifest.files))
    })?;
    if report.files != manifest.files {
        report.add_problem(format!("{FILES}: {} files instead of {}", report.files, manifest.files));
    }
    tree::walk(folder, |path, is_folder| {
        let is_own = [MANIFEST, FILES, KEY].iter().any(|own| path == Path::new(own));
        if !is_folder && !is_own && !known.contains(path) {
            report.add_problem(format!("{}: not in the list of files", path.display()));
        }
        Ok(())
    })
}

/// Checks the files of git in a snapshot against the checksums that they contain.
pub(crate) fn check_git_files(
    folder: &Path,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    tree::walk(folder, |path, is_folder| {
        if is_folder {
            return Ok(());
        }
        let file = folder.join(path);
        report.files += 1;
        report.bytes += fs::metadata(&file)?.len();
        let is_right = match FileChecksum::from_file(&file) {
            Ok(checksum @ FileChecksum::GitTrailer(_)) => checksum.matches_file(&file)?,
            Ok(FileChecksum::Sha256(_)) => true,
            Err(_) => false,
        };
        if !is_right {
            report.add_problem(format!("{}: wrong checksum", path.display()));
        }
        on_progress("reading files", report.files, None)
    })
}

/// Checks the signatures of the events in a snapshot, and the git data of those that are served.
pub(crate) fn check_contents(
    snapshot: &SnapshotInfo,
    policy: &AdmissionPolicy,
    checker: &RepoVerifier,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let store = Store::open_read_only(&snapshot.folder.join("events")).context("cannot open the event store")?;
    let now = Clock::start().now();
    let mut admission = Admission::new(policy.clone());
    let unreadable = store.restore(|restored| admission.handle(now, AdmissionInput::Restored(restored)))?;
    if unreadable > 0 {
        report.add_problem(format!("events: {unreadable} rows cannot be read"));
    }
    let required = check_events(&store, policy, &admission, report, on_progress)?;
    report.last_seq = store.last_seq();
    for (what, found, expected) in [
        ("served events", report.served, snapshot.content.served),
        ("held events", report.held, snapshot.content.held),
        ("the last sequence number", report.last_seq, snapshot.content.last_seq),
    ] {
        if found != expected {
            report.add_problem(format!("events: {what}: {found} instead of {expected}"));
        }
    }
    check_git_data((snapshot, &store), &admission, required, checker, report, on_progress)
}

/// Checks every event, and returns the git data that the served ones need.
fn check_events(
    store: &Store,
    policy: &AdmissionPolicy,
    admission: &Admission,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<RequiredGitData> {
    let mut required = RequiredGitData::default();
    let mut verifier = Verifier::default();
    let mut stop = None;
    store.snapshot()?.for_each_event(|seq, record| {
        let is_served = seq.is_some();
        if is_served {
            report.served += 1
        } else {
            report.held += 1
        }
        let event = record
            .event()
            .map_err(|problem| problem.to_string())
            .and_then(|event| verifier.verify(event.event().clone()).map_err(|problem| problem.to_string()));
        let event = match event {
            Ok(event) if event.id == record.id() => event,
            Ok(_) => return report.add_problem(format!("event {}: stored under another id", record.id())),
            Err(problem) => return report.add_problem(format!("event {}: {problem}", record.id())),
        };
        if is_served && event.kind == kinds::STATE {
            let oids = RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default();
            required.states.insert(event.id, oids.into_iter().collect());
        }
        if let Some(request) = PullRequest::from_any_event(&event).filter(|_| is_served) {
            let announced = request.targets.iter().filter(|repo| admission.hosted_repo(repo).is_some());
            let announced = announced.cloned().map(RepoPath::Announced);
            let repo_paths: Vec<RepoPath> = announced.chain(policy.submission_paths(event.pubkey, &request)).collect();
            if !repo_paths.is_empty() {
                required.pull_requests.insert(event.id, RequiredObjects { oids: [request.tip].into(), repo_paths });
            }
        }
        let done = report.served + report.held;
        if stop.is_none() && done.is_multiple_of(1_000) {
            stop = on_progress("checking events", done, None).err();
        }
    })?;
    stop.map_or(Ok(required), Err)
}

/// Checks the git data of served events.
fn check_git_data(
    (snapshot, store): (&SnapshotInfo, &Store),
    admission: &Admission,
    required: RequiredGitData,
    checker: &RepoVerifier,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let RequiredGitData { states, pull_requests } = required;
    let snapshot_layout = Layout::open_existing(&snapshot.folder.join("git"))?;
    let mut required_states: BTreeMap<EventId, RequiredObjects> = BTreeMap::new();
    for (repo, slots) in admission.catalog().repositories() {
        let repo_path = RepoPath::Announced(repo.clone());
        let is_hosted = admission.hosted_repo(&repo).is_some_and(|hosted| hosted.status == EventStatus::Served);
        // Includes repositories that are kept for reasons that only the server knows, such as an archive.
        let is_kept = slots.served.is_some() && find_refs(snapshot, store, &repo_path)?.is_some();
        if !is_hosted && !is_kept {
            continue;
        }
        report.repositories += 1;
        let best = admission.states_for(&repo_path).into_iter().find(|(_, status)| *status == EventStatus::Served);
        if let Some((id, oids)) = best.and_then(|(id, _)| Some((id, states.get(&id)?))) {
            required_states
                .entry(id)
                .or_insert_with(|| RequiredObjects { oids: oids.clone(), repo_paths: Vec::new() })
                .repo_paths
                .push(repo_path);
        }
    }
    report.states = required_states.len() as u64;
    report.pull_requests = pull_requests.len() as u64;
    let mut at_site: BTreeMap<RepoPath, BTreeSet<String>> = BTreeMap::new();
    for RequiredObjects { oids, repo_paths } in required_states.values().chain(pull_requests.values()) {
        for repo_path in repo_paths {
            at_site.entry(repo_path.clone()).or_default().extend(oids.iter().cloned());
        }
    }
    for repo_path in store.pools()? {
        let recorded = store.packs(&repo_path)?.unwrap_or_default();
        let found = snapshot_layout.packs(&repo_path)?;
        for pack in recorded.missing_from(&found) {
            report.add_problem(format!("{repo_path}: {} is missing or has another size", pack.file_stem()));
        }
    }
    let mut missing: BTreeMap<RepoPath, BTreeSet<String>> = BTreeMap::new();
    let all = at_site.len() as u64;
    for (done, (repo_path, mut oids)) in (1..).zip(at_site) {
        let folder = repo_dir(snapshot, &repo_path);
        if let Some(refs) = find_refs(snapshot, store, &repo_path)? {
            let targets: BTreeSet<String> = refs.iter().map(|(_, target)| target.oid.clone()).collect();
            oids.extend(targets.iter().cloned());
            let missing_here: BTreeSet<String> = match checker.missing(&folder, &oids) {
                Ok(missing_here) => missing_here.into_iter().collect(),
                Err(problem) => {
                    report.add_problem(format!("{repo_path}: cannot be checked: {problem}"));
                    continue;
                }
            };
            for oid in targets.intersection(&missing_here) {
                report.add_problem(format!("{repo_path}: a ref points to {oid}, which is missing or incomplete"));
            }
            missing.insert(repo_path, missing_here);
        } else {
            missing.insert(repo_path, oids);
        }
        on_progress("checking git data", done, Some(all))?;
    }
    for (what, required_states) in [("state", required_states), ("pull request", pull_requests)] {
        for (id, RequiredObjects { oids, repo_paths }) in required_states {
            // A repository that is not aligned yet may lack the data, but one of them must have it.
            let is_whole = |repo_path: &RepoPath| {
                missing.get(repo_path).is_some_and(|missing_here| missing_here.is_disjoint(&oids))
            };
            if !repo_paths.iter().any(is_whole) {
                let places: Vec<String> = repo_paths.iter().map(ToString::to_string).collect();
                report
                    .add_problem(format!("{what} {id}: its git data is missing or incomplete ({})", places.join(", ")));
            }
        }
    }
    Ok(())
}

/// Returns the refs of a repository, from the store, or from its folder if the store has none because of its version.
/// `None` if the repository does not exist.
fn find_refs(snapshot: &SnapshotInfo, store: &Store, repo_path: &RepoPath) -> Result<Option<Arc<Refs>>> {
    if !store.needs_repo_rows()? {
        return Ok(store.repo(repo_path)?.map(|row| row.refs));
    }
    let folder = repo_dir(snapshot, repo_path);
    Ok(if folder.join("HEAD").exists() { Some(Arc::new(read_refs(&folder)?)) } else { None })
}

fn repo_dir(snapshot: &SnapshotInfo, repo_path: &RepoPath) -> PathBuf {
    snapshot.folder.join("git").join(grasp_git::layout::relative_repo_dir(repo_path))
}
