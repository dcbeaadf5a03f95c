//! Starts requests: decides which host and which job are next.

use super::io::{FetchId, FetchOutput, FetchRequest};
use super::job::FetchJob;
use super::network_limit::NetworkCapacity;
use super::source::{SourceId, SourceState};
use super::throttle::{HostCapacity, Unavailable};
use super::{FetchMachine, HostId, JobId, RunningFetch, RunningSurvey, SurveyRequester, Timer};
use crate::limits;
use crate::time::MonoTime;

/// Whether a request was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StartResult {
    /// A fetch or a survey was started.
    Started,
    /// Not before this time, or, if it is `None`, not before another request ends.
    NotNow(Option<MonoTime>),
}

impl FetchMachine {
    /// Marks a host as possibly able to start a request.
    pub(super) fn mark_ready(&mut self, id: HostId) {
        self.last_number += 1;
        let tick = self.last_number;
        if let Some(host) = self.hosts.get_mut(id)
            && host.ready_ticket.is_none()
        {
            host.ready_ticket = Some(tick);
            self.ready_hosts.insert((tick, id));
        }
    }

    /// Starts requests at the ready hosts, each in turn. Returns whether one was started.
    pub(super) fn serve_hosts(&mut self) -> bool {
        let (mut served, mut work) = (false, 0);
        while let Some((_, id)) = self.ready_hosts.first().copied() {
            if self.fetches.len() >= limits::MAX_CONCURRENT_FETCHES {
                break;
            }
            self.ready_hosts.pop_first();
            if let Some(host) = self.hosts.get_mut(id) {
                host.ready_ticket = None;
            }
            // The rest is done in the next step, which follows at once.
            work += 1;
            if work > 4 * limits::FETCH_STEP_ENTRIES {
                self.set_host_alarm(id, Some(self.now.mono));
                continue;
            }
            if self.serve_host(id) {
                served = true;
                self.mark_ready(id);
            }
        }
        served
    }

    /// Sets the alarm of a host.
    fn set_host_alarm(&mut self, id: HostId, at: Option<MonoTime>) {
        let Some(host) = self.hosts.get_mut(id) else { return };
        let before = std::mem::replace(&mut host.alarm, at);
        self.set_alarm(Timer::Host(id), before, at);
    }

    /// Serves the first job in the queue of a host, or a mirror check if no job waits. Returns whether that was
    /// possible.
    fn serve_host(&mut self, id: HostId) -> bool {
        let Some(host) = self.hosts.get_mut(id) else { return false };
        let Some(first) = host.queue.first() else {
            // Jobs that are busy elsewhere now may find the host available later.
            host.unavailable = None;
            let started = self.serve_mirror(id);
            self.set_host_alarm(id, started.err().flatten());
            return started.is_ok();
        };
        if let Some(unavailable) = host.unavailable {
            self.skip_first(id, unavailable);
            return true;
        }
        let until = match host.capacity(self.now.mono, host.limits()) {
            HostCapacity::Refused => {
                host.unavailable = Some(Unavailable::RequestsRefused);
                return true;
            }
            HostCapacity::Free(_) => match self.start_best_source(first, id) {
                StartResult::Started => return true,
                StartResult::NotNow(until) => until,
            },
            HostCapacity::Until(until) => Some(until),
            HostCapacity::Full => None,
        };
        self.set_host_alarm(id, until);
        false
    }

    /// Starts the preferred source of a job whose turn it is at `turn`. A source at another host is used if that host
    /// has capacity for its whole queue, or the job is first there too.
    fn start_best_source(&mut self, id: JobId, turn: HostId) -> StartResult {
        let Some(mut job) = self.jobs.remove(&id) else { return StartResult::NotNow(None) };
        let now = self.now.mono;
        let mut start = StartResult::NotNow(None);
        for source_id in job.order.clone() {
            let Some(source) = job.sources.get(&source_id) else { continue };
            let ready = job.ready_at(now, source_id, source).is_some_and(|at| at <= now);
            if !ready || !self.has_capacity(id, source.host, turn) {
                continue;
            }
            let here = source.host == turn;
            match self.start_source(id, &mut job, source_id) {
                StartResult::Started => {
                    start = StartResult::Started;
                    break;
                }
                not_now if here => start = not_now,
                StartResult::NotNow(_) => {}
            }
        }
        self.jobs.insert(id, job);
        if start == StartResult::Started {
            self.update_job(id);
        }
        start
    }

    fn has_capacity(&mut self, id: JobId, host: HostId, turn: HostId) -> bool {
        let now = self.now.mono;
        let Some(host) = self.hosts.get_mut(host).filter(|_| host != turn) else { return true };
        let HostCapacity::Free(free) = host.capacity(now, host.limits()) else { return false };
        host.unavailable.is_none() && (host.queue.first() == Some(id) || free >= host.queue.len())
    }

    /// Starts a fetch from a source, or the survey that must come before it.
    fn start_source(&mut self, id: JobId, job: &mut FetchJob, source_id: SourceId) -> StartResult {
        let now = self.now.mono;
        let Some(source) = job.sources.get_mut(&source_id) else { return StartResult::NotNow(None) };
        let (host_id, origin) = (source.host, source.origin.clone());
        if self.surveys.contains_key(&origin) {
            return StartResult::NotNow(None);
        }
        let Some(host) = self.hosts.get_mut(host_id) else { return StartResult::NotNow(None) };
        if let Some(with_nip11) = host.needs_survey(now, &origin, source.is_grasp) {
            if self.surveys.len() >= limits::MAX_CONCURRENT_SURVEYS {
                self.waiting_for_survey.insert(host_id);
                return StartResult::NotNow(None);
            }
            source.state = SourceState::Surveying(now);
            let requester = SurveyRequester::Source(id, source_id);
            self.surveys.insert(origin.clone(), RunningSurvey { host: host_id, requester, with_nip11 });
            self.outputs.push_back(FetchOutput::Survey { origin, with_nip11 });
            return StartResult::Started;
        }
        self.start_fetch(id, job, source_id)
    }

    /// Starts a fetch from a source whose host is surveyed.
    fn start_fetch(&mut self, id: JobId, job: &mut FetchJob, source_id: SourceId) -> StartResult {
        let now = self.now;
        let Some(source) = job.sources.get(&source_id) else { return StartResult::NotNow(None) };
        let (host_id, form) = (source.host, job.next_form(now.mono, source_id, source));
        let Some(host) = self.hosts.get_mut(host_id) else { return StartResult::NotNow(None) };
        let networks = host.surveys.get(&source.origin).map(|record| record.networks.clone()).unwrap_or_default();
        let own = host.limits();
        let at = match self.networks.capacity(now.mono, host_id, &networks, own) {
            NetworkCapacity::Free => None,
            NetworkCapacity::Until(at) => Some(Some(at)),
            NetworkCapacity::Full => Some(None),
        };
        if let Some(at) = at {
            let until = at.unwrap_or(now.mono).plus_secs(limits::MIRROR_CHECK_TIMEOUT_SECS);
            self.networks.reserve(&networks, until);
            return StartResult::NotNow(at);
        }
        let (oids, events) = job.wanted_from(now.mono, source_id, form);
        let row = host.begin_request(now, own);
        if let Some(entry) = job.queue_entries.remove(&host_id) {
            host.queue.mark_served(entry.position, id);
        }
        self.networks.begin(now.mono, &networks);
        self.stats.fetches += 1;
        let fetch = FetchId(self.next_number());
        let Some(source) = job.sources.get_mut(&source_id) else { return StartResult::NotNow(None) };
        source.state = SourceState::Fetching { id: fetch, since: now.mono, has_answered: false };
        source.has_new_events = false;
        source.history.record_request(now.mono, form);
        job.has_asked = true;
        let target = source.target.clone();
        let named = events.iter().map(|(event, _)| *event).collect();
        let (since, cancelled) = (now.mono, false);
        let running = RunningFetch {
            job: id,
            host: host_id,
            networks,
            since,
            form,
            oids: oids.clone(),
            events: named,
            cancelled,
        };
        self.fetches.insert(fetch, running);
        self.outputs.extend(row.map(FetchOutput::SaveHost));
        self.outputs.push_back(FetchOutput::Fetch(FetchRequest {
            id: fetch,
            repo_path: job.repo_path.clone(),
            target,
            form,
            oids,
            events,
            received: job.received.iter().cloned().collect(),
        }));
        StartResult::Started
    }

    /// Continues after a survey: starts the fetch if that is still possible.
    pub(super) fn resume_after_survey(&mut self, id: JobId, source_id: SourceId) {
        let now = self.now.mono;
        let Some(mut job) = self.jobs.remove(&id) else { return };
        let is_blocked = |source| job.blocked_until(source_id, source).is_some_and(|until| until > now);
        let mut must_wait = job.sources.get(&source_id).is_some_and(is_blocked);
        if let Some(source) = job.sources.get_mut(&source_id) {
            source.state = SourceState::Waiting;
        }
        // Another source that was asked meanwhile may be fast.
        must_wait |= job.next_start_at().is_none_or(|at| at > now);
        if let Some(source) = job.sources.get(&source_id) {
            let host = self.hosts.get_mut(source.host);
            let open = host.is_some_and(|host| matches!(host.capacity(now, host.limits()), HostCapacity::Free(_)));
            let again = source.history.next_request_at(job.next_form(now, source_id, source)) <= now;
            if open
                && again
                && !must_wait
                && job.is_useful(source_id)
                && self.fetches.len() < limits::MAX_CONCURRENT_FETCHES
            {
                self.start_fetch(id, &mut job, source_id);
            }
        }
        self.jobs.insert(id, job);
        self.runnable_jobs.insert(id);
    }
}
