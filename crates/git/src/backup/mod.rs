//! Consistent snapshots of all git data for backups, and verification of copies.
//!
//! | file | content |
//! |---|---|
//! | `hard_links` | links all git data while nothing is removed |
//! | `checksum` | checksums of files |
//! | `verify` | checks that objects are present with everything that they refer to |
//!
//! # Backup of a running server
//!
//! Data is added to git first and then to the store, and is removed from the store first. So a backup pauses removals,
//! then takes a snapshot of the store, and then links the git data: the links contain at least all git data that the
//! snapshot of the store refers to. Refs may be newer; a server that starts on the copy aligns them with its store.
//! Links take milliseconds where copies take minutes, and a pack may be removed from its pool once it has been linked.
//!
//! Every linked file is replaced as a whole and never written in place, so a link keeps its content.

mod checksum;
mod hard_links;
mod verify;

pub use checksum::{ChecksumWriter, FileChecksum};
pub use hard_links::{HardLinkSnapshot, RemovalPause};
pub use verify::RepoVerifier;
