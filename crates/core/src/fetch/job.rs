//! A fetch job: what is missing at one repository, its sources, and the progress of its rounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::HostId;
use super::fair_queue::{Priority, QueuePosition};
use super::io::{FetchId, RequestForm, WantedEvent, WantedKind};
use super::source::{Source, SourceHistory, SourceId, SourceState};
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::RepoPath;
use crate::time::MonoTime;

/// An event of a job, and the objects that it still needs.
#[derive(Clone, Debug)]
pub(super) struct JobEvent {
    pub(super) wanted: WantedEvent,
    pub(super) missing: BTreeSet<String>,
    /// When the last of its objects arrived.
    pub(super) last_received_at: MonoTime,
    /// The sources that it lists.
    pub(super) sources: BTreeSet<SourceId>,
    /// The sources that were not asked since the event came.
    pub(super) unasked: BTreeSet<SourceId>,
    /// When it is due. Later than `wanted.due` if its owner has brought rounds forward too often.
    pub(super) due: MonoTime,
    /// Whether it is due.
    pub(super) is_due: bool,
    /// Whether admission was informed that all sources were asked.
    pub(super) is_reported: bool,
}

impl JobEvent {
    pub(super) fn is_open(&self) -> bool {
        self.is_due && !self.missing.is_empty()
    }
}

/// A position in the queue of a host. The position is kept while the job is busy elsewhere and not queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueEntry {
    pub(super) position: QueuePosition,
    pub(super) is_queued: bool,
}

/// The objects that one repository lacks, the events that need them, and the sources that may have them.
#[derive(Clone, Debug)]
pub(super) struct FetchJob {
    pub(super) repo_path: RepoPath,
    pub(super) events: Vec<JobEvent>,
    pub(super) sources: BTreeMap<SourceId, Source>,
    /// Sources in the order in which they are asked.
    pub(super) order: Vec<SourceId>,
    pub(super) next_source_id: u32,
    /// What is known about sources that no event lists any more.
    pub(super) past_sources: BTreeMap<String, SourceHistory>,
    /// Rounds since the last new event.
    pub(super) attempts: u32,
    /// When the next round begins, if it is scheduled.
    pub(super) scheduled_round: Option<MonoTime>,
    /// No source is asked before this time, because of a local error.
    pub(super) paused_until: MonoTime,
    /// When the operator last started a round, which also wakes dormant events.
    pub(super) woken_at: MonoTime,
    /// Whether a round has begun and not ended.
    pub(super) is_round_open: bool,
    /// Whether a source was asked in this round.
    pub(super) has_asked: bool,
    pub(super) queue_entries: BTreeMap<HostId, QueueEntry>,
    /// Objects that have arrived, the last ones first. Events may wait for further objects, so no ref may name them.
    pub(super) received: VecDeque<String>,
    /// URLs that must not be dialled and were reported.
    pub(super) reported_urls: BTreeSet<String>,
    pub(super) alarm: Option<MonoTime>,
}

impl FetchJob {
    pub(super) fn new(repo_path: RepoPath) -> Self {
        Self {
            repo_path,
            events: Vec::new(),
            sources: BTreeMap::new(),
            order: Vec::new(),
            next_source_id: 0,
            past_sources: BTreeMap::new(),
            attempts: 0,
            scheduled_round: None,
            paused_until: MonoTime(0),
            woken_at: MonoTime(0),
            is_round_open: false,
            has_asked: false,
            queue_entries: BTreeMap::new(),
            received: VecDeque::new(),
            reported_urls: BTreeSet::new(),
            alarm: None,
        }
    }

    pub(super) fn owner(&self) -> PublicKey {
        self.repo_path.repo().owner
    }

    /// Returns whether a source may have something that is needed now.
    pub(super) fn is_useful(&self, source: SourceId) -> bool {
        self.events.iter().any(|event| event.is_open() && event.sources.contains(&source))
    }

    fn is_useful_for_active(&self, source: SourceId) -> bool {
        self.events.iter().any(|event| event.is_open() && !event.wanted.is_dormant && event.sources.contains(&source))
    }

    /// Returns `Active` if at least one event is not dormant.
    pub(super) fn priority(&self) -> Priority {
        if self.events.iter().any(|event| !event.wanted.is_dormant) { Priority::Active } else { Priority::Dormant }
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Source> {
        self.sources.values().filter(|source| source.is_active())
    }

    /// Returns when one more source may be asked, or `None` while too many are being asked.
    pub(super) fn next_start_at(&self) -> Option<MonoTime> {
        let active = self.active().count();
        if active >= limits::MAX_CONCURRENT_FETCHES_PER_JOB {
            return None;
        }
        Some(self.active().filter_map(Source::hedge_at).max().unwrap_or_default().max(self.paused_until))
    }

    /// Returns when a source may be asked, or `None` if it does not wait or has nothing that is needed.
    pub(super) fn ready_at(&self, now: MonoTime, id: SourceId, source: &Source) -> Option<MonoTime> {
        (source.state == SourceState::Waiting && self.is_useful(id))
            .then(|| source.history.next_request_at(self.next_form(now, id, source)))
    }

    /// Returns the form of the next request to a source. If its refs contained nothing of what is missing, they are not
    /// requested again for a while. Dormant events decide only if no other event needs the source.
    pub(super) fn next_form(&self, now: MonoTime, id: SourceId, source: &Source) -> RequestForm {
        let only_active = self.is_useful_for_active(id);
        let open = self.events.iter().filter(|event| event.is_open() && event.sources.contains(&id));
        let open = open.filter(|event| !(only_active && event.wanted.is_dormant));
        let can_request_refs = |oid: &String| source.history.can_request_refs_for(now, oid);
        if open.flat_map(|event| &event.missing).any(can_request_refs) { source.form() } else { RequestForm::ByOid }
    }

    /// Returns until when a source must not be asked: because of invalid data, or because only dormant events need it.
    pub(super) fn blocked_until(&self, id: SourceId, source: &Source) -> Option<MonoTime> {
        let dormant_until =
            source.history.last_request_at().filter(|at| *at >= self.woken_at && !self.is_useful_for_active(id));
        let dormant_until = dormant_until.map(|at| at.plus_secs(limits::FETCH_DORMANT_INTERVAL_SECS));
        source.history.invalid_until.max(dormant_until)
    }

    /// Returns the pause before the next round.
    pub(super) fn backoff_secs(&self) -> u64 {
        if self.priority() == Priority::Dormant {
            return limits::FETCH_DORMANT_INTERVAL_SECS;
        }
        let nth = usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(usize::MAX);
        let [.., last] = limits::FETCH_BACKOFF_SECS;
        limits::FETCH_BACKOFF_SECS.get(nth).copied().unwrap_or(last)
    }

    /// Returns the objects to request from a source, and the events that need them. By object, dormant events are left
    /// out if others need the source, because one missing object fails the whole request. By ref, all events are
    /// included, because that costs nothing. Objects that the source is known to lack are requested only if there is
    /// nothing else to request, by ref also if its refs may contain them now.
    pub(super) fn wanted_from(
        &self,
        now: MonoTime,
        id: SourceId,
        form: RequestForm,
    ) -> (Vec<String>, Vec<(EventId, WantedKind)>) {
        let Some(source) = self.sources.get(&id) else { return Default::default() };
        let is_likely = |oid: &String| match form {
            RequestForm::ByOid => !source.history.is_lacking(oid),
            RequestForm::ByRef => source.history.can_request_refs_for(now, oid),
        };
        let (oids, events) = self.select_wanted(id, form, is_likely);
        if oids.is_empty() { self.select_wanted(id, form, |_| true) } else { (oids, events) }
    }

    fn select_wanted(
        &self,
        source: SourceId,
        form: RequestForm,
        is_selected: impl Fn(&String) -> bool,
    ) -> (Vec<String>, Vec<(EventId, WantedKind)>) {
        let only_active = form == RequestForm::ByOid && self.is_useful_for_active(source);
        let (mut oids, mut events) = (BTreeSet::new(), Vec::new());
        for event in &self.events {
            if !event.is_open() || !event.sources.contains(&source) || (only_active && event.wanted.is_dormant) {
                continue;
            }
            if !oids.is_empty() && oids.len() + event.missing.len() > limits::MAX_OIDS_PER_FETCH {
                continue;
            }
            let selected: Vec<&String> = event.missing.iter().filter(|oid| is_selected(oid)).collect();
            if !selected.is_empty() {
                oids.extend(selected.into_iter().take(limits::MAX_OIDS_PER_FETCH).cloned());
                events.push((event.wanted.id, event.wanted.kind));
            }
        }
        (oids.into_iter().collect(), events)
    }

    /// Records that objects have arrived.
    pub(super) fn record_received(&mut self, now: MonoTime, oids: &[String]) {
        for oid in oids {
            self.received.retain(|known| known != oid);
            self.received.push_front(oid.clone());
        }
        self.received.truncate(limits::MAX_RECEIVED_OBJECTS_PER_JOB);
        for event in &mut self.events {
            for oid in oids {
                if event.missing.remove(oid) {
                    event.last_received_at = now;
                }
            }
        }
    }

    /// Records that a source was asked for these events. Returns the events whose sources were all asked.
    pub(super) fn record_asked(&mut self, source: SourceId, events: impl Fn(&EventId) -> bool) -> Vec<EventId> {
        for event in &mut self.events {
            if events(&event.wanted.id) {
                event.unasked.remove(&source);
            }
        }
        self.take_tried()
    }

    /// Returns the events whose sources were all asked without success and that were not reported yet.
    pub(super) fn take_tried(&mut self) -> Vec<EventId> {
        let done = |event: &&mut JobEvent| {
            event.is_open() && !event.is_reported && event.unasked.is_empty() && !event.wanted.is_dormant
        };
        self.events
            .iter_mut()
            .filter(done)
            .map(|event| {
                event.is_reported = true;
                event.wanted.id
            })
            .collect()
    }

    /// Returns whether an event still needs one of these objects.
    pub(super) fn needs_any(&self, oids: &[String]) -> bool {
        self.events.iter().any(|event| oids.iter().any(|oid| event.missing.contains(oid)))
    }

    /// Returns the source that a fetch asks.
    pub(super) fn source_of(&mut self, fetch: FetchId) -> Option<(SourceId, &mut Source)> {
        self.sources
            .iter_mut()
            .find(|(_, source)| matches!(source.state, SourceState::Fetching { id, .. } if id == fetch))
            .map(|(id, source)| (*id, source))
    }
}
