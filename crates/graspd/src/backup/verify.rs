//! Whether a backup, or a server's own data, is whole: every file is as it was written, every event is signed, and whatever
//! is served has its git data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use grasp_core::admission::Admission;
use grasp_core::admission::io::AdmissionInput;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{EventId, Verifier, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{RepoPath, RepoState};
use grasp_core::state_machine::StateMachine;
use grasp_git::backup::{Checker, Seal};
use grasp_store::Store;
use serde_json::{Value, json};

use super::manifest::{FILES, KEY, MANIFEST, Manifest};
use super::{ProgressFn, tree};
use crate::admin::snapshot::SnapshotInfo;
use crate::clock::Clock;

/// Problems that are listed; further ones are counted.
const MAX_PROBLEMS: usize = 200;

/// What was found.
#[derive(Default)]
pub(crate) struct VerifyReport {
    /// Files that were read, and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) served: u64,
    pub(crate) held: u64,
    pub(crate) last_seq: u64,
    /// Repositories, states and pull requests whose git data was looked for.
    pub(crate) repositories: u64,
    pub(crate) states: u64,
    pub(crate) pull_requests: u64,
    /// What is wrong.
    pub(crate) problems: Vec<String>,
    /// How much more is wrong.
    pub(crate) more: u64,
    /// Whether the event store is not as it was written: then it is not opened.
    pub(crate) store_is_damaged: bool,
}

/// What must be somewhere.
struct RequiredObjects {
    oids: BTreeSet<String>,
    /// Where it may be.
    repo_paths: Vec<RepoPath>,
}

/// What events ask for.
#[derive(Default)]
struct RequiredGitData {
    states: BTreeMap<EventId, BTreeSet<String>>,
    pull_requests: BTreeMap<EventId, RequiredObjects>,
}

impl VerifyReport {
    pub(crate) fn add_problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS { self.problems.push(problem) } else { self.more += 1 }
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "files": self.files,
            "bytes": self.bytes,
            "served": self.served,
            "held": self.held,
            "last_seq": self.last_seq,
            "repositories": self.repositories,
            "states": self.states,
            "pull_requests": self.pull_requests,
            "problems": self.problems,
            "more_problems": self.more,
        })
    }
}

/// Whether the files of a backup are as they were written.
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
            Ok(_) => match entry.seal.fits(&path) {
                Ok(true) => {}
                Ok(false) => report.add_problem(format!("{}: its bytes have changed", entry.path.display())),
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
            report.add_problem(format!("{}: a file that the backup does not know", path.display()));
        }
        Ok(())
    })
}

/// Whether git's files at a moment are what they say they are.
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
        let is_right = match Seal::of(&file) {
            Ok(seal @ Seal::Trailer(_)) => seal.fits(&file)?,
            Ok(Seal::Whole(_)) => true,
            Err(_) => false,
        };
        if !is_right {
            report.add_problem(format!("{}: its bytes are not what they were", path.display()));
        }
        on_progress("reading files", report.files, None)
    })
}

/// Whether what the store at a moment serves is signed and has its git data.
pub(crate) fn check_contents(
    snapshot: &SnapshotInfo,
    rules: &AdmissionPolicy,
    checker: &Checker,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let store = Store::open_read_only(&snapshot.folder.join("events")).context("the event store cannot be opened")?;
    let now = Clock::start().now();
    let mut admission = Admission::new(rules.clone());
    let unreadable = store.restore(|restored| admission.handle(now, AdmissionInput::Restored(restored)))?;
    if unreadable > 0 {
        report.add_problem(format!("events: {unreadable} rows cannot be read"));
    }
    let required = check_events(&store, rules, &admission, report, on_progress)?;
    report.last_seq = store.last_seq();
    for (what, found, said) in [
        ("served events", report.served, snapshot.served),
        ("held events", report.held, snapshot.held),
        ("the last sequence number", report.last_seq, snapshot.last_seq),
    ] {
        if found != said {
            report.add_problem(format!("events: {what}: {found} instead of {said}"));
        }
    }
    drop(store);
    check_git_data(snapshot, &admission, required, checker, report, on_progress)
}

/// Reads every event, and gives what the served ones ask for.
fn check_events(
    store: &Store,
    rules: &AdmissionPolicy,
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
            Ok(_) => return report.add_problem(format!("event {}: it is kept under another id", record.id())),
            Err(problem) => return report.add_problem(format!("event {}: {problem}", record.id())),
        };
        if is_served && event.kind == kinds::STATE {
            let oids = RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default();
            required.states.insert(event.id, oids.into_iter().collect());
        }
        if let Some(request) = PullRequest::from_any_event(&event).filter(|_| is_served) {
            let announced = request.targets.iter().filter(|repo| admission.hosted_repo(repo).is_some());
            let announced = announced.cloned().map(RepoPath::Announced);
            let repo_paths: Vec<RepoPath> = announced.chain(rules.submission_paths(event.pubkey, &request)).collect();
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

/// Looks for the git data of what is served.
fn check_git_data(
    snapshot: &SnapshotInfo,
    admission: &Admission,
    required: RequiredGitData,
    checker: &Checker,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<()> {
    let RequiredGitData { states, pull_requests } = required;
    let mut required_states: BTreeMap<EventId, RequiredObjects> = BTreeMap::new();
    for (repo, slots) in admission.catalog().repositories() {
        let repo_path = RepoPath::Announced(repo.clone());
        let is_hosted = admission.hosted_repo(&repo).is_some_and(|hosted| hosted.status == EventStatus::Served);
        // Also what is kept for reasons that only the server knows: an archive.
        let is_kept = slots.served.is_some() && repo_dir(snapshot, &repo_path).join("HEAD").exists();
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
    let mut missing: BTreeMap<RepoPath, BTreeSet<String>> = BTreeMap::new();
    let all = at_site.len() as u64;
    for (done, (repo_path, mut oids)) in (1..).zip(at_site) {
        let folder = repo_dir(snapshot, &repo_path);
        if folder.join("HEAD").exists() {
            let looked = checker.targets(&folder).map_err(anyhow::Error::from).and_then(|targets| {
                oids.extend(targets.iter().cloned());
                let missing_here: BTreeSet<String> = checker.missing(&folder, &oids)?.into_iter().collect();
                Ok((targets, missing_here))
            });
            let (targets, missing_here) = match looked {
                Ok(looked) => looked,
                Err(problem) => {
                    report.add_problem(format!("{repo_path}: cannot be looked at: {problem}"));
                    continue;
                }
            };
            for oid in targets.intersection(&missing_here) {
                report.add_problem(format!("{repo_path}: a ref points to {oid}, which is not all there"));
            }
            missing.insert(repo_path, missing_here);
        } else {
            missing.insert(repo_path, oids);
        }
        on_progress("checking git data", done, Some(all))?;
    }
    for (what, required_states) in [("state", required_states), ("pull request", pull_requests)] {
        for (id, RequiredObjects { oids, repo_paths }) in required_states {
            // A repository that is about to be brought into line may not have it yet; one of them has.
            let is_whole = |repo_path: &RepoPath| {
                missing.get(repo_path).is_some_and(|missing_here| missing_here.is_disjoint(&oids))
            };
            if !repo_paths.iter().any(is_whole) {
                let places: Vec<String> = repo_paths.iter().map(ToString::to_string).collect();
                report.add_problem(format!("{what} {id}: its git data is not all there ({})", places.join(", ")));
            }
        }
    }
    Ok(())
}

fn repo_dir(snapshot: &SnapshotInfo, repo_path: &RepoPath) -> PathBuf {
    snapshot.folder.join("git").join(grasp_git::layout::path_of(repo_path))
}
