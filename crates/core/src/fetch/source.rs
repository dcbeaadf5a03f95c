//! A source of a job: one URL, its state, and what is known from earlier requests.

use std::collections::BTreeMap;

use super::HostId;
use super::io::{FetchId, RequestForm};
use super::origin::Origin;
use crate::limits;
use crate::net::OutboundUrl;
use crate::time::MonoTime;

/// Identifies a source within its job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SourceId(pub(super) u32);

/// The last result of a source, for the status page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceOutcome {
    /// It sent this many of the wanted objects.
    Sent(usize),
    /// It lacks an object, or serves objects only by ref.
    NotByOid,
    /// It has no such repository.
    Absent,
    /// Too many requests.
    Busy,
    /// The request failed, or the host is down.
    Failed,
    /// It sent invalid data.
    InvalidData,
    /// Another source was faster.
    Cancelled,
    /// A local error.
    LocalError,
    /// The host name does not resolve.
    NoAddress,
    /// The URL must not be dialled.
    Forbidden,
    /// The server states that it wants no requests.
    RequestsRefused,
}

impl SourceOutcome {
    /// Returns the name of this outcome on the status page.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Sent(_) => "sent",
            Self::NotByOid => "not_by_oid",
            Self::Absent => "absent",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::InvalidData => "unsound",
            Self::Cancelled => "cancelled",
            Self::LocalError => "local_error",
            Self::NoAddress => "no_address",
            Self::Forbidden => "forbidden",
            Self::RequestsRefused => "requests_refused",
        }
    }
}

/// Results of earlier requests to a source. Kept for a while after the end of its job.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceHistory {
    /// When it was last asked, by form.
    requested_at: [Option<MonoTime>; 2],
    /// Whether it had everything then, by form.
    had_everything: [bool; 2],
    /// The form that works.
    pub(super) form: Option<RequestForm>,
    /// Objects that its refs did not contain, and when its refs may be requested for them again. Until then they are
    /// requested by id. They are requested apart from other objects, because one missing object fails a request.
    lacking: BTreeMap<String, MonoTime>,
    /// It sent invalid data, and is not asked before this time.
    pub(super) invalid_until: Option<MonoTime>,
    pub(super) outcome: Option<SourceOutcome>,
    /// Whether it was reported that the URL must not be dialled.
    pub(super) is_reported: bool,
}

impl SourceHistory {
    pub(super) fn record_request(&mut self, now: MonoTime, form: RequestForm) {
        self.requested_at[form as usize] = Some(now);
        self.had_everything[form as usize] = false;
    }

    /// Records that it sent everything it was asked for.
    pub(super) fn record_complete(&mut self, form: RequestForm) {
        self.had_everything[form as usize] = true;
    }

    /// Records objects that its refs did not contain.
    pub(super) fn record_lacking<'o>(&mut self, now: MonoTime, oids: impl Iterator<Item = &'o String>) {
        let refs_after = now.plus_secs(limits::USELESS_REFS_RETRY_SECS);
        for oid in oids.take(limits::MAX_LACKING_OBJECTS_PER_SOURCE) {
            self.lacking.insert(oid.clone(), refs_after);
            if self.lacking.len() > limits::MAX_LACKING_OBJECTS_PER_SOURCE {
                let oldest = self.lacking.iter().min_by_key(|(_, at)| **at).map(|(oid, _)| oid.clone());
                oldest.map(|oid| self.lacking.remove(&oid));
            }
        }
    }

    /// Returns whether its refs did not contain an object.
    pub(super) fn is_lacking(&self, oid: &str) -> bool {
        self.lacking.contains_key(oid)
    }

    /// Returns whether its refs may be requested for an object.
    pub(super) fn can_request_refs_for(&self, now: MonoTime, oid: &str) -> bool {
        self.lacking.get(oid).is_none_or(|refs_after| *refs_after <= now)
    }

    /// Allows to request its refs at once for objects that a new event names.
    pub(super) fn allow_refs_for<'o>(&mut self, now: MonoTime, oids: impl Iterator<Item = &'o String>) {
        for oid in oids {
            self.lacking.entry(oid.clone()).and_modify(|refs_after| *refs_after = now);
        }
    }

    /// Allows to ask it again at once for anything, on the operator's command. The limits of its host still apply.
    pub(super) fn allow_request(&mut self) {
        self.requested_at = Default::default();
        self.invalid_until = None;
        self.forget_lacking();
    }

    /// Forgets the objects that it is known to lack.
    pub(super) fn forget_lacking(&mut self) {
        self.lacking.clear();
    }

    /// Returns when it may be asked in this form again.
    pub(super) fn next_request_at(&self, form: RequestForm) -> MonoTime {
        let requested_at = self.requested_at[form as usize].filter(|_| !self.had_everything[form as usize]);
        requested_at.map_or(MonoTime(0), |at| at.plus_secs(limits::FETCH_SAME_URL_SECS))
    }

    /// Returns when it was last asked.
    pub(super) fn last_request_at(&self) -> Option<MonoTime> {
        self.requested_at.iter().copied().flatten().max()
    }

    /// Returns until when the record is worth keeping.
    pub(super) fn keep_until(&self) -> Option<MonoTime> {
        let requested_at = self.last_request_at().map(|at| at.plus_secs(limits::INVALID_SOURCE_QUIET_SECS));
        requested_at.max(self.invalid_until)
    }
}

/// The state of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceState {
    /// It is not asked before the next round.
    Resting,
    /// It waits for its host.
    Waiting,
    /// Its host is being surveyed since this time.
    Surveying(MonoTime),
    /// A fetch is running since this time; `has_answered` is set with its first bytes.
    Fetching { id: FetchId, since: MonoTime, has_answered: bool },
}

/// A URL from which a job can fetch, with its host and what it is doing now.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) url: String,
    pub(super) target: OutboundUrl,
    pub(super) origin: Origin,
    pub(super) host: HostId,
    pub(super) is_grasp: bool,
    pub(super) state: SourceState,
    pub(super) history: SourceHistory,
    /// Busy answers in this round.
    pub(super) busy_answers: u8,
    /// Whether events arrived that the running fetch does not cover.
    pub(super) has_new_events: bool,
}

impl Source {
    pub(super) fn form(&self) -> RequestForm {
        self.history.form.unwrap_or(if self.is_grasp { RequestForm::ByOid } else { RequestForm::ByRef })
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, SourceState::Surveying(_) | SourceState::Fetching { .. })
    }

    /// Returns when another source may be asked in parallel with this one.
    pub(super) fn hedge_at(&self) -> Option<MonoTime> {
        match self.state {
            SourceState::Surveying(since) | SourceState::Fetching { since, has_answered: false, .. } => {
                Some(since.plus_secs(limits::FETCH_HEDGE_SILENT_SECS))
            }
            SourceState::Fetching { since, has_answered: true, .. } => {
                Some(since.plus_secs(limits::FETCH_HEDGE_SLOW_SECS))
            }
            SourceState::Resting | SourceState::Waiting => None,
        }
    }
}
