//! Checks whether everything that an object refers to can be read: its history, trees and blobs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::GitJobRunner;
use crate::action_error::{ActionContext, ActionError};
use crate::layout::{IncomingFolder, Layout, write_alternates};
use crate::objects::{ObjectKind, ObjectLookup};
use crate::process::{GitError, ProcessInput, walk_input};
use crate::refs::Refs;

/// Largest output of a checking process: none is expected.
const MAX_OUTPUT: usize = 4 * 1024;

/// The repository folder that a git process uses, and possibly another object directory than that of the folder.
#[derive(Debug)]
pub(super) struct GitEnvironment {
    folder: PathBuf,
    /// An object directory whose alternates are some pools.
    scratch: Option<IncomingFolder>,
}

/// The objects that a git process reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectSource<'a> {
    /// Those of a repository on disk, given by its folder.
    Repo(&'a Path),
    /// Those of some pools.
    Pools(&'a [PathBuf]),
}

impl ObjectSource<'_> {
    pub(super) fn environment(self, layout: &Layout) -> Result<GitEnvironment, ActionError> {
        match self {
            Self::Repo(folder) => Ok(GitEnvironment { folder: folder.to_owned(), scratch: None }),
            Self::Pools(pools) => GitEnvironment::for_pools(layout, pools).context("create a scratch folder"),
        }
    }
}

impl GitEnvironment {
    /// Returns an environment that reads some pools, without a repository.
    pub(super) fn for_pools(layout: &Layout, pools: &[PathBuf]) -> io::Result<Self> {
        let scratch = layout.create_incoming(&["pack", "info"])?;
        write_alternates(scratch.path(), pools)?;
        Ok(Self { folder: layout.empty_repo(), scratch: Some(scratch) })
    }

    /// Returns the object directory that was created for this environment and is removed with it.
    pub(super) fn scratch(&self) -> Option<&Path> {
        self.scratch.as_ref().map(IncomingFolder::path)
    }

    /// Returns a git command in this environment.
    pub(super) fn command(&self, runner: &GitJobRunner, arguments: &[&str]) -> Command {
        let mut command = runner.git.command(&self.folder);
        command.args(arguments);
        if let Some(scratch) = self.scratch() {
            command.env("GIT_OBJECT_DIRECTORY", scratch);
        }
        command
    }
}

/// The objects that a repository's refs point to. They are complete: a ref is set only when everything that its object
/// refers to is present.
#[derive(Debug)]
pub(super) struct KnownTargets<'a> {
    /// The objects, each with the object that it peels to if it is a tag.
    targets: BTreeMap<&'a str, Option<&'a str>>,
    /// Those that are certainly commits.
    commits: BTreeSet<&'a str>,
}

impl<'a> KnownTargets<'a> {
    pub(super) fn new(refs: &'a Refs) -> Self {
        let mut known = Self { targets: BTreeMap::new(), commits: BTreeSet::new() };
        for (name, target) in refs.iter() {
            known.targets.insert(&target.oid, target.peeled.as_deref());
            if !name.starts_with("refs/tags/") {
                known.commits.insert(&target.oid);
            }
        }
        known
    }

    /// Returns what a known target peels to: `Some(None)` if it is not a tag, `None` if the object is not a known
    /// target.
    pub(super) fn peeled(&self, oid: &str) -> Option<Option<&'a str>> {
        self.targets.get(oid).copied()
    }

    /// Returns the known targets.
    pub(super) fn targets(&self) -> Vec<&'a str> {
        self.targets.keys().copied().collect()
    }
}

/// Objects that can be read, and what is known about their completeness.
#[derive(Debug)]
pub(super) struct ObjectView<'a> {
    pub(super) source: ObjectSource<'a>,
    pub(super) lookup: &'a ObjectLookup,
    pub(super) known: &'a KnownTargets<'a>,
    /// Objects that have been found to be complete.
    pub(super) verified: &'a BTreeSet<&'a str>,
    /// Every object that the job names has already been found to be complete.
    pub(super) is_verified: bool,
}

impl ObjectView<'_> {
    /// Returns whether an object exists and is a commit.
    pub(super) fn is_commit(&self, oid: &str) -> Result<bool, ActionError> {
        Ok(self.known.commits.contains(oid) || self.kind(oid)? == Some(ObjectKind::Commit))
    }

    /// Returns the type of an object, if it exists.
    pub(super) fn kind(&self, oid: &str) -> Result<Option<ObjectKind>, ActionError> {
        self.lookup.kind(oid).context("read a pool")
    }
}

impl GitJobRunner {
    /// Returns whether everything that some existing objects refer to is present.
    pub(super) fn is_complete(&self, view: &ObjectView<'_>, tips: &[&str]) -> Result<bool, ActionError> {
        if view.is_verified {
            return Ok(true);
        }
        let is_unknown = |tip: &&&str| view.known.peeled(tip).is_none() && !view.verified.contains(**tip);
        let mut unknown = tips.iter().filter(is_unknown).peekable();
        if unknown.peek().is_none() {
            return Ok(true);
        }
        let input = walk_input(unknown, view.known.targets.keys());
        let environment = view.source.environment(&self.layout)?;
        // Git would assume that commits in a commit-graph exist. That is only true if the refs are trusted.
        let setting = format!("core.commitGraph={}", !view.known.targets.is_empty());
        let mut command = environment.command(self, &["-c", &setting, "rev-list", "--objects", "--quiet", "--stdin"]);
        match self.git.run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, MAX_OUTPUT) {
            Ok(_) => Ok(true),
            Err(GitError::Failed { stderr, .. }) if is_data_error(&stderr, view.lookup)? => Ok(false),
            Err(source) => Err(ActionError::Git { action: "check that a state is complete", source }),
        }
    }
}

/// Returns whether git's error message is about the objects, not about the machine: it names an object that does not
/// exist, or one that has another type than the objects that refer to it expect.
fn is_data_error(stderr: &str, lookup: &ObjectLookup) -> Result<bool, ActionError> {
    if stderr.contains(", not a ") {
        return Ok(true);
    }
    for word in stderr.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 40) {
        if !lookup.has(word).context("read a pool")? {
            return Ok(true);
        }
    }
    Ok(false)
}
