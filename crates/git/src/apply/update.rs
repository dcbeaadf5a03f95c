//! Aligns a repository with the signed events: first its objects, then its alternates. Then the refs that it should have
//! are known.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, PullRequestRef, ReceivedPack, RefFallback,
};
use grasp_core::limits;
use grasp_core::nostr::EventId;
use grasp_core::repo::state::is_oid;
use grasp_core::repo::{PackManifest, RepoPath, ref_name};

use super::GitJobRunner;
use super::adopt_packs::move_packs;
use super::connectivity::{KnownTargets, ObjectSource, ObjectView};
use super::copy_objects::CopyRequest;
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::crash_point;
use crate::layout::create_bare_repo;
use crate::objects::{ObjectKind, ObjectLookup};
use crate::process::ProcessInput;
use crate::refs::{RefTarget, Refs};

const BRANCHES: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// The candidate that the repository is aligned with, and its refs.
struct ChosenState<'a> {
    candidate: &'a CandidateState,
    refs: Vec<(&'a str, RefTarget)>,
}

/// What a degraded repository has lost.
struct LostObjects {
    /// Whether branches or tags are incomplete.
    is_incomplete: bool,
    /// The events whose objects are missing; only pull requests if branches and tags are complete.
    events: Vec<EventId>,
}

/// The repository that is aligned.
struct TargetRepo<'a> {
    folder: &'a Path,
    is_degraded: bool,
    alternates: Alternates,
    known: &'a KnownTargets<'a>,
    /// Objects that were found to be complete before the job.
    verified: BTreeSet<&'a str>,
}

impl TargetRepo<'_> {
    fn view<'s>(&'s self, pools: &'s [PathBuf], lookup: &'s ObjectLookup, is_verified: bool) -> ObjectView<'s> {
        let source =
            if repo_exists(self.folder) { ObjectSource::Repo(self.folder) } else { ObjectSource::Pools(pools) };
        let is_verified = is_verified && !self.is_degraded;
        ObjectView { source, lookup, known: self.known, verified: &self.verified, is_verified }
    }
}

impl GitJobRunner {
    /// Aligns a repository, in steps that are each durable before the next.
    pub(super) fn align(&self, repo_path: &RepoPath, alignment: &Alignment) -> Result<AlignmentResult, ActionError> {
        let folder = self.layout.repo_dir(repo_path);
        let received_packs: Vec<PathBuf> =
            alignment.adopt.iter().map(|received_pack| self.layout.received_pack(received_pack)).collect();
        // The packs of a push exist until it ends, and their objects are not checked again here.
        let is_missing = |received_pack: &&ReceivedPack| {
            matches!(received_pack, ReceivedPack::Incoming(_)) && !self.layout.received_pack(received_pack).exists()
        };
        if alignment.checked_prune_count.is_some()
            && alignment.adopt.iter().any(|received_pack| is_missing(&received_pack))
        {
            return Err(ActionError::PackMissing("of this push".to_owned()));
        }
        let row = self.rows.row(repo_path).context("read the refs of a repository")?.unwrap_or_default();
        let has_lost_folder = !repo_exists(&folder) && !row.refs.is_empty();
        if has_lost_folder {
            // Before it is created again: then nothing would show that its objects are lost.
            self.layout.record_lost_folder(repo_path, &*self.rows).context("record a degraded repository")?;
        }
        let has_all_packs = received_packs.iter().all(|received_pack| received_pack.exists());
        let mut has_new_packs = received_packs.iter().any(|received_pack| received_pack.exists());
        if has_new_packs {
            self.create_repo(&folder)?;
            move_packs(&received_packs, &self.layout.pool(repo_path)).context("move packs into the pool")?;
        }
        let before = row.refs;
        let (alternates, has_dropped_pools) = self.alternates(repo_path, &alignment.alternates, &before)?;
        if repo_exists(&folder) {
            self.set_alternates(&alternates)?;
        }
        // In a degraded repository, refs do not prove that their objects are complete.
        let is_degraded = row.degraded.is_some() || has_lost_folder || has_dropped_pools;
        let trusted = if is_degraded { Arc::default() } else { before.clone() };
        let known = KnownTargets::new(&trusted);
        let verified = self.verified_objects(alignment, has_all_packs && !is_degraded);
        let mut target = TargetRepo { folder: &folder, alternates, known: &known, is_degraded, verified };
        let chosen = self.choose_state(&mut target, alignment)?;
        let pools = target.alternates.pools();
        let lookup = ObjectLookup::new(&pools);
        let view = target.view(&pools, &lookup, self.is_verified(alignment));
        let (mut pull_requests, incomplete) = self.split_pull_requests(&view, &alignment.pull_requests)?;
        for pull_request in incomplete {
            let tips = [pull_request.tip.as_str()];
            if let Some(from) = self.find_source(&tips, &pull_request.sources, &target)? {
                self.prepare_repo(&folder, &target.alternates)?;
                let kept = target.alternates.pools();
                self.copy_objects(&CopyRequest { tips: &tips, known: &known.targets(), from: &from, kept: &kept })?;
                crash_point::point("align.pulls");
                has_new_packs = true;
                pull_requests.push(pull_request);
            }
        }
        let mut next = aligned_refs(&before, chosen.as_ref(), &pull_requests, alignment);
        if next != *before {
            self.prepare_repo(&folder, &target.alternates)?;
        }
        let (mut lost, mut dropped) = (None, Vec::new());
        if is_degraded {
            let found = self.check_degraded(&target, alignment, &chosen, &next)?;
            lost = found.is_incomplete.then(|| found.events.clone());
            if !found.is_incomplete {
                dropped = found.events;
                dropped.iter().for_each(|event| drop(next.remove(&pull_request_ref(*event))));
            }
        }
        let has_ref = |pull_request: &&&PullRequestRef| {
            next.get(&pull_request_ref(pull_request.event)).is_some_and(|target| target.oid == pull_request.tip)
        };
        Ok(AlignmentResult {
            chosen: chosen.map(|chosen| chosen.candidate.event),
            pull_requests: pull_requests.iter().filter(has_ref).map(|pull_request| pull_request.event).collect(),
            packs: if has_new_packs { Some(self.packs(repo_path)?) } else { None },
            refs: if next == *before { before } else { Arc::new(next) },
            was_degraded: is_degraded,
            lost,
            dropped,
        })
    }

    fn packs(&self, repo_path: &RepoPath) -> Result<Arc<PackManifest>, ActionError> {
        self.layout.packs_to_record(repo_path, &*self.rows).map(Arc::new).context("read a pool")
    }

    /// Checks everything that the refs of a degraded repository need.
    fn check_degraded(
        &self,
        target: &TargetRepo<'_>,
        alignment: &Alignment,
        chosen: &Option<ChosenState<'_>>,
        next: &Refs,
    ) -> Result<LostObjects, ActionError> {
        let pools = target.alternates.pools();
        let lookup = ObjectLookup::new(&pools);
        let view = target.view(&pools, &lookup, false);
        let mut lost = LostObjects { is_incomplete: false, events: Vec::new() };
        // The refs may be lost, too: then only a state proves that nothing is missing. A job for a pull request has none.
        let followed = alignment.candidates.iter().find(|candidate| candidate.is_served);
        let has_all_refs = chosen.is_some() || (followed.is_none() && alignment.fallback == RefFallback::Clear);
        let is_pull_request = |name: &str| name.starts_with("refs/nostr/");
        let mut tips: Vec<&str> =
            next.iter().filter(|(name, _)| !is_pull_request(name)).map(|(_, target)| target.oid.as_str()).collect();
        tips.sort_unstable();
        tips.dedup();
        if !has_all_refs || !self.has_all(&view, &tips)? {
            lost.is_incomplete = true;
            lost.events.extend(followed.filter(|_| chosen.is_none()).map(|state| state.event));
        }
        for (name, ref_target) in next.iter().filter(|(name, _)| is_pull_request(name)) {
            let Some(event) = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex) else { continue };
            let has_capacity = !lost.is_incomplete || lost.events.len() < limits::MAX_LOST_EVENTS;
            if has_capacity && !self.has_all(&view, &[&ref_target.oid])? {
                lost.events.push(event);
            }
        }
        Ok(lost)
    }

    /// Returns whether some objects exist with everything that they refer to.
    fn has_all(&self, view: &ObjectView<'_>, tips: &[&str]) -> Result<bool, ActionError> {
        for tip in tips {
            if view.kind(tip)?.is_none() {
                return Ok(false);
            }
        }
        self.is_complete(view, tips)
    }

    /// Creates the folder of a repository if it does not exist.
    fn create_repo(&self, folder: &Path) -> Result<(), ActionError> {
        if repo_exists(folder) {
            return Ok(());
        }
        let created = match create_bare_repo(folder) {
            // The owner's folder was empty, and the removal of another repository has just removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => create_bare_repo(folder),
            result => result,
        };
        created.context("create a repository")?;
        crash_point::point("align.folder");
        Ok(())
    }

    /// Creates the folder of a repository if it does not exist, and sets its alternates.
    fn prepare_repo(&self, folder: &Path, alternates: &Alternates) -> Result<(), ActionError> {
        self.create_repo(folder)?;
        self.set_alternates(alternates)
    }

    /// Returns the objects that were found to be complete before the job, if nothing was removed since.
    fn verified_objects<'a>(&self, alignment: &'a Alignment, is_usable: bool) -> BTreeSet<&'a str> {
        let verified = alignment.verified.iter().filter(|it| is_usable && it.prune_count == self.layout.prune_count());
        verified.flat_map(|it| it.oids.iter().map(String::as_str)).collect()
    }

    /// Returns whether all objects that a job names were found to be complete, and no objects were removed since.
    fn is_verified(&self, alignment: &Alignment) -> bool {
        alignment.checked_prune_count == Some(self.layout.prune_count())
    }

    /// Returns the first candidate that is complete, or none if a served one is not and the repository is degraded,
    /// possibly after the pools of one of its sources were added to the
    /// alternates.
    fn choose_state<'a>(
        &self,
        target: &mut TargetRepo<'_>,
        alignment: &'a Alignment,
    ) -> Result<Option<ChosenState<'a>>, ActionError> {
        for candidate in alignment.candidates.iter().filter(|candidate| has_valid_refs(candidate)) {
            // Opened again for each candidate: pools may have been added.
            let pools = target.alternates.pools();
            let lookup = ObjectLookup::new(&pools);
            let view = target.view(&pools, &lookup, self.is_verified(alignment));
            if let Some(refs) = self.resolve_refs(&view, candidate)? {
                return Ok(Some(ChosenState { candidate, refs }));
            }
            let mut tips: Vec<&str> = candidate.refs.iter().map(|(_, oid)| oid.as_str()).collect();
            tips.sort_unstable();
            tips.dedup();
            if let Some(from) = self.find_source(&tips, &candidate.sources, target)? {
                let (known, kept) = (target.known.targets(), target.alternates.pools());
                let needed =
                    self.needed_pools(&CopyRequest { tips: &tips, known: &known, from: &from, kept: &kept })?;
                let alternates = target.alternates.with(&self.layout, &needed);
                if alternates.foreign_pools().len() > limits::MAX_MAINTAINERS + limits::MAX_RETAINED_POOLS {
                    continue;
                }
                target.alternates = alternates;
                self.prepare_repo(target.folder, &target.alternates)?;
                let pools = target.alternates.pools();
                let lookup = ObjectLookup::new(&pools);
                if let Some(refs) = self.resolve_refs(&target.view(&pools, &lookup, false), candidate)? {
                    return Ok(Some(ChosenState { candidate, refs }));
                }
            }
            if target.is_degraded && candidate.is_served {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the refs of a candidate if everything that they need can be read and its branches are commits.
    fn resolve_refs<'a>(
        &self,
        view: &ObjectView<'_>,
        candidate: &'a CandidateState,
    ) -> Result<Option<Vec<(&'a str, RefTarget)>>, ActionError> {
        let mut tags = Vec::new();
        for (name, oid) in &candidate.refs {
            let is_valid = if name.starts_with(BRANCHES) {
                view.is_verified || view.is_commit(oid)?
            } else if view.known.peeled(oid).is_some() {
                true
            } else {
                let kind = view.kind(oid)?;
                tags.extend((kind == Some(ObjectKind::Tag)).then_some(oid.as_str()));
                kind.is_some()
            };
            if !is_valid {
                return Ok(None);
            }
        }
        let tips: Vec<&str> = candidate.refs.iter().map(|(_, oid)| oid.as_str()).collect();
        if !self.is_complete(view, &tips)? {
            return Ok(None);
        }
        let peeled = self.peel_tags(view, &tags)?;
        let target = |name: &str, oid: &str| {
            let known = view.known.peeled(oid).flatten().or(peeled.get(oid).map(String::as_str));
            RefTarget { oid: oid.to_owned(), peeled: known.filter(|_| name.starts_with(TAGS)).map(str::to_owned) }
        };
        Ok(Some(candidate.refs.iter().map(|(name, oid)| (name.as_str(), target(name, oid))).collect()))
    }

    /// Returns the objects that tag objects lead to when all tags are followed.
    fn peel_tags<'a>(&self, view: &ObjectView<'_>, tags: &[&'a str]) -> Result<BTreeMap<&'a str, String>, ActionError> {
        if tags.is_empty() {
            return Ok(BTreeMap::new());
        }
        let environment = view.source.environment(&self.layout)?;
        let mut command = environment.command(self, &["cat-file", "--batch-check=%(objectname)"]);
        let input: String = tags.iter().map(|tag| format!("{tag}^{{}}\n")).collect();
        // A line is an object id, or the expression followed by " missing".
        let max_output = tags.len() * 64;
        let output = self
            .git
            .run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, max_output)
            .context("read tags")?;
        let output = String::from_utf8_lossy(&output);
        let mut lines = output.lines();
        let peeled = tags.iter().map(|tag| match lines.next() {
            Some(oid) if is_sha1_oid(oid) => Ok((*tag, oid.to_owned())),
            _ => Err(ActionError::Tag((*tag).to_owned())),
        });
        peeled.collect()
    }

    /// Returns the pull requests whose commits are complete, and the others.
    fn split_pull_requests<'a>(
        &self,
        view: &ObjectView<'_>,
        pull_requests: &'a [PullRequestRef],
    ) -> Result<(Vec<&'a PullRequestRef>, Vec<&'a PullRequestRef>), ActionError> {
        let (mut complete, mut incomplete) = (Vec::new(), Vec::new());
        for pull_request in pull_requests.iter().filter(|pull_request| is_sha1_oid(&pull_request.tip)) {
            let is_present = view.is_verified || view.is_commit(&pull_request.tip)?;
            if is_present { complete.push(pull_request) } else { incomplete.push(pull_request) }
        }
        let tips: Vec<&str> = complete.iter().map(|pull_request| pull_request.tip.as_str()).collect();
        // One check of all of them is enough if nothing is missing, which is nearly always the case.
        if !self.is_complete(view, &tips)? {
            for pull_request in std::mem::take(&mut complete) {
                let is_complete = self.is_complete(view, &[&pull_request.tip])?;
                if is_complete { complete.push(pull_request) } else { incomplete.push(pull_request) }
            }
        }
        Ok((complete, incomplete))
    }

    /// Returns the pools of the first source that has some objects with everything that they refer to.
    fn find_source(
        &self,
        tips: &[&str],
        sources: &[RepoPath],
        target: &TargetRepo<'_>,
    ) -> Result<Option<Vec<PathBuf>>, ActionError> {
        for other in sources {
            let source = self.layout.repo_dir(other);
            if source == target.folder || !repo_exists(&source) {
                continue;
            }
            let from = Alternates::read(&source).context("read alternates")?.pools();
            let row = self.rows.row(other).context("read the refs of a repository")?.unwrap_or_default();
            let refs = if row.degraded.is_some() { Arc::default() } else { row.refs };
            let view = ObjectView {
                source: ObjectSource::Repo(&source),
                lookup: &ObjectLookup::open(&from).context("read a pool")?,
                known: &KnownTargets::new(&refs),
                verified: &BTreeSet::new(),
                is_verified: false,
            };
            let mut has_all = true;
            for tip in tips {
                has_all = has_all && view.kind(tip)?.is_some();
            }
            if has_all && self.is_complete(&view, tips)? {
                return Ok(Some(from));
            }
        }
        Ok(None)
    }
}

/// Returns the refs that a repository should have.
fn aligned_refs(
    before: &Refs,
    chosen: Option<&ChosenState<'_>>,
    pull_requests: &[&PullRequestRef],
    alignment: &Alignment,
) -> Refs {
    let mut next = before.clone();
    if chosen.is_some() || alignment.fallback == RefFallback::Clear {
        for (name, _) in before.iter().filter(|(name, _)| name.starts_with(BRANCHES) || name.starts_with(TAGS)) {
            next.remove(name);
        }
    }
    if let Some(ChosenState { candidate, refs }) = chosen {
        for (name, target) in refs {
            next.set(name, target.clone());
        }
        let head = candidate.head.as_deref().filter(|head| head.starts_with(BRANCHES) && next.get(head).is_some());
        if let Some(head) = head {
            next.set_head(head);
        }
    }
    for pull_request in pull_requests {
        let target = RefTarget { oid: pull_request.tip.clone(), peeled: None };
        next.set(&pull_request_ref(pull_request.event), target);
    }
    for event in &alignment.drop_pull_requests {
        next.remove(&pull_request_ref(*event));
    }
    next
}

/// Returns whether a folder is a complete repository: HEAD is written last.
pub(super) fn repo_exists(folder: &Path) -> bool {
    folder.join("HEAD").exists()
}

fn pull_request_ref(event: EventId) -> String {
    format!("refs/nostr/{event}")
}

/// Returns whether a text is the id of an object that a repository of this server can have: forty hex digits.
fn is_sha1_oid(text: &str) -> bool {
    text.len() == 40 && is_oid(text)
}

/// Returns whether git accepts these refs, apart from the existence of the objects.
fn has_valid_refs(candidate: &CandidateState) -> bool {
    let mut names: Vec<&str> = candidate.refs.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    candidate.refs.iter().all(|(name, oid)| {
        (name.starts_with(BRANCHES) || name.starts_with(TAGS)) && ref_name::is_valid(name) && is_sha1_oid(oid)
    }) && names.windows(2).all(|pair| pair[0] != pair[1])
        && !ref_name::has_conflict(names)
}
