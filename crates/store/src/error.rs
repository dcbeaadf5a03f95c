//! Errors of the store.

use std::path::PathBuf;

/// Error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// LMDB or the disk failed.
    #[error("event store error: {0}")]
    Engine(#[from] heed::Error),
    /// A folder or file of the store cannot be created, read or synced.
    #[error("cannot use {path} as a data folder: {source}")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// Free disk space is below the reserve. Writes that grow the store are rejected.
    #[error("not enough disk space: {free} bytes are free, {reserve} bytes must stay free")]
    DiskFull {
        /// Free bytes.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    /// The store was written by a newer version of graspd.
    #[error("the event store has schema version {found}, this graspd supports versions up to {known}: upgrade graspd")]
    NewerSchema {
        /// Schema version on disk.
        found: u64,
        /// Newest schema version that this code supports.
        known: u64,
    },
    /// A read-only store was written by an older version of graspd and lacks a table.
    #[error("the event store has no table {0}: an older graspd wrote it; open it once for writing to create the table")]
    MissingTable(&'static str),
    /// Bytes on disk do not have the format that this code writes.
    #[error("the event store is damaged: {0}")]
    Damaged(&'static str),
}

impl StoreError {
    /// Returns whether the store is damaged: its pages or rows do not have the form that they should have.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        use heed::MdbError::{BadTxn, BadValSize, Corrupted, Invalid, PageNotFound, Panic};
        match self {
            Self::Damaged(_) => true,
            Self::Engine(heed::Error::Mdb(error)) => {
                matches!(error, BadTxn | BadValSize | Corrupted | Invalid | PageNotFound | Panic)
            }
            _ => false,
        }
    }

    /// Returns whether the LMDB environment can no longer be used by this process. Only a restart helps.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Engine(heed::Error::Mdb(heed::MdbError::Panic)))
    }
}

pub(crate) type Result<T, E = StoreError> = std::result::Result<T, E>;
