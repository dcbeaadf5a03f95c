//! Backup, restore and verification; export and import of events; import of the data of ngit-grasp.
//!
//! - [`snapshot`]: a snapshot of a running or stopped server. [`manifest`]: description and checksums of a backup.
//!   [`create`], [`restore`], [`verify`]: the commands of the same names.
//! - [`export`], [`import`]: events as lines of JSON. [`checkpoint`]: progress of both, next to the file.
//! - [`ngit_grasp`], [`push`]: import of events and git data of ngit-grasp.
//! - [`progress`]: progress output. [`tree`]: walks through folders.
//!
//! Everything here runs in the process of a command, not in the server. A running server only creates the snapshot
//! (hard links and a copy of the store, in its own data folder, while the command is connected), and the command copies
//! from there. So a backup can be written wherever the operator may write, and the server writes only to its own
//! folders.
//!
//! May use `admin` (client and snapshots), `config`, `clock`, `data_lock`, `repo_row_migration`, `store_check` and
//! `text_format`.

mod checkpoint;
pub(crate) mod create;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod manifest;
pub(crate) mod ngit_grasp;
pub(crate) mod progress;
pub(crate) mod push;
pub(crate) mod restore;
pub(crate) mod snapshot;
mod tree;
pub(crate) mod verify;

use crate::admin::snapshot::ProgressFn;

/// File in the relay's data folder that exists while a restore is not finished.
pub(crate) const UNFINISHED: &str = "restore-unfinished";
