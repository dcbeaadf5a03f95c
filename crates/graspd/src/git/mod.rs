//! TODO

pub(crate) mod fair_semaphore;
pub(crate) mod handlers;
pub(crate) mod maintenance;
pub(crate) mod pack_cache;
pub(crate) mod receive_pack;
pub(crate) mod ref_cache;
pub(crate) mod request_body;
pub(crate) mod upload_pack;
pub(crate) mod workers;
