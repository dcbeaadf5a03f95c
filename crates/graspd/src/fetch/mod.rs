//! Fetching of missing git data from other servers (`docs/design/fetch.md`).
//!
//! The decisions are made by [`grasp_core::fetch::FetchMachine`]. This folder runs it:
//!
//! - [`driver`]: feeds the machine with inputs and performs its outputs. It runs on the thread `fetch`, which uses the
//!   server's tokio runtime.
//! - [`client`]: one task of that runtime per fetch from one git server, and the checks of the received pack;
//!   comparison of refs with a mirror.
//! - [`survey`]: addresses of a git server and the limits that it states.
//!
//! May use `git` (limits and checks of packs), `writer` (to pass packs and store rows), `repos`, `http`, `metrics`, `net`,
//! `config`, `clock`, `date` and `random`. `admin` and `web` call it through [`driver::FetchHandle`].

pub(crate) mod client;
pub(crate) mod driver;
pub(crate) mod survey;
