//! Git repositories on disk, and git's protocols.
//!
//! - [`layout`]: the git data folder and the files in it.
//! - [`pktline`]: the framing of git's protocols.
//! - [`refs`]: the refs of one repository as files and on the wire.
//! - [`repo_rows`]: access to the rows of repositories in the event store.
//! - [`process`]: runs git processes with a controlled environment and limits.
//! - [`version`]: finds the installed git and checks its version.
//! - [`receive`]: server side of pushes: request, pack, checks, report.
//! - [`fetch`]: client side of fetches from other servers.
//! - [`serve`]: server side of fetches: advertisements and packs.
//! - [`objects`]: looks up and reads objects in pools.
//! - [`action_error`]: what failed in the work on a repository.
//! - [`apply`]: runs the git jobs that the admission machine plans.
//! - [`maintenance`]: repacks and prunes pools.
//! - [`repair`]: finds damaged packs and missing objects, and repairs them.
//! - [`backup`]: snapshots of all git data, and verification of copies.
//! - [`crash_point`]: points at which tests kill the process.
//!
//! The crate depends on `grasp-core` only. `graspd` uses it, and `grasp-bench` uses its parsers. It contains no async
//! code: calls that access the disk or wait for a git process block, and must not run on an async worker thread.

pub mod action_error;
mod alternates;
pub mod apply;
pub mod backup;
pub mod crash_point;
pub mod fetch;
mod files;
pub mod layout;
pub mod maintenance;
mod object_list;
pub mod objects;
mod pack_entry;
pub mod pktline;
mod pool_readers;
pub mod process;
pub mod receive;
pub mod refs;
pub mod repair;
mod repo_lock;
pub mod repo_rows;
pub mod serve;
mod spawn;
pub mod version;
