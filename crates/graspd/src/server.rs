//! Starts every room, opens the door, and closes everything in order.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use grasp_core::admission::policy::Rules;
use grasp_core::limits;
use grasp_core::net::Reach;
use grasp_core::nostr::{PublicKey, hex};
use grasp_core::repo::Service;
use grasp_git::apply::Keeper;
use grasp_git::layout::Layout;
use grasp_git::maintenance::Maintainer;
use grasp_git::process::{Bounds, Git};
use grasp_git::serve::Capabilities;
use grasp_store::{Options, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use crate::admin::Admin;
use crate::admin::socket::AdminSocket;
use crate::clock::Clock;
use crate::config::Config;
use crate::data_lock::Locks;
use crate::fetch::client::FetchRoom;

use crate::fetch::driver::{HuntDoor, HuntRoom};
use crate::git::fair_semaphore::Turns;
use crate::git::handlers;
use crate::git::handlers::GitHouse;
use crate::git::maintenance::{Maintenance, MaintenanceDoor};
use crate::git::pack_cache::Packs;
use crate::git::ref_cache::Directory;
use crate::git::workers::GitRoom;
use crate::http::connection_limit::Places;
use crate::http::monitoring;
use crate::http::network_limits::{Allowance, NetworksDoor};
use crate::http::router::House;
use crate::http::server::Door;
use crate::metrics::Meter;
use crate::monitor::disk_budget::Budget;
use crate::monitor::disk_usage;
use crate::monitor::disk_usage::{Measured, Surveyor};
use crate::monitor::health::{Pulse, Round, Sights, Watchman};
use crate::net::dialer::Dialler;
use crate::relay::broadcast::{Live, LiveDoor};
use crate::relay::negentropy_cache::{Librarian, LibraryDoor};
use crate::relay::nip11::Leaflet;
use crate::relay::query_pool::{Reader, ReadersDoor};
use crate::relay::session::Rooms;
use crate::reload::{Origins, Reloader, Settings};
use crate::sd_notify::News;
use crate::sync::connection::{Patience, Sockets};

use crate::sync::driver::SyncRoom;
use crate::sync::status::SyncDoor;
use crate::web::status_cache::StatusBoard;
use crate::writer::Desk;
use crate::writer::command::DeskDoor;
use crate::writer::fetch_feed::HuntPost;
use crate::writer::policy::{Basis, Rulebook, RulesDoor};
use crate::writer::queue::Line;
use crate::writer::sync_feed::SyncPost;
use crate::{backup, config, reload, sd_notify, socket_activation};

/// Runs the server until it is asked to stop.
pub(crate) fn run(mut config: Config, origins: Origins) -> Result<()> {
    let inherited = socket_activation::take()?;
    let _locks = Locks::take(&config.relay_data_path, &config.git_data_path)?;
    backup::snapshot::refuse_unfinished(&config.relay_data_path)?;
    let layout = Layout::open(&config.git_data_path)
        .with_context(|| format!("cannot use the folder {}", config.git_data_path.display()))?;
    let layout = Arc::new(layout);
    let owner = config::owner_keys(&config)?;
    raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build()?;
    let in_runtime = runtime.enter();

    let listener = listen(&runtime, inherited.main, config.bind)?;
    config.bound_to(listener.local_addr()?);
    // Before there are threads that make files.
    let admin_socket = config.admin_socket.as_deref().map(AdminSocket::bind).transpose()?;
    let clock = Clock::start();
    let readers = 2 * cores;
    let store = Store::open(
        &config.relay_data_path.join("events"),
        Options { readers: readers as u32, reserve_bytes: config.store_reserve_bytes },
    )?;
    let owner_key = PublicKey(owner.public_key().to_bytes());
    let rules = rules(&config, owner_key)?;
    let book = Rulebook::new(rules.clone());
    let (current, settings) = watch::channel(Arc::new(config.clone()));
    let directory = Arc::new(Directory::new(layout.clone(), config.submissions));
    directory.govern(&rules);
    let bounds = Bounds { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
    let git = Git::new(Path::new("git"), bounds);
    let capabilities = Capabilities::learn(&git, &layout).context("git cannot be used; is it installed?")?;
    let meter = Meter::with(config.metrics.scales);
    let post = SyncPost::new();
    let hunt_post = HuntPost::new();
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
    let mut house_of_git = git_house(&config, layout, directory, git, capabilities, desk, cores)?;
    let (sync_door, questions) = SyncDoor::new();
    house_of_git.sync = config.sync.enabled.then_some(sync_door);
    let (hunt_door, hunt_questions) = HuntDoor::new();
    house_of_git.hunt = config.sync.enabled.then_some(hunt_door.clone());
    let house_of_git = Arc::new(house_of_git);
    let (pictures, sync_pictures) = watch::channel(Arc::default());
    let (hunt_views, hunt_pictures) = watch::channel(Arc::default());
    let instance = hex::encode(&store.id()[..8]);
    let following = config.sync.enabled.then(|| (post.clone(), Basis::new(&config, &instance)));
    let door = RulesDoor::new(book.clone(), threads.line.clone(), following);
    let reloader = Reloader::new(origins, door, current);
    let mut outgoing = Vec::new();
    if config.sync.enabled {
        let reach = if config.sync.reach_anything { Reach::Anything } else { Reach::Global };
        let dialler = Arc::new(Dialler::new(reach)?);
        let patience = Patience::new(config.sync.base_backoff);
        let known = Arc::new(store.clone());
        let largest = book.clone();
        let largest = Box::new(move || largest.rules().max_event_bytes);
        let sockets = Sockets::new(dialler.clone(), known, owner, clock, largest, patience);
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
        let room = SyncRoom::new(means, crate::sync::driver::config(&config, &rules, &instance)?);
        outgoing.push(RoomThread::start("sync", &runtime, |stop| room.run(stop))?);
        let fetching = Arc::new(FetchRoom::new(&house_of_git, dialler.clone(), clock));
        let (line, meter) = (threads.line.clone(), meter.clone());
        let pictures = hunt_views;
        let means = crate::fetch::driver::Means {
            store: store.clone(),
            line,
            post: hunt_post,
            clock,
            fetching,
            dialler,
            meter,
            pictures,
            questions: hunt_questions,
        };
        let room = HuntRoom::new(means, crate::fetch::driver::manners(&config)?);
        outgoing.push(RoomThread::start("hunt", &runtime, |stop| room.run(stop))?);
    }
    let places = Places::new(settings.clone());
    let (leave, leaving) = watch::channel(false);
    let (budget, notes) = (house_of_git.budget.clone(), config.relay_data_path.clone());
    let rounds = threads.watch(&config, &store, &house_of_git, places.clone(), clock, &meter)?;
    let status = StatusBoard {
        rounds,
        sync: config.sync.enabled.then_some(sync_pictures),
        hunt: config.sync.enabled.then_some(hunt_pictures),
        leaving: leaving.clone(),
        made: Mutex::default(),
    };
    let side = match (inherited.side, config.metrics.bind) {
        (None, None) => None,
        (None, Some(bind)) => Some(listen(&runtime, None, bind)?),
        (Some(given), _) => {
            config.metrics.bind = Some(given.local_addr()?);
            Some(TcpListener::from_std(given)?)
        }
    };
    let networks = NetworksDoor::open(Allowance::of(&config), clock);
    tokio::spawn(follow(settings.clone(), networks.clone(), house_of_git.directory.clone(), book.clone()));
    let house = House {
        nip11: Leaflet::new(owner_key.to_string(), instance),
        book,
        settings: settings.clone(),
        networks,
        rooms: Rooms {
            line: threads.line.clone(),
            live: threads.live.clone(),
            readers: threads.readers.clone(),
            library: threads.library.clone(),
            store,
            clock,
            service: rules.service,
            settings,
            keys: Arc::new(AtomicU64::new(1)),
            meter: meter.clone(),
            shutdown_grace: config.shutdown_grace,
        },
        git: house_of_git,
        meter,
        places,
        status,
        sightings: Default::default(),
        config,
    };
    // Whoever reads the welcome may send a signal at once.
    let signals = Signals::listen()?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen to signals")?;
    runtime.spawn(reload::on_hangup(hangup, reloader.clone()));
    welcome(&house.config);
    let grace = house.config.shutdown_grace;
    let house = Arc::new(house);
    // Those who watch may look on while it goes down.
    let (_last, watching) = watch::channel(false);
    if let Some(side) = side {
        tokio::spawn(monitoring::run(side, house.clone(), watching));
    }
    let admin = admin_socket.map(|socket| {
        let admin = Admin::new(house.clone(), house.config.sync.enabled.then_some(hunt_door), reloader);
        runtime.spawn(socket.run(admin, leaving.clone()))
    });
    runtime.block_on(serve(Door { listener, house, leaving }, admin, signals, leave, grace));
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
async fn follow(mut settings: Settings, networks: NetworksDoor, directory: Arc<Directory>, book: Arc<Rulebook>) {
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
    door: Door,
    mut admin: Option<tokio::task::JoinHandle<()>>,
    mut signals: Signals,
    leave: watch::Sender<bool>,
    grace: Duration,
) {
    let door = tokio::spawn(door.run());
    sd_notify::tell(News::Ready);
    signals.stop().await;
    info!("going down");
    sd_notify::tell(News::Stopping);
    let _ = leave.send(true);
    let everybody = async {
        if let Ok(mut all_gone) = door.await {
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
    line: Arc<Line>,
    live: LiveDoor,
    readers: ReadersDoor,
    library: LibraryDoor,
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
        book: &Arc<Rulebook>,
        clock: Clock,
        cores: usize,
        readers: usize,
        means: Means,
    ) -> Result<Self> {
        let line = Line::new();
        let Means { layout, directory, git, post, hunt_post, meter, settings } = means;
        let (maintenance, worked_on) = MaintenanceDoor::new(config.git.maintenance);
        let maintainer = Maintenance {
            maintainer: Maintainer::new(&git, layout.clone(), config.git.process_patience),
            layout: layout.clone(),
            directory: directory.clone(),
            line: line.clone(),
            inbox: worked_on,
        };
        let keeper = Arc::new(
            Keeper::new(git, layout.clone(), config.git.process_patience).copying_at_most(config.git.max_push_bytes),
        );
        let (room, hands, sweeper) = GitRoom::new(&keeper, &layout, &line);
        spawn("sweeper", move || sweeper.run())?;
        for (nth, hand) in hands.into_iter().enumerate() {
            spawn(&format!("git-{nth}"), move || hand.run())?;
        }
        let (live, live_inbox) = LiveDoor::new();
        let (readers_door, jobs) = ReadersDoor::new();
        let (library, requests) = LibraryDoor::new();
        let (stop, stopped) = crossbeam_channel::bounded(0);

        let desk = Desk {
            store: store.clone(),
            line: line.clone(),
            live: live.clone(),
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
        let librarian =
            Librarian { store: store.clone(), readers: readers_door.clone(), requests, door: library.clone(), clock };
        let end = stopped.clone();
        spawn("librarian", move || librarian.run(&end))?;
        Ok(Self { line, live, readers: readers_door, library, writer, stop, stopped })
    }

    /// Starts those who look at everything: the watchman, who has gone round once before this returns, and the surveyor.
    fn watch(
        &self,
        config: &Config,
        store: &Store,
        git: &Arc<GitHouse>,
        places: Arc<Places>,
        clock: Clock,
        meter: &Meter,
    ) -> Result<watch::Receiver<Arc<Round>>> {
        let measured = Measured::default();
        let room = |name| git.layout.root().join(name);
        let events = config.relay_data_path.join("events");
        let surveyor = Surveyor {
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
        let (watchman, rounds) = Watchman::new(Sights {
            line: self.line.clone(),
            live: self.live.clone(),
            readers: self.readers.clone(),
            library: self.library.clone(),
            store: store.clone(),
            git: git.clone(),
            places,
            settings: git.current.clone(),
            events: (events, config.store_reserve_bytes),
            measured,
            pulse: Pulse::start(clock, meter.clone()),
            clock,
            meter: meter.clone(),
        });
        let end = self.stopped.clone();
        spawn("watchman", move || watchman.run(&end))?;
        Ok(rounds)
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
struct RoomThread {
    name: &'static str,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl RoomThread {
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
    directory: Arc<Directory>,
    git: Git,
    post: Arc<SyncPost>,
    hunt_post: Arc<HuntPost>,
    meter: Meter,
    settings: Settings,
}

fn git_house(
    config: &Config,
    layout: Arc<Layout>,
    directory: Arc<Directory>,
    git: Git,
    capabilities: Capabilities,
    (line, meter, current): (Arc<Line>, Meter, Settings),
    cores: usize,
) -> Result<GitHouse> {
    let settings = config.git;
    let cache = layout.root().join("cache");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
    let mut boot = [0; 8];
    getrandom::fill(&mut boot).map_err(|problem| anyhow!("no randomness to be had: {problem}"))?;
    let address = format!("{}{}", config.domain, config.base_path);
    Ok(GitHouse {
        current,
        git,
        layout,
        directory,
        desk: DeskDoor::new(line),
        capabilities,
        packs: Packs::new(cache, settings.pack_cache_bytes),
        threads: u32::try_from(cores).unwrap_or(1),
        receiving: Turns::new(limits::MAX_PUSHES, limits::MAX_PUSHES_WAITING, limits::MAX_PUSHES_WAITING_PER_NETWORK),
        checking: Turns::new(settings.check_processes, limits::MAX_PUSHES, limits::MAX_PUSHES / 4),
        // A quarter: anybody can keep these busy.
        checking_unsigned: Turns::new(settings.check_processes / 4, limits::MAX_PUSHES, limits::MAX_PUSHES / 4),
        serving: Turns::new(
            settings.serve_processes,
            limits::MAX_FETCHES_WAITING,
            limits::MAX_FETCHES_WAITING_PER_NETWORK,
        ),
        serving_large: Turns::new(
            settings.serve_processes / 2,
            limits::MAX_FETCHES_WAITING,
            limits::MAX_FETCHES_WAITING_PER_NETWORK,
        ),
        viewing: Turns::new(1, limits::MAX_VIEWS_WAITING, limits::MAX_VIEWS_WAITING_PER_NETWORK),
        // As much again as the store keeps for itself, because they may share a disk.
        reserve_bytes: 2 * config.store_reserve_bytes,
        budget: Budget::new(disk_usage::last_known(&config.relay_data_path)),
        large_pushes: Arc::new(Semaphore::new(limits::MAX_LARGE_PUSHES)),
        fetch_bytes: Arc::new(Semaphore::new(handlers::FETCH_UNITS)),
        boot: u64::from_le_bytes(boot),
        meter,
        sync: None,
        hunt: None,
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

pub(crate) fn rules(config: &Config, owner: PublicKey) -> Result<Rules> {
    let service = Service::new(&config.domain, &config.base_path)
        .ok_or_else(|| anyhow!("{} is no host name with an optional port", config.domain))?;
    Ok(Rules {
        service,
        mode: config.policy.into(),
        owner: Some(owner),
        strict_maintainers: config.strict_maintainers,
        submissions: config.submissions,
        hunts: config.sync.enabled,
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
