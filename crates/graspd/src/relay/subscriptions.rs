//! A session's REQs and COUNTs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{Filter, message};
use grasp_core::time::MonoTime;
use grasp_store::Scan;

use super::session::{Out, SessionContext};
use crate::relay::broadcast::Subscription;
use crate::relay::outbox::{Head, Next, SessionSender, SubscriptionKey};
use crate::relay::query_pool::{CountJob, Job};

/// What a session has asked for and not yet closed.
#[derive(Default)]
pub(crate) struct Subscriptions {
    by_name: HashMap<String, SubscriptionKey>,
    subs: HashMap<SubscriptionKey, Sub>,
    /// Counts that are not answered yet: name and filter memory.
    counts: HashMap<SubscriptionKey, (String, usize)>,
    /// What waits until fewer scans are under way.
    waiting: VecDeque<Waiting>,
    /// Scans and counts that are under way, those of closed subscriptions included.
    running: usize,
    filter_bytes: usize,
}

struct Sub {
    name: String,
    head: Head,
    bytes: usize,
    /// Live events that came before EOSE; afterwards `None`.
    held_back: Option<Vec<Arc<[u8]>>>,
    asked: MonoTime,
}

enum Waiting {
    Req(SubscriptionKey, Vec<Filter>),
    Count(SubscriptionKey, Vec<Filter>),
}

impl Subscriptions {
    /// REQ: replaces a subscription of the same name.
    pub(crate) fn req(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        name: String,
        filters: Vec<Filter>,
    ) {
        self.close(rooms, to, &name);
        let bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
        let most = rooms.max_subscriptions();
        if self.subs.len() >= most {
            return out.text(&message::closed(&name, &format!("rate-limited: at most {most} subscriptions are kept")));
        }
        if self.is_too_much(bytes, out, &name) {
            return;
        }
        let key = rooms.new_key();
        self.filter_bytes += bytes;
        self.by_name.insert(name.clone(), key);
        self.subs.insert(
            key,
            Sub { head: Head::new(&name), name, bytes, held_back: Some(Vec::new()), asked: rooms.clock.mono() },
        );
        self.waiting.push_back(Waiting::Req(key, filters));
        self.start(rooms, to);
    }

    /// COUNT: answered once and forgotten.
    pub(crate) fn count(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        name: String,
        filters: Vec<Filter>,
    ) {
        if self.counts.len() >= rooms.max_subscriptions() {
            return out.text(&message::closed(&name, "rate-limited: too many counts at once"));
        }
        let bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
        if self.is_too_much(bytes, out, &name) {
            return;
        }
        let key = rooms.new_key();
        self.filter_bytes += bytes;
        self.counts.insert(key, (name, bytes));
        let filters = filters.into_iter().map(|filter| Filter { limit: None, ..filter }).collect();
        self.waiting.push_back(Waiting::Count(key, filters));
        self.start(rooms, to);
    }

    /// Refuses filters that are more than one connection may keep.
    fn is_too_much(&self, bytes: usize, out: &mut Out, name: &str) -> bool {
        let most = limits::MAX_FILTER_BYTES_PER_CONNECTION;
        let too_much = self.filter_bytes + bytes > most;
        if too_much {
            let text = format!("rate-limited: active subscriptions exceed max size {most} bytes");
            out.text(&message::closed(name, &text));
        }
        too_much
    }

    /// CLOSE.
    pub(crate) fn close(&mut self, rooms: &SessionContext, to: &SessionSender, name: &str) {
        if let Some(key) = self.by_name.remove(name) {
            self.forget(rooms, to, key);
        }
    }

    fn forget(&mut self, rooms: &SessionContext, to: &SessionSender, key: SubscriptionKey) {
        let Some(sub) = self.subs.remove(&key) else { return };
        self.by_name.retain(|_, other| *other != key);
        self.filter_bytes -= sub.bytes;
        for json in sub.held_back.into_iter().flatten() {
            to.sent_live(json.len());
        }
        let before = self.waiting.len();
        self.waiting.retain(|waiting| !matches!(waiting, Waiting::Req(other, _) if *other == key));
        if self.waiting.len() == before {
            rooms.live.unsubscribe(key);
        }
    }

    /// The connection has ended.
    pub(crate) fn close_all(&mut self, rooms: &SessionContext) {
        for key in self.subs.keys() {
            rooms.live.unsubscribe(*key);
        }
    }

    /// Whether nothing of what is stored is still to be told.
    pub(crate) fn are_answered(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    /// A part of a stored answer has come.
    pub(crate) fn stored(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        key: SubscriptionKey,
        part: Vec<u8>,
        next: Next,
    ) {
        let Some(sub) = self.subs.get_mut(&key) else {
            // Closed or replaced meanwhile: nobody wants the rest.
            self.running -= 1;
            return self.start(rooms, to);
        };
        out.part(part);
        let problem = match next {
            Next::More(scan) => return out.then(scan),
            Next::End => {
                out.text(&message::eose(&sub.name));
                rooms.meter.relay().answered(rooms.clock.mono().since(sub.asked));
                for json in sub.held_back.take().into_iter().flatten() {
                    out.live(&sub.head, &json);
                }
                None
            }
            Next::TooMuch => Some("rate-limited: the query touches too many events, narrow it"),
            Next::Failed => Some("error: the query failed"),
        };
        if let Some(problem) = problem {
            out.text(&message::closed(&sub.name, problem));
            self.forget(rooms, to, key);
        }
        self.running -= 1;
        self.start(rooms, to);
    }

    /// A live event has come.
    pub(crate) fn live(&mut self, to: &SessionSender, out: &mut Out, key: SubscriptionKey, json: Arc<[u8]>) {
        match self.subs.get_mut(&key) {
            Some(Sub { held_back: Some(held_back), .. }) => held_back.push(json),
            Some(Sub { head, .. }) => out.live(head, &json),
            None => to.sent_live(json.len()),
        }
    }

    /// The live index had no room for a subscription.
    pub(crate) fn no_room(&mut self, rooms: &SessionContext, to: &SessionSender, out: &mut Out, key: SubscriptionKey) {
        if let Some(sub) = self.subs.get(&key) {
            out.text(&message::closed(&sub.name, "rate-limited: the server holds as many filters as it can"));
        }
        self.forget(rooms, to, key);
        self.running -= 1;
        self.start(rooms, to);
    }

    /// A count is done.
    pub(crate) fn counted(
        &mut self,
        rooms: &SessionContext,
        to: &SessionSender,
        out: &mut Out,
        key: SubscriptionKey,
        count: Option<u64>,
    ) {
        if let Some((name, bytes)) = self.counts.remove(&key) {
            self.filter_bytes -= bytes;
            out.text(&match count {
                Some(count) => message::count(&name, count),
                None => message::closed(&name, "rate-limited: the count touches too many events, narrow it"),
            });
        }
        self.running -= 1;
        self.start(rooms, to);
    }

    fn start(&mut self, rooms: &SessionContext, to: &SessionSender) {
        while self.running < limits::MAX_SCANS_PER_CONNECTION
            && let Some(waiting) = self.waiting.pop_front()
        {
            match waiting {
                Waiting::Req(key, filters) => {
                    if let Some(sub) = self.subs.get(&key) {
                        self.running += 1;
                        rooms.live.subscribe(Subscription { key, head: sub.head.clone(), filters, to: to.clone() });
                    }
                }
                Waiting::Count(sub, filters) => {
                    self.running += 1;
                    let scan = Scan::new(filters, usize::MAX, rooms.last_seq());
                    rooms.readers.submit(Job::Count(Box::new(CountJob { scan, sub, to: to.clone(), count: 0 })));
                }
            }
        }
    }
}
