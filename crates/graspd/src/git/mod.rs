//! TODO

pub(crate) mod handlers;
pub(crate) mod pack_cache;
pub(crate) mod receive_pack;
pub(crate) mod request_body;
pub(crate) mod upload_pack;
