//! Which pools a site may read: its own, and those of the sites that lend to it. `objects/info/alternates` names them.
//!
//! Pools name no further pools, so that what is lent to a lender is not lent on.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::repo::RepoPath;

use super::copy_objects::Copying;
use super::{Doing, Keeper, Problem};
use crate::crash_point;
use crate::layout::Layout;
use crate::refs::{Refs, replace};

/// A site's own pool, as its alternates name it.
const OWN: &str = "../pool";

/// The pools that a site reads, as its alternates name them: relative to its `objects`, its own first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Readable {
    objects: PathBuf,
    names: Vec<String>,
}

impl Readable {
    /// What a site may read: its own pool and those of its lenders that exist.
    pub(super) fn wanted(layout: &Layout, repo_path: &RepoPath, alternates: &[RepoPath]) -> Self {
        let mut others: Vec<&RepoPath> = alternates.iter().filter(|lender| *lender != repo_path).collect();
        others.sort_unstable();
        others.dedup();
        let mut names = vec![OWN.to_owned()];
        for lender in others {
            if layout.pool(lender).is_dir() {
                names.push(name(layout, lender));
            }
        }
        Self { objects: layout.repo_dir(repo_path).join("objects"), names }
    }

    /// What a site reads now.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let objects = folder.join("objects");
        let text = match fs::read_to_string(objects.join("info/alternates")) {
            Err(problem) if problem.kind() == ErrorKind::NotFound => String::new(),
            text => text?,
        };
        Ok(Self { objects, names: text.lines().map(str::to_owned).collect() })
    }

    /// Whether the pool of a site, which is not its own, is among them.
    pub(crate) fn has(&self, layout: &Layout, lender: &RepoPath) -> bool {
        self.names.contains(&name(layout, lender))
    }

    /// The pools.
    pub(crate) fn pools(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| resolve(&self.objects, name)).collect()
    }

    /// Those pools that are not among the others and still exist.
    fn beyond(&self, other: &Self) -> Vec<PathBuf> {
        let names = self.names.iter().filter(|name| !other.names.contains(name));
        names.map(|name| resolve(&self.objects, name)).filter(|pool| pool.is_dir()).collect()
    }

    fn write(&self) -> io::Result<()> {
        let text: String = self.names.iter().map(|name| format!("{name}\n")).collect();
        replace(&self.objects.join("info"), "alternates", text.as_bytes())
    }
}

/// How a site's alternates name the pool of another: sites lie two folders below the room that holds them.
fn name(layout: &Layout, lender: &RepoPath) -> String {
    let pool = layout.pool(lender);
    let below = pool.strip_prefix(layout.root()).unwrap_or(&pool);
    format!("../../../../{}", below.display())
}

/// Follows a relative path without looking at the disk: the folder it begins at may not be there.
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

impl Keeper {
    /// Lets a site read the wanted pools and no others. Before it loses a pool, what its refs need of it is copied.
    pub(super) fn lend(&self, folder: &Path, wanted: &Readable) -> Result<(), Problem> {
        let current = Readable::read(folder).doing("read which pools are lent")?;
        if current == *wanted {
            return Ok(());
        }
        let lost = current.beyond(wanted);
        if !lost.is_empty() {
            let refs = Refs::read(folder).doing("read refs")?;
            let tips: Vec<&str> = refs.iter().map(|(_, target)| target.oid.as_str()).collect();
            self.copy(&Copying { tips: &tips, known: &[], from: &lost, kept: &wanted.pools() })?;
            crash_point::point("align.copied");
        }
        wanted.write().doing("write which pools are lent")?;
        crash_point::point("align.lenders");
        Ok(())
    }
}
