//! TODO

pub(crate) mod body;
pub(crate) mod connection_limit;
pub(crate) mod forwarded;
pub(crate) mod monitoring;
pub(crate) mod network_limits;
pub(crate) mod router;
pub(crate) mod server;
pub(crate) mod stall_timeout;
pub(crate) mod upgrade;
