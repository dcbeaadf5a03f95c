//! The hands that keep pools in good order: one thread, one git process at a time, behind everybody else.
//!
//! The desk says which sites were worked on. When one has been quiet for a while its packs are folded, if there are many.
//! Every hour all sites are looked at, which costs a few file names each; what is due then is done one by one. What the
//! desk could not say because too much happened, or because the server was started anew, is found then.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::repo::{Identifier, RepoPath};
use grasp_git::layout::Layout;
use grasp_git::maintenance;
use grasp_git::maintenance::{Maintainer, Problem, Tidied};
use tracing::{debug, warn};

use super::ref_cache::RefCache;

/// Sites that are remembered. Others are found by the next look over all.
const MAX_SITES: usize = 10_000;

/// When things are done.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// How long a site is left alone after work on it: pushes often come in a row.
    quiet: Duration,
    /// How long after the start all sites are first looked at: a start has enough to do.
    first_look: Duration,
    /// How long after a look the next one comes.
    look: Duration,
    /// How long after a failure a site is tried again: what is too large stays so, and a full disk stays full for a while.
    retry: Duration,
    /// How long after a look for unneeded objects the next one comes.
    pause: Duration,
    /// How long something is unneeded before it goes.
    grace: Duration,
}

const PACE: Pace = Pace {
    quiet: Duration::from_secs(5),
    first_look: Duration::from_secs(600),
    look: Duration::from_secs(3_600),
    retry: Duration::from_secs(6 * 3_600),
    pause: maintenance::PAUSE,
    grace: maintenance::GRACE,
};

impl Pace {
    /// The usual pace. Tests of debug builds cannot wait for a day: `GRASPD_HASTE` lets everything follow at once.
    fn usual() -> Self {
        #[cfg(debug_assertions)]
        if std::env::var_os("GRASPD_HASTE").is_some() {
            let [short, none] = [Duration::from_millis(200), Duration::ZERO];
            return Self { quiet: short, first_look: short, look: short, retry: short, pause: none, grace: none };
        }
        PACE
    }
}

/// Where the desk says what was worked on.
#[derive(Clone)]
pub(crate) struct MaintenanceHandle(Option<Sender<RepoPath>>);

impl MaintenanceHandle {
    /// The door, and what comes through it. Nothing does if there is no maintenance.
    pub(crate) fn new(on: bool) -> (Self, Receiver<RepoPath>) {
        let (worked_on, inbox) = crossbeam_channel::bounded(MAX_SITES);
        (Self(on.then_some(worked_on)), inbox)
    }

    /// A site was worked on.
    pub(crate) fn worked_on(&self, repo_path: &RepoPath) {
        if let Some(repo_paths) = &self.0 {
            // If there is no room the next look over all finds it.
            let _ = repo_paths.try_send(repo_path.clone());
        }
    }
}

/// Finds out which objects repositories need beside those that their refs lead to.
pub(crate) type NeededFn = Box<dyn Fn(&[RepoPath]) -> Option<BTreeSet<String>> + Send>;

/// The thread's own things.
pub(crate) struct Maintenance {
    pub(crate) maintainer: Maintainer,
    pub(crate) layout: Arc<Layout>,
    pub(crate) directory: Arc<RefCache>,
    /// Returns the objects that repositories need beside those that their refs lead to; `None` if that is unknown.
    pub(crate) needed: NeededFn,
    pub(crate) inbox: Receiver<RepoPath>,
}

/// What the thread carries along.
struct MaintenanceSchedule {
    pace: Pace,
    /// Sites that were worked on, and when last.
    worked_on: HashMap<RepoPath, Instant>,
    /// Sites at which something is due.
    due: VecDeque<(RepoPath, Due)>,
    next_look: Instant,
    /// Sites that are left alone, and until when.
    failed: HashMap<RepoPath, Instant>,
}

/// What is due at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Fold,
    FoldAndPrune,
}

impl Maintenance {
    /// Works until the desk is gone. It has nothing to lose: whatever it is doing ends with the process.
    pub(crate) fn run(self) {
        let pace = Pace::usual();
        let mut agenda = MaintenanceSchedule {
            pace,
            worked_on: HashMap::new(),
            due: VecDeque::new(),
            next_look: Instant::now() + pace.first_look,
            failed: HashMap::new(),
        };
        loop {
            match self.inbox.recv_timeout(agenda.idle()) {
                Ok(repo_path) => agenda.note(repo_path),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.inbox.try_iter().for_each(|repo_path| agenda.note(repo_path));
            if Instant::now() >= agenda.next_look {
                self.look(&mut agenda);
            }
            if let Some((repo_path, due)) = agenda.next() {
                self.tidy(&mut agenda, &repo_path, due);
            }
        }
    }

    /// Looks at all sites.
    fn look(&self, agenda: &mut MaintenanceSchedule) {
        agenda.next_look = Instant::now() + agenda.pace.look;
        agenda.failed.retain(|_, until| Instant::now() < *until);
        // What was due at the last look and is not done yet is found again.
        agenda.due.clear();
        let submitted = self.layout.submitted().unwrap_or_else(|problem| {
            warn!(%problem, "cannot look at what was submitted");
            Vec::new()
        });
        let mut families: BTreeMap<Identifier, Vec<RepoPath>> = BTreeMap::new();
        for repo_path in self.directory.announced() {
            families.entry(repo_path.identifier().clone()).or_default().push(repo_path);
        }
        let alone = submitted.into_iter().map(|repo_path| vec![repo_path]);
        for family in families.into_values().chain(alone) {
            // Any of them may read the pool of another.
            let changed = self.maintainer.changed(&family);
            for repo_path in family {
                if self.maintainer.is_prune_due(&repo_path, changed, agenda.pace.pause, agenda.pace.grace) {
                    agenda.due.push_back((repo_path, Due::FoldAndPrune));
                } else if self.maintainer.is_fold_due(&repo_path) {
                    agenda.due.push_back((repo_path, Due::Fold));
                }
            }
        }
    }

    fn tidy(&self, agenda: &mut MaintenanceSchedule, repo_path: &RepoPath, due: Due) {
        let begin = Instant::now();
        let result = self.maintainer.fold(repo_path).and_then(|folded| match due {
            Due::Fold => Ok([folded, Tidied::Fine]),
            Due::FoldAndPrune => {
                let mut needs = |repo_paths: &[RepoPath]| (self.needed)(repo_paths);
                let pruned = self.maintainer.prune(repo_path, agenda.pace.grace, &mut needs)?;
                if pruned == Tidied::Done {
                    self.directory.renew(repo_path.identifier());
                }
                Ok([folded, pruned])
            }
        });
        match result {
            Ok([Tidied::Fine, Tidied::Fine]) => {}
            Ok([folded, pruned]) => {
                debug!(repo = %repo_path, ?folded, ?pruned, took = ?begin.elapsed(), "a pool was put in order")
            }
            // It may have been removed meanwhile.
            Err(Problem::Disk { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => {
                warn!(repo = %repo_path, %problem, "a pool could not be put in order; it will be tried again");
                if agenda.failed.len() < MAX_SITES {
                    agenda.failed.insert(repo_path.clone(), Instant::now() + agenda.pace.retry);
                }
            }
        }
    }
}

impl MaintenanceSchedule {
    /// How long there is nothing to do.
    fn idle(&self) -> Duration {
        if !self.due.is_empty() {
            return Duration::ZERO;
        }
        let calm = self.worked_on.values().map(|at| *at + self.pace.quiet).min();
        let next = calm.map_or(self.next_look, |calm| calm.min(self.next_look));
        next.saturating_duration_since(Instant::now())
    }

    fn note(&mut self, repo_path: RepoPath) {
        if self.worked_on.len() < MAX_SITES || self.worked_on.contains_key(&repo_path) {
            self.worked_on.insert(repo_path, Instant::now());
        }
    }

    /// The next thing to do: what was just worked on is asked for most, so it comes first.
    fn next(&mut self) -> Option<(RepoPath, Due)> {
        let now = Instant::now();
        let calm = self.worked_on.iter().find(|(_, at)| now >= **at + self.pace.quiet);
        let next = match calm.map(|(repo_path, _)| repo_path.clone()) {
            Some(repo_path) => {
                self.worked_on.remove(&repo_path);
                Some((repo_path, Due::Fold))
            }
            None => self.due.pop_front(),
        };
        next.filter(|(repo_path, _)| self.failed.get(repo_path).is_none_or(|until| now >= *until))
    }
}
