//! Git repositories on disk, and the words git speaks over HTTP.
//!
//! - [`pktline`]: the framing of git's protocols.
//! - [`refs`]: the refs of one repository, which are one file and one snapshot in memory.
//!
//! Blocking: no call here that touches the disk belongs on an async worker.

pub mod pktline;
pub mod refs;
