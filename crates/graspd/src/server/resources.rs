//! What all parts of the server share, and the git service.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::limits;
use grasp_core::nostr::{PublicKey, hex};
use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::serve::ServerCapabilities;
use grasp_store::{Store, StoreOptions};
use nostr::key::Keys;
use tokio::sync::Semaphore;
use tracing::info;

use crate::clock::Clock;
use crate::config::{Config, SettingsReceiver};
use crate::git::handlers::{FETCH_MEMORY_UNITS, GitService};
use crate::git::pack_cache::PackCache;
use crate::http::fair_semaphore::FairSemaphore;
use crate::metrics::Metrics;
use crate::monitor::disk_budget::DiskBudgetTracker;
use crate::monitor::disk_usage;
use crate::repos::ref_cache::RefCache;
use crate::writer::command::WriterHandle;
use crate::writer::fetch_feed::FetchFeed;
use crate::writer::policy::CurrentPolicy;
use crate::writer::queue::EventQueue;
use crate::writer::sync_feed::SyncFeed;

/// What all parts of the server share.
pub(super) struct Resources {
    pub(super) cores: usize,
    pub(super) clock: Clock,
    pub(super) store: Store,
    /// Id of this installation, from the id of the store.
    pub(super) instance: String,
    pub(super) owner: Keys,
    pub(super) owner_key: PublicKey,
    /// The policy at the start.
    pub(super) policy: AdmissionPolicy,
    pub(super) current_policy: Arc<CurrentPolicy>,
    pub(super) settings: SettingsReceiver,
    pub(super) layout: Arc<Layout>,
    pub(super) ref_cache: Arc<RefCache>,
    pub(super) git: Git,
    pub(super) capabilities: ServerCapabilities,
    pub(super) metrics: Metrics,
    pub(super) sync_feed: Arc<SyncFeed>,
    pub(super) fetch_feed: Arc<FetchFeed>,
}

/// Returns the number of query threads. They mostly wait for the disk.
fn query_threads(cores: usize) -> usize {
    2 * cores
}

impl Resources {
    /// Opens the store and checks the installed git.
    ///
    /// # Errors
    /// Fails if the store cannot be opened, a setting is invalid, or git is missing or too old.
    pub(super) fn open(
        config: &Config,
        settings: SettingsReceiver,
        layout: Arc<Layout>,
        owner: Keys,
        cores: usize,
    ) -> Result<Self> {
        let clock = Clock::start();
        let store = Store::open(
            &config.relay_data_path.join("events"),
            StoreOptions { readers: query_threads(cores) as u32, reserve_bytes: config.store_reserve_bytes },
        )?;
        let owner_key = PublicKey(owner.public_key().to_bytes());
        let policy = config.admission_policy(Some(owner_key))?;
        let current_policy = CurrentPolicy::new(policy.clone());
        let ref_cache = Arc::new(RefCache::new(layout.clone(), config.submissions));
        ref_cache.set_policy(&policy);
        let bounds =
            ProcessLimits { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
        let git = Git::new(Path::new("git"), bounds);
        let capabilities = ServerCapabilities::detect(&git, &layout).context("cannot start")?;
        info!(target: "admin", git = %capabilities.installed(), "git found");
        let metrics = Metrics::with_limits(config.metrics.limits);
        let sync_feed = SyncFeed::new();
        let fetch_feed = FetchFeed::new();
        let instance = hex::encode(&store.id()[..8]);
        Ok(Self {
            cores,
            clock,
            store,
            instance,
            owner,
            owner_key,
            policy,
            current_policy,
            settings,
            layout,
            ref_cache,
            git,
            capabilities,
            metrics,
            sync_feed,
            fetch_feed,
        })
    }

    pub(super) fn query_threads(&self) -> usize {
        query_threads(self.cores)
    }
}

/// Creates the service that answers git requests.
///
/// # Errors
/// Fails if the cache folder cannot be created.
pub(super) fn build_git_service(
    config: &Config,
    resources: &Resources,
    event_queue: &Arc<EventQueue>,
) -> Result<GitService> {
    let settings = config.git;
    let cache = resources.layout.root().join("cache");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot create the folder {}", cache.display()))?;
    let mut boot_id = [0; 8];
    getrandom::fill(&mut boot_id).map_err(|error| anyhow!("cannot read random bytes: {error}"))?;
    let address = format!("{}{}", config.domain, config.base_path);
    Ok(GitService {
        settings: resources.settings.clone(),
        git: resources.git.clone(),
        layout: resources.layout.clone(),
        ref_cache: resources.ref_cache.clone(),
        writer: WriterHandle::new(event_queue.clone()),
        capabilities: resources.capabilities.clone(),
        pack_cache: PackCache::new(cache, settings.pack_cache_bytes),
        pack_threads: u32::try_from(resources.cores).unwrap_or(1),
        receive_permits: FairSemaphore::new(
            limits::MAX_PUSHES,
            limits::MAX_WAITING_PUSHES,
            limits::MAX_WAITING_PUSHES_PER_NETWORK,
        ),
        check_permits: FairSemaphore::new(settings.check_processes, limits::MAX_PUSHES, limits::MAX_PUSHES / 4),
        // A quarter of the processes, because any client can occupy these.
        unsigned_check_permits: FairSemaphore::new(
            settings.check_processes / 4,
            limits::MAX_PUSHES,
            limits::MAX_PUSHES / 4,
        ),
        fetch_permits: FairSemaphore::new(
            settings.serve_processes,
            limits::MAX_WAITING_FETCHES,
            limits::MAX_WAITING_FETCHES_PER_NETWORK,
        ),
        large_fetch_permits: FairSemaphore::new(
            settings.serve_processes / 2,
            limits::MAX_WAITING_FETCHES,
            limits::MAX_WAITING_FETCHES_PER_NETWORK,
        ),
        page_permits: FairSemaphore::new(1, limits::MAX_WAITING_PAGES, limits::MAX_WAITING_PAGES_PER_NETWORK),
        // Twice the reserve of the store, because both may be on the same disk and events come first.
        reserve_bytes: 2 * config.store_reserve_bytes,
        disk_budget: DiskBudgetTracker::new(disk_usage::read_saved_total(&config.relay_data_path)),
        large_push_permits: Arc::new(Semaphore::new(limits::MAX_LARGE_PUSHES)),
        fetch_request_memory: Arc::new(Semaphore::new(FETCH_MEMORY_UNITS)),
        boot_id: u64::from_le_bytes(boot_id),
        metrics: resources.metrics.clone(),
        service_url: format!("{}://{address}", config.web_scheme()),
        relay_url: format!("{}://{address}", config.relay_scheme()),
    })
}
