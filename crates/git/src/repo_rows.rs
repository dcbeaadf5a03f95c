//! The rows of repositories in the event store, as far as work on git data needs them.

use std::io;

use grasp_core::repo::{PackManifest, RepoPath, RepoRow};

/// Access to the rows of repositories. Only the writer of the server changes them.
pub trait RepoRows: Send + Sync {
    /// Returns the row of a repository; `None` if it does not exist.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn row(&self, repo_path: &RepoPath) -> io::Result<Option<RepoRow>>;

    /// Records why a repository is degraded: objects that its refs need are damaged or missing. This is durable when
    /// the function returns. Does nothing if the repository does not exist.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn set_degraded(&self, repo_path: &RepoPath, reason: &str) -> io::Result<()>;

    /// Returns the packs that the pool of a repository should have; `None` if that is not recorded.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn packs(&self, repo_path: &RepoPath) -> io::Result<Option<PackManifest>>;

    /// Records the packs that the pool of a repository should have. This is durable when the function returns. The
    /// caller holds the lock of the repository.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn set_packs(&self, repo_path: &RepoPath, packs: PackManifest) -> io::Result<()>;
}
