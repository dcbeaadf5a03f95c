//! TODO

pub(crate) mod broadcast;
pub(crate) mod negentropy;
pub(crate) mod negentropy_cache;
pub(crate) mod nip11;
pub(crate) mod outbox;
pub(crate) mod query_pool;
pub(crate) mod session;
pub(crate) mod subscriptions;
pub(crate) mod upgrade;
