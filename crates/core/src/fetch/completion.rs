//! Handling of ended fetches and surveys.

use std::collections::BTreeSet;

use super::io::{FetchId, FetchOutcome, FetchOutput, FetchResult, RequestForm, SurveyResult};
use super::job::FetchJob;
use super::network_limit::Network;
use super::origin::Origin;
use super::source::{Source, SourceOutcome, SourceState};
use super::throttle::{SurveyRecord, Unavailable};
use super::{FetchMachine, HostId, RunningFetch, SurveyRequester};
use crate::limits;
use crate::nostr::nip11::GitFetchLimits;
use crate::time::MonoTime;

impl FetchMachine {
    /// Handles the end of a fetch.
    pub(super) fn handle_fetched(&mut self, id: FetchId, result: &FetchResult) {
        let Some(running) = self.fetches.remove(&id) else { return };
        let oids: Vec<String> = {
            let wanted: BTreeSet<&String> = running.oids.iter().collect();
            result.oids.iter().filter(|oid| wanted.contains(oid)).cloned().collect()
        };
        let outcome = match &result.outcome {
            // The machine did not cancel it.
            FetchOutcome::Cancelled if !running.cancelled => FetchOutcome::LocalError,
            // A request by ref cannot fail in this way: the server was asked for what it has.
            FetchOutcome::NotByOid if running.form == RequestForm::ByRef => FetchOutcome::Sent,
            outcome => outcome.clone(),
        };
        self.stats.oids += oids.len() as u64;
        self.record_result(running.host, running.since, &outcome, Some(!oids.is_empty()));
        self.skip_waiting(running.host);
        self.idle_host(running.host);
        for host in self.networks.end(self.now.mono, &running.networks) {
            self.mark_ready(host);
        }
        self.mark_ready(running.host);
        let Some(mut job) = self.jobs.remove(&running.job) else { return };
        job.record_received(self.now.mono, &oids);
        self.update_source(&mut job, id, &running, &outcome, &oids);
        self.jobs.insert(running.job, job);
        self.cancel_unneeded(running.job);
        self.runnable_jobs.insert(running.job);
    }

    /// Updates a host after a request that began at `since`. `hit` says whether it brought something wanted; `None` if
    /// the request asked for no objects.
    pub(super) fn record_result(&mut self, id: HostId, since: MonoTime, outcome: &FetchOutcome, hit: Option<bool>) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(id) else { return };
        host.in_flight = host.in_flight.saturating_sub(1);
        match outcome {
            FetchOutcome::Sent | FetchOutcome::Absent | FetchOutcome::InvalidData | FetchOutcome::NotByOid => {
                host.record_answer()
            }
            FetchOutcome::Busy(secs) => host.record_busy(now, *secs, &mut self.rng),
            FetchOutcome::Failed => host.record_failure(now, since, &mut self.rng),
            FetchOutcome::Cancelled | FetchOutcome::LocalError => {}
        }
        let counts = matches!(
            outcome,
            FetchOutcome::Sent | FetchOutcome::Absent | FetchOutcome::InvalidData | FetchOutcome::Failed
        );
        if let Some(hit) = hit.filter(|hit| *hit || counts) {
            host.record_hit(hit);
        }
        if matches!(outcome, FetchOutcome::Busy(_) | FetchOutcome::Failed) {
            let row = host.record_row(now);
            self.outputs.push_back(FetchOutput::SaveHost(row));
        }
    }

    /// Updates the source that was asked.
    fn update_source(
        &mut self,
        job: &mut FetchJob,
        id: FetchId,
        running: &RunningFetch,
        outcome: &FetchOutcome,
        received: &[String],
    ) {
        let now = self.now.mono;
        let Some((source_id, _)) = job.source_of(id) else { return };
        let is_useful = job.is_useful(source_id);
        let Some((source_id, source)) = job.source_of(id) else { return };
        source.history.outcome = Some(source_outcome(outcome, received.len()));
        let (state, asked) = match outcome {
            FetchOutcome::Sent => {
                let is_complete = received.len() == running.oids.len();
                if is_complete {
                    // The next request will ask for other objects.
                    source.history.record_complete(running.form);
                } else if running.form == RequestForm::ByRef {
                    let lacking = running.oids.iter().filter(|oid| !received.contains(oid));
                    source.history.record_lacking(now, lacking);
                }
                if !received.is_empty() {
                    source.history.form = Some(running.form);
                } else if running.form == RequestForm::ByRef {
                    // All of its refs contained nothing wanted. Requests for exact objects cost the server little.
                    source.history.form = Some(RequestForm::ByOid);
                }
                // Objects that it is known to lack were not part of the request, and follow.
                (if is_complete && is_useful { SourceState::Waiting } else { SourceState::Resting }, true)
            }
            // Its refs were requested a short time ago.
            FetchOutcome::NotByOid if !running.oids.iter().any(|oid| source.history.can_request_refs_for(now, oid)) => {
                (SourceState::Resting, false)
            }
            // The source is asked by ref in the same round.
            FetchOutcome::NotByOid => {
                source.history.form = Some(RequestForm::ByRef);
                // The request by ref includes objects that the requests by id left out.
                source.busy_answers = 0;
                (SourceState::Waiting, false)
            }
            FetchOutcome::Absent | FetchOutcome::Failed => (SourceState::Resting, true),
            FetchOutcome::Busy(_) => {
                // Events that came meanwhile have not met a busy answer yet.
                source.busy_answers = if source.has_new_events { 0 } else { source.busy_answers.saturating_add(1) };
                let last = source.busy_answers >= limits::MAX_BUSY_ANSWERS_PER_ROUND;
                if last { (SourceState::Resting, true) } else { (SourceState::Waiting, false) }
            }
            FetchOutcome::InvalidData => {
                source.history.invalid_until = Some(now.plus_secs(limits::INVALID_SOURCE_QUIET_SECS));
                (SourceState::Resting, true)
            }
            FetchOutcome::Cancelled | FetchOutcome::LocalError => (SourceState::Waiting, false),
        };
        source.state = if std::mem::take(&mut source.has_new_events) && *outcome != FetchOutcome::InvalidData {
            SourceState::Waiting
        } else {
            state
        };
        if *outcome == FetchOutcome::LocalError {
            job.paused_until = now.plus_secs(limits::LOCAL_ERROR_PAUSE_SECS);
        }
        if asked {
            let tried = job.record_asked(source_id, |event| running.events.contains(event));
            self.report_tried(tried);
        }
        // Sources that no event lists any more were kept for the running fetch only.
        let is_listed = job.events.iter().any(|event| event.sources.contains(&source_id));
        if !is_listed {
            self.drop_source(job, source_id);
        }
    }

    /// Handles the end of a survey.
    pub(super) fn handle_surveyed(&mut self, origin: &Origin, survey: SurveyResult) {
        let Some(running) = self.surveys.remove(origin) else { return };
        for host in std::mem::take(&mut self.waiting_for_survey) {
            self.mark_ready(host);
        }
        let unavailable = match survey {
            SurveyResult::Resolved { addresses, stated_limits } if !addresses.is_empty() => {
                let networks =
                    addresses.into_iter().take(limits::MAX_ADDRESSES_PER_HOST).map(Network::from_address).collect();
                self.record_survey(
                    running.host,
                    origin,
                    networks,
                    running.with_nip11.then_some(stated_limits.unwrap_or_default()),
                );
                None
            }
            SurveyResult::Resolved { .. } | SurveyResult::NoAddress => Some(Unavailable::NoAddress),
            SurveyResult::Forbidden(reason) => Some(Unavailable::Forbidden(reason)),
        };
        if let (Some(unavailable), Some(host)) = (unavailable, self.hosts.get_mut(running.host)) {
            host.record_failure(self.now, self.now.mono, &mut self.rng);
            host.unavailable = Some(unavailable);
        }
        match (running.requester, unavailable) {
            (SurveyRequester::Mirror(id), unavailable) => self.mirror_surveyed(id, running.host, unavailable),
            (SurveyRequester::Source(job_id, source), None) => self.resume_after_survey(job_id, source),
            (SurveyRequester::Source(job_id, source), Some(unavailable)) => {
                if let Some(mut job) = self.jobs.remove(&job_id) {
                    let surveying = |source: &Source| matches!(source.state, SourceState::Surveying(_));
                    if job.sources.get(&source).is_some_and(surveying) {
                        self.skip_source(&mut job, source, unavailable);
                    }
                    self.jobs.insert(job_id, job);
                    self.runnable_jobs.insert(job_id);
                }
            }
        }
        if unavailable.is_some() {
            self.skip_waiting(running.host);
        }
        self.mark_ready(running.host);
    }

    /// Records the networks of a server, and its stated limits if they were requested.
    fn record_survey(
        &mut self,
        id: HostId,
        origin: &Origin,
        networks: BTreeSet<Network>,
        stated: Option<GitFetchLimits>,
    ) {
        let now = self.now.mono;
        self.networks.assign(id, &networks);
        let Some(host) = self.hosts.get_mut(id) else { return };
        let before = host.surveys.remove(origin);
        let (limits, limits_at) = match (stated, before) {
            (Some(stated), _) => (stated, Some(now)),
            (None, Some(record)) => (record.limits, record.limits_at),
            (None, None) => (GitFetchLimits::default(), None),
        };
        host.surveys.insert(origin.clone(), SurveyRecord { networks, at: now, limits, limits_at });
    }
}

fn source_outcome(outcome: &FetchOutcome, received: usize) -> SourceOutcome {
    match outcome {
        FetchOutcome::Sent => SourceOutcome::Sent(received),
        FetchOutcome::NotByOid => SourceOutcome::NotByOid,
        FetchOutcome::Absent => SourceOutcome::Absent,
        FetchOutcome::Busy(_) => SourceOutcome::Busy,
        FetchOutcome::Failed => SourceOutcome::Failed,
        FetchOutcome::InvalidData => SourceOutcome::InvalidData,
        FetchOutcome::Cancelled => SourceOutcome::Cancelled,
        FetchOutcome::LocalError => SourceOutcome::LocalError,
    }
}
