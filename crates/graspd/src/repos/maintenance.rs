//! Maintenance of pools: repacks pools with many packs, and prunes objects that no repository needs.
//!
//! Runs on one thread ([`Maintenance::run`]), with one git process at a time and the lowest priority. The writer
//! reports which repositories a git job has changed. When such a repository has been quiet for a while, its packs are
//! repacked if there are many. Every hour all repositories are scanned, which reads a few file names each; what is due
//! is then done one by one. The scan also finds changes that were not reported because there were too many or the
//! server was restarted.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_git::action_error::ActionError;
use grasp_git::layout::{Layout, identifier_file_name};
use grasp_git::maintenance;
use grasp_git::maintenance::{MaintenanceOutcome, PoolMaintainer};
use grasp_git::repair::RepairReport;
use tracing::{debug, warn};

use super::ref_cache::RefCache;
use super::repair::RepoRepair;

/// Interval between two scans while the disk budget is used up.
const FULL_DISK_SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// Hourly scans in which every repository is checked for damage once: fewer than a week has.
const SCANS_PER_PASS: usize = 150;

/// Changed or failed repositories that are remembered. The next scan finds the others.
const MAX_REMEMBERED_REPOS: usize = 10_000;

/// Delays between the steps of maintenance.
#[derive(Clone, Copy, Debug)]
struct MaintenanceTimings {
    /// How long a repository must be unchanged before it is repacked: pushes often follow each other.
    quiet: Duration,
    /// Delay of the first scan after the start, when the server has other work to do.
    first_scan: Duration,
    /// Interval between two scans.
    scan_interval: Duration,
    /// Delay after a failure: a pool that is too large, or a full disk, does not change soon.
    retry_delay: Duration,
    /// Interval between two prunings of a pool.
    prune_interval: Duration,
    /// How long an object must be unneeded before it is removed.
    grace: Duration,
    /// Interval between two checks of a repository for damage.
    check_interval: Duration,
}

const TIMINGS: MaintenanceTimings = MaintenanceTimings {
    quiet: Duration::from_secs(5),
    first_scan: Duration::from_secs(600),
    scan_interval: Duration::from_secs(3_600),
    retry_delay: Duration::from_secs(6 * 3_600),
    prune_interval: maintenance::PRUNE_INTERVAL,
    grace: maintenance::PRUNE_GRACE,
    check_interval: Duration::from_secs(7 * 24 * 3_600),
};

impl MaintenanceTimings {
    /// Returns the timings of a server. In debug builds the environment variable `GRASPD_TEST_NO_DELAYS` removes the
    /// delays, because tests cannot wait for a day.
    fn from_env() -> Self {
        #[cfg(debug_assertions)]
        if std::env::var_os("GRASPD_TEST_NO_DELAYS").is_some() {
            let [short, none] = [Duration::from_millis(200), Duration::ZERO];
            return Self {
                quiet: short,
                first_scan: short,
                scan_interval: short,
                retry_delay: short,
                prune_interval: none,
                grace: none,
                check_interval: Duration::from_secs(1),
            };
        }
        TIMINGS
    }
}

/// Reports changed repositories to the maintenance thread.
#[derive(Clone)]
pub(crate) struct MaintenanceHandle(Option<Sender<RepoPath>>);

impl MaintenanceHandle {
    /// Returns the handle and its receiving end. If maintenance is not enabled, the handle does nothing.
    pub(crate) fn new(is_enabled: bool) -> (Self, Receiver<RepoPath>) {
        let (changed, inbox) = crossbeam_channel::bounded(MAX_REMEMBERED_REPOS);
        (Self(is_enabled.then_some(changed)), inbox)
    }

    /// Reports that a git job has changed a repository.
    pub(crate) fn repo_changed(&self, repo_path: &RepoPath) {
        if let Some(changed) = &self.0 {
            // If the channel is full, the next scan finds the repository.
            let _ = changed.try_send(repo_path.clone());
        }
    }
}

/// Returns the objects that repositories need beside those that their refs lead to; `None` if that is unknown.
pub(crate) type NeededFn = Arc<dyn Fn(&[RepoPath]) -> Option<BTreeSet<String>> + Send + Sync>;

/// Maintenance of pools, which runs on its own thread.
pub(crate) struct Maintenance {
    pub(crate) maintainer: PoolMaintainer,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) needed: NeededFn,
    pub(crate) repair: Arc<RepoRepair>,
    /// Returns whether the disk budget is used up.
    pub(crate) is_disk_full: Box<dyn Fn() -> bool + Send>,
    pub(crate) inbox: Receiver<RepoPath>,
}

/// Which repositories are due, and when.
struct MaintenanceSchedule {
    timings: MaintenanceTimings,
    /// Changed repositories, with the time of the last change.
    changed: HashMap<RepoPath, Instant>,
    /// Tasks that the last scan found.
    due: VecDeque<(RepoPath, MaintenanceTask)>,
    next_scan: Instant,
    /// Repositories whose maintenance failed, with the time of the next attempt.
    failed: HashMap<RepoPath, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MaintenanceTask {
    /// Removal of the pool of a deleted repository, if it is not needed.
    Release,
    /// A check for damage, and its repair.
    Check,
    Repack,
    RepackAndPrune,
}

impl Maintenance {
    /// Maintains pools until the handle is dropped. At shutdown the thread is not waited for: an interrupted step
    /// leaves the pool as it was.
    pub(crate) fn run(self) {
        let timings = MaintenanceTimings::from_env();
        let mut schedule = MaintenanceSchedule {
            timings,
            changed: HashMap::new(),
            due: VecDeque::new(),
            next_scan: Instant::now() + timings.first_scan,
            failed: HashMap::new(),
        };
        loop {
            match self.inbox.recv_timeout(schedule.idle_time()) {
                Ok(repo_path) => schedule.repo_changed(repo_path),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.inbox.try_iter().for_each(|repo_path| schedule.repo_changed(repo_path));
            if Instant::now() >= schedule.next_scan {
                self.scan(&mut schedule);
            }
            if let Some((repo_path, task)) = schedule.next_task() {
                self.run_task(&mut schedule, &repo_path, task);
            }
        }
    }

    /// Finds the repositories that are due.
    fn scan(&self, schedule: &mut MaintenanceSchedule) {
        // A full disk may be relieved by the removal of pools that deleted repositories have left.
        let interval = schedule.timings.scan_interval;
        let interval = if (self.is_disk_full)() { interval.min(FULL_DISK_SCAN_INTERVAL) } else { interval };
        schedule.next_scan = Instant::now() + interval;
        schedule.failed.retain(|_, retry_at| Instant::now() < *retry_at);
        // Tasks of the last scan that are not done yet are found again.
        schedule.due.clear();
        let submission_repos = self.layout.submission_repos().unwrap_or_else(|error| {
            warn!(target: "git", %error, "cannot list pull-request submissions for maintenance");
            Vec::new()
        });
        let mut groups: BTreeMap<Identifier, Vec<RepoPath>> = BTreeMap::new();
        for repo_path in self.ref_cache.announced_repos() {
            groups.entry(repo_path.identifier().clone()).or_default().push(repo_path);
        }
        // The files of a served repository may be lost. Then its pool is all that is left.
        let is_served = |repo_path: &RepoPath| {
            self.ref_cache.open_repo(repo_path).is_some_and(|open| open.status == EventStatus::Served)
        };
        // If the disk is full, one pool is removed at a time: that may be enough.
        let most = if (self.is_disk_full)() { 1 } else { usize::MAX };
        let mut orphaned = self.orphaned_pools(groups.keys());
        orphaned.retain(|repo_path| !is_served(repo_path));
        for repo_path in orphaned.into_iter().take(most) {
            groups.entry(repo_path.identifier().clone()).or_default().push(repo_path.clone());
            schedule.due.push_back((repo_path, MaintenanceTask::Release));
        }
        let repos = groups.values().flatten().chain(&submission_repos);
        let checks = self.checks_due(repos, schedule.timings.check_interval);
        let single = submission_repos.into_iter().map(|repo_path| vec![repo_path]);
        for group in groups.into_values().chain(single) {
            // Repositories of a group may read each other's pools, so a change of one counts for all.
            let changed = self.maintainer.last_changed(&group);
            let MaintenanceTimings { prune_interval, grace, .. } = schedule.timings;
            for repo_path in group {
                if self.maintainer.is_prune_due(&repo_path, changed, prune_interval, grace) {
                    schedule.due.push_back((repo_path, MaintenanceTask::RepackAndPrune));
                } else if self.maintainer.is_repack_due(&repo_path) {
                    schedule.due.push_back((repo_path, MaintenanceTask::Repack));
                }
            }
        }
        schedule.due.extend(checks.into_iter().map(|repo_path| (repo_path, MaintenanceTask::Check)));
    }

    /// Returns the repositories that are checked for damage until the next scan: those whose last check was longest ago.
    /// All are checked within [`SCANS_PER_PASS`] scans.
    fn checks_due<'r>(&self, repos: impl Iterator<Item = &'r RepoPath>, interval: Duration) -> Vec<RepoPath> {
        let has_folder = |repo_path: &&RepoPath| {
            self.layout.repo_dir(repo_path).exists()
                || self.ref_cache.cached(repo_path).is_some_and(|snapshot| snapshot.exists)
        };
        let mut last_checks: Vec<(SystemTime, &RepoPath)> =
            repos.filter(has_folder).map(|repo_path| (self.maintainer.last_check(repo_path), repo_path)).collect();
        let share = last_checks.len().div_ceil(SCANS_PER_PASS);
        last_checks.retain(|(last, _)| SystemTime::now() >= *last + interval);
        last_checks.sort();
        last_checks.into_iter().take(share).map(|(_, repo_path)| repo_path.clone()).collect()
    }

    /// Returns the deleted repositories whose pool is still here.
    fn orphaned_pools<'i>(&self, identifiers: impl Iterator<Item = &'i Identifier>) -> Vec<RepoPath> {
        let by_file_name =
            identifiers.map(|identifier| (identifier_file_name(identifier), identifier.clone())).collect();
        self.layout.orphaned_pools(&by_file_name).unwrap_or_else(|error| {
            warn!(target: "git", %error, "cannot list the pools of deleted repositories for maintenance");
            Vec::new()
        })
    }

    /// Checks a repository for damage and repairs it.
    fn check(&self, repo_path: &RepoPath) -> Result<MaintenanceOutcome, ActionError> {
        let started = SystemTime::now();
        let report = self.repair.repair(repo_path);
        // Also after a failure, so that others are checked before it is tried again.
        self.maintainer.record_check(repo_path, started)?;
        let report = report?;
        let is_intact = report == RepairReport::default();
        Ok(if is_intact { MaintenanceOutcome::NothingToDo } else { MaintenanceOutcome::Done })
    }

    /// Removes the pool of a deleted repository if it is not needed. If the disk is full, it is removed although other
    /// repositories need it, which are then degraded: the owner of the pool has deleted it to free space.
    fn release_pool(&self, repo_path: &RepoPath) -> Result<MaintenanceOutcome, ActionError> {
        if (self.is_disk_full)() {
            let degraded = self.maintainer.remove_orphaned_pool(repo_path)?;
            self.repair.report_degraded(&degraded);
        } else if !self.maintainer.release_orphaned_pool(repo_path)? {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        self.ref_cache.on_prune(repo_path.identifier());
        self.layout.empty_trash().map_err(|source| ActionError::Io { action: "empty the trash", source })?;
        Ok(MaintenanceOutcome::Done)
    }

    fn run_task(&self, schedule: &mut MaintenanceSchedule, repo_path: &RepoPath, task: MaintenanceTask) {
        let started = Instant::now();
        let nothing = MaintenanceOutcome::NothingToDo;
        let result = match task {
            MaintenanceTask::Release => self.release_pool(repo_path).map(|released| [nothing, released]),
            MaintenanceTask::Check => self.check(repo_path).map(|checked| [nothing, checked]),
            MaintenanceTask::Repack => self.maintainer.repack(repo_path).map(|repacked| [repacked, nothing]),
            MaintenanceTask::RepackAndPrune => self.maintainer.repack(repo_path).and_then(|repacked| {
                let mut needed = |repo_paths: &[RepoPath]| (self.needed)(repo_paths);
                let pruned = self.maintainer.prune(repo_path, schedule.timings.grace, &mut needed)?;
                if pruned == MaintenanceOutcome::Done {
                    self.ref_cache.on_prune(repo_path.identifier());
                }
                Ok([repacked, pruned])
            }),
        };
        match result {
            Ok([MaintenanceOutcome::NothingToDo, MaintenanceOutcome::NothingToDo]) => {}
            Ok([repacked, pruned]) => {
                let [repacked, pruned] = [repacked, pruned].map(|result| result == MaintenanceOutcome::Done);
                let took = started.elapsed();
                debug!(target: "git", repo = %repo_path, repacked, pruned, ?took, "maintenance done");
            }
            // The repository may have been deleted meanwhile.
            Err(ActionError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(target: "git", repo = %repo_path, %error, "maintenance failed, it will be tried again");
                if schedule.failed.len() < MAX_REMEMBERED_REPOS {
                    schedule.failed.insert(repo_path.clone(), Instant::now() + schedule.timings.retry_delay);
                }
            }
        }
    }
}

impl MaintenanceSchedule {
    /// Returns how long there is nothing to do.
    fn idle_time(&self) -> Duration {
        if !self.due.is_empty() {
            return Duration::ZERO;
        }
        let quiet_at = self.changed.values().map(|at| *at + self.timings.quiet).min();
        let next = quiet_at.map_or(self.next_scan, |quiet_at| quiet_at.min(self.next_scan));
        next.saturating_duration_since(Instant::now())
    }

    fn repo_changed(&mut self, repo_path: RepoPath) {
        if self.changed.len() < MAX_REMEMBERED_REPOS || self.changed.contains_key(&repo_path) {
            self.changed.insert(repo_path, Instant::now());
        }
    }

    /// Returns the next task. Changed repositories come first, because they are fetched most.
    fn next_task(&mut self) -> Option<(RepoPath, MaintenanceTask)> {
        let now = Instant::now();
        let quiet = self.changed.iter().find(|(_, at)| now >= **at + self.timings.quiet);
        let next = match quiet.map(|(repo_path, _)| repo_path.clone()) {
            Some(repo_path) => {
                self.changed.remove(&repo_path);
                Some((repo_path, MaintenanceTask::Repack))
            }
            None => self.due.pop_front(),
        };
        next.filter(|(repo_path, _)| self.failed.get(repo_path).is_none_or(|retry_at| now >= *retry_at))
    }
}
