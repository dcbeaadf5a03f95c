//! Limits of the set of followed relays, and the listed relays that wait until the limits allow them.
//!
//! Relays that a served repository lists are limited in total and per host. Relays that only held repositories list
//! have limits of their own, because any client can announce a repository: in total, per author, and per repository for
//! as long as they are *on trial*. A relay that fails, or has had its turn, is replaced by one that waits, so that each
//! listed relay is tried within a bounded time. See `docs/design/sync.md#relays-of-held-repositories`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::SyncMachine;
use super::health::{HealthStatus, RelayHealth};
use super::relay::{ConnectionState, Relay, RelayId};
use super::targets::{RelayNeeds, RepoKey, RepoSyncIndex};
use crate::limits;
use crate::nostr::PublicKey;
use crate::time::{MonoTime, Now};

/// Listed relays that are not followed, by URL without scheme.
#[derive(Debug, Default)]
pub(super) struct WaitingRelays {
    relays: BTreeMap<String, WaitingRelay>,
    /// Whether one of them may fit now.
    is_due: bool,
    /// When one of them may fit at the latest.
    check_at: Option<MonoTime>,
    /// No check before this time. A check looks at all of them, and any client can announce repositories with many.
    not_before: MonoTime,
}

/// A listed relay that is not followed.
#[derive(Debug)]
pub(super) struct WaitingRelay {
    pub(super) health: RelayHealth,
    pub(super) failed_in_own_outage: bool,
    since: MonoTime,
    /// Whether this process has followed it before.
    was_followed: bool,
}

impl WaitingRelays {
    /// Returns the time of the next check.
    pub(super) fn check_at(&self, now: MonoTime) -> Option<MonoTime> {
        if self.is_due { Some(now.max(self.not_before)) } else { self.check_at.map(|at| at.max(self.not_before)) }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.relays.len()).unwrap_or(u32::MAX)
    }

    /// Requests a check, because a followed relay was removed, has failed or has caught up.
    pub(super) fn check_soon(&mut self) {
        self.is_due |= !self.relays.is_empty();
    }

    /// Adds a relay that is listed for the first time.
    pub(super) fn insert(&mut self, relay_key: &str, health: impl FnOnce() -> RelayHealth, since: MonoTime) {
        self.is_due = true;
        let new = || WaitingRelay { health: health(), failed_in_own_outage: false, since, was_followed: false };
        self.relays.entry(relay_key.to_owned()).or_insert_with(new);
    }

    /// Adds a relay that was followed.
    pub(super) fn insert_removed(&mut self, relay: &Relay, since: MonoTime) {
        self.is_due = true;
        let (health, failed_in_own_outage) = (relay.health.clone(), relay.failed_in_own_outage);
        let waiting = WaitingRelay { health, failed_in_own_outage, since, was_followed: true };
        self.relays.insert(relay.url.without_scheme().to_owned(), waiting);
    }

    pub(super) fn remove(&mut self, relay_key: &str) -> Option<WaitingRelay> {
        self.relays.remove(relay_key)
    }

    /// Allows a relay to be dialled now, on request of the operator.
    pub(super) fn retry_now(&mut self, relay_key: &str, now: Now) {
        if let Some(waiting) = self.relays.get_mut(relay_key) {
            waiting.health.unpark();
            waiting.health.retry_now(now);
            self.is_due = true;
        }
    }

    /// Allows the relays to be dialled now that failed while the own network was down.
    pub(super) fn end_own_outage(&mut self, now: Now) {
        for waiting in self.relays.values_mut().filter(|waiting| waiting.failed_in_own_outage) {
            waiting.failed_in_own_outage = false;
            waiting.health.end_backoff(now);
            self.is_due = true;
        }
    }
}

/// Use of the limits by the followed relays.
struct RelayUsage {
    total: usize,
    by_host: BTreeMap<String, usize>,
    /// Relays that only held repositories list.
    held: Vec<HeldRelay>,
}

/// A followed relay that only held repositories list.
struct HeldRelay {
    id: RelayId,
    followed_since: MonoTime,
    /// Whether it waits for its next dial after a failure or a lost connection.
    has_failed: bool,
    is_on_trial: bool,
    repos: BTreeSet<RepoKey>,
    authors: BTreeSet<PublicKey>,
}

/// Whether the limits allow another relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Admittance {
    Free,
    /// After this relay has been removed.
    Replacing(RelayId),
    Full,
}

impl HeldRelay {
    fn new(relay: &Relay, repo_index: &RepoSyncIndex, now: MonoTime) -> Self {
        let repos: BTreeSet<RepoKey> = relay.historic.held_repos().collect();
        let authors = repos.iter().filter_map(|key| repo_index.repo(*key)).map(|repo| repo.id.owner).collect();
        let has_failed = matches!(relay.connection, ConnectionState::Disconnected) && relay.health.next_dial_at() > now;
        let is_on_trial = relay.is_on_trial(now);
        Self { id: relay.id, followed_since: relay.followed_since, has_failed, is_on_trial, repos, authors }
    }

    /// Returns when another relay may replace it. One that was not followed before waits for less.
    fn replaceable_at(&self, is_for_new: bool) -> MonoTime {
        let secs = if is_for_new { limits::HELD_RELAY_FIRST_TURN_SECS } else { limits::HELD_RELAY_TURN_SECS };
        if self.has_failed { self.followed_since } else { self.followed_since.plus_secs(secs) }
    }
}

impl RelayUsage {
    fn new<'a>(relays: impl Iterator<Item = &'a Relay>, repo_index: &RepoSyncIndex, now: MonoTime) -> Self {
        let mut usage = Self { total: 0, by_host: BTreeMap::new(), held: Vec::new() };
        for relay in relays {
            usage.total += 1;
            *usage.by_host.entry(relay.url.host().to_owned()).or_default() += 1;
            if relay.is_only_held() {
                usage.held.push(HeldRelay::new(relay, repo_index, now));
            }
        }
        usage
    }

    /// Whether the limits of held repositories allow a relay.
    fn admit_held(&self, needs: &RelayNeeds, repo_index: &RepoSyncIndex, now: MonoTime, is_new: bool) -> Admittance {
        let mut replacing = Admittance::Full;
        for key in needs.held.iter().take(limits::MAX_REPOS_PER_RELAY_CHECK) {
            let trials = self.held.iter().filter(|relay| relay.is_on_trial && relay.repos.contains(key)).count();
            let Some(author) = repo_index.repo(*key).map(|repo| repo.id.owner) else { continue };
            if trials >= limits::MAX_SYNC_RELAYS_PER_HELD_REPO {
                continue;
            }
            let is_authors = |relay: &&HeldRelay| relay.authors.contains(&author);
            let is_share_used = self.held.iter().filter(is_authors).count() >= limits::MAX_SYNC_RELAYS_PER_HELD_AUTHOR;
            if !is_share_used && self.held.len() < limits::MAX_SYNC_RELAYS_OF_HELD_REPOS {
                return Admittance::Free;
            }
            let candidates = self.held.iter().filter(|relay| !is_share_used || is_authors(relay));
            let replaceable = candidates.filter(|relay| relay.replaceable_at(is_new) <= now);
            let first = replaceable.min_by_key(|relay| (!relay.has_failed, relay.followed_since));
            if let Some(first) = first {
                replacing = Admittance::Replacing(first.id);
            }
        }
        replacing
    }

    /// Returns when the end of a trial or of a turn may allow another relay.
    fn next_change(&self, now: MonoTime) -> Option<MonoTime> {
        let times = |relay: &HeldRelay| {
            let trial_end = relay.followed_since.plus_secs(limits::HELD_RELAY_TRIAL_SECS);
            [trial_end, relay.replaceable_at(true), relay.replaceable_at(false)]
        };
        self.held.iter().flat_map(times).filter(|at| *at > now).min()
    }
}

impl SyncMachine {
    /// Whether the limits allow to follow a relay, and which one it replaces.
    fn admit_relay(&self, usage: &RelayUsage, needs: &RelayNeeds, is_new: bool) -> Admittance {
        let now = self.now.mono;
        let max_relays = self.config.limits.max_relays;
        let is_host_full = usage.by_host.get(needs.url.host()).is_some_and(|count| *count >= self.max_per_host());
        if needs.served.is_empty() {
            return match usage.admit_held(needs, &self.repo_index, now, is_new) {
                _ if is_host_full => Admittance::Full,
                Admittance::Free if usage.total >= max_relays => Admittance::Full,
                admittance => admittance,
            };
        }
        if usage.total < max_relays && !is_host_full {
            return Admittance::Free;
        }
        // A dead relay gives way to any other one. Otherwise the relay of the fewest served repositories does.
        let is_dead = |relay: &Relay| {
            relay.health.status(self.now) == HealthStatus::Dead
                && matches!(relay.connection, ConnectionState::Disconnected)
        };
        let has_same_host = |relay: &&Relay| !is_host_full || relay.url.host() == needs.url.host();
        let rank = |relay: &&Relay| (!is_dead(relay), relay.historic.repo_counts().0);
        let least = self.relays.values().filter(|relay| !relay.is_bootstrap).filter(has_same_host).min_by_key(rank);
        match least {
            Some(least) if is_dead(least) || least.historic.repo_counts().0 < needs.served.len() => {
                Admittance::Replacing(least.id)
            }
            _ => Admittance::Full,
        }
    }

    fn max_per_host(&self) -> usize {
        self.config.limits.max_relays_per_host
    }

    /// Follows a listed relay if the limits allow it. Otherwise it waits. Returns whether it is followed.
    pub(super) fn follow_or_wait(&mut self, relay_key: &str) -> bool {
        let Some(needs) = self.repo_index.relay_needs(relay_key) else { return false };
        let url = needs.url.clone();
        // Of the relays of held repositories the best ones are chosen later, when all are known.
        let admittance = if needs.served.is_empty() {
            Admittance::Full
        } else {
            self.admit_relay(&RelayUsage::new(self.relays.values(), &self.repo_index, self.now.mono), needs, false)
        };
        match admittance {
            Admittance::Free => {}
            Admittance::Replacing(other) => self.remove_relay(other),
            Admittance::Full => {
                let (backoff, now) = (self.config.backoff, self.now);
                let record = self.stored_records.get(relay_key).map(|record| record.health).unwrap_or_default();
                self.waiting_relays.insert(relay_key, || RelayHealth::new(backoff, &record, now), now.mono);
                return false;
            }
        }
        self.add_relay(&url, false);
        true
    }

    /// Follows the waiting relays that the limits allow now, the most promising first.
    pub(super) fn follow_waiting_relays(&mut self) {
        let now = self.now.mono;
        if !self.is_ready
            || !self.pending_relays.is_empty()
            || self.waiting_relays.check_at(now).is_none_or(|at| at > now)
        {
            return;
        }
        self.waiting_relays.is_due = false;
        let pause = limits::RELAY_DIAL_INTERVAL + limits::WAITING_RELAY_CHECK_PAUSE * self.waiting_relays.count();
        self.waiting_relays.not_before = now.plus(pause);
        let mut candidates: Vec<_> =
            self.waiting_relays.relays.iter().filter_map(|(key, waiting)| self.candidate_rank(key, waiting)).collect();
        candidates.sort_unstable();
        let mut usage = RelayUsage::new(self.relays.values(), &self.repo_index, now);
        let mut added = 0;
        let mut is_any_refused = false;
        for (rank, relay_key) in candidates {
            if added == limits::SYNC_STARTUP_SLICE_RELAYS {
                self.waiting_relays.is_due = true;
                break;
            }
            let Some(needs) = self.repo_index.relay_needs(&relay_key) else { continue };
            let url = needs.url.clone();
            match self.admit_relay(&usage, needs, !rank.was_followed) {
                Admittance::Full => {
                    is_any_refused = true;
                    continue;
                }
                Admittance::Free => {}
                Admittance::Replacing(other) => self.remove_relay(other),
            }
            self.add_relay(&url, false);
            self.update_relay(&relay_key);
            added += 1;
            usage = RelayUsage::new(self.relays.values(), &self.repo_index, now);
        }
        let dials = self.waiting_relays.relays.values().map(|waiting| waiting.health.next_dial_at());
        let next_dial = dials.filter(|at| *at > now).min();
        let next_change = usage.next_change(now).filter(|_| is_any_refused);
        self.waiting_relays.check_at = next_dial.into_iter().chain(next_change).min();
    }

    /// Returns the rank of a waiting relay, and `None` if it must not be dialled now.
    fn candidate_rank(&self, relay_key: &str, waiting: &WaitingRelay) -> Option<(CandidateRank, String)> {
        let needs = self.repo_index.relay_needs(relay_key)?;
        let is_excluded = self.stored_records.get(relay_key).is_some_and(|record| record.paused || record.is_self);
        if is_excluded || waiting.health.next_dial_at() > self.now.mono {
            return None;
        }
        let position =
            |key: &RepoKey| self.repo_index.repo(*key)?.relays.iter().position(|url| url.without_scheme() == relay_key);
        let rank = CandidateRank {
            served: Reverse(needs.served.len()),
            was_followed: waiting.was_followed,
            is_unheard: !waiting.health.was_ever_reached(),
            since: waiting.since,
            position: needs.held.iter().take(limits::MAX_REPOS_PER_RELAY_CHECK).filter_map(position).min(),
        };
        Some((rank, relay_key.to_owned()))
    }
}

/// Order in which waiting relays are followed: those of most served repositories first, then those that were not tried
/// yet, that were reached at some time, that wait longest, and that are listed first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct CandidateRank {
    served: Reverse<usize>,
    was_followed: bool,
    is_unheard: bool,
    since: MonoTime,
    position: Option<usize>,
}

#[cfg(test)]
mod tests;
