//! TODO

pub(crate) mod disk_budget;
pub(crate) mod disk_usage;
pub(crate) mod endpoints;
pub(crate) mod health;
pub(crate) mod writer_stats;
