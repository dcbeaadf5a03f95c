//! Model of the git workers. Objects are names, a repository is a set of them with refs, and a git job is done one
//! durable step at a time, so that a crash can be injected between any two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobOutcome, GitOperation, PullRequestRef, ReceivedPack,
    RefFallback,
};
use grasp_core::nostr::EventId;
use grasp_core::repo::state::is_oid;
use grasp_core::repo::{RefTarget, Refs, RepoPath};

/// Object ids.
pub type Oids = BTreeSet<String>;

/// One repository on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepoFolder {
    /// Its own objects.
    pub pool: Oids,
    /// The other repositories whose pools it reads, or has read before. Some may be deleted.
    pub alternates: BTreeSet<RepoPath>,
}

/// All repositories and packs on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GitModel {
    repo_paths: BTreeMap<RepoPath, RepoFolder>,
    /// The pools of deleted repositories that others read.
    orphaned: BTreeMap<RepoPath, Oids>,
    /// Objects that an object depends on. Most depend on none.
    dependencies: BTreeMap<String, Oids>,
    incoming: BTreeMap<u64, Oids>,
    staged: BTreeMap<u64, Oids>,
    received: u64,
    prune_count: u64,
}

/// Returns the name of a pull request's ref.
pub fn pull_ref(event: EventId) -> String {
    format!("refs/nostr/{event}")
}

/// Whether a ref is a branch or a tag.
pub fn is_branch_or_tag(name: &str) -> bool {
    name.starts_with("refs/heads/") || name.starts_with("refs/tags/")
}

impl GitModel {
    /// Adds dependencies of an object, for example a commit's parents.
    pub fn add_dependencies(&mut self, oid: &str, needs: &[&str]) {
        self.dependencies.entry(oid.to_owned()).or_default().extend(needs.iter().map(|oid| (*oid).to_owned()));
    }

    /// Returns the repositories that have a folder.
    pub fn folders(&self) -> impl Iterator<Item = (&RepoPath, &RepoFolder)> {
        self.repo_paths.iter()
    }

    /// Returns a repository, if it has a folder.
    pub fn folder(&self, repo_path: &RepoPath) -> Option<&RepoFolder> {
        self.repo_paths.get(repo_path)
    }

    /// Whether a deleted repository has left its pool.
    pub fn is_orphaned(&self, repo_path: &RepoPath) -> bool {
        self.orphaned.contains_key(repo_path)
    }

    /// Returns the numbers of the staged uploads.
    pub fn staged(&self) -> BTreeSet<u64> {
        self.staged.keys().copied().collect()
    }

    /// Returns the numbers of the packs that belong to pushes.
    pub fn incoming(&self) -> BTreeSet<u64> {
        self.incoming.keys().copied().collect()
    }

    /// Adds objects to a repository. Returns true if any of them is new.
    pub fn add_objects(&mut self, repo_path: &RepoPath, oids: &Oids) -> bool {
        let pool = &mut self.repo_paths.entry(repo_path.clone()).or_default().pool;
        let before = pool.len();
        pool.extend(oids.iter().cloned());
        pool.len() > before
    }

    /// Returns how often objects were removed from pools.
    pub fn prune_count(&self) -> u64 {
        self.prune_count
    }

    /// Receives a pack.
    pub fn receive(&mut self, oids: Oids) -> ReceivedPack {
        self.received += 1;
        self.incoming.insert(self.received, oids);
        ReceivedPack::Incoming(self.received)
    }

    /// Discards a received pack.
    pub fn discard(&mut self, received_pack: &ReceivedPack) {
        match received_pack {
            ReceivedPack::Incoming(number) => self.incoming.remove(number),
            ReceivedPack::Staged(number) => self.staged.remove(number),
        };
    }

    /// Cleans up as after a restart: removes received packs, and staged uploads that have no row.
    pub fn restart(&mut self, rows: &BTreeSet<u64>) {
        self.incoming.clear();
        self.keep_staged(rows);
    }

    /// Removes staged uploads that have no row.
    pub fn keep_staged(&mut self, rows: &BTreeSet<u64>) {
        self.staged.retain(|number, _| rows.contains(number));
    }

    /// Returns all objects that a repository reads with its current alternates.
    pub fn readable(&self, repo_path: &RepoPath) -> Oids {
        self.repo_paths.get(repo_path).map(|folder| self.read(repo_path, &folder.alternates)).unwrap_or_default()
    }

    /// Returns all objects that a repository would read with these alternates.
    pub fn read(&self, repo_path: &RepoPath, alternates: &BTreeSet<RepoPath>) -> Oids {
        let folder = |repo_path: &RepoPath| self.repo_paths.get(repo_path).map(|folder| &folder.pool);
        // The repository of an alternate may be deleted.
        let pools = alternates.iter().filter_map(|other| folder(other).or_else(|| self.orphaned.get(other)));
        pools.chain(folder(repo_path)).flatten().cloned().collect()
    }

    /// Whether an object is present with all its dependencies.
    pub fn is_complete(&self, oid: &str, objects: &Oids) -> bool {
        self.closure(oid).iter().all(|oid| objects.contains(oid))
    }

    /// Returns an object and all its dependencies.
    pub fn closure(&self, oid: &str) -> Oids {
        let mut closure = Oids::from([oid.to_owned()]);
        let mut fresh = vec![oid.to_owned()];
        while let Some(oid) = fresh.pop() {
            for needed in self.dependencies.get(&oid).into_iter().flatten() {
                if closure.insert(needed.clone()) {
                    fresh.push(needed.clone());
                }
            }
        }
        closure
    }

    fn received_pack(&self, received_pack: &ReceivedPack) -> Option<&Oids> {
        match received_pack {
            ReceivedPack::Incoming(number) => self.incoming.get(number),
            ReceivedPack::Staged(number) => self.staged.get(number),
        }
    }

    /// Does the next durable step of a job, or returns its result if none is left. A job describes a condition, so
    /// the next step is the first part of it that does not hold yet. `refs` are those of its repository.
    pub fn step(&mut self, job: &GitJob, refs: &Refs) -> Option<GitJobOutcome> {
        match &job.operation {
            GitOperation::Align(align) => self.align(&job.repo_path, align, refs),
            GitOperation::StageUploads(moves) => self.stage(moves),
            GitOperation::Delete => self.delete(&job.repo_path),
        }
    }

    fn align(&mut self, repo_path: &RepoPath, align: &Alignment, before: &Refs) -> Option<GitJobOutcome> {
        if self.adopt(repo_path, &align.adopt) {
            return None;
        }
        let alternates = self.existing_alternates(repo_path, &align.alternates);
        if self.repo_paths.contains_key(repo_path) && self.set_alternates(repo_path, &alternates) {
            return None;
        }
        let objects = self.read(repo_path, &alternates);
        // A check is still valid if nothing was removed from a pool since.
        let proven = align.checked_prune_count == Some(self.prune_count);
        let is_here = |oids: &Oids| {
            oids.iter().all(|oid| oid.len() == 40 && is_oid(oid) && objects.contains(oid))
                && (proven || oids.iter().all(|oid| self.is_complete(oid, &objects)))
        };
        let (mut chosen, mut pull_requests, mut copied) = (None, Vec::new(), None);
        for candidate in &align.candidates {
            let tips: Oids = candidate.refs.iter().map(|(_, oid)| oid.clone()).collect();
            chosen = is_here(&tips).then_some(candidate);
            if chosen.is_some() {
                break;
            }
            if let Some(source) = self.find_source(repo_path, &tips, &candidate.sources) {
                let more =
                    self.repo_paths[source].alternates.iter().chain([source]).filter(|other| *other != repo_path);
                let with_source: BTreeSet<RepoPath> = alternates.iter().chain(more).cloned().collect();
                if !self.create_folder(repo_path) {
                    self.set_alternates(repo_path, &with_source);
                }
                return None;
            }
        }
        for pull in align.pull_requests.iter().filter(|pull| is_oid(&pull.tip)) {
            let tips = Oids::from([pull.tip.clone()]);
            if is_here(&tips) {
                pull_requests.push(pull);
            } else {
                copied = copied.or_else(|| self.objects_to_copy(repo_path, &tips, &pull.sources, &objects));
            }
        }
        if let Some(copied) = copied.filter(|copied| !copied.is_empty()) {
            // The folder first, then its alternates, then the objects.
            if !self.create_folder(repo_path) && !self.set_alternates(repo_path, &alternates) {
                self.add_objects(repo_path, &copied);
            }
            return None;
        }
        let refs = merged_refs(before, chosen, &pull_requests, align);
        if refs != *before && (self.create_folder(repo_path) || self.set_alternates(repo_path, &alternates)) {
            return None;
        }
        let has_ref =
            |pull: &&&PullRequestRef| refs.get(&pull_ref(pull.event)).is_some_and(|target| target.oid == pull.tip);
        Some(GitJobOutcome::Aligned(AlignmentResult {
            chosen: chosen.map(|candidate| candidate.event),
            pull_requests: pull_requests.iter().filter(has_ref).map(|pull| pull.event).collect(),
            refs: Arc::new(refs),
            ..AlignmentResult::default()
        }))
    }

    /// Moves packs into the pool. Returns true if that was a step.
    fn adopt(&mut self, repo_path: &RepoPath, received_packs: &[ReceivedPack]) -> bool {
        let Some((received_pack, oids)) = received_packs
            .iter()
            .find_map(|received_pack| Some((received_pack, self.received_pack(received_pack)?.clone())))
        else {
            return false;
        };
        if !self.create_folder(repo_path) && !self.add_objects(repo_path, &oids) {
            self.discard(received_pack);
        }
        true
    }

    /// Creates the folder of a repository. Returns true if it had none.
    fn create_folder(&mut self, repo_path: &RepoPath) -> bool {
        let is_new = !self.repo_paths.contains_key(repo_path);
        if is_new {
            let pool = self.orphaned.remove(repo_path).unwrap_or_default();
            self.repo_paths.insert(repo_path.clone(), RepoFolder { pool, ..RepoFolder::default() });
        }
        is_new
    }

    /// Returns the repositories whose pools a repository should read: those of `alternates` that exist, and those that
    /// it has read before.
    fn existing_alternates(&self, repo_path: &RepoPath, alternates: &[RepoPath]) -> BTreeSet<RepoPath> {
        let mut all: BTreeSet<RepoPath> =
            alternates.iter().filter(|other| self.repo_paths.contains_key(other)).cloned().collect();
        let before = self.repo_paths.get(repo_path).into_iter().flat_map(|folder| folder.alternates.iter().cloned());
        all.extend(before);
        all.remove(repo_path);
        all
    }

    /// Sets the alternates of a repository. Returns true if that was a step.
    fn set_alternates(&mut self, repo_path: &RepoPath, alternates: &BTreeSet<RepoPath>) -> bool {
        let Some(folder) = self.repo_paths.get_mut(repo_path).filter(|folder| folder.alternates != *alternates) else {
            return false;
        };
        folder.alternates.clone_from(alternates);
        true
    }

    /// Returns the first source that has `tips` with all their dependencies.
    fn find_source<'s>(&self, repo_path: &RepoPath, tips: &Oids, sources: &'s [RepoPath]) -> Option<&'s RepoPath> {
        let others = sources.iter().filter(|source| *source != repo_path && self.repo_paths.contains_key(source));
        let has_all = |source: &&RepoPath| {
            let readable = self.readable(source);
            tips.iter().all(|tip| self.is_complete(tip, &readable))
        };
        others.into_iter().find(has_all)
    }

    /// Returns the objects to copy so that `tips` are complete, if a source has all of them with their dependencies.
    fn objects_to_copy(&self, repo_path: &RepoPath, tips: &Oids, sources: &[RepoPath], objects: &Oids) -> Option<Oids> {
        self.find_source(repo_path, tips, sources)?;
        Some(tips.iter().flat_map(|tip| self.closure(tip)).filter(|oid| !objects.contains(oid)).collect())
    }

    fn stage(&mut self, moves: &[(ReceivedPack, ReceivedPack)]) -> Option<GitJobOutcome> {
        for (from, to) in moves {
            match (self.received_pack(from).cloned(), self.received_pack(to).is_some()) {
                (None, true) => {}
                (None, false) => return Some(GitJobOutcome::Failed(format!("upload {from:?} is missing"))),
                (Some(_), true) => {
                    self.discard(to);
                    return None;
                }
                (Some(oids), false) => {
                    if let ReceivedPack::Staged(number) = to {
                        self.staged.insert(*number, oids);
                    }
                    self.discard(from);
                    return None;
                }
            }
        }
        Some(GitJobOutcome::Staged)
    }

    fn delete(&mut self, repo_path: &RepoPath) -> Option<GitJobOutcome> {
        let Some(folder) = self.repo_paths.remove(repo_path) else {
            return if self.release_pool() { None } else { Some(GitJobOutcome::Deleted) };
        };
        self.prune_count += 1;
        self.orphaned.insert(repo_path.clone(), folder.pool);
        None
    }

    /// Removes the pool of a deleted repository that at most one other repository reads, which gets its objects.
    /// Returns true if that was a step.
    fn release_pool(&mut self) -> bool {
        for (deleted, pool) in self.orphaned.clone() {
            let readers = self.repo_paths.iter().filter(|(_, folder)| folder.alternates.contains(&deleted));
            let readers: Vec<RepoPath> = readers.map(|(reader, _)| reader.clone()).collect();
            match readers.as_slice() {
                [] => {}
                [reader] if self.add_objects(reader, &pool) => return true,
                [reader] => {
                    if let Some(folder) = self.repo_paths.get_mut(reader) {
                        folder.alternates.remove(&deleted);
                    }
                }
                [_, _, ..] => continue,
            }
            self.orphaned.remove(&deleted);
            return true;
        }
        false
    }
}

/// Returns the refs that a repository should have after a job.
fn merged_refs(
    before: &Refs,
    chosen: Option<&CandidateState>,
    pull_requests: &[&PullRequestRef],
    align: &Alignment,
) -> Refs {
    let mut refs = before.clone();
    if chosen.is_some() || align.fallback == RefFallback::Clear {
        before.iter().filter(|(name, _)| is_branch_or_tag(name)).for_each(|(name, _)| drop(refs.remove(name)));
    }
    if let Some(candidate) = chosen {
        for (name, oid) in &candidate.refs {
            refs.set(name, RefTarget { oid: oid.clone(), peeled: None });
        }
        if let Some(head) = candidate.head.as_deref().filter(|head| refs.get(head).is_some()) {
            refs.set_head(head);
        }
    }
    for pull in pull_requests {
        refs.set(&pull_ref(pull.event), RefTarget { oid: pull.tip.clone(), peeled: None });
    }
    for event in &align.drop_pull_requests {
        refs.remove(&pull_ref(*event));
    }
    refs
}
