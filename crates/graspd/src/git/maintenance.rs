//! The hands that keep pools in good order: one thread, one git process at a time, behind everybody else.
//!
//! The desk says which sites were worked on. When one has been quiet for a while its packs are folded, if there are many.
//! Every hour all sites are looked at, which costs a few file names each; what is due then is done one by one. What the
//! desk could not say because too much happened, or because the server was started anew, is found then.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, Site, State};
use grasp_git::layout::Layout;
use grasp_git::maintenance;
use grasp_git::maintenance::{Maintainer, Problem, Tidied};
use tracing::{debug, warn};

use super::ref_cache::Directory;
use crate::writer::command::Note;
use crate::writer::queue::Line;

/// Sites that are remembered. Others are found by the next look over all.
const MAX_SITES: usize = 10_000;

/// How long the desk may take to say what is needed: it is busy for milliseconds, and a slow disk makes seconds of them.
const ANSWER: Duration = Duration::from_secs(10);

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
pub(crate) struct MaintenanceDoor(Option<Sender<Site>>);

impl MaintenanceDoor {
    /// The door, and what comes through it. Nothing does if there is no maintenance.
    pub(crate) fn new(on: bool) -> (Self, Receiver<Site>) {
        let (worked_on, inbox) = crossbeam_channel::bounded(MAX_SITES);
        (Self(on.then_some(worked_on)), inbox)
    }

    /// A site was worked on.
    pub(crate) fn worked_on(&self, site: &Site) {
        if let Some(sites) = &self.0 {
            // If there is no room the next look over all finds it.
            let _ = sites.try_send(site.clone());
        }
    }
}

/// The thread's own things.
pub(crate) struct Maintenance {
    pub(crate) maintainer: Maintainer,
    pub(crate) layout: Arc<Layout>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) line: Arc<Line>,
    pub(crate) inbox: Receiver<Site>,
}

/// What the thread carries along.
struct Agenda {
    pace: Pace,
    /// Sites that were worked on, and when last.
    worked_on: HashMap<Site, Instant>,
    /// Sites at which something is due.
    due: VecDeque<(Site, Due)>,
    next_look: Instant,
    /// Sites that are left alone, and until when.
    failed: HashMap<Site, Instant>,
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
        let mut agenda = Agenda {
            pace,
            worked_on: HashMap::new(),
            due: VecDeque::new(),
            next_look: Instant::now() + pace.first_look,
            failed: HashMap::new(),
        };
        loop {
            match self.inbox.recv_timeout(agenda.idle()) {
                Ok(site) => agenda.note(site),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.inbox.try_iter().for_each(|site| agenda.note(site));
            if Instant::now() >= agenda.next_look {
                self.look(&mut agenda);
            }
            if let Some((site, due)) = agenda.next() {
                self.tidy(&mut agenda, &site, due);
            }
        }
    }

    /// Looks at all sites.
    fn look(&self, agenda: &mut Agenda) {
        agenda.next_look = Instant::now() + agenda.pace.look;
        agenda.failed.retain(|_, until| Instant::now() < *until);
        // What was due at the last look and is not done yet is found again.
        agenda.due.clear();
        let submitted = self.layout.submitted().unwrap_or_else(|problem| {
            warn!(%problem, "cannot look at what was submitted");
            Vec::new()
        });
        let mut families: BTreeMap<Identifier, Vec<Site>> = BTreeMap::new();
        for site in self.directory.announced() {
            families.entry(site.identifier().clone()).or_default().push(site);
        }
        let alone = submitted.into_iter().map(|site| vec![site]);
        for family in families.into_values().chain(alone) {
            // Any of them may read the pool of another.
            let changed = self.maintainer.changed(&family);
            for site in family {
                if self.maintainer.is_prune_due(&site, changed, agenda.pace.pause, agenda.pace.grace) {
                    agenda.due.push_back((site, Due::FoldAndPrune));
                } else if self.maintainer.is_fold_due(&site) {
                    agenda.due.push_back((site, Due::Fold));
                }
            }
        }
    }

    fn tidy(&self, agenda: &mut Agenda, site: &Site, due: Due) {
        let begin = Instant::now();
        let result = self.maintainer.fold(site).and_then(|folded| match due {
            Due::Fold => Ok([folded, Tidied::Fine]),
            Due::FoldAndPrune => {
                let mut needs = |sites: &[Site]| self.ask(sites);
                let pruned = self.maintainer.prune(site, agenda.pace.grace, &mut needs)?;
                if pruned == Tidied::Done {
                    self.directory.renew(site.identifier());
                }
                Ok([folded, pruned])
            }
        });
        match result {
            Ok([Tidied::Fine, Tidied::Fine]) => {}
            Ok([folded, pruned]) => debug!(%site, ?folded, ?pruned, took = ?begin.elapsed(), "a pool was put in order"),
            // It may have been removed meanwhile.
            Err(Problem::Disk { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => {
                warn!(%site, %problem, "a pool could not be put in order; it will be tried again");
                if agenda.failed.len() < MAX_SITES {
                    agenda.failed.insert(site.clone(), Instant::now() + agenda.pace.retry);
                }
            }
        }
    }

    /// Asks the desk what sites need beside what their refs lead to.
    fn ask(&self, sites: &[Site]) -> Option<std::collections::BTreeSet<String>> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.line.post(Note::Needs(sites.to_vec(), reply));
        let needed = answer.recv_timeout(ANSWER).ok()??;
        let mut oids: std::collections::BTreeSet<String> = needed.tips.into_iter().collect();
        for event in &needed.events {
            oids.extend(State::read(event).map(|state| state.oids()).unwrap_or_default());
            oids.extend(PullRequest::read_if(event).map(|request| request.tip));
        }
        Some(oids)
    }
}

impl Agenda {
    /// How long there is nothing to do.
    fn idle(&self) -> Duration {
        if !self.due.is_empty() {
            return Duration::ZERO;
        }
        let calm = self.worked_on.values().map(|at| *at + self.pace.quiet).min();
        let next = calm.map_or(self.next_look, |calm| calm.min(self.next_look));
        next.saturating_duration_since(Instant::now())
    }

    fn note(&mut self, site: Site) {
        if self.worked_on.len() < MAX_SITES || self.worked_on.contains_key(&site) {
            self.worked_on.insert(site, Instant::now());
        }
    }

    /// The next thing to do: what was just worked on is asked for most, so it comes first.
    fn next(&mut self) -> Option<(Site, Due)> {
        let now = Instant::now();
        let calm = self.worked_on.iter().find(|(_, at)| now >= **at + self.pace.quiet);
        let next = match calm.map(|(site, _)| site.clone()) {
            Some(site) => {
                self.worked_on.remove(&site);
                Some((site, Due::Fold))
            }
            None => self.due.pop_front(),
        };
        next.filter(|(site, _)| self.failed.get(site).is_none_or(|until| now >= *until))
    }
}
