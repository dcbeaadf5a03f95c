//! What people may see of sync: a picture of one moment.

use std::collections::BTreeSet;

use super::completion::repos_of;
use super::io::Via;
use super::relay::{Link, Status, Up, What};
use super::relay_record::{Learned, Totals};
use super::relay_url::RelayUrl;
use super::targets::RepoKey;
use super::{Syncer, health};
use crate::repo::RepoId;
use crate::state_machine::Machine;
use crate::time::Timestamp;

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// All relays.
    pub links: Vec<LinkView>,
    /// Repositories that are followed.
    pub repositories: usize,
    /// Events that wait for a verdict.
    pub in_flight: usize,
    /// Events that are remembered as refused, and those of them whose text is here.
    pub refused: (usize, usize),
}

/// One relay at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Which relay.
    pub url: RelayUrl,
    /// Where its connection stands.
    pub status: Status,
    /// How it is.
    pub health: health::Status,
    /// Failures in a row.
    pub failures: u32,
    /// Served repositories that are followed there.
    pub repositories: usize,
    /// Of those, the ones of which everything is here.
    pub covered: usize,
    /// Waiting repositories that are followed there.
    pub held: usize,
    /// Live subscriptions, and other requests, that are open.
    pub subscriptions: (usize, usize),
    /// Filters of the live subscriptions.
    pub filters: usize,
    /// Parts that found no place among the live subscriptions.
    pub polled: usize,
    /// Whether everything is followed without tags.
    pub wide: bool,
    /// Requests that are still to be made.
    pub queued: usize,
    /// Milliseconds until it is dialled, if it waits for that.
    pub dial_in_millis: Option<u64>,
    /// Seconds for which nothing is asked.
    pub quiet_secs: Option<u64>,
    /// Parts of the history that failed and are tried again.
    pub owed: usize,
    /// When history was last complete.
    pub complete_at: Option<Timestamp>,
    /// When it was last heard.
    pub heard_at: Option<Timestamp>,
    /// Seconds until everything is asked for again.
    pub full_in_secs: u64,
    /// Whether a daily reconciliation is under way.
    pub daily: bool,
    /// What is being caught up with, if anything.
    pub under_way: Option<Progress>,
    /// What it has taught us.
    pub learned: Learned,
    /// What it has done for us.
    pub totals: Totals,
    /// The operator wants it left alone.
    pub paused: bool,
    /// It is this server under another name.
    pub is_self: bool,
    /// It was configured.
    pub bootstrap: bool,
}

/// How far a catch-up or a daily reconciliation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Which of them.
    pub via: Via,
    /// Repositories that are done.
    pub done: usize,
    /// Repositories in all.
    pub total: usize,
    /// Events that were new.
    pub events: u64,
}

/// How a relay stands to one repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoLink {
    /// Which relay.
    pub url: RelayUrl,
    /// Where its connection stands.
    pub status: Status,
    /// How it is.
    pub health: health::Status,
    /// Whether everything that it has of the repository is here.
    pub covered: bool,
    /// When everything that it has of all repositories was last here.
    pub complete_at: Option<Timestamp>,
    /// When it was last heard.
    pub heard_at: Option<Timestamp>,
    /// It is this server under another name.
    pub is_self: bool,
}

impl Syncer {
    /// The relays at which a repository is followed.
    #[must_use]
    pub fn replication(&self, repo: &RepoId) -> Vec<RepoLink> {
        let Some(key) = self.wants.key(repo) else { return Vec::new() };
        let head = self.wants.repo(key).map_or(0, |repo| repo.head());
        let named = self.links.values().filter(|link| link.covers.contains_key(&key) || link.held.contains(&key));
        named
            .map(|link| RepoLink {
                url: link.url.clone(),
                status: link.status(),
                health: link.health.status(self.now),
                covered: link.covers.get(&key).is_some_and(|cover| cover.tags && head <= cover.done),
                complete_at: link.complete_at,
                heard_at: link.heard.map(|heard| heard.wall),
                is_self: link.is_self,
            })
            .collect()
    }

    /// A picture of this moment.
    #[must_use]
    pub fn view(&self) -> View {
        View {
            links: self.links.values().map(|link| self.link_view(link)).collect(),
            repositories: self.wants.len(),
            in_flight: self.flights.len(),
            refused: (self.refused.len(), self.refused.hot_len()),
        }
    }

    /// A relay that is followed, at this moment.
    #[must_use]
    pub fn link(&self, url: &RelayUrl) -> Option<LinkView> {
        let id = self.places.get(url.place())?;
        self.links.get(id).map(|link| self.link_view(link))
    }

    /// Whether something is remembered of a relay that is not followed now.
    #[must_use]
    pub fn is_remembered(&self, url: &RelayUrl) -> bool {
        self.rows.contains_key(url.place())
    }

    /// Whether nothing is to be done before the next alarm.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alarm().is_none_or(|(at, _)| at > self.now.mono)
    }

    fn link_view(&self, link: &Link) -> LinkView {
        let up = link.up();
        let mono = self.now.mono;
        let covered = link
            .covers
            .iter()
            .filter(|(key, cover)| cover.tags && self.wants.repo(**key).is_some_and(|repo| repo.head() <= cover.done));
        let covered = covered.count();
        let dial = link.health.next_dial().max(link.health.quiet_until().unwrap_or_default());
        let idle = link.current_session().is_none() && link.is_wanted() && !link.paused;
        LinkView {
            url: link.url.clone(),
            status: link.status(),
            health: link.health.status(self.now),
            failures: link.health.failures(),
            repositories: link.covers.len(),
            covered,
            held: link.held.len(),
            subscriptions: up.map(count).unwrap_or_default(),
            filters: up.map_or(0, |up| up.live.values().map(|set| set.filters).sum()),
            polled: up.map_or(0, |up| up.polled.len()),
            wide: up.is_some_and(|up| up.wide.is_some()),
            queued: up
                .map_or(0, |up| up.batches.values().map(|batch| batch.todo.len()).sum::<usize>() + link.dirty.len()),
            dial_in_millis: idle.then(|| u64::try_from(dial.since(mono).as_millis()).unwrap_or(u64::MAX)),
            quiet_secs: link.health.quiet_until().filter(|at| *at > mono).map(|at| at.since(mono).as_secs()),
            owed: link.owed.len(),
            complete_at: link.complete_at,
            heard_at: link.heard.map(|heard| heard.wall),
            full_in_secs: link.next_full.since(mono).as_secs(),
            daily: up.is_some_and(|up| up.generation.is_some_and(|generation| generation.via == Via::Daily)),
            under_way: up.and_then(|up| progress(link, up, covered)),
            learned: link.learned,
            totals: link.totals,
            paused: link.paused,
            is_self: link.is_self,
            bootstrap: link.bootstrap,
        }
    }
}

/// How far the catch-up of a connection is. A walk over everything counts what it has left behind it.
fn progress(link: &Link, up: &Up, covered: usize) -> Option<Progress> {
    let generation = up.generation?;
    let total = link.covers.len();
    let done = match &up.pass {
        Some(pass) => {
            let walked = pass.at.map_or(total, |(at, _)| link.covers.range(..at).count());
            let open: BTreeSet<RepoKey> = up.batches.values().flat_map(|batch| repos_of(&batch.scope)).collect();
            walked.saturating_sub(open.len())
        }
        None => covered,
    };
    let events = generation.events + up.batches.values().map(|batch| batch.events).sum::<u64>();
    Some(Progress { via: generation.via, done, total, events })
}

/// Which kinds of requests are open, for the view.
fn count(up: &Up) -> (usize, usize) {
    let live = up.subs.values().filter(|sub| matches!(sub.what, What::Live(_))).count();
    (live, up.subs.len() - live)
}
