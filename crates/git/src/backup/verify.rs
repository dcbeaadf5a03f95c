//! Checks that objects are present with everything that they refer to, in a backup or in a snapshot.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::alternates::Alternates;
use crate::objects::ObjectLookup;
use crate::process::{Git, GitError, ProcessInput};

/// Largest output of a checking process: none is expected.
const MAX_OUTPUT: usize = 4 * 1024;

/// Objects that are checked one by one after one was found to be incomplete: enough to report which.
const MAX_SINGLE_CHECKS: usize = 100;

/// Verifies repositories that do not change meanwhile.
#[derive(Clone, Debug)]
pub struct RepoVerifier {
    git: Git,
    timeout: Duration,
}

impl RepoVerifier {
    /// Returns a verifier. No git process takes longer than `timeout`.
    #[must_use]
    pub fn new(git: &Git, timeout: Duration) -> Self {
        Self { git: git.low_priority(), timeout }
    }

    /// Returns those of some objects that a repository does not have with everything that they refer to.
    ///
    /// # Errors
    /// If a pool cannot be read, or if git cannot be run.
    pub fn missing(&self, folder: &Path, oids: &BTreeSet<String>) -> Result<Vec<String>, GitError> {
        let lookup = ObjectLookup::open(&Alternates::read(folder)?.pools())?;
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for oid in oids {
            if lookup.has(oid)? { present.push(oid.as_str()) } else { missing.push(oid.clone()) }
        }
        if !self.is_complete(folder, &present)? {
            let mut is_found = false;
            for oid in present.iter().take(MAX_SINGLE_CHECKS) {
                if !self.is_complete(folder, &[oid])? {
                    is_found = true;
                    missing.push((*oid).to_owned());
                }
            }
            if !is_found {
                missing.extend(present.iter().map(|oid| (*oid).to_owned()));
            }
        }
        Ok(missing)
    }

    /// Returns whether a repository has an object, without a check of what it refers to.
    pub fn has(&self, folder: &Path, oid: &str) -> io::Result<bool> {
        ObjectLookup::open(&Alternates::read(folder)?.pools())?.has(oid)
    }

    fn is_complete(&self, folder: &Path, oids: &[&str]) -> Result<bool, GitError> {
        if oids.is_empty() {
            return Ok(true);
        }
        let mut command = self.git.command(folder);
        // Git would assume that commits in a commit-graph exist.
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--quiet", "--stdin"]);
        let input: String = oids.iter().map(|oid| format!("{oid}\n")).collect();
        match self.git.run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, MAX_OUTPUT) {
            Ok(_) => Ok(true),
            Err(GitError::Failed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
