//! The set of followed relays: the needed ones, within the limits.

use std::collections::BTreeMap;

use super::SyncMachine;
use super::filters::FilterSize;
use super::health::RelayHealth;
use super::io::SyncOutput;
use super::relay::{ConnectionState, RelayId, RelayState, RepoCoverage};
use super::relay_record::{HealthRecord, LearnedLimits, RelayTotals};
use super::relay_url::RelayUrl;
use super::targets::{RepoKey, RepoSyncIndex};
use crate::limits;
use crate::time::MonoTime;

impl SyncMachine {
    /// Updates a relay, given by its URL without scheme, after the repositories that need it have changed. Adds it if
    /// there is space.
    pub(super) fn update_relay(&mut self, relay_key: &str) {
        if !self.is_ready {
            return;
        }
        let needs = self.repo_index.relay_needs(relay_key).cloned();
        let Some(id) = self.relay_ids.get(relay_key).copied() else {
            if let Some(needs) = needs
                && self.can_add_relay(&needs)
            {
                self.add_relay(&needs.url, false);
                self.update_relay(relay_key);
            }
            return;
        };
        let (served, held) = needs.map(|needs| (needs.served, needs.held)).unwrap_or_default();
        let now = self.now;
        let Some(relay) = self.relays.get_mut(&id) else { return };
        let gone: Vec<RepoKey> = relay.coverage.keys().filter(|key| !served.contains(key)).copied().collect();
        for key in &gone {
            relay.coverage.remove(key);
            relay.dirty.remove(key);
            if let Some(repo) = self.repo_index.repo_mut(*key) {
                repo.relay_ids.remove(&id);
            }
        }
        for key in served {
            let Some(repo) = self.repo_index.repo_mut(key) else { continue };
            repo.relay_ids.insert(id);
            let seq = repo.seq;
            if relay.coverage.contains_key(&key) {
                continue;
            }
            // An earlier process may have covered all of it.
            let restored = relay.restored_up_to.filter(|up_to| seq <= *up_to);
            let coverage = restored.map_or(RepoCoverage::default(), |up_to| RepoCoverage {
                tags_requested: true,
                tags_complete: true,
                roots_requested: up_to,
                roots_complete: up_to,
                open_batches: 0,
            });
            relay.coverage.insert(key, coverage);
            relay.dirty.insert(key);
            relay.has_ready_repos = true;
            relay.total_size = relay.total_size.plus(FilterSize::from_repo(repo));
        }
        relay.held_repos = held;
        if !gone.is_empty() {
            relay.recompute_size(&self.repo_index);
        }
        relay.unneeded_since = match (relay.is_needed(), relay.unneeded_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now.mono)),
        };
        self.runnable.insert(id);
    }

    /// Whether there is space for another relay. May remove a relay of fewer repositories.
    pub(super) fn can_add_relay(&mut self, needs: &super::targets::RelayNeeds) -> bool {
        let host = needs.url.host().to_owned();
        let same_host = self.relays.values().filter(|relay| relay.url.host() == host).count();
        if same_host >= limits::MAX_SYNC_RELAYS_PER_HOST {
            return false;
        }
        if needs.served.is_empty() {
            // Anyone can publish an announcement, so held repositories may add only a few relays.
            let only_held = |relay: &&RelayState| relay.coverage.is_empty() && !relay.is_bootstrap && relay.is_needed();
            let all = self.relays.values().filter(only_held).count();
            let count_of = |key: &RepoKey| {
                self.relays.values().filter(only_held).filter(|relay| relay.held_repos.contains(key)).count()
            };
            return all < limits::MAX_SYNC_RELAYS_OF_HELD_REPOS
                && needs.held.iter().any(|key| count_of(key) < limits::MAX_SYNC_RELAYS_PER_HELD_REPO);
        }
        if self.relays.len() < limits::MAX_SYNC_RELAYS {
            return true;
        }
        let least = self.relays.values().filter(|relay| !relay.is_bootstrap).min_by_key(|relay| relay.coverage.len());
        let Some(least) = least.filter(|least| least.coverage.len() < needs.served.len()).map(|least| least.id) else {
            return false;
        };
        self.remove_relay(least);
        true
    }

    /// Adds a relay if it is not followed yet, with its stored record. Returns its id.
    pub(super) fn add_relay(&mut self, url: &RelayUrl, is_bootstrap: bool) -> RelayId {
        if let Some(id) = self.relay_ids.get(url.without_scheme()).copied() {
            if let Some(relay) = self.relays.get_mut(&id) {
                relay.is_bootstrap |= is_bootstrap;
            }
            return id;
        }
        self.next_relay_id += 1;
        let id = RelayId(self.next_relay_id);
        let now = self.now;
        let record = self.stored_records.remove(url.without_scheme());
        let health = record.as_ref().map_or(HealthRecord::default(), |record| record.health);
        let covered = record.as_ref().and_then(|record| record.covered);
        let covered = covered.filter(|covered| covered.epoch == self.config.epoch && covered.lost_at <= now.wall);
        let age_secs = covered.map(|covered| now.wall.secs_since(covered.lost_at));
        // Time of the last message on the monotonic clock of this process.
        let last_message = covered.zip(age_secs).filter(|(_, age_secs)| *age_secs < limits::QUICK_RECONNECT_SECS).map(
            |(covered, age_secs)| crate::time::Now {
                mono: MonoTime(now.mono.0.saturating_sub(age_secs * 1_000)),
                wall: covered.lost_at,
            },
        );
        let usable = covered.filter(|_| last_message.is_some());
        let next_full_sync_secs = usable
            .map(|covered| covered.next_full_at.secs_since(now.wall))
            .unwrap_or(limits::DAILY_RECONCILIATION_SECS);
        let relay = RelayState {
            id,
            url: url.clone(),
            connection: ConnectionState::Disconnected,
            health: RelayHealth::new(self.config.backoff, &health, now),
            learned: record.as_ref().map_or(LearnedLimits::default(), |record| record.learned),
            coverage: BTreeMap::new(),
            held_repos: Default::default(),
            dirty: Default::default(),
            has_ready_repos: true,
            total_size: Default::default(),
            announcements_synced: usable.is_some_and(|covered| covered.announcements),
            states_compared: false,
            restored_up_to: usable.map(|covered| covered.up_to),
            last_message,
            catch_up_since: usable.and_then(|covered| covered.since),
            clock_ahead_secs: None,
            next_full_sync: now.mono.plus_secs(next_full_sync_secs),
            daily_cursor: None,
            historic_sync_completed_at: None,
            failed_batches: Vec::new(),
            history_incomplete: usable.is_some_and(|covered| covered.failed),
            page_cursors: BTreeMap::new(),
            ids_to_fetch: Default::default(),
            late_delivery: Default::default(),
            totals: record.as_ref().map_or(RelayTotals::default(), |record| record.totals),
            is_paused: record.as_ref().is_some_and(|record| record.paused),
            is_self: record.as_ref().is_some_and(|record| record.is_self),
            is_bootstrap,
            unneeded_since: None,
            failed_in_own_outage: false,
            warned_no_negentropy: false,
            wake_at: None,
            is_queued_to_dial: false,
            is_unsaved: record.is_none(),
            saved_at: None,
            time_counted_at: now.mono,
        };
        self.relay_ids.insert(url.without_scheme().to_owned(), id);
        self.relays.insert(id, relay);
        self.runnable.insert(id);
        id
    }

    /// Removes a relay.
    pub(super) fn remove_relay(&mut self, id: RelayId) {
        let epoch = self.config.epoch;
        let Some(mut relay) = self.relays.remove(&id) else { return };
        relay.update_time_totals(self.now);
        // Its record is kept in case it is needed again.
        let oldest_pending = self.in_flight.oldest_pending_live_events().get(&id).copied();
        let record = relay.to_record(self.now, epoch, &self.repo_index, oldest_pending);
        self.outputs.push_back(SyncOutput::StoreRow(super::SyncRow::Relay(Box::new(record.clone()))));
        self.stored_records.insert(relay.url.without_scheme().to_owned(), record);
        for key in relay.coverage.keys() {
            if let Some(repo) = self.repo_index.repo_mut(*key) {
                repo.relay_ids.remove(&id);
            }
        }
        if let Some(session) = relay.current_session() {
            self.sessions.remove(&session);
            self.outputs.push_back(SyncOutput::Disconnect(session));
            if matches!(relay.connection, ConnectionState::Connecting(_)) {
                self.dialer.open = self.dialer.open.saturating_sub(1);
            }
        }
        if let ConnectionState::Connected(connection) = &relay.connection {
            let negentropy = connection.requests.values().filter(|request| request.is_negentropy()).count();
            self.open_negentropy = self.open_negentropy.saturating_sub(negentropy);
        }
        if let Some(wake_at) = relay.wake_at {
            self.wake_times.remove(&(wake_at, id));
        }
        self.runnable.remove(&id);
        self.relay_ids.remove(relay.url.without_scheme());
    }
}

impl RelayState {
    /// Recomputes the size of the filters for all needs of this relay.
    pub(super) fn recompute_size(&mut self, repo_index: &RepoSyncIndex) {
        let repos = self.coverage.keys().filter_map(|key| repo_index.repo(*key));
        self.total_size = repos.fold(FilterSize::default(), |size, repo| size.plus(FilterSize::from_repo(repo)));
    }
}
