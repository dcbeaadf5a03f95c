//! Inputs and outputs of the fetch machine.
//!
//! The driver guarantees:
//! - Every [`FetchOutput::Fetch`] is answered by exactly one [`FetchInput::Fetched`], every [`FetchOutput::Survey`] by
//!   exactly one [`FetchInput::Surveyed`], and every [`FetchOutput::CheckMirror`] by exactly one
//!   [`FetchInput::MirrorChecked`].
//! - A fetched pack is handed to admission before the machine receives the end of the fetch, so that
//!   [`FetchInput::Wanted`] never names data that is already here.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::origin::Origin;
use crate::net::{OutboundError, OutboundUrl};
use crate::nostr::event::EventId;
use crate::nostr::nip11::GitFetchLimits;
use crate::repo::{Identifier, RepoPath};
use crate::time::{MonoTime, Timestamp};

/// An input of the fetch machine.
#[derive(Clone, Debug)]
pub enum FetchInput {
    /// At startup: what is stored about a git server. All rows come before any other input.
    HostRestored(HostRow),
    /// The git data that is missing for this identifier, as a whole: it replaces the previous report. Empty if nothing
    /// is missing any more.
    Wanted(Identifier, Vec<WantedGitData>),
    /// The answer to [`FetchOutput::Survey`].
    Surveyed(Origin, SurveyResult),
    /// The first bytes of a pack or of a list of refs have arrived.
    FirstBytes(FetchId),
    /// A fetch has ended.
    Fetched(FetchId, FetchResult),
    /// The operator wants everything that is missing at this repository to be fetched at once.
    FetchNow(RepoPath),
    /// The repositories that are served for this identifier, as a whole. Empty if none is served any more.
    Served(Identifier, Vec<ServedRepo>),
    /// The branches or tags of a repository have changed. [`FetchInput::Served`] comes before it.
    RefsChanged(RepoPath),
    /// A mirror check has ended: how the server's refs compare with the served ones, or why they could not be read.
    MirrorChecked(MirrorId, Result<RefComparison, FetchOutcome>),
}

crate::label_table! {
    /// Returns the name under which metrics count this input.
    FetchInput {
        Self::HostRestored(_) => "restored",
        Self::Wanted(..) => "wanted",
        Self::Surveyed(..) => "surveyed",
        Self::FirstBytes(_) => "answering",
        Self::Fetched(..) => "fetched",
        Self::FetchNow(_) => "fetch_now",
        Self::Served(..) => "served",
        Self::RefsChanged(_) => "refs_changed",
        Self::MirrorChecked(..) => "mirror_checked",
    }
}

/// A repository that is served, and its mirrors: git servers that should have it and that are not GRASP servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedRepo {
    /// The repository.
    pub repo_path: RepoPath,
    /// The URLs, as written in its announcement, without this service.
    pub mirror_urls: Vec<String>,
}

/// Identifies a mirror within the process. At most one check of it runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MirrorId(pub u64);

/// How a server's refs compare with the served branches and tags. Further refs of the server are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefComparison {
    /// Branches and tags that are served.
    pub served: usize,
    /// Those that the server does not have, or has with another value.
    pub missing: usize,
    /// Those of the missing ones that the server has with another value.
    pub different: usize,
}

/// Git data that is missing at one repository. Repositories that share objects share one report, so that no server is
/// asked once for each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedGitData {
    /// The repository that receives the data.
    pub repo_path: RepoPath,
    /// The events that need it.
    pub events: Vec<WantedEvent>,
}

/// A held event that needs git data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedEvent {
    /// The event.
    pub id: EventId,
    /// Its kind.
    pub kind: WantedKind,
    /// The objects that it names. Some may be here already.
    pub oids: Vec<String>,
    /// Where the objects may be, as written in events, without this service. Likely sources come first.
    pub sources: Vec<GitSource>,
    /// When fetching may begin. Before, a push may be expected, or more events of a burst.
    pub due: MonoTime,
    /// Whether the event has expired without being replaced. It is then asked for once an hour, after everything else.
    pub is_dormant: bool,
}

/// The kind of a wanted event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WantedKind {
    /// A state: the objects of its branches and tags.
    State,
    /// A pull request: its commit, which other GRASP servers have as `refs/nostr/<event>`.
    PullRequest,
}

/// A URL at which git data may be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GitSource {
    /// The URL, as written in an event.
    pub url: String,
    /// Whether it looks like the URL of a GRASP server, which serves any object by its id.
    pub is_grasp: bool,
}

/// Identifies a fetch within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u64);

/// The result of a survey: where a server is and which limits it states.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SurveyResult {
    /// The server may be dialled.
    Resolved {
        /// All addresses of the server.
        addresses: Vec<IpAddr>,
        /// The limits for git requests from its NIP-11 document, if the document was requested and states any.
        stated_limits: Option<GitFetchLimits>,
    },
    /// The host name does not resolve.
    NoAddress,
    /// The server must not be dialled.
    Forbidden(OutboundError),
}

/// The result of a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchResult {
    /// The wanted objects that are now here with everything they refer to, whatever the outcome. Includes objects that
    /// were here before.
    pub oids: Vec<String>,
    /// How the fetch ended.
    pub outcome: FetchOutcome,
}

/// How a fetch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FetchOutcome {
    /// The server has sent what it has of the wanted objects.
    Sent,
    /// The server lacks one of the objects, or serves objects only by ref. It should be asked by ref.
    NotByOid,
    /// The server has no such repository, or does not show it to us.
    Absent,
    /// Too many requests; with the seconds to wait, if the server stated them.
    Busy(Option<u64>),
    /// No connection, a server error (5xx), or a timeout.
    Failed,
    /// The data is invalid, incomplete or too large. The source is not asked for this job for a while.
    InvalidData,
    /// The fetch was [cancelled](FetchOutput::Cancel).
    Cancelled,
    /// A local error, such as a full disk or a missing git. No source is blamed.
    LocalError,
}

crate::label_table! {
    /// Returns the name of this outcome in metrics and logs.
    FetchOutcome {
        Self::Sent => "sent",
        Self::NotByOid => "not_by_oid",
        Self::Absent => "absent",
        Self::Busy(_) => "busy",
        Self::Failed => "failed",
        Self::InvalidData => "unsound",
        Self::Cancelled => "cancelled",
        Self::LocalError => "local_error",
    }
}

/// An output of the fetch machine.
#[derive(Clone, Debug)]
pub enum FetchOutput {
    /// Look up the addresses of a server, and fetch its NIP-11 document if `with_nip11` is set.
    Survey {
        /// The server.
        origin: Origin,
        /// Whether the server may be a GRASP server, which states its limits.
        with_nip11: bool,
    },
    /// Fetch objects: one request to one server.
    Fetch(FetchRequest),
    /// Cancel a fetch: another source was faster, or its objects are no longer needed. It may have ended already.
    Cancel(FetchId),
    /// All sources of these events were asked once. The events may expire when their time is over.
    SourcesTried(Vec<EventId>),
    /// Store what is known about a git server, before any later output is carried out: the row counts requests ahead.
    SaveHost(HostRow),
    /// Delete the stored row of a git server.
    DeleteHost(String),
    /// A URL must not be dialled. Reported once for each URL of a job, for the log.
    UrlForbidden(RepoPath, String, OutboundError),
    /// Request the refs of a server and compare them with the served ones.
    CheckMirror(MirrorCheck),
}

crate::label_table! {
    /// Returns the name under which metrics count this output.
    FetchOutput {
        Self::Survey { .. } => "survey",
        Self::Fetch(_) => "fetch",
        Self::Cancel(_) => "cancel",
        Self::SourcesTried(_) => "tried",
        Self::SaveHost(_) => "save_host",
        Self::DeleteHost(_) => "delete_host",
        Self::UrlForbidden(..) => "url_forbidden",
        Self::CheckMirror(_) => "check_mirror",
    }
}

/// A request for the refs of a git server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorCheck {
    /// The id that the answer must carry.
    pub id: MirrorId,
    /// The repository.
    pub repo_path: RepoPath,
    /// The URL to request.
    pub target: OutboundUrl,
}

/// A request for objects to a git server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchRequest {
    /// The id that the answer must carry.
    pub id: FetchId,
    /// The repository that receives the objects.
    pub repo_path: RepoPath,
    /// The URL to request.
    pub target: OutboundUrl,
    /// The form of the request.
    pub form: RequestForm,
    /// The wanted objects. Never empty.
    pub oids: Vec<String>,
    /// The events that need them: for their refs at other GRASP servers, and to postpone their expiry during the fetch.
    pub events: Vec<(EventId, WantedKind)>,
    /// Objects that earlier fetches of the job brought. They may wait for others, so that no ref names them yet.
    pub received: Vec<String>,
}

/// The form of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RequestForm {
    /// Request exactly these objects. The server sends all of them or none.
    ByOid,
    /// Request the branches, the tags and the refs of the wanted pull requests. The server sends what it has of them.
    ByRef,
}

impl RequestForm {
    /// Returns the name of this form in logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ByOid => "by_oid",
            Self::ByRef => "by_ref",
        }
    }
}

/// What is stored about a git server. The field names are part of the on-disk format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostRow {
    /// The host, and the port if it is not the default.
    pub authority: String,
    /// When requests were made within the last minute, so that the rate limit survives a restart.
    pub asked: Vec<Timestamp>,
    /// No request is made before this time.
    pub quiet_until: Timestamp,
    /// Fetches that brought something wanted. Halved from time to time.
    pub hits: u32,
    /// Fetches that brought nothing wanted. Halved from time to time.
    pub misses: u32,
}
