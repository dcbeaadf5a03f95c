//! Starts the server, wires its parts together, and shuts it down in order.
//!
//! [`run`] is called by `main` and returns when the server has stopped. It opens the [`Resources`], starts the
//! [`WorkerThreads`] and the [`Drivers`], and serves connections in the tokio runtime. At shutdown, connections end
//! first, then the drivers, whose last rows go to the writer, then the writer.
//!
//! - [`data_folders`]: whether store and git folder belong together.
//! - [`resources`]: store, policy, git and everything else that all parts share.
//! - [`threads`]: threads outside the runtime. [`drivers`]: threads of sync and fetch.
//! - [`router`]: routes of the main listener.
//! - [`monitoring`]: metrics, health and status, also on a listener of their own.
//!
//! May call every feature folder. No other folder calls this one.

mod data_folders;
mod drivers;
mod monitoring;
mod resources;
pub(crate) mod router;
mod threads;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_git::layout::Layout;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use self::drivers::Drivers;
use self::resources::Resources;
use self::router::AppState;
use self::threads::WorkerThreads;
use crate::admin::AdminState;
use crate::admin::deferred_events::{self, DeferredEvents};
use crate::admin::proxy_probe::ProxyProbe;
use crate::admin::socket::AdminSocket;
use crate::config::{Config, SettingsReceiver};
use crate::data_lock::DataLocks;
use crate::fetch::client::FetchClient;
use crate::git::handlers::GitHandlers;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::network_limits::{NetworkLimits, PerNetworkLimits};
use crate::http::server::HttpServer;
use crate::monitor::disk_usage;
use crate::reload::{ReloadSources, Reloader};
use crate::repos::ref_cache::RefCache;
use crate::sd_notify::NotifyState;
use crate::store_check::StopRecord;
use crate::web::repository_handler::RepositoryPages;
use crate::web::status_cache::StatusCache;
use crate::writer::policy::{CoverageBasis, CurrentPolicy, PolicyHandle};
use crate::{backup, config, reload, sd_notify, socket_activation};

/// Runs the server until it receives SIGTERM or SIGINT.
///
/// # Errors
/// Fails if the server cannot start.
pub(crate) fn run(mut config: Config, sources: ReloadSources) -> Result<()> {
    let inherited = socket_activation::take_sockets()?;
    let _locks = DataLocks::acquire(&config.relay_data_path, &config.git_data_path)?;
    backup::snapshot::reject_unfinished_restore(&config.relay_data_path)?;
    let stop_record = StopRecord::take(&config.relay_data_path)?;
    let deferred = DeferredEvents::open(&config.relay_data_path)?;
    let layout = Layout::open(&config.git_data_path)
        .with_context(|| format!("cannot use the git data folder {}", config.git_data_path.display()))?;
    let owner = config::load_owner_keys(&config)?;
    raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build()?;
    let in_runtime = runtime.enter();

    let listener = listen(&runtime, inherited.main, config.bind)?;
    config.set_bound_address(listener.local_addr()?);
    // Binding the socket changes the umask of the process, so no other thread may create files yet.
    let admin_socket = config.admin_socket.as_deref().map(AdminSocket::bind).transpose()?;
    let (settings_sender, settings) = watch::channel(Arc::new(config.clone()));
    let resources = Resources::open(&config, settings, Arc::new(layout), owner)?;
    let threads = WorkerThreads::start(&config, &resources)?;
    let (shutdown_sender, shutdown) = watch::channel(false);
    let (services, drivers) = Services::start(&config, &resources, &threads, &runtime, shutdown.clone())?;
    let monitoring_listener = listen_for_monitoring(&runtime, inherited.monitoring, &mut config)?;
    let reloader = start_reloader(&config, sources, settings_sender, &resources, &threads, &services.network_limits);
    // Before the startup text, because a program that reads it may send a signal immediately.
    let signals = ShutdownSignals::new()?;
    let hangup = signal(SignalKind::hangup()).context("cannot install a signal handler")?;
    runtime.spawn(reload::reload_on_sighup(hangup, reloader.clone()));
    print_startup(&config);
    let admin = Arc::new(services.admin_state(&config, &resources, &threads, &drivers, reloader, deferred));
    runtime.spawn(deferred_events::run(admin.clone(), shutdown.clone()));
    let admin = admin_socket.map(|socket| runtime.spawn(socket.run(admin, shutdown.clone())));
    let server = services.http_server(config.clone(), &resources, &threads, shutdown);
    // The monitoring listener stays open during the shutdown: this channel is never used.
    let (_never, no_shutdown) = watch::channel(false);
    if let Some(listener) = monitoring_listener {
        tokio::spawn(monitoring::run(listener, server.handler.clone(), no_shutdown));
    }
    runtime.block_on(serve(server, listener, admin, signals, shutdown_sender, config.shutdown_grace));

    // Before the writer stops: it stores the last rows of sync and fetch.
    drivers.stop();
    threads.stop();
    disk_usage::save_total(&config.relay_data_path, resources.disk_budget.persistent_bytes());
    stop_record.write();
    info!(target: "admin", "stopped");
    drop(in_runtime);
    // Blocking threads may wait for git processes for a long time; the git processes end with the server.
    runtime.shutdown_background();
    Ok(())
}

/// Handlers of requests, and the limits and caches that they share.
struct Services {
    git: GitHandlers,
    pages: RepositoryPages,
    status: Arc<StatusCache>,
    connection_limit: Arc<ConnectionLimit>,
    network_limits: NetworkLimits,
    proxy_probe: Arc<ProxyProbe>,
}

impl Services {
    /// Creates the handlers, and starts the drivers and the monitoring threads.
    fn start(
        config: &Config,
        resources: &Resources,
        threads: &WorkerThreads,
        runtime: &tokio::runtime::Runtime,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(Self, Drivers)> {
        let Resources { clock, settings, ref_cache, metrics, .. } = resources;
        let writer = threads.event_queue.clone();
        let (upload_pack, receive_pack) = resources.git_handlers(writer.clone(), threads.ref_file_writer.clone())?;
        let fetch_check_permits = FetchClient::check_permits(&config.git);
        let drivers = Drivers::start(config, resources, &threads.event_queue, fetch_check_permits.clone(), runtime)?;
        let pages =
            RepositoryPages::new(config, ref_cache.clone(), writer, drivers.sync.clone(), drivers.fetch.clone());
        let connection_limit = ConnectionLimit::new(settings.clone());
        let semaphores = receive_pack.semaphores().into_iter().chain(upload_pack.semaphores());
        let semaphores = semaphores.chain([("fetch_check", fetch_check_permits), pages.semaphore()]).collect();
        let health = threads.start_monitoring(config, resources, &upload_pack, semaphores, connection_limit.clone())?;
        let status = StatusCache {
            health,
            sync: drivers.sync_status.clone(),
            fetch: drivers.fetch_status.clone(),
            shutdown,
            settings: settings.clone(),
            ref_cache: ref_cache.clone(),
            metrics: metrics.clone(),
            clock: *clock,
            rendered: Mutex::default(),
        };
        let services = Self {
            git: GitHandlers::new(upload_pack, receive_pack),
            pages,
            status: Arc::new(status),
            connection_limit,
            network_limits: NetworkLimits::new(PerNetworkLimits::from_config(config), *clock),
            proxy_probe: Arc::default(),
        };
        Ok((services, drivers))
    }

    fn admin_state(
        &self,
        config: &Config,
        resources: &Resources,
        threads: &WorkerThreads,
        drivers: &Drivers,
        reloader: Arc<Reloader>,
        deferred: DeferredEvents,
    ) -> AdminState {
        AdminState {
            config: config.clone(),
            instance: resources.instance.clone(),
            store: resources.store.clone(),
            clock: resources.clock,
            event_queue: threads.event_queue.clone(),
            layout: resources.layout.clone(),
            ref_cache: resources.ref_cache.clone(),
            repair: threads.repair.clone(),
            status: self.status.clone(),
            proxy_probe: self.proxy_probe.clone(),
            sync: drivers.sync.clone(),
            fetch: drivers.fetch.clone(),
            deferred,
            reloader,
            exclusive: Mutex::default(),
        }
    }

    fn http_server(
        self,
        config: Config,
        resources: &Resources,
        threads: &WorkerThreads,
        shutdown: watch::Receiver<bool>,
    ) -> HttpServer<AppState> {
        HttpServer {
            connection_limit: self.connection_limit.clone(),
            network_limits: self.network_limits.clone(),
            trusted_proxies: config.trusted_proxies.clone(),
            clock: resources.clock,
            shutdown,
            handler: Arc::new(AppState::new(config, resources, threads, self)),
        }
    }
}

/// Creates the reloader, and starts the task that applies reloaded settings.
fn start_reloader(
    config: &Config,
    sources: ReloadSources,
    settings_sender: watch::Sender<Arc<Config>>,
    resources: &Resources,
    threads: &WorkerThreads,
    network_limits: &NetworkLimits,
) -> Arc<Reloader> {
    tokio::spawn(apply_reloaded_settings(
        resources.settings.clone(),
        network_limits.clone(),
        resources.ref_cache.clone(),
        resources.current_policy.clone(),
    ));
    let basis = CoverageBasis::new(config, &resources.instance);
    let sync = config.sync.enabled.then(|| (resources.sync_feed.clone(), basis));
    let policy = PolicyHandle::new(resources.current_policy.clone(), threads.event_queue.clone(), sync);
    Reloader::new(sources, policy, settings_sender)
}

/// Applies reloaded settings to the parts that have their own copy of limits or policy.
async fn apply_reloaded_settings(
    mut settings: SettingsReceiver,
    network_limits: NetworkLimits,
    ref_cache: Arc<RefCache>,
    current_policy: Arc<CurrentPolicy>,
) {
    while settings.changed().await.is_ok() {
        let config = settings.borrow_and_update().clone();
        network_limits.set_limits(PerNetworkLimits::from_config(&config));
        ref_cache.set_policy(&current_policy.policy());
    }
}

/// Returns the inherited socket, or a new one.
fn listen(
    runtime: &tokio::runtime::Runtime,
    socket: Option<std::net::TcpListener>,
    bind: SocketAddr,
) -> Result<TcpListener> {
    match socket {
        Some(socket) => Ok(TcpListener::from_std(socket)?),
        None => runtime.block_on(TcpListener::bind(bind)).with_context(|| format!("cannot listen on {bind}")),
    }
}

/// Opens the listener for monitoring, if there is one. Updates its address in the settings to that of an inherited
/// socket.
fn listen_for_monitoring(
    runtime: &tokio::runtime::Runtime,
    inherited: Option<std::net::TcpListener>,
    config: &mut Config,
) -> Result<Option<TcpListener>> {
    if let Some(socket) = &inherited {
        config.metrics.bind = Some(socket.local_addr()?);
    }
    config.metrics.bind.map(|bind| listen(runtime, inherited, bind)).transpose()
}

/// Serves until a signal is received, then waits for connections and admin commands, at most for `grace` or until a
/// second signal.
async fn serve(
    server: HttpServer<AppState>,
    listener: TcpListener,
    mut admin: Option<tokio::task::JoinHandle<()>>,
    mut signals: ShutdownSignals,
    shutdown: watch::Sender<bool>,
    grace: Duration,
) {
    let server = tokio::spawn(server.run(listener));
    sd_notify::notify(NotifyState::Ready);
    signals.recv().await;
    info!(target: "admin", "shutting down");
    sd_notify::notify(NotifyState::Stopping);
    let _ = shutdown.send(true);
    let drained = async {
        if let Ok(mut all_closed) = server.await {
            all_closed.recv().await;
        }
        if let Some(admin) = &mut admin {
            let _ = admin.await;
        }
    };
    tokio::select! {
        () = drained => {}
        () = tokio::time::sleep(grace) => {
            warn!(target: "admin", "shutdown grace period elapsed, closing the remaining connections");
        }
        () = signals.recv() => {
            warn!(target: "admin", "second signal received, closing the remaining connections");
        }
    }
    if let Some(admin) = admin.filter(|admin| !admin.is_finished()) {
        admin.abort();
        let _ = admin.await;
    }
}

/// SIGTERM and SIGINT.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot install a signal handler");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Raises the limit of open files to what the system allows, because every connection uses a file descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(target: "admin", %error, "cannot raise the limit of open files");
    }
}

/// Prints the addresses and folders of the server. Tests and scripts read the addresses from these lines.
fn print_startup(config: &Config) {
    info!(
        target: "admin",
        version = env!("CARGO_PKG_VERSION"),
        commit = env!("NGIT_BUILD_REVISION"),
        listening = %config.bind,
        address = format!("{}{}", config.domain, config.base_path),
        data = %config.relay_data_path.display(),
        git_data = %config.git_data_path.display(),
        metrics = config.metrics.bind.map(|bind| bind.to_string()),
        admin_socket = config.admin_socket.as_ref().map(|path| path.display().to_string()),
        "server started"
    );
    let mut lines = vec![
        format!("graspd {} is ready", env!("CARGO_PKG_VERSION")),
        format!("  listening  {}", config.bind),
        format!("  relay      {}", config.relay_url()),
        format!("  git        {}/<npub>/<identifier>.git", config.web_url()),
        format!("  data       {}", config.relay_data_path.display()),
        format!("  git data   {}", config.git_data_path.display()),
    ];
    if let Some(bind) = config.metrics.bind.filter(|_| config.metrics.enabled) {
        lines.push(format!("  metrics    http://{bind}/metrics"));
    }
    // In one write, because a reader may close the pipe after the lines that it needs. An error is ignored for that
    // reason.
    let _ = std::io::stdout().write_all((lines.join("\n") + "\n").as_bytes());
}
