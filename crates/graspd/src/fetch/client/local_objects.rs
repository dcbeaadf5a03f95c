//! What is here, and whether what came is sound and complete. All of it blocks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::disk_budget::QuotaUser;
use grasp_core::limits;
use grasp_core::nostr::hex;
use grasp_core::repo::RepoPath;
use grasp_git::layout::Layout;
use grasp_git::objects::Pools;
use grasp_git::process::Git;
use grasp_git::receive::{Checker, Incoming, PackLimits, PackProblem, Received, Tips, View};

use super::FetchError;
use crate::monitor::disk_budget::Budget;
use crate::repos::ref_cache::RefCache;

/// Where objects are kept.
#[derive(Clone)]
pub(super) struct LocalObjects {
    pub(super) git: Git,
    pub(super) layout: Arc<Layout>,
    pub(super) directory: Arc<RefCache>,
    /// What one fetch may bring.
    pub(super) limits: PackLimits,
    /// Free disk space below which no large pack is received.
    pub(super) reserve_bytes: u64,
    /// What all packs together may take.
    pub(super) budget: Arc<Budget>,
}

/// What is here for a site.
#[derive(Debug)]
pub(super) struct Look {
    /// How often objects had been taken away from pools before this look.
    pub(super) prunings: u64,
    /// The pools that it may read and that exist.
    pools: Vec<PathBuf>,
    /// Objects that are here with everything they need: those that refs point to, and those of the sought that were found
    /// to be.
    known: Vec<String>,
    /// Some of them, the most useful to tell a server.
    pub(super) haves: Vec<String>,
    /// The sought objects that are here with everything they need.
    pub(super) here: Vec<String>,
    /// The others, as far as they can be in a repository at all.
    pub(super) missing: Vec<String>,
    /// Bytes that may come.
    pub(super) most_bytes: u64,
    /// Whether some of what is sought can be in no repository of ours.
    pub(super) impossible: bool,
}

/// What has been taken in.
#[derive(Debug)]
pub(super) struct Taken {
    /// The sought objects that are here now with everything they need.
    pub(super) oids: Vec<String>,
    /// How many of those that can be in a repository are not.
    pub(super) lacking: usize,
    pub(super) pack: Option<Incoming>,
}

/// Which of some objects are complete, and whether all that came with them is needed.
struct Complete {
    oids: Vec<String>,
    is_exact: bool,
}

impl LocalObjects {
    /// Looks for what is sought.
    pub(super) fn look(&self, repo_path: &RepoPath, oids: &[String]) -> Result<Look, FetchError> {
        let prunings = self.layout.prunings();
        let open =
            self.directory.open(repo_path).ok_or_else(|| FetchError::ours("the repository is not hosted any more"))?;
        let repo_paths = std::iter::once(repo_path).chain(&open.alternates);
        let pools: Vec<PathBuf> =
            repo_paths.map(|repo_path| self.layout.pool(repo_path)).filter(|pool| pool.is_dir()).collect();
        let mut tips = self.tips(repo_path, &open.alternates)?;
        let sought: BTreeSet<&String> = oids.iter().filter(|oid| is_oid(oid)).collect();
        let known: BTreeSet<&String> = tips.iter().collect();
        let (mut here, unknown): (Vec<String>, Vec<String>) =
            sought.iter().map(|oid| (*oid).clone()).partition(|oid| known.contains(oid));
        let present = present(&Pools::of(&pools), &unknown)?;
        let view = View { incoming: None, pools: &pools };
        let found = self.complete(view, &present, &tips)?.oids;
        tips.splice(0..0, found.iter().cloned());
        here.extend(found);
        let are_here: BTreeSet<&String> = here.iter().collect();
        let missing = sought.into_iter().filter(|oid| !are_here.contains(oid)).cloned().collect();
        let haves = tips.iter().take(limits::MAX_SENT_HAVES).cloned().collect();
        let impossible = oids.iter().any(|oid| !is_oid(oid));
        Ok(Look { most_bytes: self.limits.max_bytes, prunings, pools, known: tips, haves, here, missing, impossible })
    }

    /// Bytes that may come to a site, for its maintainers' sake or for others'.
    pub(super) fn room(&self, repo_path: &RepoPath, whose: QuotaUser) -> u64 {
        let most = self.limits.max_bytes;
        self.directory.left(repo_path, whose).map_or(most, |left| left.min(most))
    }

    /// Checks a pack and keeps of it what is sought and what that needs. Since the first look, which saw so many prunings,
    /// much may have happened: what is known now counts.
    pub(super) fn take(
        &self,
        (repo_path, oids): (&RepoPath, &[String]),
        prunings: u64,
        (mut pack, received): (Incoming, Received),
    ) -> Result<Taken, FetchError> {
        let look = self.look(repo_path, oids)?;
        let has_pack = matches!(received, Received::Pack(_));
        let checker = self.checker();
        checker.index(&mut pack, received, &look.pools).map_err(|problem| match problem {
            // What the server was told that we have may be gone.
            PackProblem::Incomplete(why) if prunings != look.prunings => FetchError::ours(why),
            problem => problem.into(),
        })?;
        let seen: Vec<PathBuf> = look.pools.iter().cloned().chain([pack.folder().to_owned()]).collect();
        let present = present(&Pools::of(&seen), &look.missing)?;
        let view = View { incoming: has_pack.then_some(&pack), pools: &look.pools };
        let Complete { oids, is_exact } = self.complete(view, &present, &look.known)?;
        let pack = match (has_pack && !oids.is_empty(), is_exact) {
            (false, _) => None,
            (true, true) => Some(pack),
            (true, false) => Some(checker.narrow(view, &oids, &look.known)?).filter(|pack| !pack.is_empty()),
        };
        let lacking = look.missing.len() - oids.len();
        Ok(Taken { oids: look.here.into_iter().chain(oids).collect(), lacking, pack })
    }

    /// The objects that refs point to and that are here with everything they need, the most useful first: branches, then
    /// tags from the last, then pull requests.
    fn tips(&self, repo_path: &RepoPath, alternates: &[RepoPath]) -> Result<Vec<String>, PackProblem> {
        let mut groups: [Vec<String>; 3] = Default::default();
        for tips_of in std::iter::once(repo_path)
            .chain(alternates.iter().filter(|lender| self.lends_all(repo_path, alternates, lender)))
        {
            let snapshot = self.directory.snapshot(tips_of)?;
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

    /// Whether everything that a lender's refs need can be read here: what is lent to it is not lent on.
    fn lends_all(&self, repo_path: &RepoPath, alternates: &[RepoPath], lender: &RepoPath) -> bool {
        let reads = self.directory.open(lender).map(|open| open.alternates);
        reads.is_some_and(|reads| reads.iter().all(|other| other == repo_path || alternates.contains(other)))
    }

    /// Finds out which of some objects, which are here, are here with everything they need. Where not all of them are, the
    /// halves are looked at, and their halves, as often as is worth it.
    fn complete(&self, view: View<'_>, oids: &[String], known: &[String]) -> Result<Complete, PackProblem> {
        let checker = self.checker();
        let until = Instant::now() + Duration::from_secs(self.limits.check_secs);
        let mut complete = Complete { oids: Vec::new(), is_exact: false };
        let mut parts = vec![oids];
        for nth in 0..limits::MAX_CONNECTIVITY_CHECKS {
            let Some(part) = parts.pop().filter(|_| nth == 0 || Instant::now() < until) else { break };
            if part.is_empty() {
                continue;
            }
            let tips = part.iter().map(|oid| ("object".to_owned(), oid.clone())).collect();
            match checker.connect(view, &Tips { branches: Vec::new(), others: tips }, known) {
                Ok(connected) => {
                    complete.is_exact = nth == 0 && connected.extra == 0;
                    complete.oids.extend_from_slice(part);
                }
                Err(PackProblem::Incomplete(_) | PackProblem::MissingTip { .. }) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(PackProblem::Incomplete(_) | PackProblem::MissingTip { .. }) => {}
                Err(problem) => return Err(problem),
            }
        }
        Ok(complete)
    }

    fn checker(&self) -> Checker<'_> {
        Checker { git: &self.git, layout: &self.layout, limits: self.limits }
    }
}

/// Those of some objects that are in some pools.
fn present(pools: &Pools, oids: &[String]) -> Result<Vec<String>, PackProblem> {
    let mut present = Vec::new();
    for oid in oids {
        if pools.has(oid)? {
            present.push(oid.clone());
        }
    }
    Ok(present)
}

fn is_oid(text: &str) -> bool {
    hex::decode::<20>(text).is_some()
}
