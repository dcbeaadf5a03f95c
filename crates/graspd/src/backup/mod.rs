//! Copies of everything, and events and repositories from elsewhere.
//!
//! | file | what |
//! |---|---|
//! | `moment` | events and git data at one moment, of a running server or a stopped one |
//! | `manifest` | what a backup says about itself |
//! | `backup` | makes a backup of a moment |
//! | `restore` | makes a server of a backup |
//! | `verify` | whether a backup or a moment is whole |
//! | `export`, `import` | events as lines of JSON, out and in |
//! | `ngit`, `pushing` | what ngit-grasp has left, and how its git data comes in |
//! | `tree`, `note` | walks through folders; how far something has come |
//!
//! A running server only makes the moment: hard links and a copy of the store, in its own folder, for as long as whoever
//! asked listens. The command that asked reads from there. So a backup goes wherever the operator may write, and the server
//! needs to write nowhere but in its own folders.

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

/// A file in the relay's data folder that is there while a restore is under way.
pub(crate) const UNFINISHED: &str = "restore-unfinished";
