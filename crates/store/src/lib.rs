//! Events, purgatory and the notes of the git room on disk.
//!
//! One LMDB environment holds everything; one writer changes it, a batch at a time, and many readers look at snapshots
//! without ever holding the writer up. The public face speaks of the domain (facts, writes, scans, held rows), not of
//! LMDB, so that another engine can stand behind it.
//!
//! - [`Store`] opens the environment and hands out the rest.
//! - [`WriteTransaction`] is the writer's transaction: facts are read and consequences written inside it.
//! - [`Scan`] answers filters, newest first, in slices that can be resumed.
//! - [`StoreSnapshot`] is the whole store at one snapshot, to be copied.
//!
//! Blocking: no call here belongs on an async worker.

mod disk_space;
mod error;
mod event_record;
mod git_hosts;
mod git_jobs;
mod index;
mod local_ids;
mod lookups;
mod moderation;
mod nostr_lmdb;
mod query_plan;
mod rejected;
mod relays;
mod row_reader;
mod scan;
mod schema;
mod snapshot;
mod store;
mod transaction;
mod vanish;

pub use disk_space::DiskSpace;
pub use error::StoreError;
pub use event_record::{PreparedFilter, EventRecord};
pub use nostr_lmdb::read_nostr_lmdb;
pub use scan::{ScanProgress, Scan};
pub use snapshot::{StoreCounts, StoreSnapshot};
pub use store::{StoreOptions, Store};
pub use transaction::WriteTransaction;
