//! Threads outside the tokio runtime: writer, verifiers, queries, broadcast, negentropy, git workers, maintenance,
//! health monitor and disk usage scanner.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use grasp_core::disk_budget::DiskLevel;
use grasp_git::apply::GitJobRunner;
use grasp_git::maintenance::PoolMaintainer;
use grasp_git::repair::RepoRepairer;
use grasp_git::repo_rows::RepoRows;
use tokio::sync::watch;
use tracing::warn;

use super::resources::{Resources, git_reserve_bytes};
use crate::config::Config;
use crate::git::handlers::NamedSemaphore;
use crate::git::upload_pack::UploadPackHandler;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::shared_budget::SharedBudget;
use crate::monitor::disk_usage::DiskUsageScanner;
use crate::monitor::health::{
    BudgetLoads, HealthMonitor, HealthSnapshot, HealthSources, QueueDepths, start_event_loop_probe,
};
use crate::relay::broadcast::{BroadcastHandle, Broadcaster};
use crate::relay::budgets::RelayBudgets;
use crate::relay::negentropy_cache::{NegentropyCache, NegentropyCacheWorker};
use crate::relay::query_pool::{QueryPool, QueryWorker};
use crate::repos::maintenance::{Maintenance, MaintenanceHandle, NeededFn};
use crate::repos::ref_cache;
use crate::repos::ref_cache::RefCache;
use crate::repos::ref_files::{RefFileWriter, RefFilesHandle, RefFilesWorker};
use crate::repos::repair::RepoRepair;
use crate::repos::repo_rows::{DegradeFn, SetPacksFn, StoredRepoRows};
use crate::repos::workers::{GitWorkers, JobDoneFn};
use crate::writer::Writer;
use crate::writer::command::WriterCommand;
use crate::writer::queue::EventQueue;

/// Handles of the threads outside the tokio runtime.
pub(super) struct WorkerThreads {
    pub(super) event_queue: Arc<EventQueue>,
    pub(super) broadcast: BroadcastHandle,
    pub(super) query_pool: QueryPool,
    pub(super) negentropy_cache: NegentropyCache,
    pub(super) budgets: RelayBudgets,
    pub(super) repair: Arc<RepoRepair>,
    pub(super) ref_file_writer: Arc<RefFileWriter>,
    /// Ends when the event queue is closed and empty.
    writer: JoinHandle<()>,
    /// Ends when the writer has ended and all ref files are written.
    ref_files: JoinHandle<()>,
    /// Dropping it ends the broadcast, negentropy, health and disk usage threads.
    stop: crossbeam_channel::Sender<()>,
    stopped: crossbeam_channel::Receiver<()>,
}

impl WorkerThreads {
    /// Starts all threads except those of monitoring. When this returns, the writer has loaded its state from the
    /// store.
    pub(super) fn start(config: &Config, resources: &Resources) -> Result<Self> {
        let Resources { clock, store, layout, ref_cache, .. } = resources;
        let (clock, policy) = (*clock, &resources.current_policy);
        let event_queue = EventQueue::new();
        let (maintenance, worked_on) = MaintenanceHandle::new(config.git.maintenance);
        let needed: NeededFn = {
            let writer = event_queue.clone();
            Arc::new(move |repo_paths| writer.needed_objects(repo_paths))
        };
        let degrade: DegradeFn = {
            let writer = event_queue.clone();
            Arc::new(move |repo_path, reason, refs| writer.degrade(repo_path, reason, refs))
        };
        let set_packs: SetPacksFn = {
            let writer = event_queue.clone();
            Arc::new(move |repo_path, packs| writer.set_packs(repo_path, packs))
        };
        let rows: Arc<dyn RepoRows> =
            Arc::new(StoredRepoRows { store: store.clone(), degrade: degrade.clone(), set_packs });
        let timeout = config.git.process_timeout;
        let repair = Arc::new(RepoRepair {
            repairer: RepoRepairer::new(&resources.git, layout.clone(), rows.clone(), timeout),
            layout: layout.clone(),
            ref_cache: ref_cache.clone(),
            store: store.clone(),
            degrade,
        });
        let disk_budget = resources.disk_budget.clone();
        let is_disk_full = move || disk_budget.level() == DiskLevel::Hard;
        let maintainer = Maintenance {
            maintainer: PoolMaintainer::new(&resources.git, layout.clone(), rows.clone(), timeout),
            layout: layout.clone(),
            ref_cache: ref_cache.clone(),
            needed,
            repair: repair.clone(),
            is_disk_full: Box::new(is_disk_full.clone()),
            inbox: worked_on,
        };
        let settings = resources.settings.clone();
        let runner = Arc::new(
            GitJobRunner::new(resources.git.clone(), layout.clone(), rows, timeout)
                .with_max_copy_bytes(Arc::new(move || settings.borrow().git.max_push_bytes))
                .with_disk_full(Arc::new(is_disk_full)),
        );
        let on_done: JobDoneFn = {
            let event_queue = event_queue.clone();
            Arc::new(move |job, outcome| event_queue.send(WriterCommand::GitJobDone(job, outcome)))
        };
        let (git_workers, workers, cleanup) = GitWorkers::new(&runner, layout, &on_done);
        spawn("cleanup", move || cleanup.run())?;
        let (ref_files, changed) = RefFilesHandle::new();
        let ref_file_writer = Arc::new(RefFileWriter { job_runner: runner, ref_cache: ref_cache.clone() });
        let ref_files_worker = RefFilesWorker { changed, writer: ref_file_writer.clone(), repair: repair.clone() };
        for (index, worker) in workers.into_iter().enumerate() {
            spawn(&format!("git-{index}"), move || worker.run())?;
        }
        let (broadcast, broadcast_inbox) = BroadcastHandle::new();
        let query_pool = QueryPool::new();
        let (negentropy_cache, requests) = NegentropyCache::new();
        let budgets = RelayBudgets::new();
        let (stop, stopped) = crossbeam_channel::bounded(0);

        let writer = Writer {
            store: store.clone(),
            queue: event_queue.clone(),
            commit_listener: Box::new(broadcast.clone()),
            clock,
            policy: policy.clone(),
            ref_cache: ref_cache.clone(),
            layout: layout.clone(),
            git_workers,
            ref_files,
            maintenance,
            sync_feed: resources.sync_feed.clone(),
            fetch_feed: resources.fetch_feed.clone(),
            metrics: resources.metrics.clone(),
        };
        let writer = writer.prepare(resources.has_migrated)?;
        let writer = spawn("writer", move || writer.run())?;
        // After the check that the git folder is the right one.
        let all_repos = store.repo_paths()?.into_iter().chain(ref_cache.announced_repos()).collect();
        let ref_files = spawn("ref-files", move || ref_files_worker.run(all_repos))?;
        if config.git.maintenance {
            spawn("maintenance", move || maintainer.run())?;
        }
        for index in 0..resources.cores {
            let (event_queue, policy) = (event_queue.clone(), policy.clone());
            spawn(&format!("verify-{index}"), move || event_queue.run_verifier(&policy, clock))?;
        }
        for index in 0..resources.query_threads() {
            let worker = QueryWorker { store: store.clone(), pool: query_pool.clone(), clock };
            spawn(&format!("query-{index}"), move || worker.run())?;
        }
        let broadcaster = Broadcaster::new(store.clone(), query_pool.clone(), clock, resources.settings.clone());
        let end = stopped.clone();
        spawn("broadcast", move || broadcaster.run(&broadcast_inbox, &end))?;
        let worker = NegentropyCacheWorker {
            store: store.clone(),
            query_pool: query_pool.clone(),
            requests,
            cache: negentropy_cache.clone(),
            budget: budgets.negentropy.clone(),
            clock,
        };
        let end = stopped.clone();
        spawn("negentropy", move || worker.run(&end))?;
        Ok(Self {
            event_queue,
            broadcast,
            query_pool,
            negentropy_cache,
            budgets,
            repair,
            ref_file_writer,
            writer,
            ref_files,
            stop,
            stopped,
        })
    }

    /// Starts the health monitor, which takes its first snapshot before this returns, and the disk usage scanner.
    pub(super) fn start_monitoring(
        &self,
        config: &Config,
        resources: &Resources,
        upload_pack: &UploadPackHandler,
        semaphores: Vec<NamedSemaphore>,
        connection_limit: Arc<ConnectionLimit>,
    ) -> Result<watch::Receiver<Arc<HealthSnapshot>>> {
        let (clock, metrics) = (resources.clock, &resources.metrics);
        let (latest_disk_usage, disk_usage) = watch::channel(None);
        let git_folder = |name| resources.layout.root().join(name);
        let pack_cache = upload_pack.pack_cache();
        let cached_pack_bytes = || -> Box<dyn Fn() -> u64 + Send> {
            let pack_cache = pack_cache.clone();
            Box::new(move || pack_cache.load().0)
        };
        let events = config.relay_data_path.join("events");
        let scanner = DiskUsageScanner {
            folders: vec![
                ("events", events.clone()),
                ("repositories", git_folder("repos")),
                ("submitted", git_folder("prs")),
                ("incoming", git_folder("incoming")),
                ("staged", git_folder("staged")),
                ("trash", git_folder("trash")),
            ],
            cached_pack_bytes: cached_pack_bytes(),
            clock,
            latest: latest_disk_usage,
            budget: resources.disk_budget.clone(),
            total_folder: config.relay_data_path.clone(),
        };
        let end = self.stopped.clone();
        spawn("disk-usage", move || scanner.run(&end))?;
        let (monitor, snapshots) = HealthMonitor::new(HealthSources {
            queues: self.queue_depths(semaphores.clone()),
            budgets: self.budget_loads(upload_pack, semaphores, resources.ref_cache.clone(), connection_limit),
            request_writer_stats: {
                let event_queue = self.event_queue.clone();
                Box::new(move |reply| event_queue.send(WriterCommand::ReportStats(reply)))
            },
            disk_level_changed: {
                let event_queue = self.event_queue.clone();
                Box::new(move |level| event_queue.send(WriterCommand::DiskLevelChanged(level)))
            },
            cached_pack_bytes: cached_pack_bytes(),
            set_pack_cache_limit: {
                let pack_cache = pack_cache.clone();
                Box::new(move |bytes| pack_cache.set_limit(bytes))
            },
            repositories: {
                let ref_cache = resources.ref_cache.clone();
                Box::new(move || ref_cache.repo_count())
            },
            store: resources.store.clone(),
            settings: resources.settings.clone(),
            events: (events, config.store_reserve_bytes),
            git: (resources.layout.root().to_owned(), git_reserve_bytes(config)),
            layout: resources.layout.clone(),
            disk_budget: resources.disk_budget.clone(),
            disk_usage,
            event_loop_probe: start_event_loop_probe(clock, metrics.clone()),
            clock,
            metrics: metrics.clone(),
        });
        let end = self.stopped.clone();
        spawn("health", move || monitor.run(&end))?;
        Ok(snapshots)
    }

    /// Returns a function that reads the depths of all queues.
    fn queue_depths(&self, semaphores: Vec<NamedSemaphore>) -> Box<dyn Fn() -> QueueDepths + Send> {
        let (event_queue, broadcast, query_pool) =
            (self.event_queue.clone(), self.broadcast.clone(), self.query_pool.clone());
        let negentropy_cache = self.negentropy_cache.clone();
        Box::new(move || {
            // `None` if the lock of the event queue is taken at the moment.
            let [clients, relays, commands] = event_queue.lengths().map_or([None; 3], |lengths| lengths.map(Some));
            let mut depths = vec![
                ("ingest_clients", clients),
                ("ingest_relays", relays),
                ("writer_commands", commands),
                ("queries", Some(query_pool.len())),
                ("broadcast", Some(broadcast.len())),
                ("negentropy", Some(negentropy_cache.len())),
            ];
            depths.extend(semaphores.iter().map(|(name, semaphore)| (*name, Some(semaphore.load().waiting))));
            depths
        })
    }

    /// Returns a function that reads the use and the limits of all budgets.
    fn budget_loads(
        &self,
        upload_pack: &UploadPackHandler,
        semaphores: Vec<NamedSemaphore>,
        ref_cache: Arc<RefCache>,
        connection_limit: Arc<ConnectionLimit>,
    ) -> Box<dyn Fn() -> BudgetLoads + Send> {
        let RelayBudgets { live_filters, query_filters, negentropy, incomplete_messages } = self.budgets.clone();
        let (pack_cache, request_memory) = (upload_pack.pack_cache(), upload_pack.request_memory_load());
        Box::new(move || {
            let (connections, max_connections) = connection_limit.load();
            let (pack_bytes, pack_limit) = pack_cache.load();
            let (request_bytes, max_request_bytes) = request_memory();
            let bytes = |name, used: usize, limit: usize| (name, used as u64, limit as u64);
            let shared = |name, budget: &SharedBudget| {
                let (used, limit) = budget.load();
                bytes(name, used, limit)
            };
            let mut loads = vec![
                bytes("connections", connections, max_connections),
                shared("filter_bytes", &live_filters),
                shared("query_filter_bytes", &query_filters),
                shared("negentropy_bytes", &negentropy),
                shared("incomplete_message_bytes", &incomplete_messages),
                ("pack_cache_bytes", pack_bytes, pack_limit),
                bytes("ref_bytes", ref_cache.bytes(), ref_cache::MAX_BYTES),
                bytes("fetch_request_bytes", request_bytes, max_request_bytes),
            ];
            // Pages have a single permit; only their queue is of interest.
            for (name, semaphore) in semaphores.iter().filter(|(name, _)| *name != "pages") {
                let load = semaphore.load();
                loads.push(bytes(name, load.in_use, load.capacity));
            }
            loads
        })
    }

    /// Waits until the writer has handled everything in its queue. The other threads end with the process: git jobs and
    /// maintenance may be interrupted at any point and are repeated after the next start.
    pub(super) fn stop(self) {
        self.event_queue.close();
        if self.writer.join().is_err() {
            warn!(target: "admin", "writer thread panicked");
        }
        if self.ref_files.join().is_err() {
            warn!(target: "admin", "thread of the ref files panicked");
        }
        drop(self.stop);
    }
}

/// Starts a thread that the server needs. If it panics, the process aborts: everything that was acknowledged is on
/// disk, and a server without its writer or a query thread would accept requests that it cannot answer.
pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let body = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            std::process::abort();
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).with_context(|| format!("cannot start thread {name}"))
}
