//! Names that are not settings: variables of other programs, and suggestions for misspelt names.

use super::declaration::{PREFIX, SETTINGS, SettingInfo};

/// Variables of other GRASP servers that this version does not support. Each one causes a warning, because it has no
/// effect.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "BLACKLIST_AUTO_RESTORE",
    "DATABASE_BACKEND",
    "DELETION_REQUEST_RETENTION_UNUSED_SERVED_SECS",
    "DELETION_REQUEST_RETENTION_UNUSED_UNSERVED_GATING_ADDITIONAL_SECS",
    "DELETION_REQUEST_RETENTION_USED_SERVED_AFTER_LAST_USED_SECS",
    "DELETION_REQUEST_RETENTION_USED_UNSERVED_GATING_ADDITIONAL_SECS",
    "HOLDING_CLEANUP_INTERVAL_SECS",
    "HOLDING_RETENTION_SECS",
    "NAUGHTY_LIST_EXPIRATION_HOURS",
    "PRIVATE_MEMBERS",
    "PRIVATE_MODE",
    "PRIVATE_PUBLIC_ORIGIN",
    "STARTUP_INTEGRITY_IDENTIFIERS",
    "SYNC_PLUS_ENABLED",
    "SYNC_PLUS_FALLBACK_RELAYS",
    "USER_INDEX_RELAYS",
];

/// Those of [`UNSUPPORTED`] that restrict who may read the service. The server does not start with them: everyone could
/// read what the operator meant to be private.
const RESTRICTIVE: &[&str] = &["PRIVATE_MEMBERS", "PRIVATE_MODE"];

/// Returns an error if `name` is a restriction that this version does not support and `value` switches it on.
pub(crate) fn unsupported_restriction(name: &str, value: &str) -> Option<&'static str> {
    let is_off = ["", "false", "0", "no", "off"].contains(&value.trim().to_ascii_lowercase().as_str());
    (RESTRICTIVE.contains(&name) && !is_off).then_some(
        "restricts who may read this service, which graspd does not support: everything would be public. Remove this \
         setting only if that is intended",
    )
}

/// Variables of container tools in the same `.env` file. The server ignores them without a warning.
pub(crate) const CONTAINER_VARIABLES: &[&str] = &["CADDY_IP", "COMPOSE_SUBNET", "HOST_PORT", "IMAGE"];

/// Returns the setting whose name is nearest to `name`, in any spelling, if it is near enough to be a suggestion.
pub(crate) fn nearest_setting(name: &str) -> Option<&'static SettingInfo> {
    let upper = name.to_ascii_uppercase().replace('-', "_");
    let bare = upper.strip_prefix(PREFIX).unwrap_or(&upper);
    let nearest = nearest_name(bare, SETTINGS.iter().map(|setting| setting.name))?;
    SETTINGS.iter().find(|setting| setting.name == nearest)
}

/// Returns the known name that is nearest to `name`, if it is near enough to be a suggestion.
pub(crate) fn nearest_name<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, found) =
        known.map(|known| (strsim::osa_distance(name, known), known)).min_by_key(|(distance, _)| *distance)?;
    (distance <= (found.len() / 4).max(2)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_found_in_any_spelling() {
        for (name, expected) in [
            ("bind_adress", Some("BIND_ADDRESS")),
            ("NGIT_DOMIAN", Some("DOMAIN")),
            ("bind-address", Some("BIND_ADDRESS")),
            ("relay_max_event_size", Some("RELAY_MAX_EVENT_SIZE_BYTES")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest_setting(name).map(|setting| setting.name), expected, "{name}");
        }
        let relays = ["wss://relay.example", "wss://other.example"];
        assert_eq!(nearest_name("wss://rely.exmaple", relays.into_iter()), Some("wss://relay.example"));
        assert_eq!(nearest_name("wss://far.away.test/path", relays.into_iter()), None);
    }
}
