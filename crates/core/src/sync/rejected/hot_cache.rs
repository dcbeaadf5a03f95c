//! Hot cache: the most recently rejected events, complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RejectedEventsConfig;
use crate::nostr::event::{Event, EventId};
use crate::time::Timestamp;

#[derive(Debug, Default)]
pub(super) struct HotCache {
    events: BTreeMap<EventId, CachedEvent>,
    /// Ids by insertion order.
    order: BTreeMap<u64, EventId>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct CachedEvent {
    event: Arc<Event>,
    bytes: usize,
    until: Timestamp,
    order: u64,
}

impl HotCache {
    /// Inserts an event and evicts the oldest ones if necessary.
    pub(super) fn keep(&mut self, event: Arc<Event>, now: Timestamp, config: &RejectedEventsConfig) {
        self.take(&event.id);
        let bytes = size(&event);
        if bytes > config.hot_bytes || config.hot_events == 0 || config.hot_secs == 0 {
            return;
        }
        while self.events.len() >= config.hot_events || self.bytes + bytes > config.hot_bytes {
            self.drop_oldest();
        }
        self.next += 1;
        self.bytes += bytes;
        self.order.insert(self.next, event.id);
        let until = now.plus_secs(config.hot_secs);
        self.events.insert(event.id, CachedEvent { event, bytes, until, order: self.next });
    }

    pub(super) fn take(&mut self, id: &EventId) -> Option<Arc<Event>> {
        let kept = self.events.remove(id)?;
        self.order.remove(&kept.order);
        self.bytes -= kept.bytes;
        Some(kept.event)
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.order.first_key_value() {
            let id = *id;
            self.take(&id);
        }
    }

    /// Returns the time at which the oldest event expires.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let (_, oldest) = self.order.first_key_value()?;
        self.events.get(oldest).map(|kept| kept.until)
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        while self.due().is_some_and(|due| due <= now) {
            self.drop_oldest();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }
}

/// Returns the approximate memory of an event in bytes: its texts and their allocations.
fn size(event: &Event) -> usize {
    let values = event.tags.iter().flatten().map(|value| value.len() + size_of::<String>() + 16);
    size_of::<Event>() + event.content.len() + event.tags.len() * size_of::<Vec<String>>() + values.sum::<usize>()
}
