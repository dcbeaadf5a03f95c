//! Checks of small packs without a git process: two processes take longer than everything else that a small push needs.
//!
//! - [`index`]: unpacks a pack, checks its objects, and writes the files of the pack.
//! - [`object_format`]: the rules for single objects.
//! - [`pack_files`]: the files of a pack.
//! - [`connectivity`]: checks that nothing is missing.
//!
//! Only ordinary packs are accepted here: those that git accepts too, and for the same reasons. Everything else, whether
//! it is invalid, unusual or too large, is [`NeedsGit`]: git then decides, and finds the error message. So a rule may be
//! stricter here than in git, but never less strict. A test compares both with thousands of generated packs.
//!
//! The calls run on the thread that otherwise waits for git, read pools and write to the quarantine folder.

mod connectivity;
mod index;
mod object_format;
mod pack_files;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use grasp_core::limits;

pub(super) use self::connectivity::check_connectivity;
pub(super) use self::index::{IndexRequest, index_pack};
use crate::objects::{ObjectKind, RawOid};

/// The size up to which packs are checked without a git process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InProcessLimits {
    /// Bytes of a pack as it is sent.
    pub max_bytes: u64,
    /// Objects of a pack.
    pub max_objects: u32,
    /// Bytes of all objects when unpacked, and of the objects of pools that are read.
    pub max_unpacked_bytes: u64,
    /// References between the objects of a pack, and to other objects.
    pub max_links: usize,
    /// Commits and trees of pools that are read to check that nothing is missing.
    pub max_history_reads: usize,
}

impl InProcessLimits {
    /// Limits that no pack meets: every pack is checked by git.
    pub const NONE: Self =
        Self { max_bytes: 0, max_objects: 0, max_unpacked_bytes: 0, max_links: 0, max_history_reads: 0 };
}

impl Default for InProcessLimits {
    fn default() -> Self {
        Self {
            max_bytes: limits::IN_PROCESS_PACK_BYTES,
            max_objects: limits::IN_PROCESS_PACK_OBJECTS,
            max_unpacked_bytes: limits::IN_PROCESS_UNPACKED_BYTES,
            max_links: limits::IN_PROCESS_LINKS,
            max_history_reads: limits::IN_PROCESS_HISTORY_READS,
        }
    }
}

/// The reason why git must check a pack. It is not shown to clients.
#[derive(Debug)]
pub(super) struct NeedsGit {
    #[expect(dead_code, reason = "only debug output has it")]
    reason: String,
}

impl From<&str> for NeedsGit {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned() }
    }
}

impl From<io::Error> for NeedsGit {
    fn from(error: io::Error) -> Self {
        Self { reason: error.to_string() }
    }
}

/// A reference from one object to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    oid: RawOid,
    /// The type that the other object must have.
    kind: ObjectKind,
}

/// The objects that a client sent, once their pack has been checked and indexed.
#[derive(Debug)]
pub(super) struct IndexedPack {
    /// The pools that the check has read.
    pools: Vec<PathBuf>,
    objects: HashMap<RawOid, ReceivedObject>,
}

/// One object of a received pack.
#[derive(Debug)]
struct ReceivedObject {
    kind: ObjectKind,
    /// The objects that it refers to. Those of a commit begin with its tree.
    links: Vec<Link>,
    /// Whether a pool has the same object.
    is_in_pool: bool,
}
