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

mod batch;
mod copy;
mod disk;
mod error;
mod facts;
mod fields;
mod foreign;
mod hosts;
mod index;
mod local;
mod peers;
mod plan;
mod purge;
mod record;
mod refused;
mod scan;
mod schema;
mod store;
mod sweep;
mod work;

pub use batch::Batch;
pub use copy::{Counts, Moment};
pub use disk::DiskUse;
pub use error::StoreError;
pub use foreign::foreign_events;
pub use record::{Matcher, Record};
pub use scan::{Progress, Scan};
pub use store::{Options, Store};
