//! Degraded repositories: objects that their refs need are damaged or missing.
//!
//! A file in the repository's folder marks it and gives the reason. It is written before anything relies on it, and an
//! alignment removes it when everything is complete again. Meanwhile nothing about the repository's objects is taken
//! for granted: refs do not prove that objects exist.

use std::path::Path;
use std::{fs, io};

use grasp_core::repo::RepoPath;

use crate::files::{if_found, remove_if_exists, replace_file, sync_folder};
use crate::layout::Layout;

/// The file that marks a degraded repository.
const MARKER: &str = "degraded";

impl Layout {
    /// Marks a repository as degraded, durably. Does nothing if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn mark_degraded(&self, repo_path: &RepoPath, reason: &str) -> io::Result<()> {
        let folder = self.repo_dir(repo_path);
        if !folder.join("HEAD").exists() {
            return Ok(());
        }
        replace_file(&folder, MARKER, format!("{reason}\n").as_bytes())
    }

    /// Returns why a repository is degraded; `None` if it is not.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn degraded_reason(&self, repo_path: &RepoPath) -> io::Result<Option<String>> {
        let text = if_found(fs::read_to_string(self.repo_dir(repo_path).join(MARKER)))?;
        Ok(text.map(|text| text.trim_end().to_owned()))
    }

    /// Whether a repository is degraded.
    #[must_use]
    pub fn is_degraded(&self, repo_path: &RepoPath) -> bool {
        is_marked(&self.repo_dir(repo_path))
    }
}

/// Whether a repository folder is marked.
pub(crate) fn is_marked(folder: &Path) -> bool {
    folder.join(MARKER).exists()
}

/// Removes the mark of a repository, durably.
pub(crate) fn remove_mark(folder: &Path) -> io::Result<()> {
    remove_if_exists(&folder.join(MARKER))?;
    sync_folder(folder)
}
