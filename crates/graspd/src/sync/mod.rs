//! TODO

pub(crate) mod connection;
pub(crate) mod driver;
pub(crate) mod log;
pub(crate) mod status;
pub(crate) mod store_queries;
