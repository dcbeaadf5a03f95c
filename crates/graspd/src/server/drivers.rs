//! Threads of sync and fetch.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Result;
use grasp_core::fetch::FetchView;
use grasp_core::net::{AddressPolicy, OutboundUrl, UrlPurpose};
use tokio::sync::watch;
use tracing::warn;

use super::resources::{Resources, outbound_policy};
use super::threads::spawn;
use crate::config::Config;
use crate::fetch::client::FetchClient;
use crate::fetch::driver::{FetchDriver, FetchHandle};
use crate::http::fair_semaphore::FairSemaphore;
use crate::net::dialer::Dialer;
use crate::net::own_addresses::OwnAddresses;
use crate::sync::connection::{ConnectionContext, ConnectionTimeouts};
use crate::sync::driver::SyncDriver;
use crate::sync::status::{SyncHandle, SyncStatus};
use crate::writer::queue::EventQueue;

/// The drivers of sync and fetch, which connect to other servers. All parts are empty if sync is disabled.
#[derive(Default)]
pub(super) struct Drivers {
    pub(super) sync: Option<SyncHandle>,
    pub(super) fetch: Option<FetchHandle>,
    pub(super) sync_status: Option<watch::Receiver<Arc<SyncStatus>>>,
    pub(super) fetch_status: Option<watch::Receiver<Arc<FetchView>>>,
    threads: Vec<DriverThread>,
}

impl Drivers {
    /// Starts the drivers if sync is enabled.
    pub(super) fn start(
        config: &Config,
        resources: &Resources,
        event_queue: &Arc<EventQueue>,
        fetch_check_permits: Arc<FairSemaphore>,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<Self> {
        if !config.sync.enabled {
            return Ok(Self::default());
        }
        let (sync, sync_queries) = SyncHandle::new();
        let (fetch, fetch_queries) = FetchHandle::new();
        let (sync_status_sender, sync_status) = watch::channel(Arc::default());
        let (fetch_status_sender, fetch_status) = watch::channel(Arc::default());
        let contact = resources.network_contact.clone();
        let mut dialer = Dialer::new(outbound_policy(config))?.with_contact(contact.clone());
        let own_url = resources.policy.service.relay_url();
        if let Ok(own) = OutboundUrl::parse(&own_url, UrlPurpose::Relay, AddressPolicy::Any) {
            dialer = dialer.with_own_addresses(OwnAddresses::new(own.host().clone()));
        }
        let dialer = Arc::new(dialer);
        let timeouts = ConnectionTimeouts::new(config.sync.base_backoff);
        let known = Arc::new(resources.store.clone());
        let limits_policy = resources.current_policy.clone();
        let max_event_bytes = Box::new(move || limits_policy.policy().max_event_bytes);
        let connections = ConnectionContext::new(
            dialer.clone(),
            known,
            resources.owner.clone(),
            resources.clock,
            max_event_bytes,
            timeouts,
        );
        let deps = crate::sync::driver::SyncDeps {
            store: resources.store.clone(),
            writer: event_queue.clone(),
            feed: resources.sync_feed.clone(),
            clock: resources.clock,
            connections,
            contact,
            metrics: resources.metrics.clone(),
            status: sync_status_sender,
            queries: sync_queries,
        };
        let driver =
            SyncDriver::new(deps, crate::sync::driver::config(config, &resources.policy, &resources.instance)?);
        let sync_thread = DriverThread::start("sync", runtime, |stop| driver.run(stop))?;
        let client = FetchClient::new(
            resources.settings.clone(),
            resources.git.clone(),
            (resources.layout.clone(), resources.ref_cache.clone()),
            resources.packs.clone(),
            fetch_check_permits,
            dialer.clone(),
            resources.clock,
        );
        let deps = crate::fetch::driver::FetchDeps {
            store: resources.store.clone(),
            writer: event_queue.clone(),
            feed: resources.fetch_feed.clone(),
            clock: resources.clock,
            client: Arc::new(client),
            dialer,
            metrics: resources.metrics.clone(),
            status: fetch_status_sender,
            queries: fetch_queries,
        };
        let driver = FetchDriver::new(deps, crate::fetch::driver::config(config)?);
        let fetch_thread = DriverThread::start("fetch", runtime, |stop| driver.run(stop))?;
        Ok(Self {
            sync: Some(sync),
            fetch: Some(fetch),
            sync_status: Some(sync_status),
            fetch_status: Some(fetch_status),
            threads: vec![sync_thread, fetch_thread],
        })
    }

    /// Stops the drivers and waits for their end. The writer must still run, because it writes their last rows.
    pub(super) fn stop(self) {
        for thread in self.threads {
            thread.stop();
        }
    }
}

/// Thread of a driver that connects to other servers: sync or fetch.
struct DriverThread {
    name: &'static str,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl DriverThread {
    fn start<Running>(
        name: &'static str,
        runtime: &tokio::runtime::Runtime,
        run: impl FnOnce(watch::Receiver<bool>) -> Running + Send + 'static,
    ) -> Result<Self>
    where
        Running: Future<Output = ()>,
    {
        let (stop, stopped) = watch::channel(false);
        let handle = runtime.handle().clone();
        let thread = spawn(name, move || handle.block_on(run(stopped)))?;
        Ok(Self { name, stop, thread })
    }

    /// Stops the driver and waits for its end.
    fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            warn!(target: "admin", thread = self.name, "driver thread panicked");
        }
    }
}
