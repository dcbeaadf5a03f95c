//! Server side of fetches: ref advertisements and responses of `git-upload-pack`.
//!
//! - [`capabilities`]: what the installed git supports, detected once at start.
//! - [`advertisement`]: the responses to `info/refs`, made in memory.
//! - [`request`]: parses what a client requests, and makes the responses that need no git process.
//! - [`upload_pack`](mod@upload_pack): the responses that need a git process.
//!
//! Called by the smart-HTTP handlers of graspd. A fetch goes through [`ProtocolVersion::from_header`] and
//! [`UploadPackRequest::parse`], and then to [`ls_refs_response`], an empty response, or
//! [`upload_pack`](fn@upload_pack). An invalid request is answered with [`UploadPackRequestError::to_response`] and
//! HTTP status 200, because git shows the reason only then.

pub mod advertisement;
pub mod capabilities;
mod fetch_request;
mod lines;
pub mod request;
pub mod upload_pack;

pub use capabilities::{CapabilityError, ServerCapabilities};
pub use request::{
    FetchCommand, FetchKey, FetchResponseKind, ProtocolVersion, UploadPackRequest, UploadPackRequestError,
    ls_refs_response,
};
pub use upload_pack::{UploadPackError, UploadPackLimits, upload_pack};

use crate::pktline;

/// The agent name that this server sends.
pub const AGENT: &str = concat!("graspd/", env!("CARGO_PKG_VERSION"));

/// A git service of smart HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PackService {
    /// Fetching, cloning and listing refs.
    UploadPack,
    /// Pushing.
    ReceivePack,
}

impl PackService {
    /// Returns the service with a name as it appears in a request URL.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack].into_iter().find(|service| service.name() == name)
    }

    /// Returns the name in URLs and in the first line of an advertisement.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    /// Returns the content type of an advertisement.
    #[must_use]
    pub fn advertisement_type(self) -> &'static str {
        match self {
            Self::UploadPack => "application/x-git-upload-pack-advertisement",
            Self::ReceivePack => "application/x-git-receive-pack-advertisement",
        }
    }

    /// Returns the content type of a response.
    #[must_use]
    pub fn result_type(self) -> &'static str {
        match self {
            Self::UploadPack => "application/x-git-upload-pack-result",
            Self::ReceivePack => "application/x-git-receive-pack-result",
        }
    }
}

/// Returns the response to a fetch that failed. Git shows it as `remote error: upload-pack: <text>`.
#[must_use]
pub fn error_response(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push(&mut out, &[b"ERR upload-pack: ", text.as_bytes()]);
    out
}

/// The answer to fetches from a degraded repository.
pub(crate) const DEGRADED: &str = "this repository is degraded: some of its objects are damaged or missing on this server. \
     They are being fetched from other servers; until then, clone from another server of the announcement. Maintainers \
     can push all refs again";

/// Returns the response to a fetch from a repository whose objects are damaged or missing.
#[must_use]
pub fn degraded_response() -> Vec<u8> {
    error_response(DEGRADED)
}

/// Returns the response to a fetch of an object that this server does not have, for example from a repository that has
/// no folder yet.
#[must_use]
pub fn not_our_ref_response(oid: &str) -> Vec<u8> {
    error_response(&format!("not our ref {oid}"))
}
