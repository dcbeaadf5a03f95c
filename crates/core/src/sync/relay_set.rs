//! The set of followed relays: the needed ones within the limits, their stored records, and commands of the operator.

use std::collections::BTreeSet;

use super::SyncMachine;
use super::io::{RelayCommand, RestoredRow, Seq, SyncOutput, SyncPolicyChange, SyncRow, SyncRowKey};
use super::relay::{ConnectionState, Relay, RelayId};
use super::relay_record::RelayRecord;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::time::Now;

impl SyncMachine {
    /// Updates a relay, given by its URL without scheme, after the repositories that need it have changed. Adds it if
    /// there is space.
    pub(super) fn update_relay(&mut self, relay_key: &str) {
        if !self.is_ready {
            return;
        }
        let needs = self.repo_index.relay_needs(relay_key).cloned();
        let Some(id) = self.relay_ids.get(relay_key).copied() else {
            match needs {
                Some(_) => {
                    if self.follow_or_wait(relay_key) {
                        self.update_relay(relay_key);
                    }
                }
                None => drop(self.waiting_relays.remove(relay_key)),
            }
            return;
        };
        let (served, held) = needs.map(|needs| (needs.served, needs.held)).unwrap_or_default();
        let now = self.now;
        let Some(relay) = self.relays.get_mut(&id) else { return };
        for key in relay.historic.set_repos(&served, held, &self.repo_index) {
            if let Some(repo) = self.repo_index.repo_mut(key) {
                repo.relay_ids.remove(&id);
            }
        }
        for key in served {
            if let Some(repo) = self.repo_index.repo_mut(key) {
                repo.relay_ids.insert(id);
            }
        }
        relay.unneeded_since = match (relay.is_needed(), relay.unneeded_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now.mono)),
        };
        self.runnable.insert(id);
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
        let record = self.stored_records.remove(url.without_scheme());
        let mut relay = Relay::new(id, url.clone(), is_bootstrap, record, &self.config, self.now);
        if let Some(waiting) = self.waiting_relays.remove(url.without_scheme()) {
            relay.health = waiting.health;
            relay.failed_in_own_outage = waiting.failed_in_own_outage;
        }
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
        // Its record is kept in case it is needed again. That of a relay that only held events have named is kept in
        // memory, so that naming it again does not end its backoff. Held events can name any number of relays, also
        // reachable ones, so there is a limit; what the operator has decided is always kept.
        let has_space = self.stored_records.len() < limits::MAX_KEPT_RELAY_RECORDS;
        let is_stored = relay.is_paused || relay.is_self || (has_space && relay.is_worth_storing());
        if !is_stored && relay.is_worth_storing() {
            self.outputs.push_back(SyncOutput::DeleteRow(SyncRowKey::Relay(relay.url.clone())));
        }
        if is_stored || (has_space && relay.health.failures() > 0) {
            let oldest_pending = self.in_flight.oldest_pending_live_events().get(&id).copied();
            let record = relay.to_record(self.now, epoch, &self.repo_index, oldest_pending);
            if is_stored {
                self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Relay(Box::new(record.clone()))));
            }
            self.stored_records.insert(relay.url.without_scheme().to_owned(), record);
        }
        for key in relay.historic.repos() {
            if let Some(repo) = self.repo_index.repo_mut(key) {
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
        self.open_negentropy = self.open_negentropy.saturating_sub(relay.historic.negentropy_count());
        if let Some(wake_at) = relay.wake_at {
            self.wake_times.remove(&(wake_at, id));
        }
        self.runnable.remove(&id);
        self.relay_ids.remove(relay.url.without_scheme());
        if self.repo_index.relay_needs(relay.url.without_scheme()).is_some() {
            self.waiting_relays.insert_removed(&relay, self.now.mono);
        }
        self.waiting_relays.check_soon();
    }

    /// Takes in a row that an earlier process stored.
    pub(super) fn restore(&mut self, row: RestoredRow) {
        match row {
            RestoredRow::Relay(record) => {
                drop(self.stored_records.insert(record.url.without_scheme().to_owned(), *record))
            }
            RestoredRow::Rejected(row) => self.rejected.restore(row, self.now),
        }
    }

    /// Returns the sequence number up to which an earlier process has handled served events, after its rows were restored.
    /// A crash may have kept it from waking rejected events that depend on later ones, so these must be passed again after
    /// [`SyncInput::Ready`](super::io::SyncInput::Ready). `None` if there are no rejected events.
    #[must_use]
    pub fn handled_up_to(&self) -> Option<Seq> {
        let covered = self.stored_records.values().filter_map(|record| record.covered);
        (!self.rejected.is_empty()).then(|| covered.map(|covered| covered.up_to).max().unwrap_or_default())
    }

    /// Applies changed settings. If they accept more than before, everything is requested again.
    pub(super) fn change_policy(&mut self, change: SyncPolicyChange) {
        let SyncPolicyChange { epoch, bootstrap, accepts_more } = change;
        let now = self.now;
        self.config.epoch = epoch;
        self.config.bootstrap = bootstrap;
        if accepts_more {
            self.rejected.clear_policy_rejections();
        }
        let configured: BTreeSet<&str> = self.config.bootstrap.iter().map(RelayUrl::without_scheme).collect();
        let mut changed = Vec::new();
        for (id, relay) in &mut self.relays {
            relay.is_unsaved = true;
            if accepts_more {
                // Its record claims no coverage until everything has been requested again.
                relay.historic.discard_coverage();
                relay.historic.reconcile_now(now.mono);
                if relay.connection().is_none() {
                    relay.last_message = None;
                }
                self.runnable.insert(*id);
            }
            let is_bootstrap = configured.contains(relay.url.without_scheme());
            if is_bootstrap != relay.is_bootstrap {
                relay.is_bootstrap = is_bootstrap;
                changed.push(relay.url.without_scheme().to_owned());
            }
        }
        if self.is_ready {
            for url in self.config.bootstrap.clone() {
                self.add_relay(&url, true);
            }
        }
        for relay_key in changed {
            self.update_relay(&relay_key);
        }
        self.save_at = Some(now.mono);
    }

    /// At the start: forgets rejections by policy if the last process had other settings.
    pub(super) fn clear_outdated_rejections(&mut self) {
        let covered = self.stored_records.values().filter_map(|record| record.covered);
        let last = covered.max_by_key(|covered| covered.lost_at);
        if last.is_none_or(|covered| covered.epoch != self.config.epoch) {
            self.rejected.clear_policy_rejections();
        }
    }

    /// Stores the records of relays that have changed.
    pub(super) fn save(&mut self) {
        self.save_at = None;
        let now = self.now;
        let epoch = self.config.epoch;
        // The time of the last message is stored from time to time, so that a quick reconnect is possible after a
        // crash.
        let has_new_message = |relay: &Relay| {
            relay.connection().is_some()
                && relay.last_message.map(|message| message.mono)
                    > relay.saved_at.map(|at| at.plus_secs(limits::RELAY_HEARD_SAVE_SECS))
        };
        let oldest_pending = self.in_flight.oldest_pending_live_events();
        let is_due = |relay: &&mut Relay| relay.is_worth_storing() && (relay.is_unsaved || has_new_message(relay));
        for relay in self.relays.values_mut().filter(is_due) {
            relay.is_unsaved = false;
            relay.saved_at = Some(now.mono);
            relay.update_time_totals(now);
            let record = relay.to_record(now, epoch, &self.repo_index, oldest_pending.get(&relay.id).copied());
            self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Relay(Box::new(record))));
        }
    }

    /// Stores the records of all relays. Called before the process ends.
    pub fn save_all(&mut self, now: Now) {
        self.now = now;
        for relay in self.relays.values_mut() {
            relay.is_unsaved = true;
        }
        self.save();
    }

    /// Runs a command of the operator.
    pub(super) fn run_command(&mut self, command: &RelayCommand) {
        let url = match command {
            RelayCommand::Retry(url)
            | RelayCommand::Pause(url)
            | RelayCommand::Resume(url)
            | RelayCommand::Forget(url)
            | RelayCommand::Reconcile(url) => url,
        };
        let now = self.now;
        let Some(id) = self.relay_ids.get(url.without_scheme()).copied() else {
            return self.run_command_on_record(command, url);
        };
        let Some(relay) = self.relays.get_mut(&id) else { return };
        match command {
            RelayCommand::Retry(_) => {
                relay.health.unpark();
                relay.health.retry_now(now);
            }
            RelayCommand::Pause(_) => relay.is_paused = true,
            RelayCommand::Resume(_) => relay.is_paused = false,
            RelayCommand::Forget(_) => relay.forget(self.config.backoff, now),
            RelayCommand::Reconcile(_) => relay.historic.reconcile_now(now.mono),
        }
        relay.is_unsaved = true;
        if let RelayCommand::Pause(_) | RelayCommand::Forget(_) = command {
            self.disconnect(id);
        }
        self.runnable.insert(id);
        // The command is confirmed when the record is on disk.
        self.save();
    }

    /// Runs a command on the record of a relay that is not followed. It takes effect when the relay is needed again.
    pub(super) fn run_command_on_record(&mut self, command: &RelayCommand, url: &RelayUrl) {
        match command {
            RelayCommand::Pause(_) | RelayCommand::Resume(_) => {
                let new = || RelayRecord { url: url.clone(), wanted_at: self.now.wall, ..RelayRecord::default() };
                let record = self.stored_records.entry(url.without_scheme().to_owned()).or_insert_with(new);
                record.paused = matches!(command, RelayCommand::Pause(_));
                self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Relay(Box::new(record.clone()))));
            }
            RelayCommand::Forget(_) => {
                if let Some(record) = self.stored_records.remove(url.without_scheme()) {
                    self.outputs.push_back(SyncOutput::DeleteRow(SyncRowKey::Relay(record.url)));
                }
            }
            RelayCommand::Retry(_) => self.waiting_relays.retry_now(url.without_scheme(), self.now),
            RelayCommand::Reconcile(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SyncLimits;
    use super::super::io::SyncInput;
    use super::super::rejected::{RejectedLayer, RejectedRecord, RejectionClass};
    use super::super::relay_record::CoverageRecord;
    use super::super::tests::{Dialled, TestRelays};
    use super::*;
    use crate::nostr::EventId;
    use crate::time::Timestamp;

    #[test]
    fn events_served_after_the_last_record_are_passed_again_if_events_were_rejected() {
        let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::IsSilent);
        let covered = CoverageRecord {
            epoch: 1,
            announcements: true,
            up_to: 17,
            lost_at: Timestamp(0),
            since: None,
            next_full_at: Timestamp(0),
            failed: false,
        };
        let url = RelayUrl::parse("wss://relay.example").expect("valid URL");
        let record = RelayRecord { url: url.clone(), covered: Some(covered), ..RelayRecord::default() };
        relays.handle(SyncInput::Restored(RestoredRow::Relay(Box::new(record))));
        assert_eq!(relays.machine.handled_up_to(), None, "no rejected event can wait for a served one");
        let row = RejectedRecord {
            id: EventId([1; 32]),
            created_at: Timestamp(1),
            class: RejectionClass::Unrelated,
            dependencies: Vec::new(),
            offered_by: vec![url],
            layer: RejectedLayer::Related,
            expires_at: Timestamp(u64::MAX),
        };
        relays.handle(SyncInput::Restored(RestoredRow::Rejected(row)));
        assert_eq!(relays.machine.handled_up_to(), Some(17));
    }
}
