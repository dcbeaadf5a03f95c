//! Errors of work on repositories: what was being done, and what failed.

use std::io;

use crate::process::GitError;

/// A step on the disk or a git process that failed.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// The disk failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The error of the file system.
        source: io::Error,
    },
    /// A git process failed.
    #[error("cannot {action}: {source}")]
    Git {
        /// What was being done.
        action: &'static str,
        /// The error of the process.
        source: GitError,
    },
    /// A received pack is not in its folder.
    #[error("received pack {0} is missing")]
    PackMissing(String),
    /// A tag points to an object that does not exist.
    #[error("cannot find the object that tag {0} points to")]
    Tag(String),
}

/// Adds to an error what was being done.
pub(crate) trait ActionContext<T> {
    fn context(self, action: &'static str) -> Result<T, ActionError>;
}

impl<T> ActionContext<T> for io::Result<T> {
    fn context(self, action: &'static str) -> Result<T, ActionError> {
        self.map_err(|source| ActionError::Io { action, source })
    }
}

impl<T> ActionContext<T> for Result<T, GitError> {
    fn context(self, action: &'static str) -> Result<T, ActionError> {
        self.map_err(|source| ActionError::Git { action, source })
    }
}
