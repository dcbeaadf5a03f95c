//! The relay information document (NIP-11) with what GRASP adds.

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::policy::Mode;
use grasp_core::admission::policy::lists::{Archive, Lists};
use grasp_core::{disk_budget, limits};
use serde_json::{Map, Value, json};

use crate::config::{Config, Policy};

/// The NIPs that are spoken here.
const NIPS: [u16; 10] = [1, 9, 11, 34, 40, 42, 45, 62, 70, 77];

/// The document, printed once for as long as the lists stay the same.
pub(crate) struct Leaflet {
    owner: String,
    instance: String,
    /// The lock is held for a look, and for the moment in which it is printed anew.
    printed: Mutex<Option<Printed>>,
}

/// What was printed, and of what.
type Printed = (Arc<Config>, Arc<Lists>, String);

impl Leaflet {
    pub(crate) fn new(owner: String, instance: String) -> Self {
        Self { owner, instance, printed: Mutex::default() }
    }

    /// The name of this instance, which no other has.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// The document as it is now.
    pub(crate) fn text(&self, config: &Arc<Config>, lists: &Arc<Lists>) -> String {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*printed {
            Some((by, of, text)) if Arc::ptr_eq(by, config) && Arc::ptr_eq(of, lists) => text.clone(),
            _ => {
                let text = document(config, lists, &self.owner, &self.instance);
                *printed = Some((config.clone(), lists.clone(), text.clone()));
                text
            }
        }
    }
}

/// The document, as text: it changes only with the settings.
fn document(config: &Config, lists: &Lists, owner: &str, instance: &str) -> String {
    let mode = Mode::from(config.policy);
    let mut document = json!({
        "name": config.relay_name,
        "description": config.relay_description,
        "pubkey": owner,
        "software": "graspd",
        "version": env!("CARGO_PKG_VERSION"),
        "supported_nips": NIPS,
        "supported_grasps": grasps(config, lists),
        "repo_acceptance_criteria": criteria(mode, lists),
        "instance": instance,
        "limitation": {
            "max_message_length": limits::MAX_MESSAGE_BYTES,
            "max_subscriptions": config.max_subscriptions,
            "max_filters": limits::MAX_FILTERS,
            "max_filter_values": limits::MAX_FILTER_VALUES,
            "max_subscription_bytes": limits::MAX_FILTER_BYTES_PER_CONNECTION,
            "max_limit": config.filter_limit,
            "default_limit": config.filter_limit,
            "max_subid_length": limits::MAX_SUBSCRIPTION_ID_BYTES,
            "max_event_tags": limits::MAX_EVENT_TAGS,
            "max_state_event_tags": limits::MAX_STATE_TAGS,
            "max_event_bytes": config.max_event_bytes,
            "max_state_event_bytes": limits::MAX_STATE_EVENT_BYTES.max(config.max_event_bytes),
            "max_content_length": config.max_event_bytes,
            "max_unanswered_events": limits::MAX_UNANSWERED_PER_CONNECTION,
            "max_neg_sessions": config.max_neg_sessions,
            "max_neg_items": limits::MAX_NEGENTROPY_ITEMS,
            "max_neg_frame_bytes": limits::NEGENTROPY_FRAME_BYTES,
            "max_connections": config.max_connections,
            "grasp_git": { "concurrent": config.git.peers.concurrent, "per_minute": config.git.peers.per_minute },
            "created_at_upper_limit": limits::MAX_FUTURE_SECS,
            "min_pow_difficulty": 0,
            "auth_required": false,
            "payment_required": false,
            "restricted_writes": mode == Mode::Grasp,
        },
    });
    // Absent, not null, if nothing is chosen (G1-45).
    if let Some(curation) = curation(mode, lists) {
        document["curation"] = json!(curation);
    }
    let limitation = &mut document["limitation"];
    limitation["grasp_storage"] = kept(config);
    if config.network_max_connections > 0 {
        limitation["max_connections_per_network"] = json!(config.network_max_connections);
    }
    if config.network_events_per_minute > 0 {
        limitation["max_events_per_minute_per_network"] = json!(config.network_events_per_minute);
    }
    document.to_string()
}

/// What may be stored; what has no bound is not named.
fn kept(config: &Config) -> Value {
    let quotas = &config.quotas;
    let soft = |bytes| disk_budget::Budget::new(bytes, config.disk.soft_percent).soft;
    let bounds = [
        ("disk_budget_bytes", config.disk.bytes),
        ("disk_soft_bytes", config.disk.bytes.map(soft)),
        ("max_repositories_per_key", quotas.repositories_per_key),
        ("max_bytes_per_repository", quotas.bytes_per_repository),
        ("max_bytes_per_key", quotas.bytes_per_key),
        ("max_push_bytes", Some(config.git.max_push_bytes)),
    ];
    bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), json!(bound?)))).collect::<Map<_, _>>().into()
}

/// What is really offered (G1-44): the list says nothing that a client could not use.
pub(crate) fn grasps(config: &Config, lists: &Lists) -> Vec<&'static str> {
    if config.policy == Policy::Open {
        return Vec::new();
    }
    let optional = [
        (config.sync.enabled, "GRASP-02"),
        (lists.archive.is_on(), "GRASP-05"),
        (config.submissions && !lists.read_only, "GRASP-06"),
    ];
    let offered = optional.into_iter().filter_map(|(offered, name)| offered.then_some(name));
    ["GRASP-01"].into_iter().chain(offered).collect()
}

/// Which repositories are taken, in words.
pub(crate) fn criteria(mode: Mode, lists: &Lists) -> &'static str {
    match (mode, &lists.archive) {
        (Mode::Open, _) => "None: every valid event is taken, repositories are not hosted.",
        (Mode::Grasp, Archive::Nothing) if lists.read_only => "None is taken at the moment: this service is read-only.",
        (Mode::Grasp, Archive::Everything) if lists.read_only => "Any repository that is found by sync.",
        (Mode::Grasp, _) if lists.read_only => "Repositories that the operator has chosen to archive.",
        (Mode::Grasp, _) if lists.wanted.is_some() => {
            "Repositories that the operator has listed and whose announcement names this service in clone and relays."
        }
        (Mode::Grasp, _) => "Any repository whose announcement names this service in clone and relays.",
    }
}

/// How events are chosen beyond what keeps spam away (G1-45), in words. Bans are no choice of a subject.
pub(crate) fn curation(mode: Mode, lists: &Lists) -> Option<&'static str> {
    if mode == Mode::Open {
        return None;
    }
    match (&lists.archive, lists.read_only) {
        (Archive::Everything, true) => Some("Read-only copy of all repositories that are found on the network."),
        (Archive::Listed(_), true) => {
            Some("Read-only copy of repositories and maintainers that the operator has chosen.")
        }
        (Archive::Services(_), true) => Some("Read-only copy of the repositories of chosen GRASP services."),
        (Archive::Nothing, true) => Some("Read-only: repositories that are hosted here, and no others."),
        (_, false) if lists.wanted.is_some() => {
            Some("Only repositories and maintainers that the operator has listed, if they name this service.")
        }
        (_, false) => None,
    }
}

impl From<Policy> for Mode {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Grasp => Self::Grasp,
            Policy::Open => Self::Open,
        }
    }
}
