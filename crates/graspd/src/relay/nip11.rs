//! Relay information document (NIP-11) with the fields that GRASP adds (`docs/protocol.md#nip-11-document`).

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::policy::AdmissionMode;
use grasp_core::admission::policy::lists::{ArchiveScope, ModerationLists};
use grasp_core::{disk_budget, limits};
use serde_json::{Map, Value, json};

use crate::config::Config;

/// The supported NIPs.
const NIPS: [u16; 10] = [1, 9, 11, 34, 40, 42, 45, 62, 70, 77];

/// The document. Its text is cached until the settings or the moderation lists change.
pub(crate) struct Nip11Document {
    owner: String,
    instance: String,
    cached: Mutex<Option<CachedText>>,
}

/// The settings and lists from which the text was made, and the text.
type CachedText = (Arc<Config>, Arc<ModerationLists>, String);

impl Nip11Document {
    pub(crate) fn new(owner: String, instance: String) -> Self {
        Self { owner, instance, cached: Mutex::default() }
    }

    /// Returns the document for these settings and lists.
    pub(crate) fn text(&self, config: &Arc<Config>, lists: &Arc<ModerationLists>) -> String {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((made_from, made_with, text)) if Arc::ptr_eq(made_from, config) && Arc::ptr_eq(made_with, lists) => {
                text.clone()
            }
            _ => {
                let text = render(config, lists, &self.owner, &self.instance);
                *cached = Some((config.clone(), lists.clone(), text.clone()));
                text
            }
        }
    }
}

fn render(config: &Config, lists: &ModerationLists, owner: &str, instance: &str) -> String {
    let mode = config.policy;
    let peer_limits = config.git.peer_limits();
    let mut document = json!({
        "name": config.relay_name,
        "description": config.relay_description,
        "pubkey": owner,
        "software": "graspd",
        "version": env!("CARGO_PKG_VERSION"),
        "supported_nips": supported_nips(config),
        "supported_grasps": supported_grasps(config, lists),
        "repo_acceptance_criteria": repo_acceptance_criteria(mode, lists),
        "instance": instance,
        "limitation": {
            "max_message_length": limits::MAX_MESSAGE_BYTES,
            "max_message_secs": limits::INCOMPLETE_MESSAGE_SECS,
            "max_subscriptions": config.max_subscriptions,
            "max_filters": limits::MAX_FILTERS,
            "max_filter_values": limits::MAX_FILTER_VALUES,
            "max_subscription_bytes": limits::MAX_FILTER_BYTES_PER_CONNECTION,
            "max_subscription_bytes_per_network": limits::MAX_FILTER_BYTES_PER_NETWORK,
            "max_limit": config.filter_limit,
            "default_limit": config.filter_limit,
            "max_subid_length": limits::MAX_SUBSCRIPTION_ID_BYTES,
            "max_event_tags": limits::MAX_EVENT_TAGS,
            "max_state_event_tags": limits::MAX_STATE_TAGS,
            "max_event_bytes": config.max_event_bytes,
            "max_state_event_bytes": limits::MAX_STATE_EVENT_BYTES.max(config.max_event_bytes),
            "max_content_length": config.max_event_bytes,
            "max_unanswered_events": limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION,
            "max_held_events_per_key": limits::MAX_HELD_EVENTS_PER_AUTHOR,
            "max_held_bytes_per_key": limits::MAX_HELD_BYTES_PER_AUTHOR,
            "max_held_events_per_network": limits::MAX_HELD_EVENTS_PER_NETWORK,
            "max_held_bytes_per_network": limits::MAX_HELD_BYTES_PER_NETWORK,
            "max_neg_sessions": config.max_neg_sessions,
            "max_neg_items": limits::MAX_NEGENTROPY_ITEMS,
            "max_neg_frame_bytes": limits::NEGENTROPY_FRAME_BYTES,
            "max_connections": config.max_connections,
            "grasp_git": { "concurrent": peer_limits.concurrent, "per_minute": peer_limits.per_minute },
            "created_at_upper_limit": limits::MAX_FUTURE_SECS,
            "min_pow_difficulty": 0,
            "auth_required": false,
            "payment_required": false,
            "restricted_writes": mode == AdmissionMode::Grasp,
        },
    });
    // Without curation the key is absent, not null.
    if let Some(curation) = curation(mode, lists) {
        document["curation"] = json!(curation);
    }
    let limitation = &mut document["limitation"];
    limitation["grasp_storage"] = storage_limits(config);
    limitation["max_announcements_per_identifier"] = json!(limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER);
    limitation["max_exception_announcements_per_repository"] = json!(limits::MAX_EXCEPTIONS_PER_REPOSITORY);
    limitation["max_exception_announcements_per_identifier"] = json!(limits::MAX_EXCEPTIONS_PER_IDENTIFIER);
    if config.network_max_connections > 0 {
        limitation["max_connections_per_network"] = json!(config.network_max_connections);
    }
    if config.network_events_per_minute > 0 {
        limitation["max_events_per_minute_per_network"] = json!(config.network_events_per_minute);
    }
    document.to_string()
}

/// Returns the limits of what may be stored, without those that are not set.
fn storage_limits(config: &Config) -> Value {
    let quotas = &config.quotas;
    let soft = |bytes| disk_budget::DiskBudget::new(bytes, config.disk.soft_percent).soft_bytes;
    let entries = [
        ("disk_budget_bytes", config.disk.budget_bytes),
        ("disk_soft_bytes", config.disk.budget_bytes.map(soft)),
        ("max_repositories_per_key", quotas.repositories_per_key),
        ("max_bytes_per_repository", quotas.bytes_per_repository),
        ("max_bytes_per_key", quotas.bytes_per_key),
        ("max_push_bytes", Some(config.git.max_push_bytes)),
        ("min_unpacked_pack_bytes", Some(limits::MIN_UNPACKED_PACK_BYTES.max(config.git.max_object_bytes))),
        ("max_pack_expansion", Some(limits::MAX_PACK_EXPANSION)),
    ];
    entries.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?)))).collect::<Map<_, _>>().into()
}

/// Returns the NIPs that are implemented and enabled.
fn supported_nips(config: &Config) -> Vec<u16> {
    let is_supported = |nip: &u16| !config.ignores_deletions || !matches!(nip, 9 | 62);
    NIPS.iter().copied().filter(is_supported).collect()
}

/// Returns the GRASP documents that are implemented and enabled.
pub(crate) fn supported_grasps(config: &Config, lists: &ModerationLists) -> Vec<&'static str> {
    if config.policy == AdmissionMode::Open {
        return Vec::new();
    }
    let optional = [
        (config.sync.enabled, "GRASP-02"),
        (lists.archive.is_enabled(), "GRASP-05"),
        (config.submissions && !lists.is_read_only, "GRASP-06"),
    ];
    let enabled = optional.into_iter().filter_map(|(is_enabled, name)| is_enabled.then_some(name));
    ["GRASP-01"].into_iter().chain(enabled).collect()
}

/// Returns a sentence that says which repositories are accepted.
pub(crate) fn repo_acceptance_criteria(mode: AdmissionMode, lists: &ModerationLists) -> &'static str {
    match (mode, &lists.archive) {
        (AdmissionMode::Open, _) => "None: every valid event is accepted, and no repositories are hosted.",
        (AdmissionMode::Grasp, ArchiveScope::Nothing) if lists.is_read_only => {
            "No new repositories are accepted: this service is read-only."
        }
        (AdmissionMode::Grasp, ArchiveScope::Everything) if lists.is_read_only => "Any repository that sync finds.",
        (AdmissionMode::Grasp, _) if lists.is_read_only => "Repositories that the operator has chosen to archive.",
        (AdmissionMode::Grasp, _) if lists.whitelist.is_some() => {
            "Repositories that the operator has listed and whose announcement names this service in clone and relays."
        }
        (AdmissionMode::Grasp, _) => "Any repository whose announcement names this service in clone and relays.",
    }
}

/// Returns a sentence that says how the operator selects by subject; `None` if all subjects are accepted. Bans are not
/// curation.
pub(crate) fn curation(mode: AdmissionMode, lists: &ModerationLists) -> Option<&'static str> {
    if mode == AdmissionMode::Open {
        return None;
    }
    match (&lists.archive, lists.is_read_only) {
        (ArchiveScope::Everything, true) => Some("Read-only copy of all repositories that sync finds on the network."),
        (ArchiveScope::Listed(_), true) => {
            Some("Read-only copy of repositories and maintainers that the operator has chosen.")
        }
        (ArchiveScope::Services(_), true) => {
            Some("Read-only copy of the repositories of GRASP services that the operator has chosen.")
        }
        (ArchiveScope::Nothing, true) => Some("Read-only: only repositories that are already hosted here."),
        (_, false) if lists.whitelist.is_some() => {
            Some("Only repositories and maintainers that the operator has listed, if they name this service.")
        }
        (_, false) => None,
    }
}
