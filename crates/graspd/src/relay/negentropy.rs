//! Reconciliations (NIP-77) of one session.

use std::collections::HashMap;
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{Filter, message};
use grasp_core::time::MonoTime;

use super::session::{SessionIo, WriteBuffer};
use crate::http::shared_budget::BudgetReservation;
use crate::relay::negentropy_cache::{ItemSetError, ItemSetWaiter};
use crate::relay::outbox::{CachedItemSet, SubscriptionKey};
use crate::relay::query_pool::{QueryJob, ReconcileJob};

/// Open reconciliations by the subscription id that the client chose.
#[derive(Default)]
pub(crate) struct Reconciliations {
    open: HashMap<String, Reconciliation>,
    /// Item sets under construction and replies in progress, including those of closed and replaced reconciliations.
    running: usize,
}

struct Reconciliation {
    key: SubscriptionKey,
    state: ReconciliationState,
    opened_at: MonoTime,
    last_message_at: MonoTime,
}

enum ReconciliationState {
    /// The item set is being built; the client's first message waits for it.
    Building(ReceivedMessage),
    /// A reply is being computed.
    Replying(Arc<CachedItemSet>),
    /// The client has the reply and may send the next message.
    Waiting(Arc<CachedItemSet>),
}

/// A message of a client, and its share of the memory for reconciliations.
pub(crate) struct ReceivedMessage {
    pub(crate) bytes: Vec<u8>,
    _reservation: BudgetReservation,
}

impl ReceivedMessage {
    fn new(io: &SessionIo, bytes: Vec<u8>) -> Result<Self, ItemSetError> {
        let reserved = io.context.budgets.negentropy.reserve(io.sender.network(), bytes.len());
        Ok(Self { bytes, _reservation: reserved.map_err(|error| ItemSetError::new(error, io.sender.network()))? })
    }
}

impl Reconciliations {
    /// Handles NEG-OPEN. Replaces a reconciliation with the same id.
    pub(crate) fn open(&mut self, io: &mut SessionIo, id: String, filter: Filter, message: Vec<u8>) {
        self.open.remove(&id);
        let limit = io.context.settings.borrow().max_neg_sessions;
        if self.open.len().max(self.running) >= limit {
            let text = format!("rate-limited: too many negentropy subscriptions, at most {limit}");
            return io.out.push_text(&message::neg_err(&id, &text));
        }
        let message = match ReceivedMessage::new(io, message) {
            Ok(message) => message,
            Err(error) => return io.out.push_text(&error_text(&id, error)),
        };
        let key = io.context.new_subscription_key();
        self.running += 1;
        io.context.negentropy_cache.open(filter, ItemSetWaiter { key, session: io.sender.clone() });
        let now = io.context.clock.mono();
        let state = ReconciliationState::Building(message);
        self.open.insert(id, Reconciliation { key, state, opened_at: now, last_message_at: now });
    }

    /// Handles NEG-MSG.
    pub(crate) fn message(&mut self, io: &mut SessionIo, id: &str, message: Vec<u8>) {
        let Some(reconciliation) = self.open.get_mut(id) else {
            return io.out.push_text(&message::neg_err(id, "closed: unknown subscription"));
        };
        let ReconciliationState::Waiting(set) = &reconciliation.state else {
            self.open.remove(id);
            return io.out.push_text(&message::neg_err(id, "closed: one message at a time"));
        };
        let message = match ReceivedMessage::new(io, message) {
            Ok(message) => message,
            Err(error) => {
                self.open.remove(id);
                return io.out.push_text(&error_text(id, error));
            }
        };
        let set = set.clone();
        reconciliation.last_message_at = io.context.clock.mono();
        reconciliation.state = ReconciliationState::Replying(set.clone());
        self.running += 1;
        submit(io, reconciliation.key, id, set, message);
    }

    /// Handles NEG-CLOSE.
    pub(crate) fn close(&mut self, id: &str) {
        self.open.remove(id);
    }

    /// Handles a finished item set, or the reason why there is none.
    pub(crate) fn on_item_set(
        &mut self,
        io: &mut SessionIo,
        key: SubscriptionKey,
        set: Result<Arc<CachedItemSet>, ItemSetError>,
    ) {
        self.running -= 1;
        let Some(id) = self.id_of(key) else { return };
        let Some(reconciliation) = self.open.get_mut(&id) else { return };
        match set {
            Ok(set) => {
                let state = std::mem::replace(&mut reconciliation.state, ReconciliationState::Replying(set.clone()));
                if let ReconciliationState::Building(message) = state {
                    self.running += 1;
                    submit(io, key, &id, set, message);
                }
            }
            Err(error) => {
                self.open.remove(&id);
                io.out.push_text(&error_text(&id, error));
            }
        }
    }

    /// Handles a finished reply.
    pub(crate) fn on_reply(&mut self, out: &mut WriteBuffer, key: SubscriptionKey, text: &str, is_over: bool) {
        self.running -= 1;
        let Some(id) = self.id_of(key) else { return };
        out.push_text(text);
        if is_over {
            self.open.remove(&id);
        } else if let Some(reconciliation) = self.open.get_mut(&id)
            && let ReconciliationState::Replying(set) = &reconciliation.state
        {
            reconciliation.state = ReconciliationState::Waiting(set.clone());
        }
    }

    /// Closes reconciliations that are idle or open for too long, because their item sets use memory that other clients
    /// need.
    pub(crate) fn close_idle(&mut self, now: MonoTime, out: &mut WriteBuffer) {
        self.open.retain(|id, reconciliation| {
            let is_idle = now.since(reconciliation.last_message_at).as_secs() >= limits::NEGENTROPY_IDLE_TIMEOUT_SECS;
            let is_old = now.since(reconciliation.opened_at).as_secs() >= limits::MAX_NEGENTROPY_SESSION_SECS;
            let is_over = matches!(reconciliation.state, ReconciliationState::Waiting(_)) && (is_idle || is_old);
            if is_over {
                out.push_text(&message::neg_err(id, "closed: open or idle for too long"));
            }
            !is_over
        });
    }

    fn id_of(&self, key: SubscriptionKey) -> Option<String> {
        self.open.iter().find(|(_, reconciliation)| reconciliation.key == key).map(|(id, _)| id.clone())
    }
}

/// Returns the NEG-ERR for a reconciliation that has no item set or no memory.
fn error_text(id: &str, error: ItemSetError) -> String {
    match error {
        ItemSetError::TooLarge => message::neg_too_big(id, limits::MAX_NEGENTROPY_ITEMS),
        ItemSetError::NoMemory => message::neg_err(id, "blocked: too many reconciliations at once, try again later"),
        ItemSetError::NetworkShare(_) => {
            message::neg_err(id, "blocked: too many reconciliations from your network at once, try again later")
        }
        ItemSetError::Failed => message::neg_err(id, "error: the query failed"),
    }
}

fn submit(io: &SessionIo, key: SubscriptionKey, id: &str, set: Arc<CachedItemSet>, message: ReceivedMessage) {
    let job = ReconcileJob { set, message, key, id: id.to_owned(), session: io.sender.clone() };
    io.context.query_pool.submit(QueryJob::Reconcile(Box::new(job)));
}
