//! Git over HTTP: ref advertisements, fetches and pushes of the smart protocol.
//!
//! Handlers run as tasks of the tokio runtime, called by the router in `server`. Blocking work (git processes, disk)
//! runs on tokio's blocking threads, limited by fair semaphores. A push is authorised by the writer, received into
//! quarantine, checked, and then applied by the writer; nothing here changes a repository.
//!
//! - [`handlers`]: the routes below a repository's path, and what both handlers share.
//! - [`upload_pack`]: `info/refs` and `git-upload-pack`.
//! - [`pack_cache`]: responses to fetches, shared by clients that send the same request.
//! - [`pack_receiver`]: packs of pushes and of fetches while they are received.
//! - [`receive_pack`]: pushes (`git-receive-pack`).
//! - [`request_body`]: request bodies, with bounds for size, memory and rate.
//! - [`transfer_rate`]: minimum rates of request bodies and responses.
//!
//! May use `writer`, `repos` (ref cache), `monitor` (disk budget), `metrics`, `http`,
//! `config` and `random`.

pub(crate) mod handlers;
pub(crate) mod pack_cache;
pub(crate) mod pack_receiver;
pub(crate) mod receive_pack;
pub(crate) mod request_body;
mod transfer_rate;
pub(crate) mod upload_pack;
