//! The relay information document (NIP-11) with what GRASP adds.

use grasp_core::limits;
use grasp_core::registrar::policy::Mode;
use grasp_core::storage;
use serde_json::{Map, Value, json};

use crate::config::{Config, Policy};

/// The NIPs that are spoken here.
const NIPS: [u16; 10] = [1, 9, 11, 34, 40, 42, 45, 62, 70, 77];

/// The document, as text: it changes only with the settings.
pub(crate) fn document(config: &Config, owner: &str, instance: &str) -> String {
    let mode = Mode::from(config.policy);
    let mut document = json!({
        "name": config.relay_name,
        "description": config.relay_description,
        "pubkey": owner,
        "software": "graspd",
        "version": env!("CARGO_PKG_VERSION"),
        "supported_nips": NIPS,
        "supported_grasps": grasps(config),
        "repo_acceptance_criteria": criteria(mode),
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
    let soft = |bytes| storage::Budget::new(bytes, config.disk.soft_percent).soft;
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
pub(crate) fn grasps(config: &Config) -> Vec<&'static str> {
    if config.policy == Policy::Open {
        return Vec::new();
    }
    let optional = [(config.sync.enabled, "GRASP-02"), (config.submissions, "GRASP-06")];
    let offered = optional.into_iter().filter_map(|(offered, name)| offered.then_some(name));
    ["GRASP-01"].into_iter().chain(offered).collect()
}

/// Which repositories are taken, in words.
pub(crate) fn criteria(mode: Mode) -> &'static str {
    match mode {
        Mode::Grasp => "Any repository whose announcement names this service in clone and relays.",
        Mode::Open => "None: every valid event is taken, repositories are not hosted.",
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
