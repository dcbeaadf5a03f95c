//! Starts every room, opens the door, and closes everything in order.

mod monitoring;
pub(crate) mod router;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::nostr::{PublicKey, hex};
use grasp_core::repo::ServiceAddress;
use grasp_git::apply::Keeper;
use grasp_git::layout::Layout;
use grasp_git::maintenance::Maintainer;
use grasp_git::process::{Bounds, Git};
use grasp_git::serve::Capabilities;
use grasp_store::{StoreOptions, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use self::router::AppState;
use crate::admin::AdminState;
use crate::admin::proxy_probe::ProxyProbe;
use crate::admin::socket::AdminSocket;
use crate::clock::Clock;
use crate::config::Config;
use crate::data_lock::DataLocks;
use crate::fetch::client::FetchClient;
use crate::git::handlers::{FETCH_UNIT_BYTES, FETCH_UNITS};
use crate::monitor::health::{BudgetLoads, QueueDepths};
use crate::repos::ref_cache;
use crate::repos::workers::OnDone;
use crate::web::repository_handler::RepositoryPages;
use crate::writer::command::WriterCommand;

use crate::config::SettingsReceiver;
use crate::fetch::driver::{FetchDriver, FetchHandle};
use crate::git::handlers;
use crate::git::handlers::GitService;
use crate::git::pack_cache::PackCache;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::fair_semaphore::FairSemaphore;
use crate::http::network_limits::{Allowance, NetworkLimits};
use crate::http::server::HttpServer;
use crate::metrics::Metrics;
use crate::monitor::disk_budget::Budget;
use crate::monitor::disk_usage;
use crate::monitor::disk_usage::{DiskUsageScanner, LatestDiskUsage};
use crate::monitor::health::{HealthMonitor, HealthSnapshot, HealthSources, Pulse};
use crate::net::dialer::Dialer;
use crate::relay::broadcast::{BroadcastHandle, Live};
use crate::relay::negentropy_cache::{NegentropyCache, NegentropyCacheWorker};
use crate::relay::nip11::Nip11Document;
use crate::relay::query_pool::{QueryPool, Reader};
use crate::relay::session::SessionContext;
use crate::reload::{ReloadSources, Reloader};
use crate::repos::maintenance::{Maintenance, MaintenanceHandle};
use crate::repos::ref_cache::RefCache;
use crate::repos::workers::GitWorkers;
use crate::sd_notify::NotifyState;
use crate::sync::connection::{Patience, Sockets};

use crate::sync::driver::SyncDriver;
use crate::sync::status::SyncHandle;
use crate::web::status_cache::StatusCache;
use crate::writer::Writer;
use crate::writer::command::WriterHandle;
use crate::writer::fetch_feed::FetchFeed;
use crate::writer::policy::{CoverageBasis, CurrentPolicy, PolicyHandle};
use crate::writer::queue::EventQueue;
use crate::writer::sync_feed::SyncFeed;
use crate::{backup, config, reload, sd_notify, socket_activation};

/// Runs the server until it is asked to stop.
pub(crate) fn run(mut config: Config, origins: ReloadSources) -> Result<()> {
    let inherited = socket_activation::take_sockets()?;
    let _locks = DataLocks::acquire(&config.relay_data_path, &config.git_data_path)?;
    backup::snapshot::reject_unfinished_restore(&config.relay_data_path)?;
    let layout = Layout::open(&config.git_data_path)
        .with_context(|| format!("cannot use the folder {}", config.git_data_path.display()))?;
    let layout = Arc::new(layout);
    let owner = config::load_owner_keys(&config)?;
    raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build()?;
    let in_runtime = runtime.enter();

    let listener = listen(&runtime, inherited.main, config.bind)?;
    config.set_bound_address(listener.local_addr()?);
    // Before there are threads that make files.
    let admin_socket = config.admin_socket.as_deref().map(AdminSocket::bind).transpose()?;
    let clock = Clock::start();
    let readers = 2 * cores;
    let store = Store::open(
        &config.relay_data_path.join("events"),
        StoreOptions { readers: readers as u32, reserve_bytes: config.store_reserve_bytes },
    )?;
    let owner_key = PublicKey(owner.public_key().to_bytes());
    let rules = rules(&config, owner_key)?;
    let book = CurrentPolicy::new(rules.clone());
    let (current, settings) = watch::channel(Arc::new(config.clone()));
    let directory = Arc::new(RefCache::new(layout.clone(), config.submissions));
    directory.govern(&rules);
    let bounds = Bounds { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
    let git = Git::new(Path::new("git"), bounds);
    let capabilities = Capabilities::learn(&git, &layout).context("git cannot be used; is it installed?")?;
    let meter = Metrics::with(config.metrics.limits);
    let post = SyncFeed::new();
    let hunt_post = FetchFeed::new();
    let means = Means {
        layout: layout.clone(),
        directory: directory.clone(),
        git: git.clone(),
        post: post.clone(),
        hunt_post: hunt_post.clone(),
        meter: meter.clone(),
        settings: settings.clone(),
    };
    let threads = Threads::start(&config, &store, &book, clock, cores, readers, means)?;
    let desk = (threads.line.clone(), meter.clone(), settings.clone());
    let house_of_git = git_house(&config, layout, directory, git, capabilities, desk, cores)?;
    let (sync_door, questions) = SyncHandle::new();
    let sync_door = config.sync.enabled.then_some(sync_door);
    let (hunt_door, hunt_questions) = FetchHandle::new();
    let hunt_door = config.sync.enabled.then_some(hunt_door);
    let house_of_git = Arc::new(house_of_git);
    let (pictures, sync_pictures) = watch::channel(Arc::default());
    let (hunt_views, hunt_pictures) = watch::channel(Arc::default());
    let instance = hex::encode(&store.id()[..8]);
    let following = config.sync.enabled.then(|| (post.clone(), CoverageBasis::new(&config, &instance)));
    let door = PolicyHandle::new(book.clone(), threads.line.clone(), following);
    let reloader = Reloader::new(origins, door, current);
    let mut outgoing = Vec::new();
    if config.sync.enabled {
        let reach = if config.sync.allow_non_global { AddressPolicy::Any } else { AddressPolicy::PublicOnly };
        let dialer = Arc::new(Dialer::new(reach)?);
        let patience = Patience::new(config.sync.base_backoff);
        let known = Arc::new(store.clone());
        let largest = book.clone();
        let largest = Box::new(move || largest.rules().max_event_bytes);
        let sockets = Sockets::new(dialer.clone(), known, owner, clock, largest, patience);
        let means = crate::sync::driver::Means {
            store: store.clone(),
            line: threads.line.clone(),
            post,
            clock,
            sockets,
            meter: meter.clone(),
            pictures,
            questions,
        };
        let room = SyncDriver::new(means, crate::sync::driver::config(&config, &rules, &instance)?);
        outgoing.push(DriverThread::start("sync", &runtime, |stop| room.run(stop))?);
        let fetching = Arc::new(FetchClient::new(&house_of_git, dialer.clone(), clock));
        let (line, meter) = (threads.line.clone(), meter.clone());
        let pictures = hunt_views;
        let means = crate::fetch::driver::Means {
            store: store.clone(),
            line,
            post: hunt_post,
            clock,
            fetching,
            dialer,
            meter,
            pictures,
            questions: hunt_questions,
        };
        let room = FetchDriver::new(means, crate::fetch::driver::manners(&config)?);
        outgoing.push(DriverThread::start("hunt", &runtime, |stop| room.run(stop))?);
    }
    let places = ConnectionLimit::new(settings.clone());
    let (leave, leaving) = watch::channel(false);
    let (budget, notes) = (house_of_git.budget.clone(), config.relay_data_path.clone());
    let rounds = threads.watch(&config, &store, &house_of_git, places.clone(), clock, &meter)?;
    let status = Arc::new(StatusCache {
        rounds,
        sync: config.sync.enabled.then_some(sync_pictures),
        hunt: config.sync.enabled.then_some(hunt_pictures),
        leaving: leaving.clone(),
        settings: settings.clone(),
        directory: house_of_git.directory.clone(),
        meter: meter.clone(),
        clock,
        made: Mutex::default(),
    });
    let proxy_probe = Arc::<ProxyProbe>::default();
    let side = match (inherited.monitoring, config.metrics.bind) {
        (None, None) => None,
        (None, Some(bind)) => Some(listen(&runtime, None, bind)?),
        (Some(given), _) => {
            config.metrics.bind = Some(given.local_addr()?);
            Some(TcpListener::from_std(given)?)
        }
    };
    let networks = NetworkLimits::open(Allowance::of(&config), clock);
    tokio::spawn(follow(settings.clone(), networks.clone(), house_of_git.directory.clone(), book.clone()));
    let house = AppState {
        nip11: Nip11Document::new(owner_key.to_string(), instance.clone()),
        book,
        settings: settings.clone(),
        networks: networks.clone(),
        rooms: SessionContext {
            line: threads.line.clone(),
            live: threads.live.clone(),
            readers: threads.readers.clone(),
            library: threads.library.clone(),
            store: store.clone(),
            clock,
            service: rules.service,
            settings,
            keys: Arc::new(AtomicU64::new(1)),
            meter: meter.clone(),
            shutdown_grace: config.shutdown_grace,
        },
        pages: RepositoryPages { git: house_of_git.clone(), sync: sync_door.clone(), hunt: hunt_door.clone() },
        git: house_of_git.clone(),
        meter,
        status: status.clone(),
        proxy_probe: proxy_probe.clone(),
        config: config.clone(),
    };
    // Whoever reads the welcome may send a signal at once.
    let signals = Signals::listen()?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen to signals")?;
    runtime.spawn(reload::reload_on_sighup(hangup, reloader.clone()));
    welcome(&house.config);
    let grace = house.config.shutdown_grace;
    let house = Arc::new(house);
    // Those who watch may look on while it goes down.
    let (_last, watching) = watch::channel(false);
    if let Some(side) = side {
        tokio::spawn(monitoring::run(side, house.clone(), watching));
    }
    let admin = admin_socket.map(|socket| {
        let admin = Arc::new(AdminState {
            config: config.clone(),
            instance,
            store,
            clock,
            line: threads.line.clone(),
            git: house_of_git,
            status,
            places: places.clone(),
            proxy_probe,
            sync: sync_door,
            hunt: hunt_door,
            reloader,
            exclusive: Mutex::default(),
        });
        runtime.spawn(socket.run(admin, leaving.clone()))
    });
    let server = HttpServer {
        listener,
        handler: house,
        places,
        networks,
        trusted_proxies: config.trusted_proxies.clone(),
        clock,
        leaving,
    };
    runtime.block_on(serve(server, admin, signals, leave, grace));
    // Their last rows are for the writer.
    for room in outgoing {
        room.stop();
    }
    threads.stop();
    disk_usage::note(&notes, budget.stays());
    info!("stopped");
    drop(in_runtime);
    // A thread that waits for a git process may wait for long; the process goes with it.
    runtime.shutdown_background();
    Ok(())
}

/// Tells those who keep limits of their own what changes for them.
async fn follow(
    mut settings: SettingsReceiver,
    networks: NetworkLimits,
    directory: Arc<RefCache>,
    book: Arc<CurrentPolicy>,
) {
    while settings.changed().await.is_ok() {
        let config = settings.borrow_and_update().clone();
        networks.allow(Allowance::of(&config));
        directory.govern(&book.rules());
    }
}

/// The socket that was handed over, or one of our own.
fn listen(
    runtime: &tokio::runtime::Runtime,
    given: Option<std::net::TcpListener>,
    bind: SocketAddr,
) -> Result<TcpListener> {
    match given {
        Some(given) => Ok(TcpListener::from_std(given)?),
        None => runtime.block_on(TcpListener::bind(bind)).with_context(|| format!("cannot listen on {bind}")),
    }
}

/// Serves until a signal comes, then lets connections and commands finish within the grace, or until a second signal.
async fn serve(
    server: HttpServer<AppState>,
    mut admin: Option<tokio::task::JoinHandle<()>>,
    mut signals: Signals,
    leave: watch::Sender<bool>,
    grace: Duration,
) {
    let server = tokio::spawn(server.run());
    sd_notify::notify(NotifyState::Ready);
    signals.stop().await;
    info!("going down");
    sd_notify::notify(NotifyState::Stopping);
    let _ = leave.send(true);
    let everybody = async {
        if let Ok(mut all_gone) = server.await {
            all_gone.recv().await;
        }
        if let Some(admin) = &mut admin {
            let _ = admin.await;
        }
    };
    tokio::select! {
        () = everybody => {}
        () = tokio::time::sleep(grace) => warn!("some connections or commands did not end in time"),
        () = signals.stop() => warn!("told to stop once more: connections and commands are not waited for"),
    }
    if let Some(admin) = admin.filter(|admin| !admin.is_finished()) {
        admin.abort();
        let _ = admin.await;
    }
}

/// The signals that ask the server to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen to signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The threads that do not belong to the runtime.
struct Threads {
    line: Arc<EventQueue>,
    live: BroadcastHandle,
    readers: QueryPool,
    library: NegentropyCache,
    /// Ends when the line is closed and empty.
    writer: JoinHandle<()>,
    /// Dropping it ends the live room, the librarian and those who watch.
    stop: crossbeam_channel::Sender<()>,
    stopped: crossbeam_channel::Receiver<()>,
}

impl Threads {
    fn start(
        config: &Config,
        store: &Store,
        book: &Arc<CurrentPolicy>,
        clock: Clock,
        cores: usize,
        readers: usize,
        means: Means,
    ) -> Result<Self> {
        let line = EventQueue::new();
        let Means { layout, directory, git, post, hunt_post, meter, settings } = means;
        let (maintenance, worked_on) = MaintenanceHandle::new(config.git.maintenance);
        let maintainer = Maintenance {
            maintainer: Maintainer::new(&git, layout.clone(), config.git.process_timeout),
            layout: layout.clone(),
            directory: directory.clone(),
            needed: {
                let desk = WriterHandle::new(line.clone());
                Box::new(move |repo_paths| desk.needed_objects(repo_paths))
            },
            inbox: worked_on,
        };
        let keeper = Arc::new(
            Keeper::new(git, layout.clone(), config.git.process_timeout).copying_at_most(config.git.max_push_bytes),
        );
        let on_done: OnDone = {
            let line = line.clone();
            Arc::new(move |order, carried| line.post(WriterCommand::Ordered(order, carried)))
        };
        let (room, hands, sweeper) = GitWorkers::new(&keeper, &layout, &on_done);
        spawn("sweeper", move || sweeper.run())?;
        for (nth, hand) in hands.into_iter().enumerate() {
            spawn(&format!("git-{nth}"), move || hand.run())?;
        }
        let (live, live_inbox) = BroadcastHandle::new();
        let (readers_door, jobs) = QueryPool::new();
        let (library, requests) = NegentropyCache::new();
        let (stop, stopped) = crossbeam_channel::bounded(0);

        let desk = Writer {
            store: store.clone(),
            line: line.clone(),
            live: Box::new(live.clone()),
            clock,
            rules: book.clone(),
            directory,
            layout,
            room,
            maintenance,
            sync: post,
            hunt: hunt_post,
            meter,
        };
        let desk = desk.prepare()?;
        let writer = spawn("registrar", move || desk.run())?;
        if config.git.maintenance {
            spawn("maintenance", move || maintainer.run())?;
        }
        for nth in 0..cores {
            let (line, book) = (line.clone(), book.clone());
            spawn(&format!("verify-{nth}"), move || line.check(&book, clock))?;
        }
        for nth in 0..readers {
            let reader = Reader { store: store.clone(), jobs: jobs.clone(), again: readers_door.clone(), clock };
            spawn(&format!("reader-{nth}"), move || reader.run())?;
        }
        let room = Live::new(store.clone(), readers_door.clone(), clock, settings);
        let end = stopped.clone();
        spawn("live", move || room.run(&live_inbox, &end))?;
        let librarian = NegentropyCacheWorker {
            store: store.clone(),
            readers: readers_door.clone(),
            requests,
            door: library.clone(),
            clock,
        };
        let end = stopped.clone();
        spawn("librarian", move || librarian.run(&end))?;
        Ok(Self { line, live, readers: readers_door, library, writer, stop, stopped })
    }

    /// Starts those who look at everything: the watchman, who has gone round once before this returns, and the surveyor.
    fn watch(
        &self,
        config: &Config,
        store: &Store,
        git: &Arc<GitService>,
        places: Arc<ConnectionLimit>,
        clock: Clock,
        meter: &Metrics,
    ) -> Result<watch::Receiver<Arc<HealthSnapshot>>> {
        let measured = LatestDiskUsage::default();
        let room = |name| git.layout.root().join(name);
        let events = config.relay_data_path.join("events");
        let surveyor = DiskUsageScanner {
            folders: vec![
                ("events", events.clone()),
                ("repositories", room("repos")),
                ("submitted", room("prs")),
                ("incoming", room("incoming")),
                ("staged", room("staged")),
                ("trash", room("trash")),
            ],
            packs: git.packs.clone(),
            clock,
            measured: measured.clone(),
            budget: git.budget.clone(),
            notes: config.relay_data_path.clone(),
        };
        let end = self.stopped.clone();
        spawn("surveyor", move || surveyor.run(&end))?;
        let (watchman, rounds) = HealthMonitor::new(HealthSources {
            queues: self.queue_depths(git),
            budgets: self.budget_loads(git, places),
            ask_writer: {
                let line = self.line.clone();
                Box::new(move |reply| line.post(WriterCommand::Pulse(reply)))
            },
            disk_mark_changed: {
                let line = self.line.clone();
                Box::new(move |mark| line.post(WriterCommand::Space(mark)))
            },
            cached_pack_bytes: {
                let packs = git.packs.clone();
                Box::new(move || packs.load().0)
            },
            limit_cached_packs: {
                let packs = git.packs.clone();
                Box::new(move |bytes| packs.allow(bytes))
            },
            repositories: {
                let directory = git.directory.clone();
                Box::new(move || directory.repositories())
            },
            store: store.clone(),
            settings: git.current.clone(),
            events: (events, config.store_reserve_bytes),
            git: (git.layout.root().to_owned(), git.reserve_bytes),
            budget: git.budget.clone(),
            measured,
            pulse: Pulse::start(clock, meter.clone()),
            clock,
            meter: meter.clone(),
        });
        let end = self.stopped.clone();
        spawn("watchman", move || watchman.run(&end))?;
        Ok(rounds)
    }

    /// Returns a function that reads the depths of all queues.
    fn queue_depths(&self, git: &Arc<GitService>) -> Box<dyn Fn() -> QueueDepths + Send> {
        let (line, live, readers) = (self.line.clone(), self.live.clone(), self.readers.clone());
        let (library, git) = (self.library.clone(), git.clone());
        Box::new(move || {
            // The lock of the ingest queue is not waited for.
            let [clients, relays, notes] = line.lengths().map_or([None; 3], |lengths| lengths.map(Some));
            let waiting = |turns: &FairSemaphore| Some(turns.load().waiting);
            vec![
                ("line_clients", clients),
                ("line_relays", relays),
                ("line_notes", notes),
                ("readers", Some(readers.len())),
                ("live", Some(live.len())),
                ("librarian", Some(library.len())),
                ("push_receive", waiting(&git.receiving)),
                ("push_check", waiting(&git.checking)),
                ("push_check_unsigned", waiting(&git.checking_unsigned)),
                ("fetch", waiting(&git.serving)),
                ("fetch_large", waiting(&git.serving_large)),
                ("pages", waiting(&git.viewing)),
            ]
        })
    }

    /// Returns a function that reads the use and the limits of all budgets.
    fn budget_loads(&self, git: &Arc<GitService>, places: Arc<ConnectionLimit>) -> Box<dyn Fn() -> BudgetLoads + Send> {
        let (live, library, git) = (self.live.clone(), self.library.clone(), git.clone());
        Box::new(move || {
            let (connections, most) = places.load();
            let (pack_bytes, pack_most) = git.packs.load();
            let turns = |name, turns: &FairSemaphore| {
                let load = turns.load();
                (name, load.busy as u64, load.places as u64)
            };
            let bytes = |name, used: usize, most: usize| (name, used as u64, most as u64);
            let unused = git.fetch_bytes.available_permits();
            vec![
                bytes("connections", connections, most),
                bytes("filter_bytes", live.filter_bytes(), limits::MAX_TOTAL_FILTER_BYTES),
                bytes("negentropy_bytes", library.bytes(), limits::MAX_NEGENTROPY_BYTES),
                ("pack_cache_bytes", pack_bytes, pack_most),
                bytes("ref_bytes", git.directory.bytes(), ref_cache::MAX_BYTES),
                bytes("fetch_request_bytes", (FETCH_UNITS - unused) * FETCH_UNIT_BYTES, FETCH_UNITS * FETCH_UNIT_BYTES),
                turns("push_receive", &git.receiving),
                turns("push_check", &git.checking),
                turns("push_check_unsigned", &git.checking_unsigned),
                turns("fetch", &git.serving),
                turns("fetch_large", &git.serving_large),
            ]
        })
    }

    /// Lets the writer finish what was offered. The reading rooms have nothing to lose and end with the process.
    fn stop(self) {
        self.line.close();
        if self.writer.join().is_err() {
            warn!("the writer ended badly");
        }
        drop(self.stop);
    }
}

/// The thread of a room that calls others.
struct DriverThread {
    name: &'static str,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl DriverThread {
    fn start<Life>(
        name: &'static str,
        runtime: &tokio::runtime::Runtime,
        run: impl FnOnce(watch::Receiver<bool>) -> Life + Send + 'static,
    ) -> Result<Self>
    where
        Life: Future<Output = ()>,
    {
        let (stop, stopped) = watch::channel(false);
        let handle = runtime.handle().clone();
        let thread = spawn(name, move || handle.block_on(run(stopped)))?;
        Ok(Self { name, stop, thread })
    }

    /// Lets it say goodbye.
    fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            warn!("{} ended badly", self.name);
        }
    }
}

/// What the desk and the git room work with.
struct Means {
    layout: Arc<Layout>,
    directory: Arc<RefCache>,
    git: Git,
    post: Arc<SyncFeed>,
    hunt_post: Arc<FetchFeed>,
    meter: Metrics,
    settings: SettingsReceiver,
}

fn git_house(
    config: &Config,
    layout: Arc<Layout>,
    directory: Arc<RefCache>,
    git: Git,
    capabilities: Capabilities,
    (line, meter, current): (Arc<EventQueue>, Metrics, SettingsReceiver),
    cores: usize,
) -> Result<GitService> {
    let settings = config.git;
    let cache = layout.root().join("cache");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
    let mut boot = [0; 8];
    getrandom::fill(&mut boot).map_err(|problem| anyhow!("no randomness to be had: {problem}"))?;
    let address = format!("{}{}", config.domain, config.base_path);
    Ok(GitService {
        current,
        git,
        layout,
        directory,
        desk: WriterHandle::new(line),
        capabilities,
        packs: PackCache::new(cache, settings.pack_cache_bytes),
        threads: u32::try_from(cores).unwrap_or(1),
        receiving: FairSemaphore::new(
            limits::MAX_PUSHES,
            limits::MAX_WAITING_PUSHES,
            limits::MAX_WAITING_PUSHES_PER_NETWORK,
        ),
        checking: FairSemaphore::new(settings.check_processes, limits::MAX_PUSHES, limits::MAX_PUSHES / 4),
        // A quarter: anybody can keep these busy.
        checking_unsigned: FairSemaphore::new(settings.check_processes / 4, limits::MAX_PUSHES, limits::MAX_PUSHES / 4),
        serving: FairSemaphore::new(
            settings.serve_processes,
            limits::MAX_WAITING_FETCHES,
            limits::MAX_WAITING_FETCHES_PER_NETWORK,
        ),
        serving_large: FairSemaphore::new(
            settings.serve_processes / 2,
            limits::MAX_WAITING_FETCHES,
            limits::MAX_WAITING_FETCHES_PER_NETWORK,
        ),
        viewing: FairSemaphore::new(1, limits::MAX_WAITING_PAGES, limits::MAX_WAITING_PAGES_PER_NETWORK),
        // As much again as the store keeps for itself, because they may share a disk.
        reserve_bytes: 2 * config.store_reserve_bytes,
        budget: Budget::new(disk_usage::last_known(&config.relay_data_path)),
        large_pushes: Arc::new(Semaphore::new(limits::MAX_LARGE_PUSHES)),
        fetch_bytes: Arc::new(Semaphore::new(handlers::FETCH_UNITS)),
        boot: u64::from_le_bytes(boot),
        meter,
        url: format!("{}://{address}", config.web_scheme()),
        relay: format!("{}://{address}", config.relay_scheme()),
    })
}

/// Starts a thread that the server cannot do without. If one panics the process ends at once: everything that was said
/// is on disk, and a server that has lost its writer or a reader would only pretend to work.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let body = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            std::process::abort();
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).with_context(|| format!("cannot start thread {name}"))
}

pub(crate) fn rules(config: &Config, owner: PublicKey) -> Result<AdmissionPolicy> {
    let service = ServiceAddress::new(&config.domain, &config.base_path)
        .ok_or_else(|| anyhow!("{} is no host name with an optional port", config.domain))?;
    Ok(AdmissionPolicy {
        service,
        mode: config.policy.into(),
        owner: Some(owner),
        strict_maintainers: config.strict_maintainers,
        submissions: config.submissions,
        fetches_git_data: config.sync.enabled,
        quotas: config.quotas,
        max_event_bytes: config.max_event_bytes,
        purgatory_secs: config.purgatory_expiry.as_secs(),
        lists: config.lists.clone(),
    })
}

/// Every connection takes a descriptor; what the system allows is taken.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(problem) = setrlimit(Resource::Nofile, limit) {
        warn!(%problem, "the limit of open files stays as it is");
    }
}

fn welcome(config: &Config) {
    let at = format!("{}{}", config.domain, config.base_path);
    println!("graspd {} is ready", env!("CARGO_PKG_VERSION"));
    println!("  listening  {}", config.bind);
    println!("  relay      {}://{at}", config.relay_scheme());
    println!("  git        {}://{at}/<npub>/<identifier>.git", config.web_scheme());
    println!("  data       {}", config.relay_data_path.display());
}
