//! The admin API: a unix socket that only the user of the server can open, with one endpoint per command.
//!
//! - [`socket`]: accepts connections and starts one job per request. [`wire`]: requests, response lines and errors.
//! - [`client`]: the client side, used by commands.
//! - The other files: one per endpoint or group of endpoints. An endpoint is an async function of [`AdminState`], an
//!   [`AdminRequest`] and a [`ResponseWriter`], listed in [`dispatch`].
//!
//! Jobs run as tasks of the server's runtime; work that blocks runs on blocking threads. To add an endpoint, add a file
//! with its function, a line in [`dispatch`], and a command in the `cli` folder that calls it.

mod address;
mod check;
pub(crate) mod client;
mod export;
mod import;
pub(crate) mod proxy_probe;
mod purgatory;
mod relays;
mod reload;
mod repos;
pub(crate) mod snapshot;
pub(crate) mod socket;
mod status;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::sync::io::RelayCommand;
use grasp_git::layout::Layout;
use grasp_store::Store;
use serde_json::Value;

use self::proxy_probe::ProxyProbe;
use self::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::clock::Clock;
use crate::config::Config;
use crate::fetch::driver::FetchHandle;
use crate::http::connection_limit::ConnectionLimit;
use crate::reload::Reloader;
use crate::repos::ref_cache::RefCache;
use crate::sync::status::SyncHandle;
use crate::web::status_cache::StatusCache;
use crate::writer::queue::EventQueue;

/// Runs the endpoint of a request. Its result is the last line of the response.
async fn dispatch(admin: &Arc<AdminState>, request: AdminRequest, writer: ResponseWriter) -> Result<Value, AdminError> {
    match request.endpoint() {
        "address" => address::address(admin, request, writer).await,
        "check" => check::check(admin, request, writer).await,
        "export" => export::export(admin, request, writer).await,
        "import" => import::import(admin, request, writer).await,
        "snapshot" => snapshot::snapshot(admin, request, writer).await,
        "status" => status::status(admin, request, writer).await,
        "relays" => relays::list(admin, request, writer).await,
        "relay_retry" => relays::send_command(admin, request, RelayCommand::Retry).await,
        "relay_pause" => relays::send_command(admin, request, RelayCommand::Pause).await,
        "relay_resume" => relays::send_command(admin, request, RelayCommand::Resume).await,
        "relay_forget" => relays::send_command(admin, request, RelayCommand::Forget).await,
        "sync" => relays::reconcile(admin, request, writer).await,
        "repos" => repos::list(admin, request, writer).await,
        "purgatory" => purgatory::list(admin, request, writer).await,
        "purgatory_retry" => purgatory::retry(admin, request, writer).await,
        "reload" => reload::reload(admin, request, writer).await,
        "purgatory_drop" => purgatory::drop_one(admin, request, writer).await,
        other => {
            let text = format!("this server has no endpoint `{other}`; does it have another version?");
            Err(AdminError::new("unknown_verb", text))
        }
    }
}

/// The parts of a running server that endpoints use.
pub(crate) struct AdminState {
    /// The settings that the server was started with.
    pub(crate) config: Config,
    /// The id of the store, as NIP-11 shows it.
    pub(crate) instance: String,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) event_queue: Arc<EventQueue>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) status: Arc<StatusCache>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    pub(crate) proxy_probe: Arc<ProxyProbe>,
    /// `None` if sync is disabled.
    pub(crate) sync: Option<SyncHandle>,
    /// Handle of the fetch driver; `None` if sync is disabled.
    pub(crate) fetch: Option<FetchHandle>,
    /// Reads the settings again.
    pub(crate) reloader: Arc<Reloader>,
    /// Jobs that are running and exclude a second one of the same kind. The lock is never held across an await.
    pub(crate) exclusive: Mutex<BTreeSet<&'static str>>,
}

impl AdminState {
    /// Starts a job of which only one can run, such as a backup. It ends when the guard is dropped.
    ///
    /// # Errors
    ///
    /// `busy` if such a job is running.
    pub(crate) fn begin_exclusive(self: &Arc<Self>, what: &'static str) -> Result<ExclusiveJob, AdminError> {
        if self.lock().insert(what) {
            return Ok(ExclusiveJob { what, admin: self.clone() });
        }
        Err(AdminError::new("busy", format!("{what} is already running; wait until it has ended")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a writer that did not respond.
fn writer_unavailable() -> AdminError {
    AdminError::new("failed", "the server cannot write at the moment, or is shutting down; see `graspd status`")
}

/// Guard of a job of which only one can run.
pub(crate) struct ExclusiveJob {
    what: &'static str,
    admin: Arc<AdminState>,
}

impl Drop for ExclusiveJob {
    fn drop(&mut self) {
        self.admin.lock().remove(self.what);
    }
}
