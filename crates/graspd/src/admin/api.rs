//! Endpoints and messages of the admin socket. The server and the commands share them.
//!
//! The protocol is HTTP/1.1: `POST /<endpoint>` with a request as JSON body, or with a stream as body and the request in
//! the query. The response consists of lines of JSON, each an object with one key:
//!
//! ```text
//! {"progress":{"what":"reading events","done":1000,"total":5000}}      any number of times; total can be null
//! {"item":{…}}                                                         an item of a list
//! {"done":{…}}    or    {"error":{"code":"busy","text":"…"}}           the last line
//! ```
//!
//! Commands print items and responses unchanged with `--json`, so their keys are part of the interface. The server and a
//! command can have different versions: a field that is added later needs `#[serde(default)]`.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::{Config, EffectiveSetting, SettingOrigin};
use crate::reload::ReloadReport;
use crate::web::status::json::CheckResult;
pub(crate) use crate::web::status::json::{RelayDocument, StatusDocument};

/// An endpoint: its name and the types of its messages.
pub(crate) struct Endpoint<Request, Item, Response> {
    pub(crate) name: &'static str,
    types: PhantomData<fn(Request) -> (Item, Response)>,
}

impl<Request, Item, Response> Endpoint<Request, Item, Response> {
    const fn new(name: &'static str) -> Self {
        Self { name, types: PhantomData }
    }
}

pub(crate) const ADDRESS: Endpoint<Nothing, Nothing, Address> = Endpoint::new("address");
pub(crate) const CHECK: Endpoint<CheckRequest, Nothing, CheckResponse> = Endpoint::new("check");
pub(crate) const EXPORT: Endpoint<ExportRequest, ExportItem, ExportResult> = Endpoint::new("export");
pub(crate) const IMPORT: Endpoint<ImportRequest, ImportItem, ImportProgress> = Endpoint::new("import");
pub(crate) const SNAPSHOT: Endpoint<Nothing, SnapshotInfo, Nothing> = Endpoint::new("snapshot");
pub(crate) const STATUS: Endpoint<Nothing, Nothing, StatusDocument> = Endpoint::new("status");
pub(crate) const RELAYS: Endpoint<Nothing, RelayDocument, RelayCount> = Endpoint::new("relays");
pub(crate) const RELAY_RETRY: Endpoint<RelayRequest, Nothing, RelayResult> = Endpoint::new("relay_retry");
pub(crate) const RELAY_PAUSE: Endpoint<RelayRequest, Nothing, RelayResult> = Endpoint::new("relay_pause");
pub(crate) const RELAY_RESUME: Endpoint<RelayRequest, Nothing, RelayResult> = Endpoint::new("relay_resume");
pub(crate) const RELAY_FORGET: Endpoint<RelayRequest, Nothing, RelayResult> = Endpoint::new("relay_forget");
pub(crate) const SYNC: Endpoint<RelayRequest, Nothing, SyncResult> = Endpoint::new("sync");
pub(crate) const REPAIR: Endpoint<RepairRequest, RepairItem, RepairResult> = Endpoint::new("repair");
pub(crate) const REPOS: Endpoint<ReposRequest, RepoItem, RepoCount> = Endpoint::new("repos");
pub(crate) const PURGATORY: Endpoint<Nothing, HeldItem, HeldCount> = Endpoint::new("purgatory");
pub(crate) const PURGATORY_RETRY: Endpoint<HeldRequest, Nothing, RetryResult> = Endpoint::new("purgatory_retry");
pub(crate) const PURGATORY_DROP: Endpoint<HeldRequest, Nothing, DropResult> = Endpoint::new("purgatory_drop");
pub(crate) const SETTINGS: Endpoint<Nothing, Nothing, ServerSettings> = Endpoint::new("settings");
pub(crate) const RELOAD: Endpoint<Nothing, Nothing, ReloadReport> = Endpoint::new("reload");

/// A message without content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Nothing {}

/// Progress of a long operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct JobProgress {
    pub(crate) what: String,
    pub(crate) done: u64,
    /// `None` if it is not known.
    pub(crate) total: Option<u64>,
}

/// Kind of a failure, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorCode {
    /// Several events match.
    Ambiguous,
    BadRequest,
    BadSettings,
    /// Another job of this kind is running, or a part of the server did not respond.
    Busy,
    #[serde(rename = "gone")]
    ClientDisconnected,
    Failed,
    /// A relay did not send everything.
    Incomplete,
    /// The relay is this server.
    IsSelf,
    NotFollowed,
    NotFound,
    /// The sequence numbers of the request belong to another store.
    OtherStore,
    Paused,
    RelayFailed,
    #[serde(rename = "going_down")]
    ServerStopping,
    #[serde(rename = "sync_off")]
    SyncDisabled,
    #[serde(rename = "unknown_verb")]
    UnknownEndpoint,
    /// A code of another version.
    #[serde(other)]
    Unknown,
}

/// Why a request failed; an error line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct AdminError {
    pub(crate) code: ErrorCode,
    /// A sentence for the operator, without a full stop.
    pub(crate) text: String,
}

/// The local address of the server.
#[derive(Serialize, Deserialize)]
pub(crate) struct Address {
    /// URL below which repositories are, without a proxy.
    pub(crate) git: String,
    pub(crate) service: ServiceSettings,
}

/// The settings that decide what the data means. The command that reads the data can have other settings than the
/// server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceSettings {
    /// Domain and base path of the service.
    pub(crate) domain: String,
    pub(crate) base_path: String,
    /// Whether every valid event is accepted.
    #[serde(rename = "open")]
    pub(crate) is_open_relay: bool,
    /// Whether a listed maintainer counts only if its announcement lists a maintainer in return.
    pub(crate) strict_maintainers: bool,
    /// Whether pull-request submissions (GRASP-06) are enabled.
    pub(crate) submissions: bool,
}

/// All settings of the server, as they are now.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerSettings {
    pub(crate) settings: Vec<ServerSetting>,
}

/// One setting of the server. Secrets are hidden.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerSetting {
    pub(crate) name: String,
    pub(crate) value: String,
    #[serde(flatten)]
    pub(crate) origin: SettingOrigin,
}

impl ServerSettings {
    pub(crate) fn from_config(config: &Config) -> Self {
        let setting = |effective: &EffectiveSetting| ServerSetting {
            name: effective.name.to_owned(),
            value: effective.value.clone(),
            origin: effective.origin.clone(),
        };
        Self { settings: config.effective.iter().map(setting).collect() }
    }
}

/// The settings that `graspd check` checks.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct CheckedSettings {
    pub(crate) domain: String,
    /// Whether the domain is only the bind address, because no setting gives it.
    pub(crate) has_default_domain: bool,
    pub(crate) base_path: String,
    pub(crate) bind: SocketAddr,
    pub(crate) relay_data_path: PathBuf,
    pub(crate) git_data_path: PathBuf,
    /// Whether a setting contains the owner key, so that it is not in the data folder.
    pub(crate) has_owner_secret: bool,
    pub(crate) store_reserve_bytes: u64,
    pub(crate) max_connections: usize,
    pub(crate) git_max_object_bytes: u64,
    pub(crate) git_process_memory_bytes: u64,
    /// Warnings about settings that are valid but probably not intended.
    pub(crate) warnings: Vec<String>,
}

impl CheckedSettings {
    pub(crate) fn from_config(config: &Config, warnings: Vec<String>) -> Self {
        Self {
            domain: config.domain.clone(),
            has_default_domain: config.has_default_domain(),
            base_path: config.base_path.clone(),
            bind: config.bind,
            relay_data_path: config.relay_data_path.clone(),
            git_data_path: config.git_data_path.clone(),
            has_owner_secret: config.owner_secret.is_some(),
            store_reserve_bytes: config.store_reserve_bytes,
            max_connections: config.max_connections,
            git_max_object_bytes: config.git.max_object_bytes,
            git_process_memory_bytes: config.git.process_memory_bytes,
            warnings,
        }
    }
}

/// Request of `graspd check`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckRequest {
    /// Starts to record requests with this token.
    pub(crate) watch: Option<String>,
    /// Asks for the requests that were recorded with this token.
    pub(crate) seen: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum CheckResponse {
    /// To a request with `seen`.
    Requests { seen: Vec<ProbedRequest> },
    /// To a request with `watch`.
    Server(Box<ServerFacts>),
}

/// What a running server reports about itself.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerFacts {
    pub(crate) version: String,
    /// The id of the store, as NIP-11 shows it.
    pub(crate) instance: String,
    pub(crate) settings: CheckedSettings,
    /// Limit of open files; `None` if there is none.
    pub(crate) open_files: Option<u64>,
    pub(crate) ready: bool,
    pub(crate) checks: BTreeMap<String, CheckResult>,
}

/// How a request of `graspd check` arrived.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ProbedRequest {
    pub(crate) method: String,
    /// Address of the other side of the connection.
    pub(crate) peer: String,
    pub(crate) peer_is_trusted: bool,
    /// Address that the request is attributed to.
    pub(crate) client: String,
    pub(crate) host: Option<String>,
    pub(crate) forwarded_for: Option<String>,
    pub(crate) upgrade: Option<String>,
}

/// Which events are exported. It is also part of the checkpoint of an export.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExportFilter {
    pub(crate) kinds: Vec<u64>,
    /// As npub or hex.
    pub(crate) authors: Vec<String>,
    pub(crate) repo: Option<String>,
    pub(crate) since: Option<u64>,
    pub(crate) until: Option<u64>,
    /// Whether held events are exported, too.
    pub(crate) held: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExportRequest {
    #[serde(flatten)]
    pub(crate) filter: ExportFilter,
    /// Only events after this sequence number are sent.
    pub(crate) after: u64,
    /// Id of the store that the sequence number belongs to, if it is known.
    pub(crate) store: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum ExportItem {
    /// The first item: the id of the store.
    Store { store: String },
    /// An event as JSON, with its sequence number.
    Served { event: String, seq: u64 },
    /// A held event as JSON.
    Held { event: String },
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExportResult {
    pub(crate) events: u64,
    pub(crate) last_seq: u64,
}

/// Arguments of an import, in the query; the body is a stream of lines with one event each.
#[derive(Clone, Copy)]
pub(crate) struct ImportRequest {
    /// Whether protected events are accepted.
    pub(crate) protected: bool,
    /// Whether the server keeps events that are rejected only because a held event is not served yet, and submits them
    /// again when it is.
    pub(crate) defer: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum ImportItem {
    /// An event that was rejected because it depends on something that may come later.
    Again {
        again: String,
    },
    Progress(ImportProgress),
}

/// Progress of an import.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImportProgress {
    /// Byte offset up to which all events are decided.
    pub(crate) done: u64,
    #[serde(flatten)]
    pub(crate) counts: ImportCounts,
}

/// Number of imported events by result. It is also part of the checkpoint of an import.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ImportCounts {
    pub(crate) accepted: u64,
    pub(crate) held: u64,
    pub(crate) known: u64,
    /// Kept by the server until the events that they belong to are served or removed.
    pub(crate) deferred: u64,
    /// By reason. Checkpoints of earlier versions have the other names of this and of the next field.
    #[serde(alias = "refused")]
    pub(crate) rejected: BTreeMap<String, u64>,
    /// Rejected because something that may come later is missing, by reason.
    #[serde(alias = "wanting")]
    pub(crate) retryable: BTreeMap<String, u64>,
}

/// Description of a snapshot: a folder with `events/` and `git/`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotInfo {
    pub(crate) folder: PathBuf,
    /// File of the owner key, if there is one.
    pub(crate) key: Option<PathBuf>,
    /// Data folders of the server, in which no backup may be created.
    #[serde(default)]
    pub(crate) data_folders: Vec<PathBuf>,
    #[serde(flatten)]
    pub(crate) content: SnapshotContent,
}

/// Content of a snapshot. It is also part of the manifest of a backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotContent {
    /// Number of served events.
    pub(crate) served: u64,
    /// Number of held events.
    pub(crate) held: u64,
    /// Last sequence number.
    pub(crate) last_seq: u64,
    /// Number of repositories with git data.
    pub(crate) repositories: u64,
    /// Id of the store.
    pub(crate) store: String,
    pub(crate) service: ServiceSettings,
}

/// A request about one relay.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RelayRequest {
    /// Its URL; the scheme can be left out.
    pub(crate) relay: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RelayCount {
    pub(crate) relays: usize,
}

/// Result of a command for a relay.
#[derive(Serialize, Deserialize)]
pub(crate) struct RelayResult {
    pub(crate) url: String,
    /// The relay after the command; `None` if it is not followed.
    pub(crate) relay: Option<RelayDocument>,
}

/// Result of a reconciliation with a relay.
#[derive(Serialize, Deserialize)]
pub(crate) struct SyncResult {
    pub(crate) url: String,
    /// Number of new events.
    pub(crate) events: u64,
    pub(crate) repositories: usize,
    /// Number of events that were compared, and number of those that both have.
    pub(crate) compared: u64,
    pub(crate) shared: u64,
}

/// Which repositories are listed: all, unless something is given.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReposRequest {
    /// Identifier or path.
    pub(crate) name: Option<String>,
    /// As npub or hex.
    pub(crate) owner: Option<String>,
    /// Only repositories that wait for git data.
    pub(crate) missing: bool,
}

/// Which repositories to check and repair.
#[derive(Serialize, Deserialize)]
pub(crate) struct RepairRequest {
    /// Identifier or path; `None` for all.
    pub(crate) name: Option<String>,
}

/// A repository in which damage was found.
#[derive(Serialize, Deserialize)]
pub(crate) struct RepairItem {
    pub(crate) path: String,
    /// Packs whose index was written again.
    pub(crate) indexed_packs: Vec<String>,
    /// Packs that should be there and are gone.
    pub(crate) missing_packs: Vec<String>,
    /// Packs that were moved away.
    pub(crate) damaged_packs: Vec<String>,
    /// Refs that lack objects.
    pub(crate) missing_objects: usize,
    /// Why the repository is degraded; `None` if it is not.
    pub(crate) degraded: Option<String>,
    /// Why it could not be checked.
    pub(crate) error: Option<String>,
}

/// The result of a repair.
#[derive(Serialize, Deserialize)]
pub(crate) struct RepairResult {
    /// Repositories that were checked.
    pub(crate) repositories: usize,
    pub(crate) damaged: usize,
    pub(crate) degraded: usize,
}

/// A repository.
#[derive(Serialize, Deserialize)]
pub(crate) struct RepoItem {
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) path: String,
    /// `current`, `behind`, `waiting` or `empty`; see `graspd repos --help`.
    pub(crate) state: String,
    /// Id and time of the served state.
    pub(crate) state_event: Option<String>,
    pub(crate) state_at: Option<u64>,
    /// Number of maintainers.
    pub(crate) maintainers: usize,
    /// Number of refs, if they can be read.
    pub(crate) refs: Option<usize>,
    /// Bytes of its own objects.
    pub(crate) bytes: Option<u64>,
    pub(crate) relays: Option<RepoRelayCounts>,
    /// Number of held events.
    pub(crate) held: usize,
}

/// The relays of a repository.
#[derive(Serialize, Deserialize)]
pub(crate) struct RepoRelayCounts {
    /// Number of relays that its announcements list.
    pub(crate) named: usize,
    /// Number of those that have its state.
    pub(crate) complete: usize,
    pub(crate) unknown: usize,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RepoCount {
    pub(crate) repositories: usize,
}

/// A request about held events.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HeldRequest {
    /// Id of an event, or its first digits, or the name of a repository.
    pub(crate) what: Option<String>,
}

/// An event that waits for git data.
#[derive(Serialize, Deserialize)]
pub(crate) struct HeldItem {
    pub(crate) id: String,
    /// `announcement`, `state` or `pull_request`.
    pub(crate) kind: String,
    pub(crate) author: String,
    /// Identifiers of the repositories that it is for.
    pub(crate) names: Vec<String>,
    /// Paths of the repositories in which it can be released.
    pub(crate) repositories: Vec<String>,
    pub(crate) since: u64,
    pub(crate) waited_seconds: u64,
    pub(crate) expires_at: u64,
    pub(crate) left_seconds: u64,
    pub(crate) dormant: bool,
    pub(crate) all_sources_asked: bool,
    /// Number of objects that it needs.
    pub(crate) needs: usize,
    /// The first of them.
    pub(crate) objects: Vec<String>,
    /// The fetch job of its git data.
    pub(crate) search: Option<FetchItem>,
}

/// A fetch job.
#[derive(Serialize, Deserialize)]
pub(crate) struct FetchItem {
    pub(crate) repository: String,
    pub(crate) rounds: u32,
    /// Number of missing objects.
    pub(crate) missing: usize,
    /// Some of them.
    pub(crate) examples: Vec<String>,
    pub(crate) next_in_seconds: Option<u64>,
    pub(crate) sources: Vec<FetchSource>,
}

/// A git server that may have the missing objects.
#[derive(Serialize, Deserialize)]
pub(crate) struct FetchSource {
    pub(crate) url: String,
    /// Whether it is being asked.
    pub(crate) asking: bool,
    /// Whether its limits delay the request.
    pub(crate) waiting: bool,
    /// Result of the last request.
    pub(crate) outcome: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct HeldCount {
    pub(crate) held: usize,
}

/// Repositories whose git data is fetched now.
#[derive(Serialize, Deserialize)]
pub(crate) struct RetryResult {
    pub(crate) repositories: Vec<String>,
    pub(crate) count: usize,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct DropResult {
    pub(crate) dropped: HeldItem,
}
