//! Determines which repositories read a pool, and which objects they need.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use grasp_core::repo::RepoPath;
use grasp_core::repo::state::is_oid;

use super::{MAX_OUTPUT, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::objects::ObjectLookup;
use crate::process::{Git, GitError, ProcessInput, walk_input};

/// Largest number of git processes that search for incomplete objects: a held event may name a few. One incomplete
/// object among ten thousand takes about thirty.
const MAX_CHECKS: usize = 256;

/// Returns the objects that some repositories need besides what their refs lead to: those that states and pull requests
/// name, served and held. `None` if that cannot be determined now.
pub type NeededOidsFn<'n> = dyn FnMut(&[RepoPath]) -> Option<BTreeSet<String>> + 'n;

/// What the readers of a pool need.
#[derive(Debug)]
pub(super) struct NeededObjects {
    /// The pools that they read.
    pub(super) pools: Vec<PathBuf>,
    /// The objects that their refs point to.
    pub(super) tips: BTreeSet<String>,
    /// The objects that events name.
    pub(super) named: BTreeSet<String>,
}

/// How git reads objects.
pub(super) struct ObjectAccess<'l> {
    /// Git, with low priority or not.
    pub(super) git: &'l Git,
    /// The pools that are read.
    pub(super) pools: &'l [PathBuf],
    /// An object directory from which all of them can be read.
    pub(super) objects: PathBuf,
}

impl PoolMaintainer {
    /// Returns what the readers of a repository's pool need; `None` if that cannot be determined now.
    pub(super) fn needed_objects(
        &self,
        repo_path: &RepoPath,
        needed_oids: &mut NeededOidsFn<'_>,
    ) -> Result<Option<NeededObjects>, ActionError> {
        let pool = self.layout.pool(repo_path);
        let mut readers = match repo_path {
            RepoPath::Announced(repo) => {
                let readers = self.layout.pool_readers(&repo.identifier).context("find the readers of a pool")?;
                readers.of(&pool).to_vec()
            }
            RepoPath::PullRequests(_) => Vec::new(),
        };
        readers.push(repo_path.clone());
        let Some(named) = needed_oids(&readers) else { return Ok(None) };
        let mut needed = NeededObjects { pools: vec![pool], tips: BTreeSet::new(), named };
        needed.named.retain(|oid| oid.len() == 40 && is_oid(oid));
        // After `needed_oids`, which waits for the results of git jobs that have ended.
        for reader in &readers {
            let folder = self.layout.repo_dir(reader);
            let row = self.rows.row(reader).context("read the refs of a repository")?;
            if row.is_none() && folder.join("HEAD").exists() {
                // It is being created, or its row is lost: what it needs is not known.
                return Ok(None);
            }
            let refs = row.unwrap_or_default().refs;
            needed.tips.extend(refs.iter().map(|(_, target)| target.oid.clone()));
            needed.pools.extend(Alternates::read(&folder).context("read alternates")?.pools());
        }
        needed.pools.sort_unstable();
        needed.pools.dedup();
        Ok(Some(needed))
    }

    /// Returns those of the named objects that are present with everything that they refer to, apart from what `known`
    /// objects refer to. `None` if that takes too many checks.
    pub(super) fn find_complete(
        &self,
        access: &ObjectAccess<'_>,
        named: &BTreeSet<String>,
        known: &BTreeSet<String>,
    ) -> Result<Option<BTreeSet<String>>, ActionError> {
        let lookup = ObjectLookup::open(access.pools).context("read a pool")?;
        let mut present = Vec::new();
        for oid in named.difference(known) {
            if lookup.has(oid).context("read a pool")? {
                present.push(oid.as_str());
            }
        }
        let mut complete = BTreeSet::new();
        let mut unchecked: Vec<&[&str]> = vec![&present];
        let mut checks = 0;
        while let Some(oids) = unchecked.pop() {
            if oids.is_empty() {
                continue;
            }
            checks += 1;
            if checks > MAX_CHECKS {
                return Ok(None);
            }
            let mut command = self.command(&access.objects);
            command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--quiet", "--stdin"]);
            let input = walk_input(oids.iter(), known.iter());
            match access.git.run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, MAX_OUTPUT) {
                Ok(_) => complete.extend(oids.iter().map(|oid| (*oid).to_owned())),
                Err(GitError::Failed { .. }) if oids.len() > 1 => {
                    let (one, other) = oids.split_at(oids.len() / 2);
                    unchecked.extend([one, other]);
                }
                Err(GitError::Failed { .. }) => {}
                Err(error) => return Err(error).context("check the objects that events name"),
            }
        }
        Ok(Some(complete))
    }

    /// Lists everything that some objects refer to and `known` objects do not, and passes each line to `on_line`.
    pub(super) fn walk_objects(
        &self,
        access: &ObjectAccess<'_>,
        tips: &BTreeSet<String>,
        known: &BTreeSet<String>,
        on_line: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ActionError> {
        let mut command = self.command(&access.objects);
        // Git would assume that commits in a commit-graph exist.
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--stdin"]);
        let input = walk_input(tips.iter(), known.iter());
        access
            .git
            .stream_lines(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, on_line)
            .context("list needed objects")
    }
}
