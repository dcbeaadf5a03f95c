//! The admin API: a unix socket that only the user of the server can open, with one endpoint per command.
//!
//! - [`api`]: endpoints, requests, responses and errors, shared with the commands.
//! - [`socket`]: accepts connections and starts one job per request. [`wire`]: reads requests and writes responses.
//! - [`client`]: the client side, used by commands.
//! - The other files: one per endpoint or group of endpoints, with an async function for each, listed in [`dispatch`].
//!
//! Jobs run as tasks of the server's runtime; work that blocks runs on blocking threads. To add an endpoint, declare it in
//! [`api`], write its function, add a line to [`dispatch`], and a command in the `cli` folder that calls it.

pub(crate) mod api;
mod check;
pub(crate) mod client;
pub(crate) mod deferred_events;
pub(crate) mod export;
mod import;
pub(crate) mod proxy_probe;
mod purgatory;
mod relays;
mod repair;
mod repos;
pub(crate) mod snapshot;
pub(crate) mod socket;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::sync::io::RelayCommand;
use grasp_git::layout::Layout;
use grasp_store::Store;
use serde_json::{Value, json};

use self::api::{Address, ErrorCode, ServerSettings, ServiceSettings};
use self::deferred_events::DeferredEvents;
use self::proxy_probe::ProxyProbe;
use self::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::clock::Clock;
use crate::config::Config;
use crate::fetch::driver::FetchHandle;
use crate::reload::{ReloadReport, Reloader};
use crate::repos::ref_cache::RefCache;
use crate::repos::repair::RepoRepair;
use crate::sync::status::SyncHandle;
use crate::web::status_cache::StatusCache;
use crate::writer::queue::EventQueue;

/// Runs the endpoint of a request. Its result is the last line of the response.
async fn dispatch(admin: &Arc<AdminState>, request: AdminRequest, writer: ResponseWriter) -> Result<Value, AdminError> {
    if request.endpoint() == api::IMPORT.name {
        return import::import(admin, request, writer.with_items()).await.map(|progress| json!(progress));
    }
    macro_rules! answer {
        ($($endpoint:ident: $handler:expr,)*) => {
            match request.endpoint() {
                $(name if name == api::$endpoint.name => api::$endpoint.answer(request, writer, $handler).await,)*
                other => {
                    let text = format!("this server has no endpoint `{other}`; does it have another version?");
                    Err(AdminError::new(ErrorCode::UnknownEndpoint, text))
                }
            }
        };
    }
    answer! {
        ADDRESS: |_, _| async { Ok(address(&admin.config)) },
        CHECK: |arguments, _| async { check::check(admin, arguments) },
        EXPORT: |arguments, writer| export::export(admin, arguments, writer),
        SNAPSHOT: |_, writer| snapshot::snapshot(admin, writer),
        STATUS: |_, _| async { Ok(admin.status.document()) },
        RELAYS: |_, writer| relays::list(admin, writer),
        RELAY_RETRY: |relay, _| relays::send_command(admin, relay, RelayCommand::Retry),
        RELAY_PAUSE: |relay, _| relays::send_command(admin, relay, RelayCommand::Pause),
        RELAY_RESUME: |relay, _| relays::send_command(admin, relay, RelayCommand::Resume),
        RELAY_FORGET: |relay, _| relays::send_command(admin, relay, RelayCommand::Forget),
        SYNC: |relay, writer| relays::reconcile(admin, relay, writer),
        REPAIR: |arguments, writer| repair::repair(admin, arguments, writer),
        REPOS: |arguments, writer| repos::list(admin, arguments, writer),
        PURGATORY: |_, writer| purgatory::list(admin, writer),
        PURGATORY_RETRY: |arguments, writer| purgatory::retry(admin, arguments, writer),
        PURGATORY_DROP: |arguments, writer| purgatory::drop_one(admin, arguments, writer),
        RELOAD: |_, _| reload(&admin.reloader),
        SETTINGS: |_, _| async { Ok(ServerSettings::from_config(&admin.reloader.settings())) },
    }
}

/// Returns the local address of the server, and its service settings.
fn address(config: &Config) -> Address {
    let mut at = config.bind;
    if at.ip().is_unspecified() {
        at.set_ip(if at.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
    }
    Address { git: format!("http://{at}{}", config.base_path), service: ServiceSettings::from_config(config) }
}

/// Applies the settings that can change, and returns those that need a restart. If a setting is invalid, nothing
/// changes.
async fn reload(reloader: &Arc<Reloader>) -> Result<ReloadReport, AdminError> {
    let reloader = reloader.clone();
    match tokio::task::spawn_blocking(move || reloader.reload()).await {
        Ok(Ok(report)) => {
            report.log();
            Ok(report)
        }
        Ok(Err(errors)) => {
            Err(AdminError::new(ErrorCode::BadSettings, format!("the settings are unchanged: {errors}")))
        }
        Err(_) => Err(AdminError::failed("the settings could not be read again; see the log of the server")),
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
    pub(crate) repair: Arc<RepoRepair>,
    pub(crate) status: Arc<StatusCache>,
    pub(crate) proxy_probe: Arc<ProxyProbe>,
    /// `None` if sync is disabled.
    pub(crate) sync: Option<SyncHandle>,
    /// Handle of the fetch driver; `None` if sync is disabled.
    pub(crate) fetch: Option<FetchHandle>,
    /// Deferred events of imports.
    pub(crate) deferred: DeferredEvents,
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
        Err(AdminError::new(ErrorCode::Busy, format!("{what} is already running; wait until it has ended")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a writer that did not respond.
fn writer_unavailable() -> AdminError {
    AdminError::failed("the server cannot write at the moment, or is shutting down; see `graspd status`")
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
