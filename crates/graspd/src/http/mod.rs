//! TODO

pub(crate) mod body;
pub(crate) mod connection_limit;
pub(crate) mod fair_semaphore;
pub(crate) mod forwarded;
pub(crate) mod network_limits;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod stall_timeout;
