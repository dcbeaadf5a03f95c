//! What all parts of the server share.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::net::AddressPolicy;
use grasp_core::nostr::{PublicKey, hex};
use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::serve::ServerCapabilities;
use grasp_store::{Store, StoreOptions};
use nostr::key::Keys;
use tracing::info;

use super::data_folders;
use crate::clock::Clock;
use crate::config::{Config, SettingsReceiver};
use crate::git::pack_receiver::PackReceiver;
use crate::git::receive_pack::ReceivePackHandler;
use crate::git::upload_pack::UploadPackHandler;
use crate::metrics::Metrics;
use crate::monitor::disk_budget::DiskBudgetTracker;
use crate::monitor::disk_usage;
use crate::net::contact::NetworkContact;
use crate::repos::ref_cache::RefCache;
use crate::repos::ref_files::RefFileWriter;
use crate::writer::fetch_feed::FetchFeed;
use crate::writer::policy::CurrentPolicy;
use crate::writer::queue::EventQueue;
use crate::writer::sync_feed::SyncFeed;
use crate::{repo_row_migration, store_check};

/// What all parts of the server share.
pub(super) struct Resources {
    pub(super) cores: usize,
    pub(super) clock: Clock,
    pub(super) store: Store,
    /// Whether the data is of an earlier version and was migrated at this start.
    pub(super) has_migrated: bool,
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
    pub(super) disk_budget: Arc<DiskBudgetTracker>,
    pub(super) packs: PackReceiver,
    pub(super) metrics: Metrics,
    pub(super) sync_feed: Arc<SyncFeed>,
    pub(super) fetch_feed: Arc<FetchFeed>,
    /// When another computer was last reached.
    pub(super) network_contact: Arc<NetworkContact>,
}

/// Returns the number of query threads. They mostly wait for the disk.
fn query_threads(cores: usize) -> usize {
    2 * cores
}

/// Returns the free disk space below which no large pack is received: twice the reserve of the store, because both may
/// be on the same disk and events come first.
pub(super) fn git_reserve_bytes(config: &Config) -> u64 {
    2 * config.store_reserve_bytes
}

/// Returns which addresses may be dialled.
pub(super) fn outbound_policy(config: &Config) -> AddressPolicy {
    if config.sync.allow_non_global { AddressPolicy::Any } else { AddressPolicy::PublicOnly }
}

impl Resources {
    /// Opens the store and checks the installed git.
    ///
    /// # Errors
    /// Fails if the store cannot be opened, a setting is invalid, or git is missing or too old.
    pub(super) fn open(config: &Config, settings: SettingsReceiver, layout: Arc<Layout>, owner: Keys) -> Result<Self> {
        let clock = Clock::start();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let store = Store::open(
            &config.relay_data_path.join("events"),
            StoreOptions { readers: query_threads(cores) as u32, reserve_bytes: config.store_reserve_bytes },
        )
        .map_err(|error| store_check::explain(error, &config.relay_data_path.join("events")))?;
        data_folders::check_ids(&store, &layout, config)?;
        let has_migrated = repo_row_migration::migrate(&store, &layout)?;
        let owner_key = PublicKey(owner.public_key().to_bytes());
        let policy = config.admission_policy(Some(owner_key))?;
        let current_policy = CurrentPolicy::new(policy.clone());
        let ref_cache = Arc::new(RefCache::new(store.clone(), layout.clone(), config.submissions));
        ref_cache.set_policy(&policy);
        let bounds =
            ProcessLimits { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
        let git = Git::new(Path::new("git"), bounds);
        let capabilities = ServerCapabilities::detect(&git, &layout).context("cannot start")?;
        info!(target: "admin", git = %capabilities.installed, "git found");
        let disk_budget = DiskBudgetTracker::new(disk_usage::read_saved_total(&config.relay_data_path));
        let packs = PackReceiver::new(layout.clone(), disk_budget.clone(), git_reserve_bytes(config));
        Ok(Self {
            cores,
            clock,
            instance: hex::encode(&store.id()[..8]),
            store,
            has_migrated,
            owner,
            owner_key,
            policy,
            current_policy,
            settings,
            layout,
            ref_cache,
            git,
            capabilities,
            disk_budget,
            packs,
            metrics: Metrics::with_limits(config.metrics.limits),
            sync_feed: SyncFeed::new(),
            fetch_feed: FetchFeed::new(),
            network_contact: Arc::new(NetworkContact::new(outbound_policy(config))),
        })
    }

    pub(super) fn query_threads(&self) -> usize {
        query_threads(self.cores)
    }

    /// Creates the handlers of git requests.
    ///
    /// # Errors
    /// Fails if the cache folder cannot be created.
    pub(super) fn git_handlers(
        &self,
        writer: Arc<EventQueue>,
        ref_files: Arc<RefFileWriter>,
    ) -> Result<(UploadPackHandler, ReceivePackHandler)> {
        let upload_pack = UploadPackHandler::new(
            self.settings.clone(),
            (self.git.clone(), self.capabilities.clone()),
            self.layout.clone(),
            (self.ref_cache.clone(), ref_files),
            u32::try_from(self.cores).unwrap_or(1),
            self.metrics.clone(),
        )?;
        let receive_pack = ReceivePackHandler::new(
            self.settings.clone(),
            self.git.clone(),
            self.layout.clone(),
            self.ref_cache.clone(),
            (writer, self.store.clone()),
            self.packs.clone(),
            self.metrics.clone(),
        );
        Ok((upload_pack, receive_pack))
    }
}
