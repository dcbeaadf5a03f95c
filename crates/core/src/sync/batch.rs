//! Pending batches: parts of the repository needs that are being requested from a relay, and their requests.

use std::collections::{BTreeSet, VecDeque};

use super::filters::{ID_BYTES, SyncScope, json_bytes};
use super::io::{EoseHint, SubscriptionId, SyncSource};
use super::live::LiveSetId;
use super::negentropy::NegentropySession;
use super::pagination::PaginationState;
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::{MonoTime, Timestamp};

/// Id of a batch. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct BatchId(pub(super) u64);

/// Id of a request of a batch. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RequestId(pub(super) u64);

/// A part of the repository needs that is being requested from a relay.
///
/// It is complete when its last request has ended and every event that it submitted has a result.
#[derive(Debug)]
pub(super) struct PendingBatch {
    pub(super) scope: SyncScope,
    pub(super) origin: BatchOrigin,
    pub(super) source: SyncSource,
    pub(super) since: Option<Timestamp>,
    /// The only filter of the scope that it requests, if not all.
    pub(super) only_filter: Option<usize>,
    pub(super) phase: BatchPhase,
    /// Requests that have not been started.
    pub(super) queue: VecDeque<QueuedRequest>,
    /// Filters without local events. They share requests when the other filters have been compared.
    pub(super) unmatched_filters: Vec<Filter>,
    /// Number of active requests.
    pub(super) active_requests: u32,
    /// Number of submitted events without a result.
    pub(super) pending_events: u32,
    /// Why the batch failed, if it did.
    pub(super) failure: Option<BatchFailure>,
    /// Its live set, if that was not confirmed in time.
    pub(super) unconfirmed_live_set: Option<LiveSetId>,
    /// Whether the relay refused the live set.
    pub(super) is_live_refused: bool,
    /// Whether it belongs to the historic run of the connection.
    pub(super) in_historic_run: bool,
    pub(super) started_at: Timestamp,
    /// Number of new events.
    pub(super) events: u64,
    /// Events that were created before this time should have been delivered by live sync. `None` if it did not follow
    /// the scope.
    pub(super) live_until: Option<Timestamp>,
    /// Events that live sync should have delivered: their number, and up to three ids.
    pub(super) gaps: (u64, Vec<EventId>),
}

/// Why a batch was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BatchOrigin {
    /// Layer 1: announcements and states.
    Announcements,
    /// Needs that were never requested from this relay.
    New,
    /// Part of a pass over covered needs.
    Pass,
    /// Retry of a failed batch, with the number of failures.
    Retry(u32),
    /// Poll of a scope that has no live subscription.
    Poll,
    /// Events that are fetched by id.
    Ids,
}

/// Why a batch failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BatchFailure {
    /// A request was not answered in time.
    NoAnswer,
    /// A request was rejected.
    Rejected,
    /// The live subscription was not confirmed in time.
    LiveUnconfirmed,
    /// The live subscription was rejected.
    LiveRejected,
    /// A filter has too many pages.
    TooManyPages,
    /// The relay offered events in a reconciliation and does not send them.
    EventsWithheld,
    /// There is no space for the events of the relay.
    NoSpace,
}

impl BatchFailure {
    /// Returns the reason in logs and on the status page.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::NoAnswer => "request not answered in time",
            Self::Rejected => "request rejected",
            Self::LiveUnconfirmed => "live subscription not confirmed in time",
            Self::LiveRejected => "live subscription rejected",
            Self::TooManyPages => "too many pages for one filter",
            Self::EventsWithheld => "relay does not serve the events that it offers",
            Self::NoSpace => "no space for the events of the relay",
        }
    }

    /// Returns the seconds until a batch that has failed this often is tried again.
    pub(super) fn retry_secs(self, attempts: u32) -> u64 {
        let (base, max) = match self {
            Self::EventsWithheld => (limits::WITHHELD_EVENTS_RETRY_SECS, limits::MAX_WITHHELD_EVENTS_RETRY_SECS),
            _ => (limits::BATCH_RETRY_SECS, limits::MAX_BATCH_RETRY_SECS),
        };
        base.saturating_mul(1 << attempts.saturating_sub(1).min(8)).min(max)
    }
}

/// Phase of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BatchPhase {
    /// Its live set is not confirmed yet.
    AwaitingLive,
    /// Stored events are being requested.
    Historic,
}

/// A request that has not been started.
#[derive(Debug)]
pub(super) enum QueuedRequest {
    /// The first page of several filters in one REQ.
    Group(Vec<Filter>),
    /// A page of one filter.
    Page(Box<PaginationState>),
    /// A comparison of local and remote ids (negentropy).
    Compare(Filter),
    /// Events by id, and how often some of them were requested before.
    FetchIds(Vec<EventId>, u8),
}

impl QueuedRequest {
    /// Returns the bytes of the filters of the request. `max_id_bytes` limits those of a request by id.
    pub(super) fn bytes(&self, max_id_bytes: usize) -> usize {
        match self {
            Self::Group(filters) => filters.iter().map(json_bytes).sum(),
            Self::Page(pages) => json_bytes(&pages.next_filter()),
            Self::Compare(filter) => json_bytes(filter),
            Self::FetchIds(ids, _) => (ids.len().min(limits::MAX_IDS_PER_REQUEST) * ID_BYTES).min(max_id_bytes),
        }
    }
}

/// A request that has been started.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    pub(super) batch: BatchId,
    pub(super) sub: Option<SubscriptionId>,
    pub(super) kind: RequestKind,
    pub(super) started_at: MonoTime,
    /// When the request is abandoned unless it makes progress.
    pub(super) deadline: Option<MonoTime>,
    pub(super) answer: AnswerState,
}

/// Whether the answer to a request has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AnswerState {
    #[default]
    Pending,
    /// EOSE was received from a relay that sends stored events after it. The request ends at its deadline.
    Ended(Option<EoseHint>),
}

/// Kind and progress of an active request.
#[derive(Debug)]
pub(super) enum RequestKind {
    /// Several filters, and the number of events received.
    Group(Vec<Filter>, usize),
    Page(Box<PaginationState>),
    /// The store is looking up local ids.
    QueryingLocalIds(Filter),
    Negentropy(Filter, Box<NegentropySession>),
    /// The store is looking up which ids are missing.
    QueryingMissingIds(u8),
    /// Events by id: those that have not arrived, the number requested, and those still to be requested.
    FetchIds {
        missing: BTreeSet<EventId>,
        count: usize,
        remaining: Vec<EventId>,
        round: u8,
    },
}

impl PendingBatch {
    /// Returns the filter of a comparison for use in pages. States are compared without `since` even if the batch has
    /// one.
    pub(super) fn page_filter(&self, filter: Filter) -> Filter {
        Filter { since: filter.since.or(self.since), ..filter }
    }

    pub(super) fn new(scope: SyncScope, origin: BatchOrigin, source: SyncSource, started_at: Timestamp) -> Self {
        Self {
            scope,
            origin,
            source,
            since: None,
            only_filter: None,
            phase: BatchPhase::Historic,
            queue: VecDeque::new(),
            unmatched_filters: Vec::new(),
            active_requests: 0,
            pending_events: 0,
            failure: None,
            unconfirmed_live_set: None,
            is_live_refused: false,
            in_historic_run: false,
            started_at,
            events: 0,
            live_until: None,
            gaps: (0, Vec::new()),
        }
    }

    /// Whether it still has requests, or waits for its live set.
    pub(super) fn has_requests(&self) -> bool {
        !self.queue.is_empty()
            || !self.unmatched_filters.is_empty()
            || self.active_requests > 0
            || self.phase == BatchPhase::AwaitingLive
    }

    /// Whether all its requests have ended and all its events have a result.
    pub(super) fn is_complete(&self) -> bool {
        !self.has_requests() && self.pending_events == 0
    }

    /// Whether its requests are sent one after the other: announcements must be accepted before the states that need
    /// them.
    pub(super) fn is_serial(&self) -> bool {
        self.scope.announcements.is_some()
    }

    /// Queues a request again, possibly in another form. In a serial batch it keeps its turn.
    pub(super) fn requeue(&mut self, request: Option<QueuedRequest>) {
        if self.is_serial() {
            request.into_iter().for_each(|request| self.queue.push_front(request));
        } else {
            self.queue.extend(request);
        }
    }

    /// Marks the batch as failed. The first reason is kept, except that every other one replaces withheld events, for
    /// which the batch is retried soon.
    pub(super) fn fail(&mut self, failure: BatchFailure) {
        if self.failure.is_none_or(|first| first == BatchFailure::EventsWithheld) {
            self.failure = Some(failure);
        }
    }
}

impl ActiveRequest {
    /// Whether it requests events and has received none.
    pub(super) fn is_empty(&self) -> bool {
        match &self.kind {
            RequestKind::Group(_, count) => *count == 0,
            RequestKind::Page(pages) => pages.is_empty(),
            RequestKind::FetchIds { missing, count, .. } => missing.len() == *count,
            RequestKind::QueryingLocalIds(_) | RequestKind::Negentropy(..) | RequestKind::QueryingMissingIds(_) => {
                false
            }
        }
    }

    /// Whether it uses negentropy, or is about to.
    pub(super) fn is_negentropy(&self) -> bool {
        matches!(self.kind, RequestKind::QueryingLocalIds(_) | RequestKind::Negentropy(..))
    }
}
