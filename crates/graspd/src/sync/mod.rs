//! Proactive sync: follows relays and submits their events (`docs/design/sync.md`).
//!
//! The decisions are made by [`grasp_core::sync::SyncMachine`]. This folder runs it:
//!
//! - [`driver`]: feeds the machine with inputs and performs its outputs. It runs on the thread `sync`, which uses the
//!   server's tokio runtime.
//! - [`connection`]: one task of that runtime per websocket connection to a relay.
//! - [`store_queries`]: queries of the machine to the store.
//! - [`status`]: status of relays for web pages and `graspd relays`.
//! - [`log`]: log lines of sync.
//!
//! May use `writer` (to submit events and store rows), `metrics`, `net`, `config`, `clock` and `random`. `admin` and `web` call
//! it through [`status::SyncHandle`].

pub(crate) mod connection;
pub(crate) mod driver;
pub(crate) mod log;
pub(crate) mod status;
pub(crate) mod store_queries;
