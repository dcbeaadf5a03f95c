//! The pools that a repository reads: its own, those of repositories in the same maintainer set, and those that it has
//! read before. `objects/info/alternates` lists them.
//!
//! A pool that a repository has read once stays in the list, because refs may need its objects: copies of these objects
//! would multiply the disk usage with every announcement that lists a maintainer and removes it again. A repository
//! that is deleted leaves its pool to the repositories that read it ([`Layout::release_pool`]).
//!
//! Pools have no alternates themselves, so access to a pool does not give access to further pools.

use std::io;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use grasp_core::repo::RepoPath;

use crate::files::{read_text, replace_file};
use crate::layout::Layout;

/// The repository's own pool, as its alternates name it.
const OWN_POOL: &str = "../pool";

/// The pools that a repository reads, as its alternates name them: relative to its `objects`, its own first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Alternates {
    objects: PathBuf,
    names: Vec<String>,
}

impl Alternates {
    /// Returns the alternates that a repository should have: its own pool, those of `others` that exist, and those that
    /// it reads already. The pool of a deleted repository gets no new readers.
    pub(crate) fn for_repo(layout: &Layout, repo_path: &RepoPath, others: &[RepoPath]) -> io::Result<Self> {
        let current = Self::read(&layout.repo_dir(repo_path))?;
        let repos = others.iter().filter(|other| layout.repo_dir(other).join("HEAD").exists());
        let mut names: Vec<String> = repos.map(|other| pool_name(layout, other)).collect();
        names.extend(current.names);
        names.sort_unstable();
        names.dedup();
        let own = pool_name(layout, repo_path);
        let mut existing = vec![OWN_POOL.to_owned()];
        for name in names.into_iter().filter(|name| *name != OWN_POOL && *name != own) {
            // A pool that cannot be read now must not be removed.
            if resolve(&current.objects, &name).try_exists()? {
                existing.push(name);
            }
        }
        let names = existing;
        Ok(Self { objects: current.objects, names })
    }

    /// Reads the current alternates of a repository.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let objects = folder.join("objects");
        let text = read_text(&objects.join("info/alternates"))?;
        Ok(Self { objects, names: text.lines().map(str::to_owned).collect() })
    }

    /// Returns the same alternates without some pools.
    pub(crate) fn without(&self, pools: &[PathBuf]) -> Self {
        let names = self.names.iter().filter(|name| !pools.contains(&resolve(&self.objects, name)));
        Self { objects: self.objects.clone(), names: names.cloned().collect() }
    }

    /// Returns the same alternates with some more pools.
    pub(crate) fn with(&self, layout: &Layout, pools: &[PathBuf]) -> Self {
        let mut names = self.names.clone();
        names.extend(pools.iter().map(|pool| name_below_root(layout, pool)));
        names[1..].sort_unstable();
        names.dedup();
        Self { objects: self.objects.clone(), names }
    }

    /// Returns the pools.
    pub(crate) fn pools(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| resolve(&self.objects, name)).collect()
    }

    /// Returns the pools except the repository's own.
    pub(crate) fn foreign_pools(&self) -> Vec<PathBuf> {
        let names = self.names.iter().filter(|name| *name != OWN_POOL);
        names.map(|name| resolve(&self.objects, name)).collect()
    }

    /// Replaces the alternates of the repository, durably. Nothing is written if they have not changed.
    ///
    /// # Errors
    /// If the repository does not exist, or a file cannot be read or written.
    pub(crate) fn write(&self) -> io::Result<bool> {
        let folder = self.objects.parent().ok_or(ErrorKind::NotFound)?;
        if Self::read(folder)? == *self {
            return Ok(false);
        }
        let text: String = self.names.iter().map(|name| format!("{name}\n")).collect();
        replace_file(&self.objects.join("info"), "alternates", text.as_bytes())?;
        Ok(true)
    }
}

/// Returns how a repository's alternates name the pool of another repository.
fn pool_name(layout: &Layout, other: &RepoPath) -> String {
    name_below_root(layout, &layout.pool(other))
}

/// Returns how a repository's alternates name a pool. A repository's `objects` is four folders below the git data
/// folder.
fn name_below_root(layout: &Layout, pool: &Path) -> String {
    let below = pool.strip_prefix(layout.root()).unwrap_or(pool);
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
