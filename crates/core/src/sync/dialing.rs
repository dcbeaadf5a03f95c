//! Dials relays with bounded concurrency and spacing, and handles the end of connections and attempts.

use std::collections::{BTreeMap, BTreeSet};

use super::SyncMachine;
use super::health::FailureCause;
use super::io::{DisconnectReason, SessionId, SyncNote, SyncOutput};
use super::relay::{ConnectionState, RelayId};
use crate::limits;
use crate::nostr::nip11::Nip11Info;
use crate::time::MonoTime;

/// Spacing of connection attempts.
#[derive(Debug, Default)]
pub(super) struct Dialer {
    /// Number of attempts in progress.
    pub(super) open: usize,
    /// Time of the last attempt.
    last: Option<MonoTime>,
    /// Time of the last attempt per host.
    hosts: BTreeMap<String, MonoTime>,
    /// Relays that are due, the longest waiting first.
    waiting: BTreeSet<(MonoTime, RelayId)>,
    /// When the next attempt may be possible.
    next: Option<MonoTime>,
    /// The two relays that sent a message last.
    last_heard: [Option<(RelayId, MonoTime)>; 2],
    /// When another computer that is not a relay was last reached.
    last_contact: Option<MonoTime>,
}

impl Dialer {
    pub(super) fn next(&self) -> Option<MonoTime> {
        self.next
    }

    /// Records a message of a relay, which shows that the own network works.
    pub(super) fn record_message(&mut self, relay: RelayId, at: MonoTime) {
        if self.last_heard[0].is_none_or(|(last, _)| last != relay) {
            self.last_heard[1] = self.last_heard[0];
        }
        self.last_heard[0] = Some((relay, at));
    }

    /// Whether the own network works: a relay other than this one sent a message recently, or another computer was
    /// reached.
    fn is_own_network_up(&self, relay: RelayId, now: MonoTime) -> bool {
        let others = self.last_heard.iter().flatten().filter(|(heard, _)| *heard != relay).map(|(_, at)| *at);
        let is_recent = |at: MonoTime| now.since(at).as_secs() <= limits::NETWORK_CONTACT_SECS;
        others.chain(self.last_contact).any(is_recent)
    }
}

impl SyncMachine {
    /// Dials relays that are due, as far as spacing and concurrency allow.
    pub(super) fn dial_due_relays(&mut self) {
        self.dialer.next = None;
        let now = self.now.mono;
        let waiting: Vec<(MonoTime, RelayId)> = self.dialer.waiting.iter().copied().collect();
        for (due, id) in waiting {
            if self.dialer.open >= limits::MAX_CONCURRENT_RELAY_DIALS {
                break;
            }
            let Some(relay) = self.relays.get_mut(&id).filter(|relay| relay.dial_at().is_some_and(|at| at <= now))
            else {
                self.dialer.waiting.remove(&(due, id));
                if let Some(relay) = self.relays.get_mut(&id) {
                    relay.is_queued_to_dial = false;
                }
                self.runnable.insert(id);
                continue;
            };
            let host = self.dialer.hosts.get(relay.url.host()).map(|at| at.plus(limits::RELAY_DIAL_INTERVAL_PER_HOST));
            let all = self.dialer.last.map(|at| at.plus(limits::RELAY_DIAL_INTERVAL));
            let at = host.unwrap_or_default().max(all.unwrap_or_default());
            if at > now {
                self.dialer.next = Some(self.dialer.next.map_or(at, |next| next.min(at)));
                if all.is_some_and(|all| all > now) {
                    break;
                }
                continue;
            }
            self.dialer.waiting.remove(&(due, id));
            relay.is_queued_to_dial = false;
            self.next_id += 1;
            let session = SessionId(self.next_id);
            relay.update_time_totals(self.now);
            relay.connection = ConnectionState::Connecting(session);
            relay.totals.attempts += 1;
            self.sessions.insert(session, id);
            self.dialer.open += 1;
            self.dialer.last = Some(now);
            self.dialer.hosts.retain(|_, at| at.plus(limits::RELAY_DIAL_INTERVAL_PER_HOST) > now);
            self.dialer.hosts.insert(relay.url.host().to_owned(), now);
            let (url, is_configured) = (relay.url.clone(), relay.is_bootstrap);
            self.outputs.push_back(SyncOutput::Dial { session, url, is_configured });
            self.schedule_wake(id);
        }
    }

    /// Handles an established connection. If it leads to this server itself, it is closed and not dialled again.
    pub(super) fn on_connected(&mut self, session: SessionId, nip11: Option<Nip11Info>) {
        let Some(id) = self.sessions.get(&session).copied() else { return };
        self.dialer.record_message(id, self.now.mono);
        let is_self = nip11.as_ref().is_some_and(|nip11| nip11.instance.as_deref() == Some(&self.config.instance));
        if is_self {
            if let Some(relay) = self.relays.get_mut(&id) {
                relay.is_self = true;
                relay.is_unsaved = true;
                self.outputs.push_back(SyncOutput::Note(SyncNote::IsSelf(relay.url.clone())));
            }
            return self.disconnect(id);
        }
        self.dialer.open = self.dialer.open.saturating_sub(1);
        self.end_own_outage();
        self.with_relay(id, |relay, ctx| relay.on_connected(ctx, session, nip11));
        self.runnable.insert(id);
    }

    /// Handles the news that another computer was reached at this time.
    pub(super) fn on_network_contact(&mut self, at: MonoTime) {
        self.dialer.last_contact = self.dialer.last_contact.max(Some(at));
        if self.now.mono.since(at).as_secs() <= limits::NETWORK_CONTACT_SECS {
            self.end_own_outage();
        }
    }

    /// Allows all relays to be dialled now that failed while the own network was down.
    fn end_own_outage(&mut self) {
        let now = self.now;
        for relay in self.relays.values_mut().filter(|relay| relay.failed_in_own_outage) {
            relay.failed_in_own_outage = false;
            relay.health.end_backoff(now);
            self.runnable.insert(relay.id);
        }
        self.waiting_relays.end_own_outage(now);
    }

    /// Handles the end of a connection or of an attempt.
    pub(super) fn on_disconnected(&mut self, session: SessionId, reason: DisconnectReason) {
        let Some(id) = self.sessions.remove(&session) else { return };
        let now = self.now;
        let random = self.rng.next_u64();
        let is_own_network_up = self.dialer.is_own_network_up(id, now.mono);
        let Some(relay) = self.relays.get_mut(&id) else { return };
        relay.update_time_totals(now);
        let state = std::mem::replace(&mut relay.connection, ConnectionState::Disconnected);
        relay.is_unsaved = true;
        match state {
            ConnectionState::Disconnected => {}
            ConnectionState::Connecting(_) if reason == DisconnectReason::PrivateService => {
                self.dialer.open = self.dialer.open.saturating_sub(1);
                relay.health.park(now, random);
                let text = "it is a private service (GRASP-08)".to_owned();
                self.outputs.push_back(SyncOutput::Note(SyncNote::Parked(relay.url.clone(), text)));
            }
            ConnectionState::Connecting(_) => {
                self.dialer.open = self.dialer.open.saturating_sub(1);
                if reason != DisconnectReason::ClosedByUs {
                    relay.totals.failures += 1;
                    let is_own_outage = !is_own_network_up && reason == DisconnectReason::Unreachable;
                    relay.failed_in_own_outage = is_own_outage;
                    let outcome = relay.health.record_failure(
                        now,
                        if is_own_outage { FailureCause::OwnNetwork } else { FailureCause::Relay },
                        random,
                    );
                    let url = relay.url.clone();
                    let (failures, attempt) = (relay.health.failures(), relay.health.failed_attempts());
                    let backoff_millis =
                        u64::try_from(outcome.retry_at.since(now.mono).as_millis()).unwrap_or(u64::MAX);
                    if outcome.became_dead {
                        self.outputs.push_back(SyncOutput::Note(SyncNote::Dead(url.clone(), failures)));
                    }
                    self.outputs.push_back(SyncOutput::Note(SyncNote::ConnectionFailed {
                        relay: url,
                        reason,
                        attempt,
                        failures,
                        backoff_millis,
                    }));
                }
            }
            ConnectionState::Connected(connection) => {
                self.open_negentropy = self.open_negentropy.saturating_sub(relay.historic.negentropy_count());
                let note = SyncNote::ConnectionLost(relay.url.clone(), reason);
                self.outputs.push_back(SyncOutput::Note(note));
                if connection.session.flood.is_flooded() {
                    let dial_at = relay.health.record_flood(now, random);
                    let note = SyncNote::Flooded(relay.url.clone(), dial_at.since(now.mono).as_secs());
                    self.outputs.push_back(SyncOutput::Note(note));
                } else if reason == DisconnectReason::ClosedByUs {
                    relay.health.record_closed(now);
                } else {
                    relay.health.record_lost(now, random);
                }
                relay.on_disconnected(&connection, now.mono);
            }
        }
        self.runnable.insert(id);
        self.waiting_relays.check_soon();
        if self.relays.get(&id).is_some_and(|relay| relay.is_expired(now.mono)) {
            self.remove_relay(id);
        }
    }

    /// Ends the connection of a relay, or the attempt to connect.
    pub(super) fn disconnect(&mut self, id: RelayId) {
        let Some(relay) = self.relays.get_mut(&id) else { return };
        let Some(session) = relay.current_session() else { return };
        let is_closing = relay.connection_mut().is_some_and(|connection| connection.session.begin_closing());
        if !is_closing {
            self.outputs.push_back(SyncOutput::Disconnect(session));
        }
    }

    /// Handles the wake-up time of a relay.
    pub(super) fn on_wake(&mut self, id: RelayId) {
        let now = self.now;
        let Some(relay) = self.relays.get_mut(&id) else { return };
        if relay.is_expired(now.mono) {
            match relay.current_session() {
                Some(_) => {
                    // The relay is removed when the session ends.
                    relay.unneeded_since = Some(now.mono);
                    self.disconnect(id);
                }
                None => self.remove_relay(id),
            }
            return;
        }
        if !relay.is_queued_to_dial && relay.dial_at().is_some_and(|at| at <= now.mono) {
            relay.is_queued_to_dial = true;
            self.dialer.waiting.insert((now.mono, id));
        }
        let must_disconnect = self.with_relay(id, |relay, ctx| relay.handle_deadlines(ctx)).unwrap_or(false);
        if must_disconnect {
            self.disconnect(id);
        }
    }
}

#[cfg(test)]
mod tests;
