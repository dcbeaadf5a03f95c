//! A session's reconciliations (NIP-77).

use std::collections::HashMap;
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{Filter, message};
use grasp_core::time::MonoTime;

use super::session::{Out, SessionContext};
use crate::relay::negentropy_cache::ItemSetError;
use crate::relay::outbox::{Held, SessionSender, SubscriptionKey};
use crate::relay::query_pool::{Job, ReconcileJob};

/// The reconciliations that are open.
#[derive(Default)]
pub(crate) struct Reconciliations {
    open: HashMap<String, Reconciliation>,
    /// Sets that are being read and messages that are being answered, those of closed and replaced reconciliations
    /// included.
    busy: usize,
}

struct Reconciliation {
    key: SubscriptionKey,
    stage: Stage,
    opened: MonoTime,
    heard: MonoTime,
}

enum Stage {
    /// The items are being read; the first message waits for them.
    Reading(Vec<u8>),
    /// A message is being answered.
    Answering(Arc<Held>),
    /// It is the client's turn.
    Listening(Arc<Held>),
}

impl Reconciliations {
    /// NEG-OPEN: replaces a reconciliation of the same name.
    pub(crate) fn open(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        name: String,
        filter: Filter,
        message: Vec<u8>,
    ) {
        self.open.remove(&name);
        let most = rooms.max_neg_sessions();
        if self.open.len().max(self.busy) >= most {
            let text = format!("rate-limited: too many negentropy subscriptions, at most {most}");
            return out.text(&message::neg_err(&name, &text));
        }
        let key = rooms.new_key();
        self.busy += 1;
        rooms.library.open(filter, key, to.clone());
        let now = rooms.clock.mono();
        self.open.insert(name, Reconciliation { key, stage: Stage::Reading(message), opened: now, heard: now });
    }

    /// NEG-MSG.
    pub(crate) fn message(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        name: &str,
        message: Vec<u8>,
    ) {
        let Some(reconciliation) = self.open.get_mut(name) else {
            return out.text(&message::neg_err(name, "closed: unknown subscription"));
        };
        let Stage::Listening(set) = &reconciliation.stage else {
            self.open.remove(name);
            return out.text(&message::neg_err(name, "closed: one message at a time"));
        };
        let set = set.clone();
        reconciliation.heard = rooms.clock.mono();
        reconciliation.stage = Stage::Answering(set.clone());
        self.busy += 1;
        submit(rooms, to, reconciliation.key, name, set, message);
    }

    /// NEG-CLOSE.
    pub(crate) fn close(&mut self, name: &str) {
        self.open.remove(name);
    }

    /// The items are there, or not to be had.
    pub(crate) fn set(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        key: SubscriptionKey,
        set: Result<Arc<Held>, ItemSetError>,
    ) {
        self.busy -= 1;
        let Some(name) = self.name_of(key) else { return };
        let Some(reconciliation) = self.open.get_mut(&name) else { return };
        let text = match set {
            Ok(set) => {
                let stage = std::mem::replace(&mut reconciliation.stage, Stage::Answering(set.clone()));
                if let Stage::Reading(message) = stage {
                    self.busy += 1;
                    submit(rooms, to, key, &name, set, message);
                }
                return;
            }
            Err(ItemSetError::TooBig) => message::neg_too_big(&name, limits::MAX_NEGENTROPY_ITEMS),
            Err(ItemSetError::NoMemory) => {
                message::neg_err(&name, "blocked: too many reconciliations at once, try again later")
            }
            Err(ItemSetError::Failed) => message::neg_err(&name, "error: the query failed"),
        };
        self.open.remove(&name);
        out.text(&text);
    }

    /// A message has been answered.
    pub(crate) fn answered(&mut self, out: &mut Out, key: SubscriptionKey, text: &str, over: bool) {
        self.busy -= 1;
        let Some(name) = self.name_of(key) else { return };
        out.text(text);
        if over {
            self.open.remove(&name);
        } else if let Some(reconciliation) = self.open.get_mut(&name)
            && let Stage::Answering(set) = &reconciliation.stage
        {
            reconciliation.stage = Stage::Listening(set.clone());
        }
    }

    /// Ends those whose client has fallen silent or takes for ever: their sets take memory that others want.
    pub(crate) fn end_idle(&mut self, now: MonoTime, out: &mut Out) {
        self.open.retain(|name, reconciliation| {
            let idle = now.since(reconciliation.heard).as_secs() >= limits::NEGENTROPY_IDLE_TIMEOUT_SECS;
            let old = now.since(reconciliation.opened).as_secs() >= limits::MAX_NEGENTROPY_SESSION_SECS;
            let over = matches!(reconciliation.stage, Stage::Listening(_)) && (idle || old);
            if over {
                out.text(&message::neg_err(name, "closed: open or idle for too long"));
            }
            !over
        });
    }

    fn name_of(&self, key: SubscriptionKey) -> Option<String> {
        self.open.iter().find(|(_, reconciliation)| reconciliation.key == key).map(|(name, _)| name.clone())
    }
}

fn submit(
    rooms: &SessionContext,
    to: &SessionSender,
    sub: SubscriptionKey,
    name: &str,
    set: Arc<Held>,
    message: Vec<u8>,
) {
    let job = ReconcileJob { set, message, sub, name: name.to_owned(), to: to.clone() };
    rooms.readers.submit(Job::Reconcile(Box::new(job)));
}
