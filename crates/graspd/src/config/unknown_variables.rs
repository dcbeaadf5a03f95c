//! Known environment variables with the prefix of this program that are not settings.

/// Variables of other GRASP servers that this version does not support. Each one causes a warning, because it has no
/// effect.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "BLACKLIST_AUTO_RESTORE",
    "DATABASE_BACKEND",
    "DELETION_REQUEST_DISRESPECTOR",
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
    "SYNC_RECURSIVE_DESCENDANT_LIMIT",
    "USER_INDEX_RELAYS",
];

/// Variables of container tools in the same `.env` file. The server ignores them without a warning.
pub(crate) const CONTAINER_VARIABLES: &[&str] = &["CADDY_IP", "COMPOSE_SUBNET", "HOST_PORT", "IMAGE"];
