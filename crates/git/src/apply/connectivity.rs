//! Whether everything that an object needs can be read: its history, its trees and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::{Doing, Keeper, Problem};
use crate::layout::Layout;
use crate::objects::{Kind, Pools};
use crate::process::{ChildProblem, Input};
use crate::refs::Refs;

/// What a checking child may say on standard output: nothing, and a little for the unexpected.
const MAX_WORDS: usize = 4 * 1024;

/// What git sees: a repository folder, and perhaps another object directory than its own.
#[derive(Debug)]
pub(super) struct View {
    folder: PathBuf,
    scratch: Option<Scratch>,
}

/// What git is to see, when it is started.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen<'a> {
    /// A site as it is on disk: its folder.
    Site(&'a Path),
    /// Pools, without a site.
    Pools(&'a [PathBuf]),
}

impl Seen<'_> {
    pub(super) fn view(self, layout: &Layout) -> Result<View, Problem> {
        match self {
            Self::Site(folder) => Ok(View { folder: folder.to_owned(), scratch: None }),
            Self::Pools(pools) => View::of_pools(layout, pools).doing("make room for a look"),
        }
    }
}

impl View {
    /// Any pools, without a site.
    pub(super) fn of_pools(layout: &Layout, pools: &[PathBuf]) -> io::Result<Self> {
        Ok(Self { folder: layout.template(), scratch: Some(Scratch::new(layout, pools)?) })
    }

    /// The object directory that is made for this view and goes with it.
    pub(super) fn scratch(&self) -> Option<&Path> {
        self.scratch.as_ref().map(|scratch| scratch.0.as_path())
    }

    /// A git command that sees this.
    pub(super) fn command(&self, keeper: &Keeper, arguments: &[&str]) -> Command {
        let mut command = keeper.git.command(&self.folder);
        command.args(arguments);
        if let Some(scratch) = self.scratch() {
            command.env("GIT_OBJECT_DIRECTORY", scratch);
        }
        command
    }
}

/// An object directory among the incoming ones that reads pools. A file names them: a variable of the environment could
/// not hold as many as a large maintainer set lends.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new(layout: &Layout, pools: &[PathBuf]) -> io::Result<Self> {
        let scratch = Self(layout.received_pack(&ReceivedPack::Incoming(layout.number())));
        fs::create_dir_all(scratch.0.join("pack"))?;
        fs::create_dir_all(scratch.0.join("info"))?;
        let mut names = Vec::new();
        for pool in pools {
            names.extend_from_slice(pool.as_os_str().as_encoded_bytes());
            names.push(b'\n');
        }
        fs::write(scratch.0.join("info/alternates"), names)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it stays it is removed at the next start.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a site's refs tell about objects: refs are only set when all is there.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// The objects that refs point to, and what they are tags of.
    targets: BTreeMap<&'a str, Option<&'a str>>,
    /// Those that are commits for sure.
    commits: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    pub(super) fn of(refs: &'a Refs) -> Self {
        let mut known = Self { targets: BTreeMap::new(), commits: BTreeSet::new() };
        for (name, target) in refs.iter() {
            known.targets.insert(&target.oid, target.peeled.as_deref());
            if !name.starts_with("refs/tags/") {
                known.commits.insert(&target.oid);
            }
        }
        known
    }

    /// What a target is a tag of, or that it is none; nothing about objects that are no targets.
    pub(super) fn peeled(&self, oid: &str) -> Option<Option<&'a str>> {
        self.targets.get(oid).copied()
    }

    /// The targets.
    pub(super) fn targets(&self) -> Vec<&'a str> {
        self.targets.keys().copied().collect()
    }
}

/// Objects that can be read, and what is known to be complete among them.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    pub(super) seen: Seen<'a>,
    pub(super) pools: &'a Pools,
    pub(super) known: &'a Known<'a>,
    /// Whether whatever is here is known to be here with everything that it needs.
    pub(super) proven: bool,
}

impl Sight<'_> {
    /// Whether an object is here and a commit.
    pub(super) fn is_commit(&self, oid: &str) -> Result<bool, Problem> {
        Ok(self.known.commits.contains(oid) || self.kind(oid)? == Some(Kind::Commit))
    }

    /// What an object is, if it is here.
    pub(super) fn kind(&self, oid: &str) -> Result<Option<Kind>, Problem> {
        self.pools.kind(oid).doing("read a pool")
    }
}

impl Keeper {
    /// Whether everything that some objects need is here. They themselves are.
    pub(super) fn complete(&self, sight: &Sight<'_>, tips: &[&str]) -> Result<bool, Problem> {
        if sight.proven {
            return Ok(true);
        }
        let mut input = String::new();
        for tip in tips.iter().filter(|tip| sight.known.peeled(tip).is_none()) {
            input.push_str(&format!("{tip}\n"));
        }
        if input.is_empty() {
            return Ok(true);
        }
        for known in sight.known.targets.keys() {
            input.push_str(&format!("^{known}\n"));
        }
        let view = sight.seen.view(&self.layout)?;
        let mut command = view.command(self, &["rev-list", "--objects", "--quiet", "--stdin"]);
        match self.git.run(&mut command, Input::Bytes(input.as_bytes()), self.patience, MAX_WORDS) {
            Ok(_) => Ok(true),
            Err(ChildProblem::Failed { complaint, .. }) if blames_data(&complaint, sight.pools)? => Ok(false),
            Err(source) => Err(Problem::Git { doing: "check that a state is complete", source }),
        }
    }
}

/// Whether git's complaint is about the objects and not about the machine: it names one that is not here, or one that is
/// of another type than those that refer to it think.
fn blames_data(complaint: &str, pools: &Pools) -> Result<bool, Problem> {
    if complaint.contains(", not a ") {
        return Ok(true);
    }
    for word in complaint.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 40) {
        if !pools.has(word).doing("read a pool")? {
            return Ok(true);
        }
    }
    Ok(false)
}
