//! An established connection to a relay: open subscriptions, pacing of requests, and authentication (NIP-42).

use std::collections::{BTreeMap, VecDeque};

use super::SyncContext;
use super::batch::RequestId;
use super::filters::{SyncScope, json_bytes};
use super::flood::FloodDetector;
use super::io::{EventRate, OutgoingMessage, SessionId, SubscriptionId, SyncOutput};
use super::live::LiveSetId;
use crate::limits;
use crate::time::MonoTime;

/// An established connection.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    /// Bytes in the send buffer, as last reported by the driver.
    unsent_bytes: usize,
    /// Bytes sent in this step, which the driver has not reported yet.
    bytes_this_step: usize,
    subscriptions: BTreeMap<SubscriptionId, OpenSubscription>,
    /// Rejections since the last answer.
    consecutive_rejections: u32,
    /// Maximum number of concurrent historic requests.
    concurrency: u32,
    /// No new request is started before this time.
    retry_after: MonoTime,
    challenge: Option<String>,
    auth: AuthState,
    /// The last id that was assigned before the relay answered our authentication.
    last_id_before_auth: Option<SubscriptionId>,
    /// Parts of the needs that the relay refused to serve.
    refused_scopes: Vec<SyncScope>,
    /// Whether this server is closing the connection. No new request is started.
    is_closing: bool,
    /// Number of invalid messages and events with an invalid signature.
    invalid_messages: u32,
    pub(super) flood: FloodDetector,
    /// The rate at which the driver reads events.
    event_rate: EventRate,
}

/// An open subscription or negentropy exchange. It occupies a slot of the relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenSubscription {
    pub(super) purpose: SubscriptionPurpose,
    /// Whether the relay has answered it (EOSE).
    pub(super) is_answered: bool,
    /// Bytes of its filters.
    pub(super) bytes: usize,
}

/// What a subscription is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SubscriptionPurpose {
    Live(LiveSetId),
    Request(RequestId),
    /// Closed by this server. Its slot counts as free at this time at the latest.
    Closing(MonoTime),
}

/// Progress of authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum AuthState {
    #[default]
    NotRequired,
    /// Demanded by the relay, which has not sent a challenge yet. Fails at this time.
    Required(MonoTime),
    Sent(MonoTime),
    Done,
}

impl Session {
    pub(super) fn new(id: SessionId, now: MonoTime) -> Self {
        Self {
            id,
            unsent_bytes: 0,
            bytes_this_step: 0,
            subscriptions: BTreeMap::new(),
            consecutive_rejections: 0,
            concurrency: limits::INITIAL_CONCURRENT_REQUESTS,
            retry_after: now,
            challenge: None,
            auth: AuthState::default(),
            last_id_before_auth: None,
            refused_scopes: Vec::new(),
            is_closing: false,
            invalid_messages: 0,
            flood: FloodDetector::new(),
            event_rate: EventRate::LOWEST,
        }
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    /// Sets the bytes in the send buffer.
    pub(super) fn set_unsent(&mut self, bytes: usize) {
        self.unsent_bytes = bytes;
    }

    /// Whether the send buffer has space.
    pub(super) fn has_buffer_space(&self) -> bool {
        self.unsent_bytes < limits::SYNC_MAX_UNSENT_BYTES
    }

    /// Starts a step: all bytes that were sent before have been reported.
    pub(super) fn begin_step(&mut self) {
        self.bytes_this_step = 0;
    }

    /// Whether requests may be sent now.
    pub(super) fn can_send(&self, now: MonoTime) -> bool {
        !self.is_closing
            && self.auth_deadline().is_none()
            && self.unsent_bytes + self.bytes_this_step < limits::SYNC_MAX_UNSENT_BYTES
            && self.retry_after <= now
    }

    /// Sends a message and counts its approximate size. Nothing is sent while the connection is being closed.
    pub(super) fn send(&mut self, ctx: &mut SyncContext<'_>, message: OutgoingMessage) {
        self.send_with_filters(ctx, message, 0);
    }

    /// Sends a message whose filters have this size.
    fn send_with_filters(&mut self, ctx: &mut SyncContext<'_>, message: OutgoingMessage, filter_bytes: usize) {
        if self.is_closing {
            return;
        }
        self.bytes_this_step += filter_bytes
            + match &message {
                OutgoingMessage::NegOpen(_, _, bytes) | OutgoingMessage::NegMsg(_, bytes) => 2 * bytes.len(),
                _ => 0,
            };
        ctx.outputs.push_back(SyncOutput::Send(self.id, message));
    }

    /// Opens a subscription or negentropy exchange with the message that `message` returns for its id.
    pub(super) fn open(
        &mut self,
        ctx: &mut SyncContext<'_>,
        purpose: SubscriptionPurpose,
        message: impl FnOnce(SubscriptionId) -> OutgoingMessage,
    ) -> SubscriptionId {
        let sub = SubscriptionId(ctx.new_id());
        let message = message(sub);
        let bytes = match &message {
            OutgoingMessage::Req(_, filters) => filters.iter().map(json_bytes).sum(),
            OutgoingMessage::NegOpen(_, filter, _) => json_bytes(filter),
            _ => 0,
        };
        self.subscriptions.insert(sub, OpenSubscription { purpose, is_answered: false, bytes });
        self.send_with_filters(ctx, message, bytes);
        sub
    }

    /// Closes a subscription or negentropy exchange. Its slot is free at once if the relay has answered it.
    pub(super) fn close(&mut self, ctx: &mut SyncContext<'_>, id: SubscriptionId, is_negentropy: bool) {
        let Some(sub) = self.subscriptions.get_mut(&id) else { return };
        let message = if is_negentropy { OutgoingMessage::NegClose(id) } else { OutgoingMessage::Close(id) };
        if sub.is_answered {
            self.subscriptions.remove(&id);
        } else {
            sub.purpose = SubscriptionPurpose::Closing(ctx.now.mono.plus_secs(limits::SYNC_CLOSE_GRACE_SECS));
        }
        self.send(ctx, message);
    }

    /// Removes a subscription that the relay has ended.
    pub(super) fn remove(&mut self, id: SubscriptionId) -> Option<OpenSubscription> {
        self.subscriptions.remove(&id)
    }

    pub(super) fn subscription(&self, id: SubscriptionId) -> Option<OpenSubscription> {
        self.subscriptions.get(&id).copied()
    }

    /// Returns the request of a subscription.
    pub(super) fn request(&self, id: SubscriptionId) -> Option<RequestId> {
        match self.subscription(id)?.purpose {
            SubscriptionPurpose::Request(request) => Some(request),
            _ => None,
        }
    }

    /// Marks a subscription as answered. Returns its state before that.
    pub(super) fn mark_answered(&mut self, id: SubscriptionId) -> Option<OpenSubscription> {
        let sub = self.subscriptions.get_mut(&id)?;
        let before = *sub;
        sub.is_answered = true;
        Some(before)
    }

    /// Frees the slots of closed subscriptions whose EOSE or CLOSED did not arrive in time.
    pub(super) fn free_slots(&mut self, now: MonoTime) {
        self.subscriptions.retain(|_, sub| !matches!(sub.purpose, SubscriptionPurpose::Closing(until) if until <= now));
    }

    /// Returns the number of occupied slots.
    pub(super) fn slot_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Returns the number of subscriptions that this server has not closed.
    pub(super) fn open_count(&self) -> usize {
        let is_closing = |sub: &OpenSubscription| matches!(sub.purpose, SubscriptionPurpose::Closing(_));
        self.subscriptions.values().filter(|sub| !is_closing(sub)).count()
    }

    /// Returns the bytes of the filters of all subscriptions, including those that the relay may not have closed yet.
    pub(super) fn open_bytes(&self) -> usize {
        self.subscriptions.values().map(|sub| sub.bytes).sum()
    }

    /// Returns the number of live subscriptions.
    pub(super) fn live_count(&self) -> usize {
        self.subscriptions.values().filter(|sub| matches!(sub.purpose, SubscriptionPurpose::Live(_))).count()
    }

    /// Iterates over the subscriptions that wait for an answer.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (SubscriptionId, SubscriptionPurpose)> {
        let is_waiting =
            |sub: &OpenSubscription| !sub.is_answered && !matches!(sub.purpose, SubscriptionPurpose::Closing(_));
        self.subscriptions.iter().filter(move |(_, sub)| is_waiting(sub)).map(|(id, sub)| (*id, sub.purpose))
    }

    /// Starts to close the connection. Returns whether it was being closed already.
    pub(super) fn begin_closing(&mut self) -> bool {
        std::mem::replace(&mut self.is_closing, true)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Changes the rate at which the driver reads events.
    pub(super) fn set_event_rate(&mut self, outputs: &mut VecDeque<SyncOutput>, rate: EventRate) {
        if self.event_rate != rate {
            self.event_rate = rate;
            outputs.push_back(SyncOutput::SetEventRate(self.id, rate));
        }
    }

    /// Counts an invalid message or signature. Returns whether there were too many.
    pub(super) fn record_invalid(&mut self) -> bool {
        self.invalid_messages += 1;
        self.invalid_messages > limits::MAX_UNPARSEABLE_MESSAGES
    }

    /// Returns the maximum number of concurrent historic requests.
    pub(super) fn concurrency(&self) -> u32 {
        self.concurrency
    }

    /// Records that the relay accepted a subscription.
    pub(super) fn record_answer(&mut self) {
        self.consecutive_rejections = 0;
    }

    /// Allows one more concurrent request after a success.
    pub(super) fn raise_concurrency(&mut self) {
        self.concurrency = (self.concurrency + 1).min(limits::MAX_CONCURRENT_REQUESTS);
    }

    /// Allows half as many concurrent requests after a failure.
    pub(super) fn halve_concurrency(&mut self) {
        self.concurrency = (self.concurrency / 2).max(1);
    }

    /// Allows only one request at a time, so that a notice can be attributed to it.
    pub(super) fn minimize_concurrency(&mut self) {
        self.concurrency = 1;
    }

    /// Delays further requests, so that a rejected request is not repeated in a tight loop.
    pub(super) fn back_off(&mut self, now: MonoTime) {
        self.halve_concurrency();
        self.consecutive_rejections = (self.consecutive_rejections + 1).min(6);
        self.retry_after = self.retry_after.max(now.plus_secs(1 << self.consecutive_rejections));
    }

    /// Returns the times at which the connection has something to do by itself, except past ends of a back-off.
    pub(super) fn wake_times(&self, now: MonoTime) -> impl Iterator<Item = MonoTime> {
        let closing = self.subscriptions.values().filter_map(|sub| match sub.purpose {
            SubscriptionPurpose::Closing(until) => Some(until),
            _ => None,
        });
        let retry = (self.retry_after > now).then_some(self.retry_after);
        closing.chain(retry).chain(self.auth_deadline())
    }

    /// Returns when the current authentication fails, if one is in progress.
    pub(super) fn auth_deadline(&self) -> Option<MonoTime> {
        match self.auth {
            AuthState::Required(at) | AuthState::Sent(at) => Some(at),
            AuthState::NotRequired | AuthState::Done => None,
        }
    }

    /// Answers the challenge of a relay that requires authentication, or waits for the challenge. Returns `false` if
    /// the relay rejects us although we are authenticated.
    pub(super) fn authenticate(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let until = ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS);
        match (self.auth, self.challenge.clone()) {
            (AuthState::NotRequired, Some(challenge)) => {
                self.auth = AuthState::Sent(until);
                self.send(ctx, OutgoingMessage::Auth(challenge));
            }
            (AuthState::NotRequired, None) => self.auth = AuthState::Required(until),
            (AuthState::Required(_) | AuthState::Sent(_), _) => {}
            (AuthState::Done, _) => return false,
        }
        true
    }

    /// Handles an AUTH challenge. It is answered only if the relay has demanded authentication, or states in its
    /// NIP-11 document that it does.
    pub(super) fn on_challenge(&mut self, ctx: &mut SyncContext<'_>, challenge: String, is_stated: bool) {
        self.challenge = Some(challenge.clone());
        if matches!(self.auth, AuthState::Required(_)) || (is_stated && self.auth == AuthState::NotRequired) {
            self.auth = AuthState::Sent(ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS));
            self.send(ctx, OutgoingMessage::Auth(challenge));
        }
    }

    /// Ends the current authentication.
    pub(super) fn finish_authentication(&mut self, ctx: &SyncContext<'_>) {
        self.auth = AuthState::Done;
        self.last_id_before_auth = Some(SubscriptionId(*ctx.next_id));
    }

    /// Whether a subscription was opened before the relay answered our authentication. It may still be rejected for lack
    /// of authentication.
    pub(super) fn was_opened_before_auth(&self, id: SubscriptionId) -> bool {
        self.last_id_before_auth.is_some_and(|last| id <= last)
    }

    /// Whether the relay has answered our authentication.
    pub(super) fn is_authenticated(&self) -> bool {
        self.auth == AuthState::Done
    }

    /// Counts a part of the needs that the relay refuses to serve. Returns whether it has refused too many different ones.
    pub(super) fn record_refusal(&mut self, scope: SyncScope) -> bool {
        if !self.refused_scopes.contains(&scope) {
            self.refused_scopes.push(scope);
        }
        self.refused_scopes.len() >= limits::MAX_REFUSED_SCOPES
    }

    /// Whether an authentication event waits for its answer.
    pub(super) fn is_authentication_sent(&self) -> bool {
        matches!(self.auth, AuthState::Sent(_))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, sent, with_relay};
    use super::*;
    use crate::nostr::filter::Filter;

    const REQUEST: SubscriptionPurpose = SubscriptionPurpose::Request(RequestId(1));

    fn open(session: &mut Session, ctx: &mut SyncContext<'_>) -> SubscriptionId {
        session.open(ctx, REQUEST, |sub| OutgoingMessage::Req(sub, Vec::new()))
    }

    #[test]
    fn bytes_of_a_subscription_count_until_its_slot_is_free() {
        with_relay(|_, ctx| {
            let mut session = Session::new(SessionId(1), at(0).mono);
            let filter = || Filter { tags: vec![(b'e', vec!["ab".repeat(32)].into())], ..Filter::default() };
            let bytes = json_bytes(&filter());
            let [page, other] =
                [1, 2].map(|count| session.open(ctx, REQUEST, |sub| OutgoingMessage::Req(sub, vec![filter(); count])));
            let compare = session.open(ctx, REQUEST, |sub| OutgoingMessage::NegOpen(sub, filter(), vec![0; 50]));
            assert_eq!(session.open_bytes(), 4 * bytes, "without the negentropy message");
            session.close(ctx, other, false);
            assert_eq!(session.open_bytes(), 4 * bytes, "the relay may not have closed it yet");
            for sub in [page, other, compare] {
                session.remove(sub);
            }
            assert_eq!(session.open_bytes(), 0);
        });
    }

    #[test]
    fn closed_subscription_occupies_its_slot_until_the_relay_answers_or_the_grace_ends() {
        with_relay(|_, ctx| {
            let mut session = Session::new(SessionId(1), at(0).mono);
            let answered = open(&mut session, ctx);
            let [unanswered, late] = [open(&mut session, ctx), open(&mut session, ctx)];
            session.mark_answered(answered);
            for sub in [answered, unanswered, late] {
                session.close(ctx, sub, false);
            }
            assert_eq!((session.slot_count(), session.open_count()), (2, 0));
            assert!(session.remove(unanswered).is_some());
            session.free_slots(at(limits::SYNC_CLOSE_GRACE_SECS - 1).mono);
            assert_eq!(session.slot_count(), 1);
            session.free_slots(at(limits::SYNC_CLOSE_GRACE_SECS).mono);
            assert_eq!(session.slot_count(), 0);
            assert_eq!(sent(ctx).len(), 6);
        });
    }

    #[test]
    fn requests_wait_for_authentication() {
        with_relay(|_, ctx| {
            let mut session = Session::new(SessionId(1), at(0).mono);
            session.on_challenge(ctx, "first".to_owned(), false);
            assert!(sent(ctx).is_empty() && session.can_send(at(0).mono), "the relay has not demanded it");
            assert!(session.authenticate(ctx));
            assert_eq!(sent(ctx), [OutgoingMessage::Auth("first".to_owned())]);
            assert!(!session.can_send(at(0).mono) && session.auth_deadline().is_some());
            let before = open(&mut session, ctx);
            session.finish_authentication(ctx);
            assert!(session.can_send(at(0).mono));
            let after = open(&mut session, ctx);
            assert!(session.was_opened_before_auth(before) && !session.was_opened_before_auth(after));
            assert!(!session.authenticate(ctx), "the relay rejects us although we are authenticated");
        });
    }

    #[test]
    fn nothing_is_sent_while_the_connection_is_being_closed() {
        with_relay(|_, ctx| {
            let mut session = Session::new(SessionId(1), at(0).mono);
            let sub = open(&mut session, ctx);
            assert!(!session.begin_closing());
            session.send(ctx, OutgoingMessage::NegMsg(sub, vec![1]));
            session.close(ctx, sub, false);
            assert_eq!(sent(ctx).len(), 1);
        });
    }

    #[test]
    fn only_different_refusals_are_counted() {
        let mut session = Session::new(SessionId(1), at(0).mono);
        let scope = |wide| SyncScope { wide, ..SyncScope::default() };
        assert!((0..10).all(|_| !session.record_refusal(scope(false))));
        assert!(!session.record_refusal(scope(true)));
        assert!(session.record_refusal(SyncScope::announcements(super::super::filters::IdentifierSet::All)));
    }

    #[test]
    fn rejections_delay_requests_longer_and_longer() {
        let mut session = Session::new(SessionId(1), at(0).mono);
        for (now, until) in [(0, 2), (2, 6), (6, 14)] {
            session.back_off(at(now).mono);
            assert!(!session.can_send(at(until - 1).mono) && session.can_send(at(until).mono), "{now}");
        }
        assert_eq!(session.concurrency(), 1);
        session.record_answer();
        session.back_off(at(20).mono);
        assert!(session.can_send(at(22).mono));
    }
}
