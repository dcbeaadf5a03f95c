//! Free space.

use std::path::Path;

use crate::error::{Result, StoreError};

/// How full the disk of a folder is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    /// Bytes that an ordinary user may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

impl DiskSpace {
    /// Asks the file system.
    pub fn read(path: &Path) -> Result<Self> {
        let stat = rustix::fs::statvfs(path)
            .map_err(|errno| StoreError::Folder { path: path.to_owned(), source: errno.into() })?;
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}
