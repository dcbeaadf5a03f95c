//! Embedded store of graspd: events, purgatory, refs of repositories, pending git jobs, and the
//! state of sync and fetch.
//!
//! One LMDB environment (through `heed`) holds all tables. One writer changes it, one transaction at a time. Readers
//! use snapshots and never block the writer. The public API uses domain types (lookups, writes, scans, held events) and
//! hides LMDB, so that the engine can be replaced.
//!
//! - [`Store`] opens the environment and creates everything else.
//! - [`WriteTransaction`] is used by the writer: it reads lookups and writes their consequences atomically.
//! - [`Scan`] runs filters, newest event first, in slices that can be resumed.
//! - [`StoreSnapshot`] is a consistent view of the whole store, for backups.
//!
//! All calls block, because they may read from the disk. An async task may make a lookup of one or a few rows, such as
//! [`Store::missing_ids`] for one id; scans, snapshots and transactions run on threads of their own or on blocking
//! threads.

mod check;
mod disk_space;
mod early_requests;
mod error;
mod event_record;
mod git_hosts;
mod git_jobs;
mod index;
mod local_ids;
mod lookups;
mod moderation;
mod nostr_lmdb;
mod pools;
mod query_plan;
mod rejected;
mod relays;
mod repos;
mod row_reader;
mod scan;
mod schema;
mod snapshot;
mod store;
mod transaction;
mod vanish;

pub use disk_space::DiskSpace;
pub use error::StoreError;
pub use event_record::{EventRecord, PreparedFilter};
pub use nostr_lmdb::read_nostr_lmdb;
pub use scan::{Scan, ScanProgress};
pub use snapshot::{StoreCounts, StoreSnapshot};
pub use store::{Store, StoreOptions};
pub use transaction::WriteTransaction;
