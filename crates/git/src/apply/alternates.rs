//! The pools that a repository reads: its own, and those of repositories in the same maintainer set.
//! `objects/info/alternates` lists them.
//!
//! Pools have no alternates themselves, so access to a pool does not give access to further pools.

use std::io;
use std::path::{Path, PathBuf};

use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use super::copy_objects::CopyRequest;
use crate::action_error::{ActionContext, ActionError};
use crate::crash_point;
use crate::files::{read_text, replace_file};
use crate::layout::Layout;
use crate::refs::Refs;

/// The repository's own pool, as its alternates name it.
const OWN_POOL: &str = "../pool";

/// The pools that a repository reads, as its alternates name them: relative to its `objects`, its own first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Alternates {
    objects: PathBuf,
    names: Vec<String>,
}

impl Alternates {
    /// Returns the alternates that a repository should have: its own pool and those of `others` that exist.
    pub(super) fn for_repo(layout: &Layout, repo_path: &RepoPath, others: &[RepoPath]) -> Self {
        let mut others: Vec<&RepoPath> = others.iter().filter(|other| *other != repo_path).collect();
        others.sort_unstable();
        others.dedup();
        let mut names = vec![OWN_POOL.to_owned()];
        for other in others {
            if layout.pool(other).is_dir() {
                names.push(pool_name(layout, other));
            }
        }
        Self { objects: layout.repo_dir(repo_path).join("objects"), names }
    }

    /// Reads the current alternates of a repository.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let objects = folder.join("objects");
        let text = read_text(&objects.join("info/alternates"))?;
        Ok(Self { objects, names: text.lines().map(str::to_owned).collect() })
    }

    /// Returns whether the pool of another repository is listed.
    pub(crate) fn has(&self, layout: &Layout, other: &RepoPath) -> bool {
        self.names.contains(&pool_name(layout, other))
    }

    /// Returns the pools.
    pub(crate) fn pools(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| resolve(&self.objects, name)).collect()
    }

    /// Returns the existing pools that `other` does not list.
    fn pools_not_in(&self, other: &Self) -> Vec<PathBuf> {
        let names = self.names.iter().filter(|name| !other.names.contains(name));
        names.map(|name| resolve(&self.objects, name)).filter(|pool| pool.is_dir()).collect()
    }

    fn write(&self) -> io::Result<()> {
        let text: String = self.names.iter().map(|name| format!("{name}\n")).collect();
        replace_file(&self.objects.join("info"), "alternates", text.as_bytes())
    }
}

/// Returns how a repository's alternates name the pool of another repository. A repository's `objects` is four folders
/// below the git data folder.
fn pool_name(layout: &Layout, other: &RepoPath) -> String {
    let pool = layout.pool(other);
    let below = pool.strip_prefix(layout.root()).unwrap_or(&pool);
    format!("../../../../{}", below.display())
}

/// Resolves a relative path without access to the disk: the folder that it starts at may not exist.
fn resolve(from: &Path, name: &str) -> PathBuf {
    let mut path = from.to_owned();
    for part in name.split('/') {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

impl GitJobRunner {
    /// Sets the alternates of a repository. Before a pool is removed from them, what the repository's refs need from it
    /// is copied.
    pub(super) fn set_alternates(&self, folder: &Path, wanted: &Alternates) -> Result<(), ActionError> {
        let current = Alternates::read(folder).context("read alternates")?;
        if current == *wanted {
            return Ok(());
        }
        let removed = current.pools_not_in(wanted);
        if !removed.is_empty() {
            let refs = Refs::read(folder).context("read refs")?;
            let tips: Vec<&str> = refs.iter().map(|(_, target)| target.oid.as_str()).collect();
            self.copy_objects(&CopyRequest { tips: &tips, known: &[], from: &removed, kept: &wanted.pools() })?;
            crash_point::point("align.copied");
        }
        wanted.write().context("write alternates")?;
        crash_point::point("align.alternates");
        Ok(())
    }
}
