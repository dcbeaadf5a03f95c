//! The git data of all repositories, as an earlier life of a server would have left it: one commit each, and one that is
//! offered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::corpus::Project;
use crate::git::{make, stock};

/// What every repository has.
#[derive(Debug)]
pub(super) struct TemplateRepo {
    folder: PathBuf,
    /// The commit of its main branch.
    pub(super) commit: String,
    /// A commit on top of it that no ref of the copies points to: what a pull request offers.
    pub(super) pull_request_commit: String,
}

impl TemplateRepo {
    /// Makes the repository that all others are copies of, unless it is there.
    pub(super) fn open_or_create(folder: &Path) -> Result<Self> {
        let folder = folder.join("original.git");
        if !folder.join("HEAD").exists() {
            make::single_commit(&folder, 1)?;
        }
        let refs: BTreeMap<String, String> = stock::refs(&folder)?.into_iter().collect();
        let commit = refs.get("refs/heads/main").context("it has no branch")?.clone();
        let pull_request_commit = match refs.get("refs/heads/offer") {
            Some(pull_request_commit) => pull_request_commit.clone(),
            None => make::add_commit(&folder, &commit, "refs/heads/offer")?,
        };
        Ok(Self { folder, commit, pull_request_commit })
    }

    /// Puts a copy of it where a server looks for a repository. Packs are hard links: nobody writes to them.
    pub(super) fn copy_to(&self, git: &Path, project: &Project) -> Result<()> {
        let repo_folder = git.join("repos").join(&project.npub).join(format!("{}.git", project.identifier));
        for part in ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"] {
            fs::create_dir_all(repo_folder.join(part))?;
        }
        for entry in fs::read_dir(self.folder.join("objects/pack"))? {
            let entry = entry?;
            let to = repo_folder.join("pool/pack").join(entry.file_name());
            // Another file system takes a copy.
            fs::hard_link(entry.path(), &to).or_else(|_| fs::copy(entry.path(), &to).map(drop))?;
        }
        let refs = format!("# pack-refs with: peeled fully-peeled sorted \n{} refs/heads/main\n", self.commit);
        for (name, text) in [
            ("objects/info/alternates", "../pool\n"),
            ("config", "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"),
            ("packed-refs", &refs),
            ("HEAD", "ref: refs/heads/main\n"),
        ] {
            fs::write(repo_folder.join(name), text)?;
        }
        Ok(())
    }
}
