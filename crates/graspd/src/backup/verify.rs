//! Whether a backup, or a server's own data, is whole: every file is as it was written, every event is signed, and whatever
//! is served has its git data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use grasp_core::admission::Registrar;
use grasp_core::admission::io::Input;
use grasp_core::admission::policy::Rules;
use grasp_core::nostr::{EventId, Verifier, kinds};
use grasp_core::repo::catalog::Place;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Site, State};
use grasp_core::state_machine::Machine;
use grasp_git::backup::{Checker, Seal};
use grasp_store::Store;
use serde_json::{Value, json};

use super::manifest::{FILES, KEY, MANIFEST, Manifest};
use super::snapshot::Scene;
use super::{Tell, tree};
use crate::clock::Clock;

/// Problems that are listed; further ones are counted.
const MAX_PROBLEMS: usize = 200;

/// What was found.
#[derive(Default)]
pub(crate) struct Report {
    /// Files that were read, and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) served: u64,
    pub(crate) held: u64,
    pub(crate) last_seq: u64,
    /// Repositories, states and pull requests whose git data was looked for.
    pub(crate) repositories: u64,
    pub(crate) states: u64,
    pub(crate) pulls: u64,
    /// What is wrong.
    pub(crate) problems: Vec<String>,
    /// How much more is wrong.
    pub(crate) more: u64,
    /// Whether the event store is not as it was written: then it is not opened.
    pub(crate) store_is_damaged: bool,
}

/// What must be somewhere.
struct Wanted {
    oids: BTreeSet<String>,
    /// Where it may be.
    sites: Vec<Site>,
}

/// What events ask for.
#[derive(Default)]
struct Demand {
    states: BTreeMap<EventId, BTreeSet<String>>,
    pulls: BTreeMap<EventId, Wanted>,
}

impl Report {
    pub(crate) fn complain(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS { self.problems.push(problem) } else { self.more += 1 }
    }

    /// For programs.
    pub(crate) fn value(&self) -> Value {
        json!({
            "files": self.files,
            "bytes": self.bytes,
            "served": self.served,
            "held": self.held,
            "last_seq": self.last_seq,
            "repositories": self.repositories,
            "states": self.states,
            "pull_requests": self.pulls,
            "problems": self.problems,
            "more_problems": self.more,
        })
    }
}

/// Whether the files of a backup are as they were written.
pub(crate) fn files(folder: &Path, manifest: &Manifest, report: &mut Report, tell: &mut Tell<'_>) -> Result<()> {
    let mut known = BTreeSet::new();
    manifest.each(folder, |entry| {
        let path = folder.join(&entry.path);
        let before = report.problems.len() as u64 + report.more;
        match fs::metadata(&path) {
            Err(problem) => report.complain(format!("{}: {problem}", entry.path.display())),
            Ok(found) if found.len() != entry.bytes => {
                let text = format!("{}: {} bytes instead of {}", entry.path.display(), found.len(), entry.bytes);
                report.complain(text);
            }
            Ok(_) => match entry.seal.fits(&path) {
                Ok(true) => {}
                Ok(false) => report.complain(format!("{}: its bytes have changed", entry.path.display())),
                Err(problem) => report.complain(format!("{}: {problem}", entry.path.display())),
            },
        }
        let is_wrong = report.problems.len() as u64 + report.more > before;
        report.store_is_damaged |= is_wrong && entry.path.starts_with("events");
        report.files += 1;
        report.bytes += entry.bytes;
        known.insert(entry.path);
        tell("reading files", report.files, Some(manifest.files))
    })?;
    if report.files != manifest.files {
        report.complain(format!("{FILES}: {} files instead of {}", report.files, manifest.files));
    }
    tree::walk(folder, |path, is_folder| {
        let is_own = [MANIFEST, FILES, KEY].iter().any(|own| path == Path::new(own));
        if !is_folder && !is_own && !known.contains(path) {
            report.complain(format!("{}: a file that the backup does not know", path.display()));
        }
        Ok(())
    })
}

/// Whether git's files at a moment are what they say they are.
pub(crate) fn git_files(folder: &Path, report: &mut Report, tell: &mut Tell<'_>) -> Result<()> {
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
            report.complain(format!("{}: its bytes are not what they were", path.display()));
        }
        tell("reading files", report.files, None)
    })
}

/// Whether what the store at a moment serves is signed and has its git data.
pub(crate) fn contents(
    scene: &Scene,
    rules: &Rules,
    checker: &Checker,
    report: &mut Report,
    tell: &mut Tell<'_>,
) -> Result<()> {
    let store = Store::open_unchanging(&scene.folder.join("events")).context("the event store cannot be opened")?;
    let now = Clock::start().now();
    let mut registrar = Registrar::new(rules.clone());
    let unreadable = store.restore(|restored| registrar.handle(now, Input::Restored(restored)))?;
    if unreadable > 0 {
        report.complain(format!("events: {unreadable} rows cannot be read"));
    }
    let demand = events(&store, rules, &registrar, report, tell)?;
    report.last_seq = store.last_seq();
    for (what, found, said) in [
        ("served events", report.served, scene.served),
        ("held events", report.held, scene.held),
        ("the last sequence number", report.last_seq, scene.last_seq),
    ] {
        if found != said {
            report.complain(format!("events: {what}: {found} instead of {said}"));
        }
    }
    drop(store);
    git_data(scene, &registrar, demand, checker, report, tell)
}

/// Reads every event, and gives what the served ones ask for.
fn events(
    store: &Store,
    rules: &Rules,
    registrar: &Registrar,
    report: &mut Report,
    tell: &mut Tell<'_>,
) -> Result<Demand> {
    let mut demand = Demand::default();
    let mut verifier = Verifier::default();
    let mut stop = None;
    store.moment()?.each(|seq, record| {
        let is_served = seq.is_some();
        if is_served {
            report.served += 1
        } else {
            report.held += 1
        }
        let event = record
            .event()
            .map_err(|problem| problem.to_string())
            .and_then(|event| verifier.check(event.event().clone()).map_err(|problem| problem.to_string()));
        let event = match event {
            Ok(event) if event.id == record.id() => event,
            Ok(_) => return report.complain(format!("event {}: it is kept under another id", record.id())),
            Err(problem) => return report.complain(format!("event {}: {problem}", record.id())),
        };
        if is_served && event.kind == kinds::STATE {
            let oids = State::read(&event).map(|state| state.oids()).unwrap_or_default();
            demand.states.insert(event.id, oids.into_iter().collect());
        }
        if let Some(request) = PullRequest::read_if(&event).filter(|_| is_served) {
            let announced = request.targets.iter().filter(|repo| registrar.hosted(repo).is_some());
            let announced = announced.cloned().map(Site::Announced);
            let sites: Vec<Site> = announced.chain(rules.submissions_of(event.pubkey, &request)).collect();
            if !sites.is_empty() {
                demand.pulls.insert(event.id, Wanted { oids: [request.tip].into(), sites });
            }
        }
        let done = report.served + report.held;
        if stop.is_none() && done.is_multiple_of(1_000) {
            stop = tell("checking events", done, None).err();
        }
    })?;
    stop.map_or(Ok(demand), Err)
}

/// Looks for the git data of what is served.
fn git_data(
    scene: &Scene,
    registrar: &Registrar,
    demand: Demand,
    checker: &Checker,
    report: &mut Report,
    tell: &mut Tell<'_>,
) -> Result<()> {
    let Demand { states, pulls } = demand;
    let mut wanted: BTreeMap<EventId, Wanted> = BTreeMap::new();
    for (repo, slots) in registrar.catalog().repositories() {
        let site = Site::Announced(repo.clone());
        let is_hosted = registrar.hosted(&repo).is_some_and(|hosted| hosted.place == Place::Served);
        // Also what is kept for reasons that only the server knows: an archive.
        let is_kept = slots.served.is_some() && folder_of(scene, &site).join("HEAD").exists();
        if !is_hosted && !is_kept {
            continue;
        }
        report.repositories += 1;
        let best = registrar.states_for(&site).into_iter().find(|(_, place)| *place == Place::Served);
        if let Some((id, oids)) = best.and_then(|(id, _)| Some((id, states.get(&id)?))) {
            wanted.entry(id).or_insert_with(|| Wanted { oids: oids.clone(), sites: Vec::new() }).sites.push(site);
        }
    }
    report.states = wanted.len() as u64;
    report.pulls = pulls.len() as u64;
    let mut at_site: BTreeMap<Site, BTreeSet<String>> = BTreeMap::new();
    for Wanted { oids, sites } in wanted.values().chain(pulls.values()) {
        for site in sites {
            at_site.entry(site.clone()).or_default().extend(oids.iter().cloned());
        }
    }
    let mut missing: BTreeMap<Site, BTreeSet<String>> = BTreeMap::new();
    let all = at_site.len() as u64;
    for (done, (site, mut oids)) in (1..).zip(at_site) {
        let folder = folder_of(scene, &site);
        if folder.join("HEAD").exists() {
            let looked = checker.targets(&folder).map_err(anyhow::Error::from).and_then(|targets| {
                oids.extend(targets.iter().cloned());
                let lacking: BTreeSet<String> = checker.missing(&folder, &oids)?.into_iter().collect();
                Ok((targets, lacking))
            });
            let (targets, lacking) = match looked {
                Ok(looked) => looked,
                Err(problem) => {
                    report.complain(format!("{site}: cannot be looked at: {problem}"));
                    continue;
                }
            };
            for oid in targets.intersection(&lacking) {
                report.complain(format!("{site}: a ref points to {oid}, which is not all there"));
            }
            missing.insert(site, lacking);
        } else {
            missing.insert(site, oids);
        }
        tell("checking git data", done, Some(all))?;
    }
    for (what, wanted) in [("state", wanted), ("pull request", pulls)] {
        for (id, Wanted { oids, sites }) in wanted {
            // A repository that is about to be brought into line may not have it yet; one of them has.
            let is_whole = |site: &Site| missing.get(site).is_some_and(|lacking| lacking.is_disjoint(&oids));
            if !sites.iter().any(is_whole) {
                let places: Vec<String> = sites.iter().map(ToString::to_string).collect();
                report.complain(format!("{what} {id}: its git data is not all there ({})", places.join(", ")));
            }
        }
    }
    Ok(())
}

fn folder_of(scene: &Scene, site: &Site) -> PathBuf {
    scene.folder.join("git").join(grasp_git::layout::path_of(site))
}
