//! Which relays a machine may dial, and when.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::repo::ServiceAddress;
use grasp_core::sync::io::{DisconnectReason, RelayCommand, SessionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Now;

use super::command_url;
use crate::simulation::FirstViolation;
use crate::simulation::queue::{HOUR, MINUTE, SECOND, Time};
use crate::sync::tables::SyncTables;

/// Maximum number of concurrent connection attempts.
const MAX_CONCURRENT_DIALS: usize = 8;
/// Minimum time between two attempts.
const DIAL_INTERVAL: Time = 250;
/// Minimum time between two attempts at one host, and between the end of a connection and the next attempt.
const HOST_DIAL_INTERVAL: Time = 2 * SECOND;
/// First and longest backoff.
const BACKOFF: (Time, Time) = (5 * SECOND, HOUR);
/// A failure is attributed to the relay if another relay sent something within this time.
const ALIVE_WINDOW: Time = 60 * SECOND;
/// Number of failed attempts after which the backoff has become longer than [`MIN_LATE_BACKOFF`], whatever the cause.
const MANY_FAILURES: u32 = 12;
/// Minimum backoff after [`MANY_FAILURES`].
const MIN_LATE_BACKOFF: Time = 2 * MINUTE;
/// Time after which every row is on disk.
const MAX_WRITE_DELAY: Time = 120 * SECOND;

/// Connection attempts of a node.
#[derive(Debug)]
pub(super) struct DialChecker {
    service: ServiceAddress,
    instance: String,
    /// Which relays are this node itself.
    is_own: BTreeMap<String, bool>,
    relays: BTreeMap<String, DialHistory>,
    open: BTreeSet<SessionId>,
    sessions: BTreeMap<SessionId, String>,
    last: Option<Time>,
    hosts: BTreeMap<String, Time>,
    /// When each relay last sent something to the current process.
    last_heard: BTreeMap<String, Time>,
    is_offline: bool,
    /// Whether the wall clock was ever set.
    clock_was_set: bool,
    /// When the network last started to work.
    online_since: Time,
}

#[derive(Debug, Default)]
struct DialHistory {
    down_at: Option<Time>,
    not_before: Option<Time>,
    paused_at: Option<Time>,
    is_self_since: Option<Time>,
    is_retry: bool,
    /// When the current process last dialled it or had a connection to it.
    dialled_at: Option<Time>,
    gaps: Vec<(Time, Time)>,
    last_heard: Time,
}

impl DialChecker {
    pub(super) fn new(service: ServiceAddress, instance: String) -> Self {
        Self {
            service,
            instance,
            is_own: BTreeMap::new(),
            relays: BTreeMap::new(),
            open: BTreeSet::new(),
            sessions: BTreeMap::new(),
            last: None,
            hosts: BTreeMap::new(),
            last_heard: BTreeMap::new(),
            is_offline: false,
            clock_was_set: false,
            online_since: 0,
        }
    }

    pub(super) fn relay_key(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(&session).map(String::as_str)
    }

    pub(super) fn gaps(&self, relay_key: &str) -> &[(Time, Time)] {
        self.relays.get(relay_key).map(|relay| relay.gaps.as_slice()).unwrap_or_default()
    }

    pub(super) fn on_dial(
        &mut self,
        violations: &mut FirstViolation,
        now: Time,
        session: SessionId,
        url: &RelayUrl,
        cooldown: Option<Time>,
    ) {
        let own = || self.service.is_own_relay_url(&url.to_string());
        let own = *self.is_own.entry(url.without_scheme().to_owned()).or_insert_with(own);
        violations.require(!own, "a node does not dial itself", || url.to_string());
        violations.require(self.open.len() < MAX_CONCURRENT_DIALS, "concurrent dials are limited", || {
            format!("{} dials are open", self.open.len())
        });
        let since = |last: Time| now.saturating_sub(last);
        violations
            .require(self.last.is_none_or(|last| since(last) >= DIAL_INTERVAL), "dials are spaced", || url.to_string());
        let host = self.hosts.get(url.host()).copied();
        violations.require(
            host.is_none_or(|last| since(last) >= HOST_DIAL_INTERVAL),
            "dials of one host are spaced",
            || url.to_string(),
        );
        let relay = self.relays.entry(url.without_scheme().to_owned()).or_default();
        violations.require(relay.paused_at.is_none(), "a paused relay is not dialled", || url.to_string());
        violations.require(
            relay.is_self_since.is_none(),
            "a relay with the own instance id is not dialled again",
            || url.to_string(),
        );
        let is_early = relay.down_at.is_some_and(|at| now < at + HOST_DIAL_INTERVAL) && !relay.is_retry;
        violations.require(!is_early, "no dial within two seconds after a connection ended", || {
            format!("{url}: {:?} at {now}", relay.down_at)
        });
        let is_early =
            relay.not_before.is_some_and(|at| now < at) && !relay.is_retry && now >= self.online_since + 120 * SECOND;
        violations
            .require(!is_early, "no dial during the backoff", || format!("{url}: {:?} at {now}", relay.not_before));
        let cooldown = cooldown.filter(|_| !relay.is_retry);
        violations.require(cooldown.is_none_or(|until| until <= now), "no dial during the cooldown", || {
            format!("{url}: {cooldown:?}")
        });
        relay.is_retry = false;
        relay.dialled_at = Some(now);
        relay.not_before = None;
        self.open.insert(session);
        self.sessions.insert(session, url.without_scheme().to_owned());
        self.last = Some(now);
        self.hosts.insert(url.host().to_owned(), now);
    }

    /// Records that an attempt was cancelled.
    pub(super) fn on_cancelled(&mut self, session: SessionId) {
        self.open.remove(&session);
    }

    pub(super) fn on_connected(&mut self, now: Time, session: SessionId, nip11: Option<&Nip11Info>) {
        self.open.remove(&session);
        let Some(relay) = self.sessions.get(&session).and_then(|relay| self.relays.get_mut(relay)) else { return };
        if nip11.is_some_and(|nip11| nip11.instance.as_deref() == Some(&self.instance)) {
            relay.is_self_since.get_or_insert(now);
        }
        relay.gaps.push((relay.last_heard, now));
        relay.last_heard = now;
        if let Some(relay_key) = self.sessions.get(&session) {
            self.last_heard.insert(relay_key.clone(), now);
        }
    }

    pub(super) fn on_message(&mut self, now: Time, session: SessionId) {
        let Some(relay_key) = self.sessions.get(&session) else { return };
        if let Some(relay) = self.relays.get_mut(relay_key) {
            relay.last_heard = now;
            self.last_heard.insert(relay_key.clone(), now);
        }
    }

    pub(super) fn on_disconnected(&mut self, now: Time, session: SessionId, reason: DisconnectReason) {
        let is_failure = matches!(reason, DisconnectReason::Unreachable | DisconnectReason::Refused);
        let was_up = !self.open.remove(&session) && !is_failure;
        let Some(relay) = self.sessions.remove(&session).and_then(|relay| self.relays.get_mut(&relay)) else { return };

        // A failed attempt did not end a connection. Its backoff is checked in `on_failed`.
        if was_up {
            relay.down_at = Some(now);
            relay.dialled_at = Some(now);
        }
    }

    pub(super) fn on_failed(
        &mut self,
        violations: &mut FirstViolation,
        now: Time,
        url: &RelayUrl,
        note: (u32, u32, u64),
    ) {
        let (attempt, failures, backoff) = note;
        let relay = self.relays.entry(url.without_scheme().to_owned()).or_default();
        relay.dialled_at = Some(now);
        violations.require(
            attempt < MANY_FAILURES || backoff >= MIN_LATE_BACKOFF,
            "a relay that cannot be reached is dialled ever more rarely",
            || format!("{url}: {backoff} ms after {attempt} attempts"),
        );
        let other_was_heard =
            self.last_heard.iter().any(|(other, at)| other != url.without_scheme() && now <= at + ALIVE_WINDOW);
        let is_own_outage = self.is_offline || now < self.online_since + 70 * SECOND;
        if failures == 0 || !other_was_heard || is_own_outage {
            return;
        }
        let expected_backoff = BACKOFF.0.saturating_mul(1 << (failures - 1).min(20)).min(BACKOFF.1);
        let day = 24 * HOUR;
        let matches_backoff = |expected: Time| (expected * 79 / 100..=expected * 121 / 100).contains(&backoff);
        violations.require(
            matches_backoff(expected_backoff) || matches_backoff(day),
            "the backoff doubles, with a jitter of a fifth",
            || format!("{url}: {backoff} ms after {failures} failures"),
        );
        relay.not_before = Some(now + backoff.saturating_sub(100));
    }

    pub(super) fn must_not_dial(&self, now: Time, relay_key: &str) -> bool {
        let day = 25 * HOUR;
        self.is_own.get(relay_key) == Some(&true)
            || self.is_offline
            || self.clock_was_set
            || self.relays.get(relay_key).is_some_and(|relay| {
                relay.paused_at.is_some()
                    || relay.is_self_since.is_some()
                    || relay.not_before.is_some_and(|at| now < at)
                    || relay.dialled_at.is_some_and(|at| now < at + day)
            })
    }

    pub(super) fn on_command(&mut self, command: &RelayCommand) {
        let relay = self.relays.entry(command_url(command).without_scheme().to_owned()).or_default();
        match command {
            RelayCommand::Pause(_) => relay.paused_at = Some(self.last.unwrap_or(0)),
            RelayCommand::Resume(_) => relay.paused_at = None,
            RelayCommand::Retry(_) => relay.is_retry = true,
            RelayCommand::Forget(_) => {
                (relay.is_retry, relay.is_self_since) = (true, None);
            }
            RelayCommand::Reconcile(_) => {}
        }
    }

    pub(super) fn on_clock_set(&mut self) {
        self.clock_was_set = true;
    }

    pub(super) fn on_outage(&mut self, now: Time, is_offline: bool) {
        self.is_offline = is_offline;
        self.online_since = now;
    }

    pub(super) fn on_crash(&mut self, now: Time, has_slow_disk: bool) {
        self.open.clear();
        self.sessions.clear();
        // A row that was about to be written may be lost.
        for relay in self.relays.values_mut() {
            relay.paused_at = relay.paused_at.filter(|at| at + MAX_WRITE_DELAY < now);
            relay.is_self_since = relay.is_self_since.filter(|at| at + MAX_WRITE_DELAY < now);
            relay.not_before = None;
            relay.is_retry = false;
            relay.dialled_at = None;
            relay.down_at = None;
            // Events that waited for the disk are lost, like those of the absence that follows.
            if has_slow_disk {
                relay.last_heard = relay.last_heard.saturating_sub(MAX_WRITE_DELAY);
            }
        }
        self.last = None;
        self.hosts.clear();
        self.last_heard.clear();
    }

    pub(super) fn on_start(&mut self, now: Time, clock: Now, tables: &SyncTables) {
        for row in tables.relays() {
            let relay = self.relays.entry(row.url.without_scheme().to_owned()).or_default();
            if row.paused {
                relay.paused_at.get_or_insert(now);
            }
            if row.is_self {
                relay.is_self_since.get_or_insert(now);
            }
            let left = row.health.next_retry_at.map_or(0, |at| at.secs_since(clock.wall));
            // Times that were written with another clock are not reliable.
            if left > 2 && left < 90_000 && !self.clock_was_set {
                relay.not_before = Some(now + (left - 2) * SECOND);
            }
        }
    }
}
