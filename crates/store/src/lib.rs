//! Events, purgatory and the notes of the git room on disk.
//!
//! One LMDB environment holds everything; one writer changes it, a batch at a time, and many readers look at snapshots
//! without ever holding the writer up. The public face speaks of the domain (facts, writes, scans, held rows), not of
//! LMDB, so that another engine can stand behind it.
//!
//! - [`Store`] opens the environment and hands out the rest.
//! - [`Batch`] is the writer's transaction: facts are read and consequences written inside it.
//! - [`Scan`] answers filters, newest first, in slices that can be resumed.
//! - [`Moment`] is the whole store at one moment, to be copied.
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

pub use disk_space::DiskUse;
pub use error::StoreError;
pub use event_record::{Matcher, Record};
pub use nostr_lmdb::foreign_events;
pub use scan::{Progress, Scan};
pub use snapshot::{Counts, Moment};
pub use store::{Options, Store};
pub use transaction::Batch;
