//! Free disk space.

use std::path::Path;

use crate::error::{Result, StoreError};

/// Size and free space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    /// Bytes available to unprivileged users.
    pub free: u64,
    /// Size in bytes.
    pub total: u64,
}

impl DiskSpace {
    /// Queries the file system of a folder.
    pub fn read(path: &Path) -> Result<Self> {
        let stat = rustix::fs::statvfs(path)
            .map_err(|errno| StoreError::Folder { path: path.to_owned(), source: errno.into() })?;
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}
