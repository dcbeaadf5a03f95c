//! Repositories: identifiers and paths, the events that describe them, and the catalog of all of them.
//!
//! Parses announcements (kind 30617), states (kind 30618) and pull requests (kinds 1618 and 1619), computes maintainer
//! sets, and keeps the [`Catalog`] in memory. Pure: no IO and no clock. Used by [`admission`](crate::admission),
//! [`sync`](crate::sync) and [`fetch`](crate::fetch), and by the crates around them; uses [`nostr`](crate::nostr) only.

pub mod announcement;
pub mod catalog;
pub mod id;
pub mod maintainers;
pub mod pack_manifest;
pub mod pull_request;
pub mod ref_name;
pub mod refs;
pub mod repo_group;
pub mod repo_path;
pub mod service;
pub mod state;
pub mod work_counter;

pub use announcement::Announcement;
pub use catalog::Catalog;
pub use id::{Identifier, RepoId};
pub use pack_manifest::{PackHash, PackManifest};
pub use refs::{RefTarget, Refs, RepoRow};
pub use repo_path::RepoPath;
pub use service::{ServiceAddress, uses_tls};
pub use state::RepoState;
