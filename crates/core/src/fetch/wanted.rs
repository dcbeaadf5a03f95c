//! Updates the jobs when admission reports wanted git data. Each report replaces the one before.

use std::collections::{BTreeMap, BTreeSet};

use super::io::{FetchId, FetchOutput, WantedEvent, WantedGitData};
use super::job::{FetchJob, JobEvent};
use super::origin::Origin;
use super::round::NEVER;
use super::source::{Source, SourceId, SourceState};
use super::{FetchMachine, JobId, Timer};
use crate::limits;
use crate::net::{OutboundUrl, UrlPurpose};
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoPath};

impl FetchMachine {
    /// Replaces the wanted git data of an identifier.
    pub(super) fn handle_wanted(&mut self, name: Identifier, reported: Vec<WantedGitData>) {
        let mut before = self.jobs_by_identifier.remove(&name).unwrap_or_default();
        let mut repo_paths = BTreeMap::new();
        for data in reported {
            let known = before.remove(&data.repo_path);
            let is_misplaced = *data.repo_path.identifier() != name || repo_paths.contains_key(&data.repo_path);
            let is_full = known.is_none() && self.jobs.len() >= limits::MAX_FETCH_JOBS;
            if is_misplaced || is_full || data.events.is_empty() {
                known.map(|id| before.insert(data.repo_path, id));
                continue;
            }
            let id = known.unwrap_or_else(|| JobId(self.next_number()));
            repo_paths.insert(data.repo_path.clone(), id);
            self.update_wanted(id, data);
        }
        for id in before.into_values() {
            self.end_job(id);
        }
        if !repo_paths.is_empty() {
            self.jobs_by_identifier.insert(name, repo_paths);
        }
    }

    /// Replaces the wanted git data of one repository, and creates its job if necessary.
    fn update_wanted(&mut self, id: JobId, data: WantedGitData) {
        let mut job = self.jobs.remove(&id).unwrap_or_else(|| {
            let mut job = Box::new(FetchJob::new(data.repo_path.clone()));
            (job.past_sources, job.reported_urls) = self.past_jobs.take(&data.repo_path);
            job
        });
        let is_new = job.events.is_empty();
        let mut before: BTreeMap<EventId, JobEvent> =
            std::mem::take(&mut job.events).into_iter().map(|event| (event.wanted.id, event)).collect();
        let mut fresh = Vec::new();
        let mut seen = BTreeSet::new();
        let (active, dormant): (Vec<WantedEvent>, Vec<WantedEvent>) =
            data.events.into_iter().partition(|wanted| !wanted.is_dormant);
        for wanted in active.into_iter().chain(dormant).take(limits::MAX_EVENTS_PER_FETCH_JOB) {
            if !seen.insert(wanted.id) {
                continue;
            }
            let known = before.remove(&wanted.id);
            let woken = |event: &JobEvent| event.wanted.is_dormant && !wanted.is_dormant;
            if known.as_ref().is_none_or(|event| woken(event) || (wanted.due < event.wanted.due && !event.is_due)) {
                fresh.push(job.events.len());
            }
            let event = self.merge_event(&mut job, known, wanted);
            job.events.push(event);
        }
        if !fresh.is_empty() {
            job.attempts = 0;
            let events = &job.events;
            for source in job.sources.values_mut() {
                let named = fresh.iter().flat_map(|nth| &events[*nth].wanted.oids);
                source.history.allow_refs_for(self.now.mono, named);
            }
        }
        for nth in &fresh {
            let event = &mut job.events[*nth];
            (event.due, event.is_due, event.is_reported) = (NEVER, false, false);
            event.unasked.clone_from(&event.sources);
        }
        for nth in fresh {
            let due = job.events[nth].wanted.due;
            // A planned round may serve the event; otherwise one is brought forward.
            job.events[nth].due = match job.round_for(due) {
                _ if is_new => due,
                Some(at) => due.max(at),
                None => self.reset_limiter.schedule(self.now.mono, job.owner(), due),
            };
        }
        self.drop_unlisted_sources(&mut job);
        self.jobs.insert(id, job);
        self.cancel_unneeded(id);
        self.runnable_jobs.insert(id);
    }

    /// Returns the event of a job, with what is known about it from before.
    fn merge_event(&mut self, job: &mut FetchJob, known: Option<JobEvent>, wanted: WantedEvent) -> JobEvent {
        let mut event = match known {
            Some(event) if event.wanted.sources == wanted.sources => event,
            known => {
                let sources = self.resolve_sources(job, &wanted);
                match known {
                    Some(mut event) => {
                        // Sources that were not asked yet, in case the event was not reported as tried.
                        event.unasked.retain(|source| sources.contains(source));
                        event.unasked.extend(sources.difference(&event.sources).copied());
                        JobEvent { sources, ..event }
                    }
                    None => JobEvent {
                        missing: wanted.oids.iter().cloned().collect(),
                        last_received_at: self.now.mono,
                        unasked: sources.clone(),
                        sources,
                        due: NEVER,
                        is_due: false,
                        is_reported: false,
                        wanted: wanted.clone(),
                    },
                }
            }
        };
        if event.wanted.oids != wanted.oids {
            let received = |oid: &&String| event.wanted.oids.contains(*oid) && !event.missing.contains(*oid);
            let received: BTreeSet<String> = wanted.oids.iter().filter(received).cloned().collect();
            event.missing = wanted.oids.iter().filter(|oid| !received.contains(*oid)).cloned().collect();
        }
        event.wanted = wanted;
        event
    }

    /// Returns the sources of an event, each once. URLs that must not be dialled are reported once.
    fn resolve_sources(&mut self, job: &mut FetchJob, wanted: &WantedEvent) -> BTreeSet<SourceId> {
        let mut sources = BTreeSet::new();
        for listed in wanted.sources.iter().take(limits::MAX_FETCH_SOURCES_PER_EVENT) {
            let target = match OutboundUrl::parse(&listed.url, UrlPurpose::Git, self.config.address_policy) {
                Ok(target) => target,
                Err(reason) => {
                    let has_space = job.reported_urls.len() < limits::MAX_SOURCES_PER_FETCH_JOB;
                    if has_space && job.reported_urls.insert(listed.url.clone()) {
                        self.outputs.push_back(FetchOutput::UrlForbidden(
                            job.repo_path.clone(),
                            listed.url.clone(),
                            reason,
                        ));
                    }
                    continue;
                }
            };
            let url = target.to_string();
            if let Some((id, source)) = job.sources.iter_mut().find(|(_, source)| source.url == url) {
                source.is_grasp |= listed.is_grasp;
                sources.insert(*id);
                continue;
            }
            if job.sources.len() >= limits::MAX_SOURCES_PER_FETCH_JOB {
                continue;
            }
            let origin = Origin::from_url(&target);
            let host = self.host(&origin.authority(), &origin.host().to_string());
            self.add_host_source(host);
            job.next_source_id += 1;
            let id = SourceId(job.next_source_id);
            let history = job.past_sources.remove(&url).unwrap_or_default();
            let (is_grasp, state) = (listed.is_grasp, SourceState::Resting);
            let source =
                Source { url, target, origin, host, is_grasp, state, history, busy_answers: 0, has_new_events: false };
            job.sources.insert(id, source);
            sources.insert(id);
        }
        sources
    }

    /// Drops sources that no event lists now, except those that are being asked.
    fn drop_unlisted_sources(&mut self, job: &mut FetchJob) {
        let listed: BTreeSet<SourceId> = job.events.iter().flat_map(|event| event.sources.iter().copied()).collect();
        let unlisted = job.sources.iter().filter(|(id, source)| !listed.contains(id) && !source.is_active());
        for id in unlisted.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_source(job, id);
        }
    }

    /// Drops a source that no event lists now, and keeps what is known about it.
    pub(super) fn drop_source(&mut self, job: &mut FetchJob, id: SourceId) {
        let Some(source) = job.sources.remove(&id) else { return };
        job.order.retain(|other| *other != id);
        self.remove_host_source(source.host);
        if source.history.last_request_at().is_some() {
            let mut history = source.history;
            history.forget_lacking();
            job.past_sources.insert(source.url, history);
            if job.past_sources.len() > limits::MAX_SOURCES_PER_PAST_JOB {
                let oldest = job.past_sources.iter().min_by_key(|(_, history)| history.last_request_at());
                let oldest = oldest.map(|(url, _)| url.clone());
                oldest.map(|url| job.past_sources.remove(&url));
            }
        }
    }

    /// Cancels fetches whose objects no event of the job needs now.
    pub(super) fn cancel_unneeded(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let running = job.active().filter_map(|source| match source.state {
            SourceState::Fetching { id, .. } => Some(id),
            _ => None,
        });
        let is_unneeded = |id: &FetchId| self.fetches.get(id).is_some_and(|running| !job.needs_any(&running.oids));
        for running in running.filter(is_unneeded).collect::<Vec<_>>() {
            self.cancel(running);
        }
    }

    pub(super) fn cancel(&mut self, id: FetchId) {
        if let Some(running) = self.fetches.get_mut(&id).filter(|running| !running.cancelled) {
            running.cancelled = true;
            self.outputs.push_back(FetchOutput::Cancel(id));
        }
    }

    /// Ends a job because nothing is missing any more.
    fn end_job(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        for (host, entry) in &job.queue_entries {
            if let Some(host) = self.hosts.get_mut(*host) {
                host.queue.leave(entry.position, id);
            }
            self.serve_mirrors_if_idle(*host);
        }
        self.set_alarm(Timer::Job(id), job.alarm, None);
        self.runnable_jobs.remove(&id);
        self.ending_jobs.remove(&id);
        for source in job.sources.values() {
            if let SourceState::Fetching { id, .. } = source.state {
                self.cancel(id);
            }
            self.remove_host_source(source.host);
        }
        self.past_jobs.store(self.now.mono, *job);
    }

    /// Reports once that a URL must not be dialled.
    pub(super) fn report_forbidden(
        &mut self,
        repo_path: &RepoPath,
        source: &mut Source,
        reason: crate::net::OutboundError,
    ) {
        if !std::mem::replace(&mut source.history.is_reported, true) {
            self.outputs.push_back(FetchOutput::UrlForbidden(repo_path.clone(), source.url.clone(), reason));
        }
    }
}
