//! Whether objects are there with everything that they need: in a copy, or in what is linked.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::apply::alternates::Readable;
use crate::objects::Pools;
use crate::process::{ChildProblem, Git, Input};
use crate::refs::Refs;

/// What a child may say on standard output: nothing, and a little for the unexpected.
const MAX_WORDS: usize = 4 * 1024;

/// Objects that are looked at one by one after something was found to be missing: enough to say which.
const MAX_SINGLY: usize = 100;

/// Looks at repositories that nobody changes.
#[derive(Clone, Debug)]
pub struct Checker {
    git: Git,
    patience: Duration,
}

impl Checker {
    /// Somebody who looks with this git, for so long at one repository.
    #[must_use]
    pub fn new(git: &Git, patience: Duration) -> Self {
        Self { git: git.gentle(), patience }
    }

    /// Which of some objects are not in the repository in a folder with everything that they need.
    pub fn missing(&self, folder: &Path, oids: &BTreeSet<String>) -> Result<Vec<String>, ChildProblem> {
        let pools = Pools::open(&Readable::read(folder)?.pools())?;
        let (mut here, mut missing) = (Vec::new(), Vec::new());
        for oid in oids {
            if pools.has(oid)? { here.push(oid.as_str()) } else { missing.push(oid.clone()) }
        }
        if !self.complete(folder, &here)? {
            let mut found = false;
            for oid in here.iter().take(MAX_SINGLY) {
                if !self.complete(folder, &[oid])? {
                    found = true;
                    missing.push((*oid).to_owned());
                }
            }
            if !found {
                missing.extend(here.iter().map(|oid| (*oid).to_owned()));
            }
        }
        Ok(missing)
    }

    /// Whether an object is in the repository in a folder, whatever it needs.
    pub fn has(&self, folder: &Path, oid: &str) -> io::Result<bool> {
        Pools::open(&Readable::read(folder)?.pools())?.has(oid)
    }

    /// Where the refs of the repository in a folder point.
    pub fn targets(&self, folder: &Path) -> io::Result<BTreeSet<String>> {
        Ok(Refs::read(folder)?.iter().map(|(_, target)| target.oid.clone()).collect())
    }

    fn complete(&self, folder: &Path, oids: &[&str]) -> Result<bool, ChildProblem> {
        if oids.is_empty() {
            return Ok(true);
        }
        let mut command = self.git.command(folder);
        // A commit-graph would be believed.
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--quiet", "--stdin"]);
        let input: String = oids.iter().map(|oid| format!("{oid}\n")).collect();
        match self.git.run(&mut command, Input::Bytes(input.as_bytes()), self.patience, MAX_WORDS) {
            Ok(_) => Ok(true),
            Err(ChildProblem::Failed { .. }) => Ok(false),
            Err(problem) => Err(problem),
        }
    }
}
