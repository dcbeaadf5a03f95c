//! TODO

pub(crate) mod client;
pub(crate) mod driver;
pub(crate) mod survey;
