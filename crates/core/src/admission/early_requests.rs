//! Deletion and vanish requests of unknown keys: of authors that have no event here and that no announcement lists as a
//! maintainer. Such a request usually arrived before the events that it deletes
//! (docs/protocol.md#requests-before-their-targets).
//!
//! The request is stored but not served, and keeps out the events that it covers. When an event of its author would be
//! accepted or held, or when an announcement lists the author, the key is no longer unknown: then its requests are
//! served, in the same transaction. So the result does not depend on the order of arrival. Any key can send requests,
//! so they are bounded per key, per network and in total, and expire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Admission;
use super::io::{EarlyRequest, EventSource, StoreWrite, TombstoneKind};
use super::policy::Submission;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::rejection::{Decision, Rejection};
use crate::nostr::{PublicKey, SignedEvent, kinds};
use crate::time::{MonoTime, Now};

/// All requests of unknown keys.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyRequests {
    by_author: BTreeMap<PublicKey, BTreeMap<EventId, (EarlyRequest, MonoTime)>>,
    deadlines: BTreeSet<RequestDeadline>,
    by_network: BTreeMap<Option<String>, NetworkRequests>,
    total: Usage,
}

/// When a request expires, and which one it is.
type RequestDeadline = (MonoTime, PublicKey, EventId);

/// The requests of one network.
#[derive(Clone, Debug, Default)]
struct NetworkRequests {
    usage: Usage,
    deadlines: BTreeSet<RequestDeadline>,
}

/// Number and size of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Usage {
    requests: usize,
    bytes: usize,
}

impl Usage {
    fn add(&mut self, request: &EarlyRequest) {
        self.requests += 1;
        self.bytes += charged_bytes(request);
    }

    fn remove(&mut self, request: &EarlyRequest) {
        self.requests -= 1;
        self.bytes -= charged_bytes(request);
    }

    /// Whether another request fits within the limits.
    fn has_capacity(self, request: &EarlyRequest, max_requests: usize, max_bytes: usize) -> bool {
        self.requests < max_requests && self.bytes.saturating_add(charged_bytes(request)) <= max_bytes
    }
}

/// Returns the bytes that a request is charged with: its text, and the memory of its tag values.
fn charged_bytes(request: &EarlyRequest) -> usize {
    let values: usize = request.event.tags.iter().map(Vec::len).sum();
    request.event.json().len() + values * size_of::<String>()
}

impl EarlyRequests {
    /// Iterates over all requests.
    pub(super) fn iter(&self) -> impl Iterator<Item = &EarlyRequest> {
        self.by_author.values().flat_map(BTreeMap::values).map(|(request, _)| request)
    }

    fn contains(&self, event: &Event) -> bool {
        self.by_author.get(&event.pubkey).is_some_and(|requests| requests.contains_key(&event.id))
    }

    /// Returns why an event is kept out by a request of its author.
    fn tombstone(&self, event: &Event) -> Option<TombstoneKind> {
        let requests = self.by_author.get(&event.pubkey)?;
        let tombstones = requests.values().filter_map(|(request, _)| tombstone_by(&request.event, event));
        // As in the store, vanishing takes precedence.
        tombstones.max_by_key(|tombstone| *tombstone == TombstoneKind::Vanished)
    }

    /// Whether the author may have another request.
    fn has_capacity(&self, request: &EarlyRequest) -> bool {
        let mut by_author = Usage::default();
        let requests = self.by_author.get(&request.event.pubkey).into_iter().flat_map(BTreeMap::values);
        requests.for_each(|(request, _)| by_author.add(request));
        by_author.has_capacity(request, limits::MAX_EARLY_REQUESTS_PER_KEY, limits::MAX_EARLY_REQUEST_BYTES_PER_KEY)
    }

    /// Returns a request that must be removed before another one fits: the oldest of the same network, or, if there are
    /// too many in total, of the network with the most bytes. So a flood removes mostly its own requests. Loopback
    /// (`None`) has no limit of its own.
    fn next_to_evict(&self, request: &EarlyRequest) -> Option<(PublicKey, EventId)> {
        let own = self.by_network.get(&request.network).filter(|own| {
            request.network.is_some()
                && !own.usage.has_capacity(
                    request,
                    limits::MAX_EARLY_REQUESTS_PER_NETWORK,
                    limits::MAX_EARLY_REQUEST_BYTES_PER_NETWORK,
                )
        });
        let is_full = !self.total.has_capacity(request, limits::MAX_EARLY_REQUESTS, limits::MAX_EARLY_REQUEST_BYTES);
        let largest = || self.by_network.values().filter(|_| is_full).max_by_key(|network| network.usage.bytes);
        own.or_else(largest)?.deadlines.first().map(|(_, author, id)| (*author, *id))
    }

    pub(super) fn insert(&mut self, request: EarlyRequest, deadline: MonoTime) {
        let (author, id) = (request.event.pubkey, request.event.id);
        self.total.add(&request);
        let network = self.by_network.entry(request.network.clone()).or_default();
        network.usage.add(&request);
        network.deadlines.insert((deadline, author, id));
        self.deadlines.insert((deadline, author, id));
        self.by_author.entry(author).or_default().insert(id, (request, deadline));
    }

    fn remove(&mut self, author: PublicKey, id: EventId) -> Option<EarlyRequest> {
        let requests = self.by_author.get_mut(&author)?;
        let (request, deadline) = requests.remove(&id)?;
        if requests.is_empty() {
            self.by_author.remove(&author);
        }
        self.deadlines.remove(&(deadline, author, id));
        self.total.remove(&request);
        if let Some(network) = self.by_network.get_mut(&request.network) {
            network.usage.remove(&request);
            network.deadlines.remove(&(deadline, author, id));
            if network.deadlines.is_empty() {
                self.by_network.remove(&request.network);
            }
        }
        Some(request)
    }

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(deadline, ..)| *deadline)
    }

    fn next_expired(&self, now: MonoTime) -> Option<(PublicKey, EventId)> {
        self.deadlines.first().filter(|(deadline, ..)| *deadline <= now).map(|(_, author, id)| (*author, *id))
    }
}

/// Returns why a request keeps out an event of the same author. Deletion and vanish requests are not kept out.
fn tombstone_by(request: &Event, event: &Event) -> Option<TombstoneKind> {
    let is_older = event.created_at <= request.created_at;
    if matches!(event.kind, kinds::DELETION | kinds::VANISH) {
        return None;
    }
    if request.kind == kinds::VANISH {
        return is_older.then_some(TombstoneKind::Vanished);
    }
    let is_named = || request.values("e").any(|id| EventId::from_hex(id) == Some(event.id));
    let is_at_named_coordinate = || {
        let coordinate = event.coordinate();
        coordinate.is_some() && request.values("a").any(|value| Coordinate::parse(value) == coordinate)
    };
    (is_named() || (is_older && is_at_named_coordinate())).then_some(TombstoneKind::Deleted)
}

impl Admission {
    /// Changes a decision that was made without requests of unknown keys: rejects what they cover, serves them if the
    /// event makes their key known, and remembers the event if it is such a request.
    ///
    /// An event that is rejected for another reason keeps that reason, so that sync submits it again when the reason no
    /// longer applies.
    pub(super) fn apply_early_requests(
        &mut self,
        now: Now,
        event: &Arc<SignedEvent>,
        source: &EventSource,
        network: Option<String>,
        decision: Decision,
    ) -> Decision {
        match decision {
            _ if self.policy.ignores_deletions => decision,
            Decision::Accept | Decision::Hold(_) | Decision::Broadcast => {
                let tombstone = self.early_requests.tombstone(event);
                if decision != Decision::Broadcast {
                    self.serve_early_requests(event.pubkey);
                }
                match tombstone {
                    Some(TombstoneKind::Vanished) => Decision::Reject(Rejection::Vanished),
                    Some(TombstoneKind::Deleted | TombstoneKind::Withdrawn) => Decision::Reject(Rejection::Deleted),
                    None => decision,
                }
            }
            Decision::Reject(Rejection::Unrelated) if matches!(event.kind, kinds::DELETION | kinds::VANISH) => {
                self.remember_request(now, event, source, network)
            }
            decision => decision,
        }
    }

    /// Stores a request of an unknown key. If its network has too many, or there are too many in total, older ones are
    /// removed.
    fn remember_request(
        &mut self,
        now: Now,
        event: &Arc<SignedEvent>,
        source: &EventSource,
        network: Option<String>,
    ) -> Decision {
        if self.early_requests.contains(event) {
            return Decision::Remember;
        }
        let expires_at = now.wall.plus_secs(limits::EARLY_REQUEST_EXPIRY_SECS);
        let request = EarlyRequest { event: event.clone(), network, expires_at };
        if !self.early_requests.has_capacity(&request) {
            return Decision::Reject(match source {
                EventSource::Client(_) => Rejection::TooManyEarlyRequests,
                // Sync remembers it and submits it again when an event of its author is served.
                EventSource::Relay(_) => Rejection::Unrelated,
            });
        }
        while let Some((author, id)) = self.early_requests.next_to_evict(&request) {
            self.remove_early_request(author, id);
        }
        self.write(StoreWrite::AddEarlyRequest(request.clone()));
        self.early_requests.insert(request, now.mono.plus_secs(limits::EARLY_REQUEST_EXPIRY_SECS));
        Decision::Remember
    }

    /// Serves the requests of a key that is no longer unknown, with the effects of any accepted request.
    pub(super) fn serve_early_requests(&mut self, author: PublicKey) {
        if self.policy.ignores_deletions {
            return;
        }
        let requests = self.early_requests.by_author.get(&author).into_iter().flatten();
        // Deletion requests first: a request to vanish removes those that it covers.
        let mut ids: Vec<(u16, EventId)> = requests.map(|(id, (request, _))| (request.event.kind, *id)).collect();
        ids.sort_unstable();
        for (_, id) in ids {
            let Some(request) = self.remove_early_request(author, id) else { continue };
            // The operator may have banned it since.
            if !self.policy.lists.is_event_banned(author, id) {
                self.accept(Submission::new(&self.policy, &request.event), &[]);
            }
        }
    }

    /// Removes the requests that have expired, a slice at a time.
    pub(super) fn expire_early_requests(&mut self, now: MonoTime) {
        for _ in 0..limits::EXPIRY_SLICE_EVENTS {
            let Some((author, id)) = self.early_requests.next_expired(now) else { break };
            self.remove_early_request(author, id);
        }
    }

    fn remove_early_request(&mut self, author: PublicKey, id: EventId) -> Option<EarlyRequest> {
        let request = self.early_requests.remove(author, id)?;
        self.write(StoreWrite::RemoveEarlyRequest(id));
        Some(request)
    }
}
