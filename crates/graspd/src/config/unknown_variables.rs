//! Variables with our prefix that are no settings of this program.

/// Variables that other GRASP servers read and this version does not. Finding one is no mistake of the operator, but
/// it must not look as if it had an effect.
pub(crate) const NOT_USED_YET: &[&str] = &[
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

/// Variables that container tooling keeps in the same `.env` file. They are not for the server, so it says nothing.
pub(crate) const NOT_FOR_US: &[&str] = &["CADDY_IP", "COMPOSE_SUBNET", "HOST_PORT", "IMAGE"];
