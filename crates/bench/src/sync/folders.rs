//! The git data of all repositories, as an earlier life of a server would have left it: one commit each.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::corpus::Project;
use crate::git::{make, stock};

/// What every repository has.
#[derive(Debug)]
pub(super) struct Original {
    folder: PathBuf,
    /// The commit of its main branch.
    pub(super) commit: String,
}

impl Original {
    /// Makes the repository that all others are copies of, unless it is there.
    pub(super) fn have(folder: &Path) -> Result<Self> {
        let folder = folder.join("original.git");
        if !folder.join("HEAD").exists() {
            make::small(&folder, 1)?;
        }
        let refs = stock::refs(&folder)?;
        let (_, commit) = refs.into_iter().find(|(name, _)| name == "refs/heads/main").context("it has no branch")?;
        Ok(Self { folder, commit })
    }

    /// Puts a copy of it where a server looks for a repository. Packs are hard links: nobody writes to them.
    pub(super) fn put(&self, git: &Path, project: &Project) -> Result<()> {
        let site = git.join("repos").join(&project.npub).join(format!("{}.git", project.identifier));
        for part in ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"] {
            fs::create_dir_all(site.join(part))?;
        }
        for entry in fs::read_dir(self.folder.join("objects/pack"))? {
            let entry = entry?;
            let to = site.join("pool/pack").join(entry.file_name());
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
            fs::write(site.join(name), text)?;
        }
        Ok(())
    }
}
