//! Git data of all repositories, as an earlier run of a server would have left it: one commit each, and one for pull
//! requests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::corpus::Project;
use crate::git::{generated_repo, installed_git};

/// The repository that all others are copies of.
#[derive(Debug)]
pub(super) struct TemplateRepo {
    folder: PathBuf,
    /// Commit of its main branch.
    pub(super) commit: String,
    /// A commit on top of it, in no branch of the copies, for pull requests.
    pub(super) pull_request_commit: String,
}

impl TemplateRepo {
    /// Opens the repository, or creates it if it does not exist.
    pub(super) fn open_or_create(folder: &Path) -> Result<Self> {
        let folder = folder.join("original.git");
        if !folder.join("HEAD").exists() {
            generated_repo::single_commit(&folder, 1)?;
        }
        let refs: BTreeMap<String, String> = installed_git::refs(&folder)?.into_iter().collect();
        let commit = refs.get("refs/heads/main").context("the template repository has no main branch")?.clone();
        let pull_request_commit = match refs.get("refs/heads/offer") {
            Some(pull_request_commit) => pull_request_commit.clone(),
            None => generated_repo::add_commit(&folder, &commit, "refs/heads/offer")?,
        };
        Ok(Self { folder, commit, pull_request_commit })
    }

    /// Copies it to the folder of a repository on a server. Packs are hard links, because they are never modified.
    pub(super) fn copy_to(&self, git: &Path, project: &Project) -> Result<()> {
        let repo_folder = git.join("repos").join(&project.npub).join(format!("{}.git", project.identifier));
        for part in ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"] {
            fs::create_dir_all(repo_folder.join(part))?;
        }
        for entry in fs::read_dir(self.folder.join("objects/pack"))? {
            let entry = entry?;
            let to = repo_folder.join("pool/pack").join(entry.file_name());
            // Copies the file if it is on another file system.
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
