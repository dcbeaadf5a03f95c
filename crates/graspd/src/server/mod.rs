//! Starts the server, wires its parts together, and shuts it down in order.
//!
//! [`run`] is called by `main` and returns when the server has stopped. It opens the [`Resources`], starts the
//! [`WorkerThreads`] and the [`Drivers`], and serves connections in the tokio runtime. At shutdown, connections end
//! first, then the drivers, whose last rows go to the writer, then the writer.
//!
//! - [`resources`]: store, policy, git and everything else that all parts share.
//! - [`threads`]: threads outside the runtime. [`drivers`]: threads of sync and fetch.
//! - [`router`]: routes of the main listener.
//! - [`monitoring`]: metrics, health and status, also on a listener of their own.
//!
//! May call every feature folder. No other folder calls this one.

mod drivers;
mod monitoring;
mod resources;
pub(crate) mod router;
mod threads;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_git::layout::Layout;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use self::drivers::Drivers;
use self::resources::{Resources, build_git_service};
use self::router::AppState;
use self::threads::WorkerThreads;
use crate::admin::AdminState;
use crate::admin::proxy_probe::ProxyProbe;
use crate::admin::socket::AdminSocket;
use crate::config::{Config, SettingsReceiver};
use crate::data_lock::DataLocks;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::network_limits::{NetworkLimits, PerNetworkLimits};
use crate::http::server::HttpServer;
use crate::monitor::disk_usage;
use crate::relay::nip11::Nip11Document;
use crate::relay::session::SessionContext;
use crate::reload::{ReloadSources, Reloader};
use crate::repos::ref_cache::RefCache;
use crate::sd_notify::NotifyState;
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
    let layout = Layout::open(&config.git_data_path)
        .with_context(|| format!("cannot use the git data folder {}", config.git_data_path.display()))?;
    let layout = Arc::new(layout);
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
    let resources = Resources::open(&config, settings, layout, owner, cores)?;
    let (clock, instance) = (resources.clock, &resources.instance);
    let threads = WorkerThreads::start(&config, &resources)?;
    let git_service = Arc::new(build_git_service(&config, &resources, &threads.event_queue)?);
    let drivers = Drivers::start(&config, &resources, &threads.event_queue, &git_service, &runtime)?;
    let sync_notification =
        config.sync.enabled.then(|| (resources.sync_feed.clone(), CoverageBasis::new(&config, instance)));
    let policy_handle =
        PolicyHandle::new(resources.current_policy.clone(), threads.event_queue.clone(), sync_notification);
    let reloader = Reloader::new(sources, policy_handle, settings_sender);
    let connection_limit = ConnectionLimit::new(resources.settings.clone());
    let (shutdown_sender, shutdown) = watch::channel(false);
    let (budget, total_folder) = (git_service.disk_budget.clone(), config.relay_data_path.clone());
    let snapshots = threads.start_monitoring(&config, &resources, &git_service, connection_limit.clone())?;
    let status = Arc::new(StatusCache {
        health: snapshots,
        sync: drivers.sync_status.clone(),
        fetch: drivers.fetch_status.clone(),
        shutdown: shutdown.clone(),
        settings: resources.settings.clone(),
        ref_cache: git_service.ref_cache.clone(),
        metrics: resources.metrics.clone(),
        clock,
        rendered: Mutex::default(),
    });
    let proxy_probe = Arc::<ProxyProbe>::default();
    let monitoring_listener = match (inherited.monitoring, config.metrics.bind) {
        (None, None) => None,
        (None, Some(bind)) => Some(listen(&runtime, None, bind)?),
        (Some(socket), _) => {
            config.metrics.bind = Some(socket.local_addr()?);
            Some(TcpListener::from_std(socket)?)
        }
    };
    let network_limits = NetworkLimits::start(PerNetworkLimits::from_config(&config), clock);
    tokio::spawn(apply_reloaded_settings(
        resources.settings.clone(),
        network_limits.clone(),
        resources.ref_cache.clone(),
        resources.current_policy.clone(),
    ));
    let app = AppState {
        nip11: Nip11Document::new(resources.owner_key.to_string(), instance.clone()),
        policy: resources.current_policy.clone(),
        settings: resources.settings.clone(),
        network_limits: network_limits.clone(),
        sessions: SessionContext {
            queue: threads.event_queue.clone(),
            broadcast: threads.broadcast.clone(),
            query_pool: threads.query_pool.clone(),
            negentropy_cache: threads.negentropy_cache.clone(),
            store: resources.store.clone(),
            clock,
            service: resources.policy.service.clone(),
            settings: resources.settings.clone(),
            next_subscription_key: Arc::new(AtomicU64::new(1)),
            metrics: resources.metrics.clone(),
            shutdown_grace: config.shutdown_grace,
        },
        pages: RepositoryPages { git: git_service.clone(), sync: drivers.sync.clone(), fetch: drivers.fetch.clone() },
        git: git_service.clone(),
        metrics: resources.metrics.clone(),
        status: status.clone(),
        proxy_probe: proxy_probe.clone(),
        config: config.clone(),
    };
    // Before the startup text, because a program that reads it may send a signal immediately.
    let signals = ShutdownSignals::new()?;
    let hangup = signal(SignalKind::hangup()).context("cannot install a signal handler")?;
    runtime.spawn(reload::reload_on_sighup(hangup, reloader.clone()));
    print_startup(&app.config);
    let grace = app.config.shutdown_grace;
    let app = Arc::new(app);
    // The monitoring listener stays open during the shutdown: this channel is never used.
    let (_never, no_shutdown) = watch::channel(false);
    if let Some(listener) = monitoring_listener {
        tokio::spawn(monitoring::run(listener, app.clone(), no_shutdown));
    }
    let admin = admin_socket.map(|socket| {
        let admin = Arc::new(AdminState {
            config: config.clone(),
            instance: instance.clone(),
            store: resources.store.clone(),
            clock,
            event_queue: threads.event_queue.clone(),
            git: git_service,
            status,
            connection_limit: connection_limit.clone(),
            proxy_probe,
            sync: drivers.sync.clone(),
            fetch: drivers.fetch.clone(),
            reloader,
            exclusive: Mutex::default(),
        });
        runtime.spawn(socket.run(admin, shutdown.clone()))
    });
    let server = HttpServer {
        handler: app,
        connection_limit,
        network_limits,
        trusted_proxies: config.trusted_proxies.clone(),
        clock,
        shutdown,
    };
    runtime.block_on(serve(server, listener, admin, signals, shutdown_sender, grace));
    // Before the writer, because it writes their last rows.
    drivers.stop();
    threads.stop();
    disk_usage::save_total(&total_folder, budget.persistent_bytes());
    info!(target: "admin", "stopped");
    drop(in_runtime);
    // Blocking threads may wait for git processes for a long time; the git processes end with the server.
    runtime.shutdown_background();
    Ok(())
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

/// Prints the addresses and folders of the server. Programs read the first five lines.
fn print_startup(config: &Config) {
    let address = format!("{}{}", config.domain, config.base_path);
    info!(
        target: "admin",
        version = env!("CARGO_PKG_VERSION"),
        commit = env!("NGIT_BUILD_REVISION"),
        listening = %config.bind,
        address,
        data = %config.relay_data_path.display(),
        git_data = %config.git_data_path.display(),
        metrics = config.metrics.bind.map(|bind| bind.to_string()),
        admin_socket = config.admin_socket.as_ref().map(|path| path.display().to_string()),
        "server started"
    );
    let mut lines = vec![
        format!("graspd {} is ready", env!("CARGO_PKG_VERSION")),
        format!("  listening  {}", config.bind),
        format!("  relay      {}://{address}", config.relay_scheme()),
        format!("  git        {}://{address}/<npub>/<identifier>.git", config.web_scheme()),
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
