//! Sync state of one relay.
//!
//! A `Relay` exists as long as the relay is needed. It consists of its identity and four components that own their
//! fields:
//!
//! - [`RelayHealth`]: connection failures, backoff and rate-limit cooldown. Persisted.
//! - `RelayLimits`: limits from NIP-11, and limits learned from rejections. Persisted.
//! - `LiveSync`: live subscriptions. Lives as long as the connection.
//! - `HistoricSync`: batches that request stored events, and the coverage that they have reached. Coverage is
//!   persisted.
//!
//! The methods here pass messages and deadlines on to the components. What a restart keeps is written as a
//! [`RelayRecord`].

use super::batch::{BatchId, RequestId};
use super::filters::SyncScope;
use super::health::{BackoffConfig, RelayHealth};
use super::historic::HistoricSync;
use super::io::{EoseHint, IncomingMessage, LocalIds, ServedEvent, SessionId, SubscriptionId, SyncNote, SyncSource};
use super::live::{LiveFailure, LiveSync};
use super::rejection_text::RelayRejection;
use super::relay_limits::RelayLimits;
use super::relay_record::{HealthRecord, RelayRecord, RelayTotals};
use super::relay_url::RelayUrl;
use super::session::{OpenSubscription, Session, SubscriptionPurpose};
use super::targets::RepoSyncIndex;
use super::{SyncConfig, SyncContext};
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::nip11::Nip11Info;
use crate::time::{MonoTime, Now, Timestamp};

/// Id of a relay. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RelayId(pub u32);

/// A relay and its sync progress. [`Connection`] and the parts of the components that say so end with a connection; the
/// rest outlives it.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) id: RelayId,
    pub(super) url: RelayUrl,
    pub(super) is_bootstrap: bool,
    pub(super) is_paused: bool,
    pub(super) is_self: bool,
    pub(super) connection: ConnectionState,
    pub(super) health: RelayHealth,
    pub(super) limits: RelayLimits,
    pub(super) historic: HistoricSync,
    pub(super) totals: RelayTotals,
    /// Since when it is followed.
    pub(super) followed_since: MonoTime,
    /// Time of the last message.
    pub(super) last_message: Option<Now>,
    /// Since when nothing needs this relay.
    pub(super) unneeded_since: Option<MonoTime>,
    /// Whether its last connection failure was attributed to an outage of the own network.
    pub(super) failed_in_own_outage: bool,
    pub(super) wake_at: Option<MonoTime>,
    /// Whether it is due and waits for a free dial.
    pub(super) is_queued_to_dial: bool,
    /// Whether its record has changed since it was stored.
    pub(super) is_unsaved: bool,
    /// When its record was last stored.
    pub(super) saved_at: Option<MonoTime>,
    /// Time up to which the seconds up and down are in the totals.
    time_counted_at: MonoTime,
}

/// Connection of a relay, or the attempt to connect.
#[derive(Debug)]
pub(super) enum ConnectionState {
    Disconnected,
    Connecting(SessionId),
    Connected(Box<Connection>),
}

/// State of an established connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: Session,
    pub(super) live: LiveSync,
}

/// The other parts of a connected relay, and of the machine, for historic sync.
pub(super) struct Link<'a, 'm> {
    pub(super) id: RelayId,
    pub(super) url: &'a RelayUrl,
    pub(super) is_bootstrap: bool,
    pub(super) ctx: &'a mut SyncContext<'m>,
    pub(super) session: &'a mut Session,
    pub(super) live: &'a mut LiveSync,
    pub(super) limits: &'a mut RelayLimits,
    pub(super) health: &'a mut RelayHealth,
    pub(super) totals: &'a mut RelayTotals,
    pub(super) is_unsaved: &'a mut bool,
}

/// What an event from a relay belongs to.
#[derive(Default)]
pub(super) struct DeliveredEvent {
    pub(super) batch: Option<BatchId>,
    /// Whether it came from the wide live set.
    pub(super) is_wide: bool,
    /// Whether it shows that the relay sends stored events after EOSE. The connection must end.
    pub(super) is_late: bool,
    /// Whether it matches no open filter.
    pub(super) is_unsolicited: bool,
    /// Whether the relay sends too many messages that no request explains. The connection must end.
    pub(super) is_flood: bool,
}

impl Link<'_, '_> {
    /// Whether negentropy may be used now.
    pub(super) fn can_use_negentropy(&self) -> bool {
        self.ctx.config.use_negentropy && self.limits.can_use_negentropy(self.ctx.now)
    }

    /// Whether the relay is in a rate-limit cooldown.
    pub(super) fn is_in_cooldown(&self) -> bool {
        self.health.is_in_cooldown(self.ctx.now)
    }

    /// Records that the relay does not support negentropy, so that pages are used.
    pub(super) fn disable_negentropy(&mut self) {
        *self.is_unsaved = true;
        if self.limits.disable_negentropy(self.ctx.now) {
            self.ctx.note(SyncNote::NoNegentropy(self.url.clone()));
        }
    }

    /// Parks the relay for a reason: it is probed once a day.
    fn park(&mut self, reason: String) {
        self.ctx.note(SyncNote::Parked(self.url.clone(), reason));
        self.health.park(self.ctx.now, self.ctx.rng.next_u64());
    }
}

impl Relay {
    /// Creates a relay that is not connected, with its stored record.
    pub(super) fn new(
        id: RelayId,
        url: RelayUrl,
        is_bootstrap: bool,
        record: Option<RelayRecord>,
        config: &SyncConfig,
        now: Now,
    ) -> Self {
        let is_unsaved = record.is_none();
        let record = record.unwrap_or_default();
        let covered = record
            .covered
            .filter(|covered| covered.epoch == config.epoch && covered.lost_at <= now.wall)
            .filter(|covered| now.wall.secs_since(covered.lost_at) < limits::QUICK_RECONNECT_SECS);
        // Time of the last message on the monotonic clock of this process.
        let last_message = covered.map(|covered| Now {
            mono: MonoTime(now.mono.0.saturating_sub(now.wall.secs_since(covered.lost_at) * 1_000)),
            wall: covered.lost_at,
        });
        let next_full_sync_secs =
            covered.map_or(limits::DAILY_RECONCILIATION_SECS, |covered| covered.next_full_at.secs_since(now.wall));
        Self {
            id,
            url,
            is_bootstrap,
            is_paused: record.paused,
            is_self: record.is_self,
            connection: ConnectionState::Disconnected,
            health: RelayHealth::new(config.backoff, &record.health, now),
            limits: RelayLimits::new(record.learned),
            historic: HistoricSync::new(now.mono, covered, next_full_sync_secs),
            totals: record.totals,
            followed_since: now.mono,
            last_message,
            unneeded_since: None,
            failed_in_own_outage: false,
            wake_at: None,
            is_queued_to_dial: false,
            is_unsaved,
            saved_at: None,
            time_counted_at: now.mono,
        }
    }

    /// Forgets health, learned limits, totals and coverage, on request of the operator.
    pub(super) fn forget(&mut self, backoff: BackoffConfig, now: Now) {
        self.limits.forget();
        self.totals = RelayTotals::default();
        self.health = RelayHealth::new(backoff, &HealthRecord::default(), now);
        self.historic.discard_coverage();
        self.is_self = false;
    }

    pub(super) fn connection(&self) -> Option<&Connection> {
        match &self.connection {
            ConnectionState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.connection {
            ConnectionState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the session if it is the current one.
    pub(super) fn session_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.connection_mut().map(|connection| &mut connection.session).filter(|current| current.id() == session)
    }

    /// Returns historic sync and what it uses, if the relay is connected.
    fn link<'a, 'm>(&'a mut self, ctx: &'a mut SyncContext<'m>) -> Option<(&'a mut HistoricSync, Link<'a, 'm>)> {
        let ConnectionState::Connected(connection) = &mut self.connection else { return None };
        let Connection { session, live } = &mut **connection;
        let link = Link {
            id: self.id,
            url: &self.url,
            is_bootstrap: self.is_bootstrap,
            ctx,
            session,
            live,
            limits: &mut self.limits,
            health: &mut self.health,
            totals: &mut self.totals,
            is_unsaved: &mut self.is_unsaved,
        };
        Some((&mut self.historic, link))
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_bootstrap || self.historic.repo_counts() != (0, 0)
    }

    /// Whether only held repositories list it.
    pub(super) fn is_only_held(&self) -> bool {
        !self.is_bootstrap && matches!(self.historic.repo_counts(), (0, held) if held > 0)
    }

    /// Whether it was just followed, and it is not yet known what it has.
    pub(super) fn is_on_trial(&self, now: MonoTime) -> bool {
        let is_new = now < self.followed_since.plus_secs(limits::HELD_RELAY_TRIAL_SECS);
        is_new
            && match &self.connection {
                ConnectionState::Disconnected => self.health.next_dial_at() <= now,
                ConnectionState::Connecting(_) => true,
                ConnectionState::Connected(_) => self.historic.running() == Some(SyncSource::CatchUp),
            }
    }

    /// Whether its record is stored. Untrusted announcements can list any number of relays that do not exist.
    pub(super) fn is_worth_storing(&self) -> bool {
        let is_trusted = self.is_bootstrap || self.historic.repo_counts().0 > 0;
        is_trusted || self.is_paused || self.is_self || self.health.was_ever_reached()
    }

    /// Whether nothing has needed it for so long that it is disconnected.
    pub(super) fn is_expired(&self, now: MonoTime) -> bool {
        let is_long_ago = |at: MonoTime| now.since(at).as_secs() >= limits::UNUSED_RELAY_DISCONNECT_SECS;
        !self.is_needed() && self.unneeded_since.is_some_and(is_long_ago)
    }

    /// Returns the connection status, as exported by `ngit_sync_relay_connected`.
    pub(super) fn status(&self) -> ConnectionStatus {
        match &self.connection {
            ConnectionState::Disconnected => ConnectionStatus::Disconnected,
            ConnectionState::Connecting(_) => ConnectionStatus::Connecting,
            ConnectionState::Connected(_) if self.historic.running() == Some(SyncSource::CatchUp) => {
                ConnectionStatus::Syncing
            }
            ConnectionState::Connected(_) if self.historic.has_failures() => {
                ConnectionStatus::ConnectedHistoricSyncFailures
            }
            ConnectionState::Connected(_) => ConnectionStatus::Connected,
        }
    }

    /// Adds the seconds since the last call to the time up or down.
    pub(super) fn update_time_totals(&mut self, now: Now) {
        let secs = now.mono.since(self.time_counted_at).as_secs();
        self.time_counted_at = self.time_counted_at.plus_secs(secs);
        match self.connection {
            ConnectionState::Connected(_) => self.totals.up_secs += secs,
            _ if self.is_needed() && !self.is_paused => self.totals.down_secs += secs,
            _ => {}
        }
    }

    pub(super) fn current_session(&self) -> Option<SessionId> {
        match &self.connection {
            ConnectionState::Disconnected => None,
            ConnectionState::Connecting(session) => Some(*session),
            ConnectionState::Connected(connection) => Some(connection.session.id()),
        }
    }

    /// Returns when the relay is to be dialled, if at all.
    pub(super) fn dial_at(&self) -> Option<MonoTime> {
        let is_wanted = self.is_needed() && !self.is_paused && !self.is_self;
        (is_wanted && matches!(self.connection, ConnectionState::Disconnected)).then(|| self.health.next_dial_at())
    }

    /// Returns when this relay has to be woken.
    pub(super) fn next_wake(&self, now: Now) -> Option<MonoTime> {
        let disconnect_at = self.unneeded_since.map(|at| at.plus_secs(limits::UNUSED_RELAY_DISCONNECT_SECS));
        let Some(Connection { session, live }) = self.connection() else {
            let dial_at = self.dial_at().filter(|_| !self.is_queued_to_dial);
            return disconnect_at.into_iter().chain(dial_at).min();
        };
        if session.is_closing() {
            return None;
        }
        let cooldown = self.health.cooldown_until().filter(|at| *at > now.mono);
        let components = session.wake_times(now.mono).chain(live.wake_times(now.mono));
        components.chain(self.historic.wake_times(now.mono)).chain(cooldown).chain(disconnect_at).min()
    }

    /// Returns the record that is stored. `oldest_pending` is the creation time of the oldest live event without a
    /// result: what is newer must be requested again.
    pub(super) fn to_record(
        &self,
        now: Now,
        epoch: u64,
        repo_index: &RepoSyncIndex,
        oldest_pending: Option<Timestamp>,
    ) -> RelayRecord {
        let overlap_secs = self.historic.overlap_secs(self.limits.is_grasp());
        let polled = self.connection().and_then(|connection| connection.live.missed_since(overlap_secs));
        let since = self.historic.missed_since().into_iter().chain(polled).chain(oldest_pending).min();
        let covered =
            self.last_message.and_then(|last| self.historic.to_record(now, epoch, repo_index, last.wall, since));
        RelayRecord {
            url: self.url.clone(),
            wanted_at: now.wall,
            health: self.health.to_record(now),
            learned: self.limits.learned(),
            covered,
            totals: self.totals,
            paused: self.is_paused,
            is_self: self.is_self,
        }
    }

    /// Starts a new connection.
    pub(super) fn on_connected(&mut self, ctx: &mut SyncContext<'_>, session: SessionId, nip11: Option<Nip11Info>) {
        self.update_time_totals(ctx.now);
        self.health.record_connected(ctx.now);
        self.limits.set_document(nip11);
        let kind = self.historic.on_connected(ctx, self.last_message, &self.limits);
        self.is_unsaved = true;
        self.last_message = Some(ctx.now);
        let session = Session::new(session, ctx.now.mono);
        self.connection = ConnectionState::Connected(Box::new(Connection { session, live: LiveSync::default() }));
        ctx.note(SyncNote::Connected(self.url.clone(), kind));
    }

    /// Ends a connection.
    pub(super) fn on_disconnected(&mut self, connection: &Connection, now: MonoTime) {
        let overlap_secs = self.historic.overlap_secs(self.limits.is_grasp());
        self.historic.on_disconnected(now, connection.live.missed_since(overlap_secs));
        self.limits.set_document(None);
    }

    /// Takes all actions that are possible now.
    pub(super) fn run(&mut self, ctx: &mut SyncContext<'_>) {
        let Some((historic, mut link)) = self.link(ctx) else { return };
        link.session.begin_step();
        // Each iteration sends or completes something, of which there is a finite amount. The bound protects against a
        // bug.
        for _ in 0..limits::SYNC_STEP_ACTIONS_PER_RELAY {
            link.session.free_slots(link.ctx.now.mono);
            let can_send = link.session.can_send(link.ctx.now.mono) && !link.is_in_cooldown();
            let has_started = can_send && start_next(historic, &mut link);
            if !has_started && !historic.complete_next(&mut link) {
                return;
            }
        }
    }

    /// Handles deadlines that have passed. Returns `true` if the connection must end.
    pub(super) fn handle_deadlines(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let Some((historic, mut link)) = self.link(ctx) else { return false };
        let now = link.ctx.now.mono;
        if link.session.is_closing() {
            return false;
        }
        if link.session.auth_deadline().is_some_and(|at| at <= now) {
            link.park("authentication was not answered in time".to_owned());
            return true;
        }
        let unconfirmed = link.live.unconfirmed(now);
        for key in unconfirmed.iter().copied() {
            match link.live.on_unconfirmed(link.ctx, link.session, key) {
                LiveFailure::Handled => {}
                LiveFailure::Wide => {
                    // The next connection does not use it.
                    link.limits.disable_wide();
                    return true;
                }
                LiveFailure::Batches(_, batches) => historic.start_batches_without_live(&mut link, batches, Some(key)),
            }
        }
        if !unconfirmed.is_empty() {
            // A limit that was learned while they were waiting could not be applied to them.
            shrink_live(historic, &mut link);
        }
        historic.handle_deadlines(&mut link);
        historic.start_daily_if_due(&mut link);
        false
    }

    /// Handles the local ids that the store returned for a request.
    pub(super) fn on_local_ids(&mut self, ctx: &mut SyncContext<'_>, request: RequestId, ids: LocalIds) {
        if let Some((historic, mut link)) = self.link(ctx) {
            historic.on_local_ids(&mut link, request, ids);
        }
    }

    /// Handles the missing ids that the store returned for a request.
    pub(super) fn on_missing_ids(&mut self, ctx: &mut SyncContext<'_>, request: RequestId, ids: Vec<EventId>) {
        if let Some((historic, mut link)) = self.link(ctx) {
            historic.on_missing_ids(&mut link, request, ids);
        }
    }

    /// Handles the served events that the store returned: sets the share of them that the relay has, and notes how many
    /// it lacks of each repository.
    pub(super) fn on_served_events(&mut self, ctx: &mut SyncContext<'_>, query: RequestId, events: &[ServedEvent]) {
        let Some(coverage) = self.historic.finish_coverage(query, events, ctx.repo_index) else { return };
        (self.totals.compared, self.totals.shared) = (coverage.compared, coverage.shared);
        self.is_unsaved = true;
        let lacking = coverage.lacking.into_iter();
        let lacking = lacking.filter_map(|(key, count)| Some((ctx.repo_index.repo(key)?.id.clone(), count))).collect();
        ctx.note(SyncNote::RelayLacksEvents(self.url.clone(), lacking));
    }

    /// Counts an event for its request or live set, and returns what it belongs to.
    pub(super) fn attribute_event(
        &mut self,
        ctx: &mut SyncContext<'_>,
        sub: SubscriptionId,
        event: &Event,
    ) -> DeliveredEvent {
        let now = ctx.now;
        let mut delivery = DeliveredEvent::default();
        let Some((historic, link)) = self.link(ctx) else { return delivery };
        let subscription = link.session.subscription(sub);
        let is_requested = match subscription.map(|subscription| subscription.purpose) {
            Some(SubscriptionPurpose::Live(key)) => link.live.matches(Some(key), link.ctx.repo_index, event),
            Some(SubscriptionPurpose::Request(id)) => historic.is_requested(id, link.ctx.repo_index, event),
            Some(SubscriptionPurpose::Closing(_)) | None => false,
        };
        // What was requested by a subscription that was closed or replaced may still arrive.
        delivery.is_unsolicited = !is_requested
            && !link.live.matches(None, link.ctx.repo_index, event)
            && !historic.matches_batch(link.ctx.repo_index, event);
        let is_live = matches!(subscription, Some(OpenSubscription { purpose: SubscriptionPurpose::Live(_), .. }));
        let is_repeated = is_live && link.session.flood.record_live_event(sub, event.id);
        delivery.is_flood = (delivery.is_unsolicited || is_repeated) && link.session.flood.record(now.mono);
        match subscription {
            None => delivery.is_late = historic.record_late_event(sub, event.created_at, now.mono),
            Some(OpenSubscription { purpose: SubscriptionPurpose::Live(key), is_answered, .. }) => {
                delivery.is_wide = link.live.is_wide_set(key);
                if is_answered {
                    historic.record_live_event_age(now.wall.secs_since(event.created_at));
                }
            }
            Some(_) => delivery.batch = historic.record_event(&link, sub, event),
        }
        delivery
    }

    /// Handles any message except an event. Returns `true` if the connection must end.
    pub(super) fn on_message(&mut self, ctx: &mut SyncContext<'_>, message: IncomingMessage) -> bool {
        let Some((historic, mut link)) = self.link(ctx) else { return false };
        match message {
            IncomingMessage::Eose(sub, hint) => on_eose(historic, &mut link, sub, hint),
            IncomingMessage::Closed(sub, text) | IncomingMessage::NegErr(sub, text, _) => {
                return on_closed(historic, &mut link, sub, &text);
            }
            IncomingMessage::NegMsg(sub, message) => historic.on_neg_msg(&mut link, sub, &message),
            IncomingMessage::Notice(text) => return on_notice(historic, &mut link, &text),
            IncomingMessage::Ok(accepted, text) => return on_auth_reply(historic, &mut link, accepted, &text),
            IncomingMessage::Auth(challenge) => {
                link.session.on_challenge(link.ctx, challenge, link.limits.states_auth());
            }
            IncomingMessage::Invalid => return link.session.record_invalid(),
            IncomingMessage::InvalidEvent(sub, id) => {
                historic.record_invalid_event(&link, sub, id);
                return link.session.record_invalid();
            }
            IncomingMessage::Alive => return link.session.flood.record(link.ctx.now.mono),
            IncomingMessage::Event(..) | IncomingMessage::TooLarge(..) => {}
        }
        false
    }
}

/// Starts one action: live subscriptions first, then queued requests of batches, then new batches. Returns `false` if
/// there is none.
fn start_next(historic: &mut HistoricSync, link: &mut Link<'_, '_>) -> bool {
    let is_too_large = historic.filter_bytes() > link.ctx.config.limits.wide_filter_bytes;
    if is_too_large && link.limits.can_follow_widely() && !link.live.is_wide() {
        link.live.follow_widely(link.ctx);
        return true;
    }
    let capacity = historic.batch_capacity(link.ctx, link.limits);
    let is_followed = |repo| historic.is_followed(repo);
    if let Some(batches) = link.live.open_next(link.ctx, link.session, link.limits, capacity.values, is_followed) {
        historic.start_batches(link, batches);
        return true;
    }
    historic.start_queued_request(link)
        || historic.next_batch(link)
        || link.live.consolidate(link.ctx, link.session, link.limits.current(), |repo| historic.is_followed(repo))
}

/// Handles EOSE: confirms a live set, or ends a request.
fn on_eose(historic: &mut HistoricSync, link: &mut Link<'_, '_>, sub: SubscriptionId, hint: Option<EoseHint>) {
    let Some(OpenSubscription { purpose, is_answered, .. }) = link.session.mark_answered(sub) else { return };
    match purpose {
        SubscriptionPurpose::Closing(_) => drop(link.session.remove(sub)),
        SubscriptionPurpose::Live(key) => {
            let batches = link.live.on_eose(link.ctx, link.session, key, sub, !is_answered);
            historic.start_batches(link, batches);
        }
        SubscriptionPurpose::Request(id) if !is_answered => historic.on_eose(link, (id, sub), hint),
        SubscriptionPurpose::Request(_) => {}
    }
}

/// Handles the CLOSED or NEG-ERR message of a relay. Returns whether the connection must end.
fn on_closed(historic: &mut HistoricSync, link: &mut Link<'_, '_>, sub: SubscriptionId, text: &str) -> bool {
    let rejection = RelayRejection::classify(text);
    let is_refused = rejection == RelayRejection::NotAllowed;
    let mut refused_scope = None;
    let open_bytes = link.session.open_bytes();
    match link.session.remove(sub) {
        Some(OpenSubscription { purpose: SubscriptionPurpose::Request(id), is_answered: false, .. }) => {
            refused_scope = historic.request_scope(id);
            historic.on_rejected(link, id, rejection);
        }
        Some(OpenSubscription { purpose: SubscriptionPurpose::Live(key), .. }) => {
            match link.live.on_closed(link.ctx, link.session, (key, sub), rejection) {
                LiveFailure::Handled => {}
                LiveFailure::Wide => {
                    // The next connection starts without the wide subscription.
                    link.limits.disable_wide();
                    return true;
                }
                LiveFailure::Batches(scope, batches) if is_refused && !batches.is_empty() => {
                    // The retries of the batches open it again.
                    historic.mark_live_refused(&batches);
                    historic.start_batches_without_live(link, batches, None);
                    refused_scope = Some(scope);
                }
                LiveFailure::Batches(scope, batches) => {
                    // Batches wait for a live set until it is confirmed.
                    let was_live = batches.is_empty();
                    historic.start_batches_without_live(link, batches, None);
                    let wait_secs = if is_refused { limits::BATCH_RETRY_SECS } else { limits::LIVE_REOPEN_SECS };
                    historic.reopen_live(link.ctx, scope.clone(), link.limits, wait_secs, was_live);
                    refused_scope = Some(scope);
                }
            }
        }
        // We have closed the subscription already. Only a rate limit still matters.
        _ if rejection != RelayRejection::RateLimited => return false,
        _ => {}
    }
    match rejection {
        // The request was sent before we were authenticated, and is sent again.
        RelayRejection::AuthRequired if link.session.was_opened_before_auth(sub) => return false,
        RelayRejection::NotAllowed if refused_scope.is_some_and(|scope| must_park(link, scope)) => {
            link.park(clip_text(text));
            return true;
        }
        _ => {}
    }
    apply_rejection(historic, link, rejection, text, open_bytes)
}

/// Whether the relay refuses us altogether: it refuses the announcements, or several different parts of the needs.
fn must_park(link: &mut Link<'_, '_>, scope: SyncScope) -> bool {
    scope.announcements.is_some() || link.session.record_refusal(scope)
}

/// Handles a NOTICE, which may be the rejection of a request. Returns whether the connection must end.
fn on_notice(historic: &mut HistoricSync, link: &mut Link<'_, '_>, text: &str) -> bool {
    let rejection = RelayRejection::classify(text);
    let is_flood = link.session.flood.record(link.ctx.now.mono);
    if is_flood || matches!(rejection, RelayRejection::Unclassified | RelayRejection::ConnectionClosing) {
        return is_flood;
    }
    // These texts may concern anything, such as publishing. A request that the relay refuses will not be answered.
    let is_vague = rejection == RelayRejection::NotAllowed
        || rejection == RelayRejection::AuthRequired && link.session.is_authenticated();
    if is_vague {
        link.session.minimize_concurrency();
        return false;
    }
    // A notice is attributed to the only request that waits for an answer. With several waiting it cannot be
    // attributed, and their timeouts decide.
    let is_negentropy = |purpose: SubscriptionPurpose| match purpose {
        SubscriptionPurpose::Request(id) => historic.is_negentropy_request(id),
        _ => false,
    };
    let only = {
        let mut waiting = link.session.waiting();
        match rejection {
            RelayRejection::NoNegentropy => waiting.find(|(_, purpose)| is_negentropy(*purpose)),
            _ => waiting.next().filter(|_| waiting.next().is_none()),
        }
    };
    match only {
        Some((sub, _)) => on_closed(historic, link, sub, text),
        None => {
            link.session.minimize_concurrency();
            let open_bytes = link.session.open_bytes();
            apply_rejection(historic, link, rejection, text, open_bytes)
        }
    }
}

/// Applies the consequences of a rejection for the whole connection: learns limits, backs off or authenticates.
/// `open_bytes` is the size of all subscriptions, including the rejected one. See `docs/design/sync.md#limits-per-relay`. Returns whether the connection must end.
fn apply_rejection(
    historic: &mut HistoricSync,
    link: &mut Link<'_, '_>,
    rejection: RelayRejection,
    text: &str,
    open_bytes: usize,
) -> bool {
    *link.is_unsaved = true;
    let now = link.ctx.now;
    // These rejections only require another form of request, which is learned once, or say nothing about requests.
    if !matches!(
        rejection,
        RelayRejection::NoNegentropy
            | RelayRejection::LimitZeroRejected
            | RelayRejection::AuthRequired
            | RelayRejection::Unclassified
            | RelayRejection::ConnectionClosing
    ) {
        link.session.back_off(now.mono);
    }
    match rejection {
        RelayRejection::RateLimited => {
            let was_in_cooldown = link.is_in_cooldown();
            let until = link.health.record_rate_limit(now);
            if was_in_cooldown {
                return false;
            }
            let secs = until.since(now.mono).as_secs();
            link.ctx.note(SyncNote::RateLimited(link.url.clone(), clip_text(text), secs));
        }
        RelayRejection::NoNegentropy => link.disable_negentropy(),
        RelayRejection::AuthRequired => return require_authentication(link),
        RelayRejection::NotAllowed
        | RelayRejection::UnsupportedFilter
        | RelayRejection::ResultTooLarge
        | RelayRejection::ConnectionClosing
        | RelayRejection::Unclassified => return false,
        RelayRejection::TooManySubscriptions
        | RelayRejection::SubscriptionBytes(_)
        | RelayRejection::TooManyFilters
        | RelayRejection::LimitZeroRejected => {
            link.limits.learn(rejection, link.session.open_count() as u32, open_bytes as u64);
        }
    }
    shrink_live(historic, link);
    false
}

/// Closes live subscriptions above the limits. Their scopes are opened again, merged with others, or polled, and events
/// received in the meantime are requested.
fn shrink_live(historic: &mut HistoricSync, link: &mut Link<'_, '_>) {
    while let Some(scope) = link.live.shrink(link.ctx, link.session, link.limits.current()) {
        historic.reopen_live(link.ctx, scope, link.limits, 0, true);
    }
}

/// Authenticates to a relay that requires it. Parks the relay if it rejects us although we are authenticated. Returns
/// whether the connection must end.
fn require_authentication(link: &mut Link<'_, '_>) -> bool {
    let is_refused = !link.session.authenticate(link.ctx);
    if is_refused {
        link.park("auth-required".to_owned());
    }
    is_refused
}

/// Handles the OK message to our authentication event. Returns whether the connection must end.
fn on_auth_reply(historic: &mut HistoricSync, link: &mut Link<'_, '_>, is_accepted: bool, text: &str) -> bool {
    if is_accepted {
        link.session.finish_authentication(link.ctx);
        return false;
    }
    let rejection = RelayRejection::classify(text);
    if rejection == RelayRejection::RateLimited {
        return apply_rejection(historic, link, rejection, text, 0);
    }
    if !link.session.is_authentication_sent() {
        return false;
    }
    link.session.finish_authentication(link.ctx);
    require_authentication(link)
}

/// Returns the first 120 characters of a text of a relay.
fn clip_text(text: &str) -> String {
    text.chars().take(120).collect()
}

/// Connection status of a relay. The numbers are those of `ngit_sync_relay_connected`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConnectionStatus {
    /// Not connected.
    Disconnected = 0,
    /// A connection is being established.
    Connecting = 1,
    /// Connected, catch-up in progress.
    Syncing = 2,
    /// Connected, catch-up complete.
    Connected = 3,
    /// Connected, but part of the history could not be fetched.
    ConnectedHistoricSyncFailures = 4,
}

impl ConnectionStatus {
    /// Returns the name of the status on the status page and in the admin API.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Connecting => "connecting",
            Self::Syncing => "syncing",
            Self::Connected => "connected",
            Self::ConnectedHistoricSyncFailures => "connected_historic_sync_failures",
        }
    }
}
