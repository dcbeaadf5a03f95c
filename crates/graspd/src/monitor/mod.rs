//! Monitoring: health checks, disk usage and the disk budget.
//!
//! Two threads run here, both started by `server`: the health monitor takes a [snapshot](health::HealthSnapshot) of the
//! server once a second, and the disk usage scanner walks the data folders every few minutes. A task in the runtime
//! measures the delay of the event loop. Health endpoints, the status page and the gauges are rendered from the latest
//! snapshot, so a request to them costs the rest of the server nothing.
//!
//! - [`health`]: the health monitor and its snapshot.
//! - [`endpoints`]: `/healthz` and `/readyz`.
//! - [`writer_stats`]: statistics that the writer reports about itself.
//! - [`free_memory`]: returns memory that is no longer used to the system.
//! - [`disk_usage`]: the scanner, bytes on disk by kind.
//! - [`disk_budget`]: how much of the budget is used, including packs that are being received.
//!
//! May use `http` (responses), `metrics`, `config` and `clock`. Everything else that it observes (queues, the pack
//! cache, the writer) is passed in as functions by `server`.

pub(crate) mod disk_budget;
pub(crate) mod disk_usage;
pub(crate) mod endpoints;
mod free_memory;
pub(crate) mod health;
pub(crate) mod writer_stats;
