//! Objects of this server: which wanted objects are here, and the check of a received pack. All functions block.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::disk_budget::QuotaUser;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::layout::Layout;
use grasp_git::objects::ObjectLookup;
use grasp_git::process::Git;
use grasp_git::receive::is_oid;
use grasp_git::receive::{
    InProcessLimits, PackChecker, PackData, PackError, PackLimits, Quarantine, RequiredTips, VisibleObjects,
};

use super::FetchError;
use crate::repos::ref_cache::RefCache;

/// Access to the local repositories.
#[derive(Clone)]
pub(super) struct LocalObjects {
    pub(super) git: Git,
    pub(super) layout: Arc<Layout>,
    pub(super) ref_cache: Arc<RefCache>,
    /// Limits of a received pack.
    pub(super) limits: PackLimits,
}

/// Availability of wanted objects for a repository.
#[derive(Debug)]
pub(super) struct ObjectAvailability {
    /// Number of prunings of object pools before this check.
    pub(super) prune_count: u64,
    /// The repositories whose pools the repository may read, and those of the pools that exist.
    alternates: Vec<RepoPath>,
    pools: Vec<PathBuf>,
    /// Objects that are here with everything that they reference: targets of refs, and wanted objects that were found
    /// complete.
    pub(super) known: Vec<String>,
    /// Some of `known`, to be sent as `have` lines, the most useful first.
    pub(super) haves: Vec<String>,
    /// Wanted objects that are here with everything that they reference.
    pub(super) here: Vec<String>,
    /// The other wanted objects with a valid id.
    pub(super) missing: Vec<String>,
    /// Largest accepted size of a pack.
    pub(super) max_bytes: u64,
    /// Whether some wanted object ids are not SHA-1 ids.
    pub(super) has_invalid_oids: bool,
}

/// Result of the check of a pack.
#[derive(Debug)]
pub(super) struct CheckedObjects {
    /// Wanted objects that are here now with everything that they reference.
    pub(super) oids: Vec<String>,
    /// Number of wanted objects with a valid id that are still missing.
    pub(super) missing_count: usize,
    /// The number of prunings before the check, and the repositories whose pools were read.
    pub(super) prune_count: u64,
    pub(super) alternates: Vec<RepoPath>,
    pub(super) pack: Option<Quarantine>,
}

/// Objects found complete, and whether all objects that came with them are needed.
struct ConnectedObjects {
    oids: Vec<String>,
    is_exact: bool,
}

impl LocalObjects {
    /// Finds out which of the wanted objects are here, and which of the objects that were received earlier.
    pub(super) fn availability(
        &self,
        repo_path: &RepoPath,
        oids: &[String],
        received: &[String],
    ) -> Result<ObjectAvailability, FetchError> {
        let prune_count = self.layout.prune_count();
        let open = self
            .ref_cache
            .open_repo(repo_path)
            .ok_or_else(|| FetchError::local("the repository is no longer hosted"))?;
        let pools = self.layout.existing_pools(repo_path, &open.alternates).map_err(PackError::from)?;
        let mut tips = self.tips(repo_path, &open.alternates)?;
        let wanted: BTreeSet<&String> = oids.iter().filter(|oid| is_oid(oid)).collect();
        let known: BTreeSet<&String> = tips.iter().collect();
        let (mut here, unknown): (Vec<String>, Vec<String>) =
            wanted.iter().map(|oid| (*oid).clone()).partition(|oid| known.contains(oid));
        let received = received.iter().filter(|oid| is_oid(oid) && !known.contains(oid) && !wanted.contains(oid));
        let candidates: Vec<String> = unknown.into_iter().chain(received.cloned()).collect();
        let present = find_present(&ObjectLookup::new(&pools), &candidates)?;
        let view = VisibleObjects { quarantine: None, pools: &pools };
        let found = self.find_connected(view, &present, &tips)?.oids;
        tips.splice(0..0, found.iter().cloned());
        here.extend(found.into_iter().filter(|oid| wanted.contains(oid)));
        let here_set: BTreeSet<&String> = here.iter().collect();
        let missing = wanted.into_iter().filter(|oid| !here_set.contains(oid)).cloned().collect();
        let haves = tips.iter().take(limits::MAX_SENT_HAVES).cloned().collect();
        let has_invalid_oids = oids.iter().any(|oid| !is_oid(oid));
        Ok(ObjectAvailability {
            max_bytes: self.limits.max_bytes,
            prune_count,
            alternates: open.alternates,
            pools,
            known: tips,
            haves,
            here,
            missing,
            has_invalid_oids,
        })
    }

    /// Returns the number of bytes that may be fetched for a repository, charged to its maintainers or to others.
    pub(super) fn allowed_bytes(&self, repo_path: &RepoPath, quota_user: QuotaUser) -> u64 {
        let max_bytes = self.limits.max_bytes;
        self.ref_cache.remaining_quota(repo_path, quota_user).map_or(max_bytes, |left| left.min(max_bytes))
    }

    /// Checks a pack and keeps the wanted objects and what they reference. Availability is determined again, because
    /// objects may have been added or pruned since the request; `prune_count` is the number of prunings at that time.
    pub(super) fn check_pack(
        &self,
        (repo_path, oids, received): (&RepoPath, &[String], &[String]),
        prune_count: u64,
        (mut pack, data): (Quarantine, PackData),
    ) -> Result<CheckedObjects, FetchError> {
        let availability = self.availability(repo_path, oids, received)?;
        let has_pack = matches!(data, PackData::Pack(_));
        let checker = self.checker();
        checker.index_pack(&mut pack, data, &availability.pools).map_err(|problem| match problem {
            // Objects that were sent as `have` lines may be pruned since.
            PackError::Incomplete(reason) if prune_count != availability.prune_count => FetchError::local(reason),
            problem => problem.into(),
        })?;
        let seen: Vec<PathBuf> = availability.pools.iter().cloned().chain([pack.folder().to_owned()]).collect();
        let present = find_present(&ObjectLookup::new(&seen), &availability.missing)?;
        let view = VisibleObjects { quarantine: has_pack.then_some(&pack), pools: &availability.pools };
        let ConnectedObjects { oids, is_exact } = self.find_connected(view, &present, &availability.known)?;
        let pack = match (has_pack && !oids.is_empty(), is_exact) {
            (false, _) => None,
            (true, true) => Some(pack),
            (true, false) => {
                Some(checker.repack_needed(view, &oids, &availability.known)?).filter(|pack| !pack.is_empty())
            }
        };
        let missing_count = availability.missing.len() - oids.len();
        let ObjectAvailability { here, prune_count, alternates, .. } = availability;
        let oids = here.into_iter().chain(oids).collect();
        Ok(CheckedObjects { oids, missing_count, prune_count, alternates, pack })
    }

    /// Returns the targets of refs, which are here with everything that they reference, the most useful first:
    /// branches, then tags from the last, then pull requests.
    fn tips(&self, repo_path: &RepoPath, alternates: &[RepoPath]) -> Result<Vec<String>, PackError> {
        let mut groups: [Vec<String>; 3] = Default::default();
        for tips_of in std::iter::once(repo_path)
            .chain(alternates.iter().filter(|alternate| self.can_read_all_of(repo_path, alternates, alternate)))
        {
            let snapshot = self.ref_cache.snapshot(tips_of)?;
            if snapshot.is_degraded() {
                continue;
            }
            let mut tags = Vec::new();
            for (name, target) in snapshot.refs.iter() {
                match name {
                    name if name.starts_with("refs/heads/") => groups[0].push(target.oid.clone()),
                    name if name.starts_with("refs/tags/") => tags.push(target.oid.clone()),
                    _ => groups[2].push(target.oid.clone()),
                }
            }
            groups[1].extend(tags.into_iter().rev());
        }
        let mut seen = BTreeSet::new();
        Ok(groups.into_iter().flatten().filter(|oid| seen.insert(oid.clone())).collect())
    }

    /// Returns whether everything that an alternate's refs need can be read here: its own alternates are not read
    /// through it.
    fn can_read_all_of(&self, repo_path: &RepoPath, alternates: &[RepoPath], alternate: &RepoPath) -> bool {
        let reads = self.ref_cache.open_repo(alternate).map(|open| open.alternates);
        reads.is_some_and(|reads| reads.iter().all(|other| other == repo_path || alternates.contains(other)))
    }

    /// Finds out which of some present objects are here with everything that they reference. If not all of them are,
    /// both halves are checked, and so on, up to a bounded number of checks.
    fn find_connected(
        &self,
        view: VisibleObjects<'_>,
        oids: &[String],
        known: &[String],
    ) -> Result<ConnectedObjects, PackError> {
        let checker = self.checker();
        let until = Instant::now() + Duration::from_secs(self.limits.check_secs);
        let mut complete = ConnectedObjects { oids: Vec::new(), is_exact: false };
        let mut parts = vec![oids];
        for nth in 0..limits::MAX_CONNECTIVITY_CHECKS {
            let Some(part) = parts.pop().filter(|_| nth == 0 || Instant::now() < until) else { break };
            if part.is_empty() {
                continue;
            }
            let tips = part.iter().map(|oid| ("object".to_owned(), oid.clone())).collect();
            match checker.check_connectivity(view, &RequiredTips { branches: Vec::new(), others: tips }, known) {
                Ok(connected) => {
                    complete.is_exact = nth == 0 && connected.extra == 0;
                    complete.oids.extend_from_slice(part);
                }
                Err(PackError::Incomplete(_) | PackError::MissingTip { .. }) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(PackError::Incomplete(_) | PackError::MissingTip { .. }) => {}
                Err(problem) => return Err(problem),
            }
        }
        Ok(complete)
    }

    fn checker(&self) -> PackChecker<'_> {
        PackChecker {
            git: &self.git,
            layout: &self.layout,
            limits: self.limits,
            in_process: InProcessLimits::default(),
        }
    }
}

/// Returns those objects that are in some pools.
fn find_present(pools: &ObjectLookup, oids: &[String]) -> Result<Vec<String>, PackError> {
    let mut present = Vec::new();
    for oid in oids {
        if pools.has(oid)? {
            present.push(oid.clone());
        }
    }
    Ok(present)
}
