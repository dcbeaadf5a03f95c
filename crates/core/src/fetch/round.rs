//! The rounds of a job: which sources are asked, and when the next round begins.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use super::io::{FetchId, FetchOutput};
use super::job::{FetchJob, JobEvent, QueueEntry};
use super::source::{Source, SourceId, SourceOutcome, SourceState};
use super::throttle::Unavailable;
use super::{FetchMachine, JobId, Timer};
use crate::limits;
use crate::nostr::event::EventId;
use crate::time::MonoTime;

/// Events that become due this shortly after a round begins are part of it, so that a burst is one round.
const SLACK: Duration = Duration::from_secs(1);

/// The due time of an event that has none yet.
pub(super) const NEVER: MonoTime = MonoTime(u64::MAX);

impl FetchJob {
    /// Schedules a round at once for all events.
    pub(super) fn fetch_now(&mut self, now: MonoTime) {
        self.attempts = 0;
        self.paused_until = now;
        self.scheduled_round = Some(now);
        for event in &mut self.events {
            event.is_due = true;
            event.last_received_at = MonoTime(0);
        }
        // Wakes dormant events for one round.
        self.woken_at = now;
        self.sources.values_mut().for_each(|source| source.history.allow_request());
    }

    /// Records that the first bytes of a fetch have arrived.
    pub(super) fn record_first_bytes(&mut self, fetch: FetchId) {
        if let Some((_, source)) = self.source_of(fetch)
            && let SourceState::Fetching { has_answered, .. } = &mut source.state
        {
            *has_answered = true;
        }
    }

    /// Returns when the next event becomes due.
    fn next_due(&self) -> Option<MonoTime> {
        self.events.iter().filter(|event| !event.is_due).map(|event| event.due).min()
    }

    /// Returns when the next round begins.
    pub(super) fn next_round(&self) -> Option<MonoTime> {
        self.scheduled_round.into_iter().chain(self.next_due()).min()
    }

    /// Returns when a planned round begins that also serves an event due at `due`: slightly earlier, or later because
    /// the owner has brought rounds forward too often.
    pub(super) fn round_for(&self, due: MonoTime) -> Option<MonoTime> {
        let soon = |at: &MonoTime| *at <= due && at.plus(SLACK) >= due;
        let planned = self.events.iter().filter(|event| !event.is_due && event.due < NEVER);
        let planned = planned.filter(|event| soon(&event.due) || (event.due > event.wanted.due && event.due >= due));
        planned.map(|event| event.due).chain(self.scheduled_round.filter(soon)).min()
    }
}

impl FetchMachine {
    /// Begins a round: resting sources start to wait for their hosts.
    fn begin_round(&mut self, job: &mut FetchJob) {
        let now = self.now.mono;
        for event in &mut job.events {
            if !event.is_due && event.due <= now.plus(SLACK) {
                event.is_due = true;
                // Busy answers to earlier events do not count for this one.
                for (_, source) in job.sources.iter_mut().filter(|(id, _)| event.sources.contains(id)) {
                    source.busy_answers = 0;
                }
            }
            if event.is_due
                && event.missing.is_empty()
                && event.last_received_at.plus_secs(limits::FETCH_SAME_URL_SECS) <= now
            {
                // All of its objects came, but the event is still held: they are asked for again, and its expiry does
                // not wait for that.
                event.missing = event.wanted.oids.iter().cloned().collect();
                event.unasked.clear();
            }
        }
        self.sort_sources(job);
        let running = &self.fetches;
        let known =
            |id: &FetchId, event: &EventId| running.get(id).is_some_and(|running| running.events.contains(event));
        let (mut wait, mut again, mut blocked) = (Vec::new(), Vec::new(), Vec::new());
        for (id, source) in &job.sources {
            let open = || job.events.iter().filter(|event| event.is_open() && event.sources.contains(id));
            match &source.state {
                SourceState::Resting if open().next().is_some() => {
                    match self.blocked_until(job, *id, source).filter(|until| *until > now) {
                        Some(_) => blocked.push(*id),
                        None => wait.push(*id),
                    }
                }
                SourceState::Fetching { id: fetch, .. } if open().any(|event| !known(fetch, &event.wanted.id)) => {
                    again.push(*id);
                }
                _ => {}
            }
        }
        for id in wait {
            if let Some(source) = job.sources.get_mut(&id) {
                source.state = SourceState::Waiting;
                source.busy_answers = 0;
            }
        }
        for id in again {
            if let Some(source) = job.sources.get_mut(&id) {
                source.has_new_events = true;
            }
        }
        for id in blocked {
            for event in job.events.iter_mut().filter(|event| event.is_due) {
                event.unasked.remove(&id);
            }
        }
        (job.is_round_open, job.has_asked, job.scheduled_round) = (true, false, None);
        let tried = job.take_tried();
        self.report_tried(tried);
    }

    pub(super) fn report_tried(&mut self, events: Vec<EventId>) {
        if !events.is_empty() {
            self.outputs.push_back(FetchOutput::SourcesTried(events));
        }
    }

    /// Sorts the sources: those without a turn in the last round, then GRASP servers, then by hit rate, then as listed.
    fn sort_sources(&self, job: &mut FetchJob) {
        let mut order: Vec<(bool, bool, Reverse<u32>, SourceId)> = job
            .sources
            .iter()
            .map(|(id, source)| {
                let hit_rate = self.hosts.get(source.host).map_or(0, |host| host.hit_rate());
                (source.state != SourceState::Waiting, !source.is_grasp, Reverse(hit_rate), *id)
            })
            .collect();
        order.sort_unstable();
        job.order = order.into_iter().map(|(.., id)| id).collect();
    }

    /// Updates a job after a change: begins a round if it is due, joins and leaves host queues, and sets the alarm.
    pub(super) fn update_job(&mut self, id: JobId) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        let now = self.now.mono;
        if job.next_round().is_some_and(|at| at <= now) {
            self.begin_round(&mut job);
        }
        // Sources that only dormant events need any more wait for their next hour.
        let is_blocked = |(id, source): &(&SourceId, &Source)| {
            source.state == SourceState::Waiting && job.blocked_until(**id, source).is_some_and(|until| until > now)
        };
        for source in job.sources.iter().filter(is_blocked).map(|(id, _)| *id).collect::<Vec<_>>() {
            job.sources.entry(source).and_modify(|source| source.state = SourceState::Resting);
        }
        let start_at = job.next_start_at();
        let (mut hosts, mut waits, mut retry_at) = (BTreeSet::new(), BTreeSet::new(), None::<MonoTime>);
        let earlier = |at: MonoTime, before: Option<MonoTime>| Some(before.map_or(at, |before| before.min(at)));
        for (source_id, source) in &job.sources {
            let Some(ready) = job.ready_at(now, *source_id, source) else { continue };
            waits.insert(source.host);
            match start_at.map(|start_at| start_at.max(ready)) {
                Some(at) if at <= now => drop(hosts.insert(source.host)),
                Some(at) => retry_at = earlier(at, retry_at),
                None => {}
            }
        }
        self.update_queues(id, &mut job, &hosts, &waits);
        let idle = job.active().next().is_none();
        if job.is_round_open && idle && (job.has_asked || waits.is_empty()) {
            self.ending_jobs.insert(id);
        } else if !job.is_round_open && job.scheduled_round.is_none() {
            job.scheduled_round = self.next_round_at(&job);
        }
        let at = job.next_round().into_iter().chain(retry_at).min();
        self.set_alarm(Timer::Job(id), job.alarm, at);
        job.alarm = at;
        self.jobs.insert(id, job);
    }

    /// Queues the job at `hosts` and nowhere else. Positions at the hosts in `waits` are kept.
    fn update_queues(
        &mut self,
        id: JobId,
        job: &mut FetchJob,
        hosts: &BTreeSet<super::HostId>,
        waits: &BTreeSet<super::HostId>,
    ) {
        let priority = job.priority();
        let owner = job.owner();
        let mut left = Vec::new();
        job.queue_entries.retain(|host_id, entry| {
            let Some(host) = self.hosts.get_mut(*host_id) else { return false };
            let keep = waits.contains(host_id) && entry.position.priority == priority;
            if entry.is_queued && !(keep && hosts.contains(host_id)) {
                host.queue.leave(entry.position, id);
                entry.is_queued = false;
                left.push(*host_id);
            }
            keep
        });
        left.into_iter().for_each(|host| self.serve_mirrors_if_idle(host));
        for host_id in hosts {
            let Some(host) = self.hosts.get_mut(*host_id) else { continue };
            let entry = job
                .queue_entries
                .entry(*host_id)
                .or_insert_with(|| QueueEntry { position: host.queue.new_position(priority, owner), is_queued: false });
            if !entry.is_queued {
                entry.is_queued = true;
                host.queue.join(entry.position, id);
            }
            self.mark_ready(*host_id);
        }
    }

    /// Ends a round if no source is being asked.
    pub(super) fn end_round(&mut self, id: JobId) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        if job.is_round_open && job.active().next().is_none() {
            job.is_round_open = false;
            if std::mem::take(&mut job.has_asked) {
                job.attempts = job.attempts.saturating_add(1);
                self.stats.rounds += 1;
            }
            job.scheduled_round = job.scheduled_round.into_iter().chain(self.next_round_at(&job)).min();
            let alarm = job.alarm.into_iter().chain(job.scheduled_round).min();
            self.set_alarm(Timer::Job(id), job.alarm, alarm);
            job.alarm = alarm;
        }
        self.jobs.insert(id, job);
    }

    /// Returns when the next round begins, or `None` if no source rests: waiting sources are asked without a new round.
    fn next_round_at(&self, job: &FetchJob) -> Option<MonoTime> {
        let now = self.now.mono;
        let at = now.plus_secs(job.backoff_secs());
        let resting =
            job.sources.iter().filter(|(id, source)| source.state == SourceState::Resting && job.is_useful(**id));
        // A round in which no source may be asked would be useless.
        let free = resting.map(|(id, source)| self.blocked_until(job, *id, source).unwrap_or(now)).min();
        let is_complete = job.events.iter().any(|event| event.is_due) && !job.events.iter().any(JobEvent::is_open);
        match free {
            Some(free) => Some(at.max(free)),
            None => (is_complete && !job.sources.is_empty()).then_some(at),
        }
    }

    /// Returns until when a source must not be asked, because of its results or because its host wants no requests.
    fn blocked_until(&self, job: &FetchJob, id: SourceId, source: &Source) -> Option<MonoTime> {
        let host = self.hosts.get(source.host);
        let refused = host.and_then(|host| host.refused_until(host.limits()));
        job.blocked_until(id, source).max(refused)
    }

    /// Lets all jobs that wait for an unavailable host continue without it. Jobs that join later are not affected.
    pub(super) fn skip_waiting(&mut self, id: super::HostId) {
        for _ in 0..limits::FETCH_STEP_ENTRIES {
            let Some(host) = self.hosts.get_mut(id) else { return };
            let Some(unavailable) = host.unavailable else { return };
            if host.queue.first().is_none() {
                host.unavailable = None;
                return;
            }
            self.skip_first(id, unavailable);
        }
    }

    /// Lets the first job in the queue of an unavailable host continue without it.
    pub(super) fn skip_first(&mut self, host_id: super::HostId, unavailable: Unavailable) {
        let Some(id) = self.hosts.get(host_id).and_then(|host| host.queue.first()) else { return };
        let Some(mut job) = self.jobs.remove(&id) else { return };
        let there =
            job.sources.iter().filter(|(_, source)| source.host == host_id && source.state == SourceState::Waiting);
        for source in there.map(|(source, _)| *source).collect::<Vec<_>>() {
            self.skip_source(&mut job, source, unavailable);
        }
        self.jobs.insert(id, job);
        self.update_job(id);
    }

    /// Counts a source as asked because its host is unavailable.
    pub(super) fn skip_source(&mut self, job: &mut FetchJob, id: SourceId, unavailable: Unavailable) {
        let repo_path = job.repo_path.clone();
        if let Some(source) = job.sources.get_mut(&id) {
            source.state = SourceState::Resting;
            source.history.outcome = Some(match unavailable {
                Unavailable::Down => SourceOutcome::Failed,
                Unavailable::NoAddress => SourceOutcome::NoAddress,
                Unavailable::Forbidden(_) => SourceOutcome::Forbidden,
                Unavailable::RequestsRefused => SourceOutcome::RequestsRefused,
            });
            if let Unavailable::Forbidden(reason) = unavailable {
                self.report_forbidden(&repo_path, source, reason);
            }
        }
        job.has_asked = true;
        let is_due: BTreeSet<EventId> =
            job.events.iter().filter(|event| event.is_due).map(|event| event.wanted.id).collect();
        let tried = job.record_asked(id, |event| is_due.contains(event));
        self.report_tried(tried);
    }
}
