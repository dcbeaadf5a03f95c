//! Removes unneeded objects from a pool.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use grasp_core::repo::{PackHash, RepoPath};

use super::index::{FileChange, IndexChanges, RefTips};
use super::inspection::{PoolInspection, PoolPack};
use super::needed_objects::{NeededObjects, NeededOidsFn, ObjectAccess};
use super::scratch_dir::ScratchDir;
use super::swap::PoolSwap;
use super::{LOCK_TIMEOUT, MAX_OUTPUT, MaintenanceOutcome, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::files::remove_if_exists;
use crate::object_list::{ObjectList, line_oid};
use crate::objects::ObjectLookup;
use crate::pool_readers::LAST_PRUNE;
use crate::process::ProcessInput;

/// A prune in progress.
struct PruneRun<'p> {
    repo_path: &'p RepoPath,
    pool: PathBuf,
    inspection: PoolInspection,
    scratch: ScratchDir,
    /// The objects from which the walk over needed objects starts.
    tips: BTreeSet<String>,
}

/// The needed objects of the pool, as the walk found them.
struct NeededLists {
    /// Needed objects in normal packs.
    normal: ObjectList,
    /// Needed objects that are only in cruft packs: they are needed again.
    rescued: ObjectList,
}

impl PoolMaintainer {
    /// Returns whether a prune is due: the last one was at least `interval` ago, and there was a change since, or
    /// objects have been unneeded for the grace period. `changed` is when the refs of any reader last changed.
    #[must_use]
    pub fn is_prune_due(&self, repo_path: &RepoPath, changed: SystemTime, interval: Duration, grace: Duration) -> bool {
        let pool = self.layout.pool(repo_path);
        let now = SystemTime::now();
        let Ok(packs_changed) = modified(&pool.join("pack")) else { return false };
        let Ok(last_prune) = modified(&pool.join("info").join(LAST_PRUNE)) else {
            // There was none yet. A new repository is first pruned after the same interval.
            let created = modified(&self.layout.repo_dir(repo_path).join("config"));
            return created.is_ok_and(|created| now >= created + interval);
        };
        let has_expired = || {
            PoolInspection::read(&pool.join("pack"))
                .is_ok_and(|inspection| inspection.expired(now, grace).next().is_some())
        };
        now >= last_prune + interval && (packs_changed > last_prune || changed > last_prune || has_expired())
    }

    /// Returns when the refs or the alternates of any of some repositories last changed.
    #[must_use]
    pub fn last_changed(&self, repo_paths: &[RepoPath]) -> SystemTime {
        let times = repo_paths.iter().map(|repo_path| self.layout.repo_dir(repo_path)).flat_map(|folder| {
            [modified(&folder.join("packed-refs")), modified(&folder.join("objects/info/alternates"))]
        });
        times.flatten().max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Moves unneeded objects to a cruft pack, and removes cruft packs that are older than the grace period and whose
    /// objects are still unneeded.
    ///
    /// # Errors
    /// If the pool or the scratch folder cannot be read or written, or if git fails.
    pub fn prune(
        &self,
        repo_path: &RepoPath,
        grace: Duration,
        needed_oids: &mut NeededOidsFn<'_>,
    ) -> Result<MaintenanceOutcome, ActionError> {
        if !self.has_pool(repo_path) {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        let started = SystemTime::now();
        if self.has_degraded_reader(repo_path)? {
            // What an incomplete ref still leads to is needed when the rest comes back.
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        self.remove_leftovers(repo_path, grace)?;
        let Some(needed) = self.needed_objects(repo_path, needed_oids)? else {
            return Ok(MaintenanceOutcome::Deferred);
        };
        let pool = self.layout.pool(repo_path);
        let inspection = PoolInspection::read(&pool.join("pack")).context("read a pool")?;
        let scratch =
            ScratchDir::with_packs(&self.layout, &pool, &inspection.packs).context("create a scratch folder")?;
        let mut run = PruneRun { repo_path, pool, inspection, scratch, tips: needed.tips.clone() };
        let objects = run.scratch.view(&needed.pools)?;
        let access = ObjectAccess { git: &self.low_priority_git(), pools: &needed.pools, objects };
        let Some(named) = self.find_complete(&access, &needed.named, &needed.tips)? else {
            return Ok(MaintenanceOutcome::Deferred);
        };
        run.tips.extend(named);
        let result = self.prune_pool(&run, &needed, grace, needed_oids)?;
        if result != MaintenanceOutcome::Deferred {
            record_start(&run.pool, started).context("record the time of a prune")?;
        }
        Ok(result)
    }

    fn prune_pool(
        &self,
        run: &PruneRun<'_>,
        needed: &NeededObjects,
        grace: Duration,
        needed_oids: &mut NeededOidsFn<'_>,
    ) -> Result<MaintenanceOutcome, ActionError> {
        let all: u64 = run.inspection.normal().map(|pack| pack.objects).sum();
        if needed.pools.len() == 1
            && run.inspection.cruft().next().is_none()
            && self.count_needed(run)?.is_some_and(|count| count == all)
        {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        let lists = self.list_needed(run, needed)?;
        let mut swap = PoolSwap::default();
        if lists.normal.objects < all {
            swap.added = self.split_packs(run, lists)?;
            swap.removed.extend(run.inspection.normal().cloned());
        } else if lists.rescued.objects > 0 {
            let rescued = ProcessInput::File(lists.rescued.into_file().context("list objects")?);
            swap.added = run.scratch.pack_objects(self, &[], rescued)?;
        }
        swap.removed.extend(run.inspection.expired(SystemTime::now(), grace).cloned());
        if swap.added.is_empty() && swap.removed.is_empty() {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        swap.indexes = self.index_changes(run, &swap)?;
        swap.sync(&run.scratch).context("sync packs to disk")?;
        let _removal = self.layout.begin_removal();
        let Some(_lock) = self.layout.repo_locks.lock_within(run.repo_path.identifier(), LOCK_TIMEOUT) else {
            return Ok(MaintenanceOutcome::Deferred);
        };
        if !swap.is_applicable(&run.pool, &run.inspection.packs) || self.removes_needed(run, &swap, needed_oids)? {
            return Ok(MaintenanceOutcome::Deferred);
        }
        let record = |removed: &[PackHash]| self.record_packs_without(run.repo_path, removed);
        let result = swap.apply(&run.scratch, &run.pool, record);
        // Also after a failure in the middle: objects may have been removed.
        self.layout.record_prune();
        result.context("move packs into the pool")?;
        Ok(MaintenanceOutcome::Done)
    }

    /// Counts the needed objects of a pool that only its own repository reads. With bitmaps this takes milliseconds.
    fn count_needed(&self, run: &PruneRun<'_>) -> Result<Option<u64>, ActionError> {
        run.scratch.link_index(&run.pool).context("create a scratch folder")?;
        let mut command = run.scratch.command(self);
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--count", "--use-bitmap-index"]);
        command.arg("--stdin");
        let input: String = run.tips.iter().map(|tip| format!("{tip}\n")).collect();
        let input = ProcessInput::Bytes(input.as_bytes());
        let output = self.low_priority_git().run(&mut command, input, self.timeout, MAX_OUTPUT);
        let output = output.context("count needed objects")?;
        Ok(String::from_utf8_lossy(&output).trim().parse().ok())
    }

    /// Lists the needed objects of the pool.
    fn list_needed(&self, run: &PruneRun<'_>, needed: &NeededObjects) -> Result<NeededLists, ActionError> {
        let scratch = &run.scratch;
        let lookup = |packs: Vec<&PoolPack>| lookup_in(&scratch.packs(), packs.into_iter());
        let normal = lookup(run.inspection.normal().collect()).context("read a pool")?;
        let cruft = lookup(run.inspection.cruft().collect()).context("read a pool")?;
        let list = |name: &str| ObjectList::create(&scratch.lists.join(name)).context("list objects");
        let mut lists = NeededLists { normal: list("needed")?, rescued: list("rescued")? };
        let mut pools = vec![scratch.objects()];
        pools.extend(needed.pools.iter().filter(|pool| **pool != run.pool).cloned());
        let access = ObjectAccess { git: &self.low_priority_git(), pools: &[], objects: scratch.view(&pools)? };
        self.walk_objects(&access, &run.tips, &BTreeSet::new(), |line| {
            let Some(oid) = line_oid(line) else { return Ok(()) };
            if normal.has(oid)? {
                lists.normal.add(line)?;
            } else if cruft.has(oid)? {
                lists.rescued.add(line)?;
            }
            Ok(())
        })?;
        Ok(lists)
    }

    /// Writes a pack of the needed objects and a cruft pack of the unneeded ones.
    fn split_packs(&self, run: &PruneRun<'_>, lists: NeededLists) -> Result<Vec<PoolPack>, ActionError> {
        let listed = lists.normal.objects + lists.rescued.objects;
        let list = lists.normal.into_joined_file(lists.rescued).context("list objects")?;
        let mut added = run.scratch.pack_objects(self, &[], ProcessInput::File(list))?;
        if added.iter().map(|pack| pack.objects).sum::<u64>() != listed {
            let source = io::Error::new(ErrorKind::InvalidData, "a new pack does not have the listed objects");
            return Err(ActionError::Io { action: "pack objects", source });
        }
        // The cruft pack gets the objects of the packs that are marked with a minus, except those of the other packs.
        let mut input: String = added.iter().map(|pack| format!("{}.pack\n", pack.name)).collect();
        input.extend(run.inspection.cruft().map(|pack| format!("{}.pack\n", pack.name)));
        let split = run.inspection.normal().filter(|pack| !added.iter().any(|added| added.name == pack.name));
        input.extend(split.map(|pack| format!("-{}.pack\n", pack.name)));
        added.extend(run.scratch.pack_objects(self, &["--cruft"], ProcessInput::Bytes(input.as_bytes()))?);
        Ok(added)
    }

    /// Returns the multi-pack index and the commit-graph after the swap. Git would assume that the removed commits of
    /// an old commit-graph exist.
    fn index_changes(&self, run: &PruneRun<'_>, swap: &PoolSwap) -> Result<IndexChanges, ActionError> {
        // A ref that was set later may point to an object that is removed.
        let tips = RefTips::new(&*self.refs(run.repo_path)?, Some(&run.tips));
        let remaining = swap.remaining(&run.inspection.packs);
        let is_worth_it = run.inspection.is_worth_an_index();
        let is_invalidated = run.inspection.index_covers_any(&swap.removed);
        let midx = match (is_worth_it, is_invalidated) {
            (true, _) => {
                run.scratch.link_index(&run.pool).context("create a scratch folder")?;
                self.write_midx(&run.scratch, &remaining, &tips)?
            }
            (false, true) => FileChange::Remove,
            (false, false) => FileChange::Keep,
        };
        let graph = if is_worth_it { self.write_graph(&run.scratch, &tips)? } else { FileChange::Remove };
        Ok(IndexChanges { midx, graph })
    }

    /// Returns whether an object that would be removed is needed by now. The caller holds the repository lock, so that
    /// this cannot change before the swap.
    fn removes_needed(
        &self,
        run: &PruneRun<'_>,
        swap: &PoolSwap,
        needed_oids: &mut NeededOidsFn<'_>,
    ) -> Result<bool, ActionError> {
        let Some(needed) = self.needed_objects(run.repo_path, needed_oids)? else { return Ok(true) };
        let objects = run.scratch.view(&needed.pools)?;
        let access = ObjectAccess { git: &self.git, pools: &needed.pools, objects };
        let Some(named) = self.find_complete(&access, &needed.named, &run.tips)? else { return Ok(true) };
        let new_tips: BTreeSet<String> = needed.tips.difference(&run.tips).cloned().chain(named).collect();
        if new_tips.is_empty() {
            return Ok(false);
        }
        let inspection = PoolInspection::read(&run.pool.join("pack")).context("read a pool")?;
        let is_removed = |pack: &&PoolPack| swap.removed.iter().any(|removed| removed.name == pack.name);
        let kept = lookup_in(&run.pool.join("pack"), inspection.packs.iter().filter(|pack| !is_removed(pack)));
        let added = lookup_in(&run.scratch.packs(), swap.added.iter());
        let removed = lookup_in(&run.scratch.packs(), swap.removed.iter());
        let [kept, added, removed] =
            [kept.context("read a pool")?, added.context("read a pool")?, removed.context("read a pool")?];
        let mut removes_needed = false;
        self.walk_objects(&access, &new_tips, &run.tips, |line| {
            if let Some(oid) = line_oid(line).filter(|_| !removes_needed) {
                removes_needed = removed.has(oid)? && !added.has(oid)? && !kept.has(oid)?;
            }
            Ok(())
        })?;
        Ok(removes_needed)
    }

    /// Returns whether a repository that reads a pool is degraded.
    fn has_degraded_reader(&self, repo_path: &RepoPath) -> Result<bool, ActionError> {
        let readers = self.layout.pool_readers(repo_path.identifier()).context("find the readers of a pool")?;
        for reader in readers.of(&self.layout.pool(repo_path)).iter().chain([repo_path]) {
            let row = self.rows.row(reader).context("read the refs of a repository")?;
            if row.is_some_and(|row| row.degraded.is_some()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes old files of incomplete packs, which a crash or a full disk has left.
    fn remove_leftovers(&self, repo_path: &RepoPath, grace: Duration) -> Result<(), ActionError> {
        let packs = self.layout.pool(repo_path).join("pack");
        let now = SystemTime::now();
        if find_leftovers(&packs, now, grace).context("read a pool")?.is_empty() {
            return Ok(());
        }
        // A git job may be moving the files of a pack into the pool one by one.
        let Some(_lock) = self.layout.repo_locks.lock_within(repo_path.identifier(), LOCK_TIMEOUT) else {
            return Ok(());
        };
        for path in find_leftovers(&packs, now, grace).context("read a pool")? {
            remove_if_exists(&path).context("remove files of incomplete packs")?;
        }
        Ok(())
    }
}

impl PoolInspection {
    /// Returns the cruft packs that are older than the grace period.
    fn expired(&self, now: SystemTime, grace: Duration) -> impl Iterator<Item = &PoolPack> {
        self.cruft().filter(move |pack| now >= pack.modified + grace)
    }
}

/// Returns indexes without a pack, and temporary files, if they are old. A pack without an index may be all that is left
/// of a repository; the check for damage writes its index again.
fn find_leftovers(packs: &Path, now: SystemTime, grace: Duration) -> io::Result<Vec<PathBuf>> {
    let mut leftovers = Vec::new();
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let has_pack = || path.with_extension("pack").exists();
        let is_leftover = name.starts_with("tmp_") || (name.starts_with("pack-") && !has_pack());
        if is_leftover && modified(&path).is_ok_and(|modified| now >= modified + grace) {
            leftovers.push(path);
        }
    }
    Ok(leftovers)
}

/// Returns a lookup in some packs of a folder.
fn lookup_in<'p>(folder: &Path, packs: impl Iterator<Item = &'p PoolPack>) -> io::Result<ObjectLookup> {
    let paths: Vec<PathBuf> = packs.map(|pack| pack.file(folder, "idx")).collect();
    ObjectLookup::from_packs(&paths)
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// Records when a prune started. Later changes are covered by the next one.
fn record_start(pool: &Path, started: SystemTime) -> io::Result<()> {
    File::create(pool.join("info").join(LAST_PRUNE))?.set_modified(started)
}
