//! What can go wrong on disk.

use std::path::PathBuf;

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk, or LMDB itself.
    #[error("the event store failed: {0}")]
    Engine(#[from] heed::Error),
    /// The folder cannot be made or read.
    #[error("cannot use {path} as a data folder: {source}")]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Free space is below the reserve; nothing that grows is written.
    #[error("only {free} bytes are free on the disk, {reserve} are kept in reserve")]
    DiskFull {
        /// Bytes that are free.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    /// A newer graspd wrote this store.
    #[error("the event store has schema {found}, this version reads up to {known}: use the newer graspd")]
    NewerSchema {
        /// The schema on disk.
        found: u64,
        /// The newest schema that this version knows.
        known: u64,
    },
    /// An older graspd wrote this store, which may not be changed.
    #[error("the event store has no table {0}: an older graspd wrote it, and it has not been opened since")]
    MissingTable(&'static str),
    /// Bytes on disk that this code did not write.
    #[error("the event store is damaged: {0}")]
    Damaged(&'static str),
}

impl StoreError {
    /// Whether the environment is lost to this process: nothing but a new start can help.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Engine(heed::Error::Mdb(heed::MdbError::Panic)))
    }
}

pub(crate) type Result<T, E = StoreError> = std::result::Result<T, E>;
