//! A simulated remote relay: stores events and answers requests according to its profile.

use std::collections::BTreeMap;

use grasp_core::nostr::Filter;
use grasp_core::nostr::negentropy::{NegentropyItem, NegentropySet, respond};
use grasp_core::sync::io::{EoseHint, OutgoingMessage, SubscriptionId};

use super::corpus::{EventIndex, corpus};
use super::event_set::EventSet;
use super::invariants::is_dishonest;
use super::relay_profile::{EoseBehavior, LimitZero, NegentropySupport, RejectionMessage, RelayProfile};
use super::relay_store::{RelayStore, StoredFilter};
use super::wire;
use super::wire::{EventCopy, RelayFrame};
use crate::random::Rng;
use crate::simulation::queue::{MINUTE, Time};

/// Id of a connection, unique in a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub usize);

/// A simulated relay.
#[derive(Debug)]
pub struct SimRelay {
    /// Its behaviour.
    pub profile: RelayProfile,
    /// Its events.
    pub store: RelayStore,
    /// Instance id in its NIP-11 document. Only nodes have one.
    pub instance: Option<String>,
    /// Number of sessions so far.
    pub session_count: u64,
    /// Whether it ever withheld events that were requested.
    pub is_dishonest: bool,
    /// Whether it ever gave a reason to park it.
    pub can_be_parked: bool,
    /// When events arrived here.
    arrivals: BTreeMap<EventIndex, Time>,
    sessions: BTreeMap<ConnectionId, RelaySession>,
}

/// Server side of one connection.
#[derive(Debug, Default)]
struct RelaySession {
    subscriptions: BTreeMap<SubscriptionId, RelaySubscription>,
    negentropy_sets: BTreeMap<SubscriptionId, NegentropySet>,
    is_authenticated: bool,
    /// The current minute, and the number of requests in it.
    requests_in_minute: (Time, u32),
}

#[derive(Debug)]
struct RelaySubscription {
    matchers: Vec<StoredFilter>,
    bytes: usize,
}

/// Reaction of a relay to a message.
#[derive(Debug, Default)]
pub struct RelayResponse {
    /// Messages to send, in order.
    pub frames: Vec<RelayFrame>,
    /// Whether the relay ends the connection after them.
    pub disconnects: bool,
}

/// Messages with a new event, and the connections that they are sent to.
pub(super) type LiveDeliveries = Vec<(ConnectionId, RelayFrame)>;

impl SimRelay {
    /// Creates a relay without events.
    pub fn new(profile: RelayProfile) -> Self {
        let (is_dishonest, can_be_parked) = (is_dishonest(&profile), profile.can_be_parked());
        let (store, sessions, arrivals) = (RelayStore::default(), BTreeMap::new(), BTreeMap::new());
        Self { profile, store, instance: None, session_count: 0, is_dishonest, can_be_parked, arrivals, sessions }
    }

    /// Accepts a connection.
    pub fn connect(&mut self, connection: ConnectionId) -> RelayResponse {
        self.session_count += 1;
        self.sessions.insert(connection, RelaySession::default());
        let mut response = RelayResponse::default();
        if self.profile.requires_auth && !self.profile.is_silent {
            response.frames.push(RelayFrame::Auth(challenge(connection)));
        }
        if self.profile.sends_stray_notices {
            response.frames.push(RelayFrame::Notice("restricted: ask the operator for access".to_owned()));
        }
        response
    }

    /// Forgets a connection.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.sessions.remove(&connection);
    }

    /// Returns the open connections.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.sessions.keys().copied().collect()
    }

    /// Returns all events that a client can get from the relay.
    pub fn visible_events(&self, now: Time) -> EventSet {
        let visible = self.store.visible(now, self.profile.clock_skew_secs);
        match &self.profile.hidden_author {
            Some(author) => visible.without(&corpus().events_by(author)),
            None => visible,
        }
    }

    /// Returns how long a message waits until it is handled. REQ and negentropy messages have separate queues.
    pub fn processing_delay(&self, message: &OutgoingMessage) -> Time {
        match message {
            OutgoingMessage::Req(..) | OutgoingMessage::Close(_) => self.profile.processing_delay.0,
            OutgoingMessage::NegOpen(..) | OutgoingMessage::NegMsg(..) | OutgoingMessage::NegClose(_) => {
                self.profile.processing_delay.1
            }
            OutgoingMessage::Auth(_) => 0,
        }
    }

    /// Handles a message of a client.
    pub fn handle(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: &OutgoingMessage,
        rng: &mut Rng,
    ) -> RelayResponse {
        let mut response = RelayResponse::default();
        if self.profile.is_silent || !self.sessions.contains_key(&connection) {
            return response;
        }
        if wire::message_bytes(message) > self.profile.max_message_bytes {
            response.frames.push(RelayFrame::Notice("ERROR: message too large".to_owned()));
            response.disconnects = true;
            return response;
        }
        match message {
            OutgoingMessage::Req(..) if self.profile.lost_requests > 0 && rng.one_in(self.profile.lost_requests) => {}
            OutgoingMessage::Req(sub, filters) => {
                if self.allows(now, connection, *sub, false, &mut response) {
                    self.handle_req(now, connection, *sub, filters, &mut response, rng);
                }
            }
            OutgoingMessage::NegOpen(sub, filter, message) => {
                if self.allows(now, connection, *sub, true, &mut response) {
                    self.handle_neg_open(now, connection, *sub, filter, message, &mut response);
                }
            }
            OutgoingMessage::NegMsg(sub, message) => self.handle_neg_msg(connection, *sub, message, &mut response),
            OutgoingMessage::Close(sub) => self.handle_close(now, connection, *sub, &mut response),
            OutgoingMessage::NegClose(sub) => {
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.negentropy_sets.remove(sub);
                }
            }
            OutgoingMessage::Auth(given) => {
                let is_valid = *given == challenge(connection);
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.is_authenticated |= is_valid;
                }
                response.frames.push(RelayFrame::Ok(is_valid, String::new()));
            }
        }
        response
    }

    /// Returns whether a request is allowed. If not, adds the rejection to the response.
    fn allows(
        &mut self,
        now: Time,
        connection: ConnectionId,
        sub: SubscriptionId,
        is_negentropy: bool,
        response: &mut RelayResponse,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&connection) else { return false };
        let mut reject = |text: &str| {
            let text = text.to_owned();
            response.frames.push(if is_negentropy {
                RelayFrame::NegErr(sub, text, None)
            } else {
                RelayFrame::Closed(sub, text)
            });
        };
        if let Some(rate) = &self.profile.rate_limit {
            let minute = now / MINUTE;
            let count = if session.requests_in_minute.0 == minute { session.requests_in_minute.1 } else { 0 };
            session.requests_in_minute = (minute, count + 1);
            if count >= rate.per_minute {
                match rate.reply {
                    RejectionMessage::Closed => reject(rate.text),
                    RejectionMessage::Notice => response.frames.push(RelayFrame::Notice(rate.text.to_owned())),
                    RejectionMessage::Ok => response.frames.push(RelayFrame::Ok(false, rate.text.to_owned())),
                }
                response.disconnects = rate.disconnects;
                return false;
            }
        }
        if self.profile.is_members_only {
            reject("restricted: you are not a member of this relay");
            return false;
        }
        if self.profile.requires_auth && !session.is_authenticated {
            reject("auth-required: authentication is required");
            return false;
        }
        let is_replacement = session.subscriptions.contains_key(&sub) || session.negentropy_sets.contains_key(&sub);
        if !is_replacement
            && session.subscriptions.len() + session.negentropy_sets.len() >= self.profile.max_subscriptions
        {
            match (self.profile.reports_limits_by_notice, is_negentropy) {
                (true, false) => response.frames.push(RelayFrame::Notice("ERROR: too many concurrent REQs".to_owned())),
                (true, true) => {
                    response.frames.push(RelayFrame::Notice("ERROR: too many concurrent NEG requests".to_owned()))
                }
                (false, false) => reject("blocked: too many subscriptions"),
                (false, true) => reject("rate-limited: too many negentropy subscriptions"),
            }
            return false;
        }
        true
    }

    fn handle_req(
        &mut self,
        now: Time,
        connection: ConnectionId,
        sub: SubscriptionId,
        filters: &[Filter],
        response: &mut RelayResponse,
        rng: &mut Rng,
    ) {
        if let Some(text) = self.filter_error(filters) {
            response.frames.push(RelayFrame::Closed(sub, text));
            return;
        }
        let visible_events = self.visible_events(now);
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let bytes = filters.iter().map(wire::filter_bytes).sum();
        let others = session.subscriptions.iter().filter(|(other, _)| **other != sub).map(|(_, other)| other.bytes);
        if let Some(max) = self.profile.max_subscription_bytes
            && others.sum::<usize>() + bytes > max
        {
            let text = format!("rate-limited: active subscriptions exceed max size {max} bytes");
            response.frames.push(RelayFrame::Closed(sub, text));
            return;
        }
        let matchers: Vec<StoredFilter> = filters.iter().map(StoredFilter::new).collect();
        let (pages, more) = pages(&matchers, &visible_events, &self.profile);
        session.subscriptions.insert(sub, RelaySubscription { matchers, bytes });
        let end = RelayFrame::Eose(
            sub,
            self.profile.sends_eose_hint.then_some(if more { EoseHint::More } else { EoseHint::Complete }),
        );
        if self.profile.eose == EoseBehavior::Early {
            response.frames.push(end.clone());
        }
        for index in pages {
            if self.profile.sends_forgeries && rng.one_in(4) {
                response.frames.push(RelayFrame::Event(sub, index, EventCopy::Forged));
            }
            response.frames.push(RelayFrame::Event(sub, index, EventCopy::Real));
        }
        match self.profile.eose {
            EoseBehavior::Once => response.frames.push(end),
            EoseBehavior::Twice => response.frames.extend([end.clone(), end]),
            EoseBehavior::Never | EoseBehavior::Early => {}
        }
        if self.profile.sends_unrequested && rng.one_in(4) {
            let unrelated_events = corpus().unrelated_events();
            let own: Vec<EventIndex> = visible_events.iter().collect();
            for nth in 0..10 {
                let unrelated = match rng.pick(&own) {
                    Some(index) if nth % 2 == 0 => *index,
                    _ => unrelated_events[rng.below(unrelated_events.len())],
                };
                let to = if rng.one_in(2) { sub } else { SubscriptionId(u64::MAX) };
                response.frames.push(RelayFrame::Event(to, unrelated, EventCopy::Real));
            }
            response.frames.push(RelayFrame::Garbage);
        }
    }

    /// Returns the error for the filters of a request, if they are invalid.
    fn filter_error(&self, filters: &[Filter]) -> Option<String> {
        if filters.len() > self.profile.max_filters {
            return Some(format!("rate-limited: REQ exceeds max filter count {}", self.profile.max_filters));
        }
        let min_limit = match self.profile.limit_zero {
            LimitZero::Accepted => 0,
            LimitZero::Rejected => 1,
            LimitZero::OneRejectedToo => 2,
        };
        let limit = filters.iter().filter_map(|filter| filter.limit).find(|limit| *limit < min_limit)?;
        Some(format!("invalid: Filter 'limit' must be a positive integer, got {limit}"))
    }

    fn handle_neg_open(
        &mut self,
        now: Time,
        connection: ConnectionId,
        sub: SubscriptionId,
        filter: &Filter,
        message: &[u8],
        response: &mut RelayResponse,
    ) {
        match self.profile.negentropy {
            NegentropySupport::Supported => {}
            NegentropySupport::Ignored => return,
            NegentropySupport::NoticeError => {
                response.frames.push(RelayFrame::Notice("ERROR: bad msg: negentropy disabled".to_owned()));
                return;
            }
            NegentropySupport::NegErr => {
                response.frames.push(RelayFrame::NegErr(sub, "error: negentropy not supported".to_owned(), None));
                return;
            }
        }
        let matching = corpus().matching(filter);
        let found = self.visible_events(now).and(&matching);
        if found.len() > self.profile.max_negentropy_records {
            let max = self.profile.max_negentropy_records as u64;
            let text = "blocked: this query is too big".to_owned();
            response.frames.push(RelayFrame::NegErr(sub, text, Some(max)));
            return;
        }
        let item = |index: EventIndex| {
            let event = corpus().event(index);
            NegentropyItem { created_at: event.created_at.0, id: event.id.0 }
        };
        let mut items: Vec<NegentropyItem> = found.iter().map(item).collect();
        if self.profile.offers_missing_ids {
            // Events that the relay does not have, and ids that do not exist.
            items.extend(matching.without(&found).iter().take(3).map(item));
            let since = filter.since.map_or(crate::simulation::WORLD_START - 1_000, |since| since.0);
            items.extend((0..2).map(|n| NegentropyItem { created_at: since, id: [n; 32] }));
        }
        let set = NegentropySet::from_items(items);
        match respond(&set, message, 60_000) {
            Ok(reply) => {
                response.frames.push(RelayFrame::NegMsg(sub, reply));
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.negentropy_sets.insert(sub, set);
                }
            }
            Err(error) => response.frames.push(RelayFrame::NegErr(sub, format!("error: {error}"), None)),
        }
    }

    fn handle_neg_msg(
        &mut self,
        connection: ConnectionId,
        sub: SubscriptionId,
        message: &[u8],
        response: &mut RelayResponse,
    ) {
        let set = self.sessions.get(&connection).and_then(|session| session.negentropy_sets.get(&sub));
        response.frames.push(match set.map(|set| respond(set, message, 60_000)) {
            Some(Ok(reply)) => RelayFrame::NegMsg(sub, reply),
            Some(Err(error)) => RelayFrame::NegErr(sub, format!("error: {error}"), None),
            None => RelayFrame::NegErr(sub, "closed: unknown subscription".to_owned(), None),
        });
    }

    fn handle_close(&mut self, now: Time, connection: ConnectionId, sub: SubscriptionId, response: &mut RelayResponse) {
        let visible_events = self.visible_events(now);
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let Some(closed) = session.subscriptions.remove(&sub) else { return };
        if self.profile.sends_event_after_close
            && let Some(index) =
                closed.matchers.iter().find_map(|matcher| matcher.events.and(&visible_events).iter().next())
        {
            response.frames.push(RelayFrame::Event(sub, index, EventCopy::Real));
        }
    }

    /// Stores a published event. Returns the messages to subscribers.
    pub fn publish(&mut self, now: Time, index: EventIndex, rng: &mut Rng) -> LiveDeliveries {
        if !self.store.insert(index) {
            return Vec::new();
        }
        self.arrivals.insert(index, now);
        self.live_deliveries(index, rng)
    }

    /// Changes the behaviour of the relay.
    pub fn set_profile(&mut self, profile: RelayProfile) {
        self.is_dishonest |= is_dishonest(&profile);
        self.can_be_parked |= profile.can_be_parked();
        self.profile = profile;
    }

    /// Replaces the events by those that a node serves. `newer` are the new ones.
    pub fn mirror(&mut self, now: Time, served: EventSet, newer: &[EventIndex]) {
        self.store.set(served);
        self.arrivals.extend(newer.iter().map(|index| (*index, now)));
    }

    /// Returns when an event arrived here.
    pub fn arrived_at(&self, index: EventIndex) -> Time {
        self.arrivals.get(&index).copied().unwrap_or(0)
    }

    /// Returns the messages to the subscribers of an event that has just become visible.
    pub fn live_deliveries(&self, index: EventIndex, rng: &mut Rng) -> LiveDeliveries {
        let hidden = self.profile.hidden_author.is_some_and(|author| corpus().event(index).pubkey == author);
        if hidden || self.profile.is_silent {
            return Vec::new();
        }
        let mut deliveries = Vec::new();
        for (connection, session) in &self.sessions {
            let wanted =
                session.subscriptions.iter().filter(|(_, sub)| sub.matchers.iter().any(|it| it.events.contains(index)));
            for (sub, _) in wanted {
                if self.profile.live_loss == 0 || !rng.one_in(self.profile.live_loss + 1) {
                    deliveries.push((*connection, RelayFrame::Event(*sub, index, EventCopy::Real)));
                }
            }
        }
        deliveries
    }

    /// Returns the NIP-11 document for the current session.
    pub fn nip11_document(&self) -> Option<String> {
        let stated_limits = self.profile.stated_limits(self.session_count)?;
        let nips = if self.profile.negentropy == NegentropySupport::Supported { "1,11,77" } else { "1,11" };
        let grasps = if self.profile.is_grasp { r#","supported_grasps":["GRASP-01"]"# } else { "" };
        let instance = self.instance.as_ref().map(|it| format!(r#","instance":"{it}""#)).unwrap_or_default();
        Some(format!(
            r#"{{"name":"x","supported_nips":[{nips}]{grasps}{instance},"limitation":{{"max_subscriptions":{},"max_filters":{},"max_message_length":{},"max_limit":{},"auth_required":{}}}}}"#,
            stated_limits.max_subscriptions,
            stated_limits.max_filters,
            stated_limits.max_message_bytes,
            stated_limits.max_page,
            self.profile.requires_auth
        ))
    }
}

/// Returns the events of the first page of some filters, and whether a filter matches more.
fn pages(matchers: &[StoredFilter], visible_events: &EventSet, profile: &RelayProfile) -> (Vec<EventIndex>, bool) {
    let (mut pages, mut more, mut sent) = (Vec::new(), false, EventSet::default());
    for matcher in matchers {
        let found = visible_events.and(&matcher.events);
        let limit = matcher.limit.unwrap_or(profile.max_page).min(profile.max_page);
        more |= found.len() > limit && limit > 0;
        for index in found.iter().take(limit) {
            if sent.insert(index) || profile.sends_duplicates {
                pages.push(index);
            }
        }
    }
    if !profile.sends_duplicates {
        pages.sort_unstable();
    }
    (pages, more)
}

fn challenge(connection: ConnectionId) -> String {
    format!("challenge-{}", connection.0)
}
