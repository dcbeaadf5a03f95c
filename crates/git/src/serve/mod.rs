//! What clients are told and sent: advertisements and the answers to `git-upload-pack`.
//!
//! - [`capabilities`]: what the installed git can do, learned once.
//! - [`advertise`]: the answers to `info/refs`, made in memory.
//! - [`request`]: what a client asks for, and the answers that need no git.
//! - [`upload`]: the answers that need the real git.
//!
//! A fetch goes [`Protocol::read`] → [`Request::read`] → [`ls_refs_answer`], nothing, or [`upload_pack`]. A request that
//! is none is answered with [`BadRequest::answer`]; it is a 200 to HTTP, or git would not show the reason.

pub mod advertisement;
pub mod capabilities;
mod fetch_request;
mod lines;
pub mod request;
pub mod upload_pack;

pub use capabilities::{Capabilities, LearnProblem};
pub use request::{Answer, BadRequest, Fetch, Key, Protocol, Request, ls_refs_answer};
pub use upload_pack::{Effort, upload_pack};

use crate::pktline;

/// How we call ourselves where git says its version.
pub const AGENT: &str = concat!("graspd/", env!("CARGO_PKG_VERSION"));

/// One of the two things that a client does with a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Fetching, cloning, listing refs.
    Upload,
    /// Pushing.
    Receive,
}

impl Service {
    /// The service of the name that stands in a request's address.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Upload, Self::Receive].into_iter().find(|service| service.name() == name)
    }

    /// Its name in addresses and in the first line of an advertisement.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "git-upload-pack",
            Self::Receive => "git-receive-pack",
        }
    }

    /// The content type of its advertisement.
    #[must_use]
    pub fn advertisement_type(self) -> &'static str {
        match self {
            Self::Upload => "application/x-git-upload-pack-advertisement",
            Self::Receive => "application/x-git-receive-pack-advertisement",
        }
    }

    /// The content type of its answers.
    #[must_use]
    pub fn result_type(self) -> &'static str {
        match self {
            Self::Upload => "application/x-git-upload-pack-result",
            Self::Receive => "application/x-git-receive-pack-result",
        }
    }
}

/// The whole answer to a fetch that failed: git shows it as `remote error: upload-pack: <text>`.
#[must_use]
pub fn refusal(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push(&mut out, &[b"ERR upload-pack: ", text.as_bytes()]);
    out
}

/// The answer to a fetch of an object that is not here, for instance from a repository that has no folder yet.
#[must_use]
pub fn no_such_object(oid: &str) -> Vec<u8> {
    refusal(&format!("not our ref {oid}"))
}
