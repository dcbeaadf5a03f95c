//! How git data and events come together: pushes, and bringing repositories into line with what is signed.
//!
//! Adding: git first, then the store; the held row is the intent. Removing: the store first, with a note of what is to be
//! done, then git. Whatever is interrupted is found again at boot and done once more. A decision that waited for git is
//! taken again from the beginning, with fresh facts, when git is done.

use std::collections::BTreeSet;

use super::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, PullRequestRef,
    ReceivedPack, RefFallback,
};
use super::git_job_results::{FinishedPush, todo_for_task};
use super::io::{AdmissionOutput, FetchedPack, ReceivedPush, RepoLookup, RepoLookupResult, RequestedPush};
use super::purgatory::{HeldEvent, HeldKind};
use super::push::{PushContext, PushPermit, PushRejection, RefEvent};
use super::repo_queue::{QueuedWork, RepoTask, RunningJob};
use super::{Admission, push};
use crate::disk_budget::{DiskLevel, QuotaUser};
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{RepoId, RepoPath, RepoState};
use crate::time::Now;

/// Why the store was asked.
#[derive(Clone, Debug)]
pub(super) enum LookupPurpose {
    /// May this push happen?
    Permit(RequestedPush),
    /// A push that arrived has its turn.
    Arrival(Box<ReceivedPush>),
    /// A task has its turn.
    Task(RepoTask),
    /// The uploads of a push are aside; the rest of it follows.
    Resume(Box<ReceivedPush>, PushPermit, Vec<(EventId, u64)>),
    /// Git has done its part of a job.
    Finish(RunningJob, AlignmentResult),
}

impl Admission {
    /// A complete push waits for its turn.
    pub(super) fn push_received(&mut self, received_push: Box<ReceivedPush>) {
        if let Err(id) = self.queues.join(received_push) {
            self.emit(AdmissionOutput::PushDone(id, Err(PushRejection::Busy)));
        }
    }

    /// Asks the next thing that must be known, if nothing is being asked.
    pub(super) fn start_next_lookup(&mut self) {
        if self.pending_lookup.is_some() {
            return;
        }
        let purpose = self.lookup_queue.pop_front().or_else(|| {
            self.queues.next().map(|next| match next {
                QueuedWork::Arrival(received_push) => LookupPurpose::Arrival(received_push),
                QueuedWork::Task(task) => LookupPurpose::Task(task),
            })
        });
        if let Some(purpose) = purpose {
            self.emit(AdmissionOutput::Lookup(self.lookup_for(&purpose)));
            self.pending_lookup = Some(purpose);
        }
    }

    fn lookup_for(&self, purpose: &LookupPurpose) -> RepoLookup {
        let (repo_path, events) = match purpose {
            LookupPurpose::Permit(push) => (&push.repo_path, self.events_of_push(push)),
            LookupPurpose::Arrival(received_push) | LookupPurpose::Resume(received_push, ..) => {
                (&received_push.push.repo_path, self.events_of_push(&received_push.push))
            }
            LookupPurpose::Task(task @ (RepoTask::Align(_) | RepoTask::Adopt(_))) => {
                (task.repo_path(), self.states_for(task.repo_path()).into_iter().map(|(id, _)| id).collect())
            }
            LookupPurpose::Task(RepoTask::PullRequest(repo_path, event)) => (repo_path, vec![*event]),
            LookupPurpose::Task(RepoTask::Delete(repo_path)) => (repo_path, Vec::new()),
            LookupPurpose::Finish(job, aligned) => {
                let mut events: Vec<EventId> =
                    aligned.chosen.into_iter().chain(aligned.pull_requests.iter().copied()).collect();
                let repo_path = match job {
                    RunningJob::Task(task) => {
                        if let RepoTask::Align(_) | RepoTask::Adopt(_) = task {
                            let states = self.states_for(task.repo_path()).into_iter();
                            events.extend(states.filter(|(_, status)| *status == EventStatus::Held).map(|(id, _)| id));
                        }
                        task.repo_path()
                    }
                    RunningJob::Push { received_push, permit, .. } => {
                        events.extend(permit.state.map(|version| version.id));
                        events.extend(permit.pull_requests.iter().chain(&permit.uploads).map(|(id, _)| *id));
                        &received_push.push.repo_path
                    }
                };
                (repo_path, events)
            }
        };
        let find_orphans = matches!(purpose, LookupPurpose::Task(RepoTask::Align(_) | RepoTask::Adopt(_)));
        let grows = matches!(
            purpose,
            LookupPurpose::Permit(_) | LookupPurpose::Arrival(_) | LookupPurpose::Task(RepoTask::Adopt(_))
        );
        // Whoever is turned away anyhow costs nobody a look.
        let measure_disk = grows
            && self.policy.quotas.has_byte_quotas()
            && self.disk_level != DiskLevel::Hard
            && self.is_available(repo_path);
        RepoLookup { repo_path: repo_path.clone(), events, find_orphans, measure_disk }
    }

    fn events_of_push(&self, push: &RequestedPush) -> Vec<EventId> {
        let named = push.commands.iter().filter_map(|command| command.name.strip_prefix("refs/nostr/"));
        let mut events: Vec<EventId> = named.filter_map(EventId::from_hex).collect();
        // Whoever brings nothing but pull requests needs no state.
        if events.len() < push.commands.len() {
            events.extend(self.states_for(&push.repo_path).into_iter().map(|(id, _)| id));
        }
        events
    }

    /// The refs of a site cannot be read: nothing is decided without them.
    fn fail_lookup(&mut self, now: Now, purpose: LookupPurpose) {
        let read_failed = || PushRejection::Failed("the repository cannot be read".to_owned());
        match purpose {
            LookupPurpose::Permit(push) => self.emit(AdmissionOutput::PushDecision(push.id, Err(read_failed()))),
            LookupPurpose::Arrival(received_push) => self.end_push(&received_push.push, Err(read_failed())),
            LookupPurpose::Resume(received_push, _, staged) => {
                self.discard_staged(&staged);
                self.end_push(&received_push.push, Err(read_failed()));
            }
            LookupPurpose::Task(task) => {
                self.retry_later(now, task);
            }
            LookupPurpose::Finish(..) => {}
        }
    }

    /// The store has answered.
    pub(super) fn lookup_done(&mut self, now: Now, lookup: RepoLookupResult) {
        let purpose = self.pending_lookup.take();
        // What git has done it has done; that needs no look at the refs.
        if let Some(purpose) =
            purpose.clone().filter(|purpose| lookup.is_failed && !matches!(purpose, LookupPurpose::Finish(..)))
        {
            return self.fail_lookup(now, purpose);
        }
        match purpose {
            Some(LookupPurpose::Permit(push)) => self.decide_push(&push, &lookup),
            Some(LookupPurpose::Arrival(received_push)) => self.start_push(received_push, &lookup),
            Some(LookupPurpose::Resume(received_push, permit, staged)) => {
                let work = GitOperation::Align(self.push_alignment(&received_push, &permit, &lookup));
                self.start_git_job(
                    received_push.push.repo_path.clone(),
                    work,
                    RunningJob::Push { received_push, permit, staged },
                );
            }
            Some(LookupPurpose::Task(task)) => self.start_task(task, &lookup),
            Some(LookupPurpose::Finish(RunningJob::Push { received_push, permit, staged }, aligned)) => {
                self.finish_push(now, &FinishedPush { received_push, permit, staged, aligned }, &lookup);
            }
            Some(LookupPurpose::Finish(RunningJob::Task(task), aligned)) => {
                self.finish_task(now, &task, &aligned, &lookup)
            }
            None => {}
        }
    }

    fn decide_push(&mut self, push: &RequestedPush, lookup: &RepoLookupResult) {
        let result = self.authorise(push, lookup);
        if let Ok(permit) = &result {
            let mut needed: Vec<EventId> = permit.pull_requests.iter().map(|(id, _)| *id).collect();
            if let Some(state) = permit.state {
                needed.push(state.id);
                needed.extend(self.held_announcements_of(&push.repo_path));
            }
            self.pushes.insert(push.id, needed);
        }
        self.emit(AdmissionOutput::PushDecision(push.id, result));
    }

    fn authorise(&self, push: &RequestedPush, lookup: &RepoLookupResult) -> Result<PushPermit, PushRejection> {
        if !self.is_available(&push.repo_path) {
            return Err(PushRejection::NotHosted);
        }
        if self.policy.lists.is_read_only {
            return Err(PushRejection::ReadOnly);
        }
        if self.disk_level == DiskLevel::Hard {
            return Err(PushRejection::DiskFull);
        }
        let refs = lookup.refs.iter().filter(|(name, _)| !name.starts_with("refs/nostr/"));
        let refs = refs.map(|(name, oid)| (name.clone(), oid.clone())).collect();
        let mut held_states = Vec::new();
        let mut current = None;
        for (id, _) in self.states_for(&push.repo_path) {
            let Some(found) = lookup.events.get(&id) else { continue };
            match (RepoState::from_event(&found.event), found.status) {
                (Some(state), EventStatus::Held) => held_states.push(state),
                // The best comes first.
                (Some(state), EventStatus::Served) if current.is_none() => current = Some(state),
                _ => {}
            }
        }
        let scene =
            PushContext { repo_path: &push.repo_path, refs: &refs, held_states: &held_states, current: current.as_ref() };
        let named = |id: EventId| {
            lookup.events.get(&id).map_or(RefEvent::Unknown, |found| self.ref_event(&push.repo_path, &found.event))
        };
        let permit = push::authorise(&scene, &push.commands, named)?;
        let quotas = &self.policy.quotas;
        // Anybody may offer a pull request, and what is offered may come to stay.
        let quota_left = match permit.state {
            Some(_) => quotas.remaining(lookup.disk_usage, QuotaUser::Maintainers),
            None if quotas.has_byte_quotas() => {
                quotas.remaining(lookup.disk_usage + self.uploads.disk_usage(&push.repo_path), QuotaUser::Others)
            }
            None => None,
        };
        let permit = PushPermit { quota_left, ..permit };
        if !self.uploads.has_room(&push.network, permit.uploads.len(), 0) {
            return Err(PushRejection::UploadsFull);
        }
        Ok(permit)
    }

    /// What an event is to a site at which somebody pushes its ref.
    fn ref_event(&self, repo_path: &RepoPath, event: &Event) -> RefEvent {
        let Some(request) = PullRequest::from_any_event(event) else { return RefEvent::NotPullRequest };
        if self.accepts_pull_request(repo_path, &self.pull_request_paths(event.pubkey, &request)) {
            RefEvent::PullRequest(request.tip)
        } else {
            RefEvent::OtherRepository
        }
    }

    fn start_push(&mut self, received_push: Box<ReceivedPush>, lookup: &RepoLookupResult) {
        let permit = match self
            .authorise(&received_push.push, lookup)
            .and_then(|permit| self.check_received(&received_push, permit))
        {
            Ok(permit) => permit,
            Err(rejection) => return self.end_push(&received_push.push, Err(rejection)),
        };
        if permit.is_empty() {
            return self.end_push(&received_push.push, Ok(()));
        }
        let staged: Vec<(EventId, u64)> =
            permit.uploads.iter().map(|(event, _)| (*event, self.uploads.next_folder())).collect();
        let repo_path = received_push.push.repo_path.clone();
        let work = if staged.is_empty() {
            GitOperation::Align(self.push_alignment(&received_push, &permit, lookup))
        } else {
            let from = |event: EventId| received_push.uploads.iter().find(|upload| upload.event == event);
            let moves = staged
                .iter()
                .filter_map(|(event, to)| Some((from(*event)?.received_pack.clone(), ReceivedPack::Staged(*to))));
            GitOperation::StageUploads(moves.collect())
        };
        self.start_git_job(repo_path, work, RunningJob::Push { received_push, permit, staged });
    }

    /// Whether what arrived is what is permitted now. Between the two questions events may have come and gone.
    fn check_received(&self, received_push: &ReceivedPush, permit: PushPermit) -> Result<PushPermit, PushRejection> {
        let delivered = |event: &EventId| received_push.uploads.iter().find(|upload| upload.event == *event);
        if let Some((left, quota)) = permit.quota_left
            && received_push.bytes + received_push.uploads.iter().map(|upload| upload.bytes).sum::<u64>() > left
        {
            return Err(PushRejection::QuotaExceeded(quota));
        }
        let mut bytes = 0;
        for (event, _) in &permit.uploads {
            // An event that was here has gone: its objects came together with those of others.
            bytes += delivered(event).ok_or(PushRejection::AuthorityChanged)?.bytes;
        }
        if !self.uploads.has_room(&received_push.push.network, permit.uploads.len(), bytes) {
            return Err(PushRejection::UploadsFull);
        }
        Ok(permit)
    }

    fn push_alignment(
        &self,
        received_push: &ReceivedPush,
        permit: &PushPermit,
        lookup: &RepoLookupResult,
    ) -> Alignment {
        // An event that was not known when the push began may have come meanwhile.
        let signed_meanwhile = received_push
            .uploads
            .iter()
            .filter(|upload| permit.pull_requests.iter().any(|(id, _)| *id == upload.event));
        let adopt = received_push
            .received_pack
            .iter()
            .cloned()
            .chain(signed_meanwhile.map(|upload| upload.received_pack.clone()))
            .collect();
        let state = permit
            .state
            .and_then(|version| lookup.events.get(&version.id))
            .and_then(|found| RepoState::from_event(&found.event));
        // While uploads were put aside, events may have gone.
        let pull_requests = permit.pull_requests.iter().filter(|(event, _)| lookup.events.contains_key(event));
        let pull =
            |(event, tip): &(EventId, String)| PullRequestRef { event: *event, tip: tip.clone(), sources: Vec::new() };
        let alternates = self.alternates_of(&received_push.push.repo_path);
        // What was checked against other pools than those that are readable now must be checked again.
        let checked_prune_count = received_push.checked_prune_count.filter(|_| alternates == received_push.alternates);
        Alignment {
            adopt,
            checked_prune_count,
            alternates,
            candidates: state.into_iter().map(candidate).collect(),
            pull_requests: pull_requests.map(pull).collect(),
            ..Alignment::default()
        }
    }

    fn start_task(&mut self, task: RepoTask, lookup: &RepoLookupResult) {
        let repo_path = task.repo_path().clone();
        let work = match &task {
            RepoTask::Align(RepoPath::Announced(repo)) if !self.is_hosted(repo) => self.deletion(repo, lookup),
            RepoTask::Align(_) => self.alignment(&repo_path, lookup),
            RepoTask::Adopt(fetched_pack) => self.adoption(fetched_pack, lookup),
            RepoTask::PullRequest(_, event) => self.pull_request_alignment(&repo_path, *event, lookup),
            // Something may have come since it was found to have nothing.
            RepoTask::Delete(_) => {
                (lookup.has_folder && lookup.refs.is_empty()).then(|| GitOperation::Delete { readers: Vec::new() })
            }
        };
        match work {
            Some(work) => self.start_git_job(repo_path, work, RunningJob::Task(task)),
            None => self.end_task(&task),
        }
    }

    /// What is to be done about a repository that is hosted no more.
    fn deletion(&self, repo: &RepoId, lookup: &RepoLookupResult) -> Option<GitOperation> {
        let group = self.catalog.group(&repo.identifier);
        // Its announcement is served still, and merely does not name this service: the service's own name has changed.
        let renamed =
            group.and_then(|group| group.newest_announcement(repo.owner)).is_some_and(|best| !best.is_exception);
        if renamed || !lookup.has_folder {
            return None;
        }
        let hosts = group.into_iter().flat_map(|group| group.hosted_owners());
        let hosts = hosts.map(|owner| RepoPath::Announced(RepoId { owner, identifier: repo.identifier.clone() }));
        // One that is to go as well may be announced again before it has gone.
        let noted = self
            .todos
            .iter()
            .map(|todo| &todo.repo_path)
            .filter(|repo_path| repo_path.identifier() == &repo.identifier);
        let repo_paths: BTreeSet<RepoPath> = hosts.chain(noted.cloned()).collect();
        let readers =
            repo_paths.into_iter().map(|repo_path| (repo_path.clone(), self.alternates_of(&repo_path))).collect();
        Some(GitOperation::Delete { readers })
    }

    fn alignment(&self, repo_path: &RepoPath, lookup: &RepoLookupResult) -> Option<GitOperation> {
        let align = self.desired_alignment(repo_path, lookup);
        // Without a folder of its own and without others' it has no object that a state could name.
        let nowhere = |state: &CandidateState| !state.refs.is_empty() && state.sources.is_empty();
        let nothing_here = !lookup.has_folder && align.alternates.is_empty() && align.candidates.iter().all(nowhere);
        let nothing_here = nothing_here || (!lookup.has_folder && align.candidates.is_empty());
        if nothing_here && (align.pull_requests.is_empty() || align.alternates.is_empty()) {
            return None;
        }
        Some(GitOperation::Align(align))
    }

    /// What the hunt has brought moves in, and the site follows what is signed.
    fn adoption(&self, fetched_pack: &FetchedPack, lookup: &RepoLookupResult) -> Option<GitOperation> {
        // A fetch brings no larger pack than the quotas left when it began. Its index comes on top, and whoever refused it
        // for that would fetch it again and again.
        let fits =
            self.policy.quotas.remaining(lookup.disk_usage, QuotaUser::Maintainers).is_none_or(|(left, _)| left > 0);
        (fits && self.is_available(&fetched_pack.repo_path)).then(|| {
            let adopt = vec![fetched_pack.received_pack.clone()];
            GitOperation::Align(Alignment { adopt, ..self.desired_alignment(&fetched_pack.repo_path, lookup) })
        })
    }

    /// How a site should be.
    fn desired_alignment(&self, repo_path: &RepoPath, lookup: &RepoLookupResult) -> Alignment {
        let states = self.states_for(repo_path);
        let known = self.is_served(repo_path);
        let read = |(id, _): &(EventId, EventStatus)| {
            lookup.events.get(id).and_then(|found| RepoState::from_event(&found.event))
        };
        let candidates: Vec<CandidateState> = states
            .iter()
            .filter_map(read)
            // That a repository is empty is no proof that there is one.
            .filter(|state| state.is_satisfiable() && (known || !state.refs.is_empty()))
            .map(|state| CandidateState { sources: self.copy_sources(repo_path, &state), ..candidate(state) })
            .collect();
        let alternates = self.alternates_of(repo_path);
        // What merely waits does not speak for what is there.
        let any_served = states.iter().any(|(_, status)| *status == EventStatus::Served);
        let fallback = if any_served { RefFallback::Keep } else { RefFallback::Clear };
        let pull_requests = self.held_pull_requests_at(repo_path);
        // What waits for its commit elsewhere has no ref here, either.
        let named = lookup.refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/").and_then(EventId::from_hex));
        let misplaced =
            named.filter(|id| self.purgatory.get(*id).is_some() && pull_requests.iter().all(|pull| pull.event != *id));
        let drop_pull_requests = lookup.orphan_refs.iter().copied().chain(misplaced).collect();
        Alignment { alternates, candidates, fallback, pull_requests, drop_pull_requests, ..Alignment::default() }
    }

    /// The pull requests whose commits are waited for at a site.
    fn held_pull_requests_at(&self, repo_path: &RepoPath) -> Vec<PullRequestRef> {
        let here = |(event, held_event): (EventId, &HeldEvent)| match &held_event.kind {
            HeldKind::PullRequest(tip, repo_paths) if repo_paths.contains(repo_path) => {
                Some(PullRequestRef { event, tip: tip.clone(), sources: Vec::new() })
            }
            _ => None,
        };
        self.purgatory.by_identifier(repo_path.identifier()).filter_map(here).collect()
    }

    /// The other sites that a state's author speaks for: one of them may have its objects.
    fn copy_sources(&self, repo_path: &RepoPath, state: &RepoState) -> Vec<RepoPath> {
        let looks = self.search_paths(&state.identifier, state.author).into_iter();
        looks.filter(|other| other != repo_path).take(limits::MAX_COPY_SOURCE_REPOS).collect()
    }

    fn pull_request_alignment(
        &self,
        repo_path: &RepoPath,
        event: EventId,
        lookup: &RepoLookupResult,
    ) -> Option<GitOperation> {
        let Some(found) = lookup.events.get(&event) else {
            let here = lookup.refs.contains_key(&format!("refs/nostr/{event}"));
            let (alternates, drop_pull_requests) = (self.alternates_of(repo_path), vec![event]);
            return here
                .then(|| GitOperation::Align(Alignment { alternates, drop_pull_requests, ..Alignment::default() }));
        };
        let request = PullRequest::from_any_event(&found.event)?;
        let repo_paths = self.pull_request_paths(found.event.pubkey, &request);
        if !self.accepts_pull_request(repo_path, &repo_paths) {
            return None;
        }
        let upload = self.uploads.get(event, repo_path).filter(|upload| upload.tip == request.tip);
        let adopt: Vec<ReceivedPack> = upload.map(|upload| ReceivedPack::Staged(upload.folder)).into_iter().collect();
        let alternates = self.alternates_of(repo_path);
        // What is pushed to a repository stays there; what is submitted goes to the repositories that it is meant for.
        let sources: Vec<RepoPath> = match repo_path {
            RepoPath::PullRequests(_) => Vec::new(),
            // Another maintainer's may have it from a third one.
            RepoPath::Announced(_) => {
                repo_paths.iter().filter(|other| *other != repo_path).chain(&alternates).cloned().collect()
            }
        };
        if !lookup.has_folder && adopt.is_empty() && alternates.is_empty() && sources.is_empty() {
            return None;
        }
        let pull_requests = vec![PullRequestRef { event, tip: request.tip, sources }];
        Some(GitOperation::Align(Alignment { adopt, alternates, pull_requests, ..Alignment::default() }))
    }

    fn start_git_job(&mut self, repo_path: RepoPath, work: GitOperation, job: RunningJob) {
        let id = self.queues.begin(repo_path.identifier().clone(), job);
        self.emit(AdmissionOutput::GitJob(GitJob { id, repo_path, operation: work }));
    }

    /// What could not be done is done later. A pack of the hunt is not kept for that: whatever of it is missing will be
    /// looked for again.
    fn retry_later(&mut self, now: Now, task: RepoTask) {
        let identifier = task.repo_path().identifier().clone();
        let again = match task {
            RepoTask::Adopt(fetched_pack) => {
                self.emit(AdmissionOutput::PackAdopted(fetched_pack.fetch));
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier.clone()));
                RepoTask::Align(fetched_pack.repo_path)
            }
            other => other,
        };
        self.queues.delay(again, now.mono.plus_secs(limits::GIT_JOB_RETRY_SECS));
        self.queues.free(&identifier);
    }

    /// Git has done what it could.
    pub(super) fn git_job_done(&mut self, now: Now, id: GitJobId, outcome: GitJobOutcome) {
        let Some((_, job)) = self.queues.end(id) else { return };
        match (job, outcome) {
            (RunningJob::Push { received_push, permit, staged }, GitJobOutcome::Staged)
                if permit.state.is_some() || !permit.pull_requests.is_empty() =>
            {
                self.lookup_queue.push_back(LookupPurpose::Resume(received_push, permit, staged));
            }
            (job @ RunningJob::Push { .. }, GitJobOutcome::Staged) => {
                self.lookup_queue.push_back(LookupPurpose::Finish(job, AlignmentResult::default()));
            }
            (RunningJob::Push { received_push, staged, permit }, GitJobOutcome::Failed(why)) => {
                self.discard_staged(&staged);
                self.schedule_realignment(&received_push.push.repo_path, &permit);
                self.end_push(&received_push.push, Err(PushRejection::Failed(why)));
            }
            (RunningJob::Task(task), GitJobOutcome::Failed(_)) => {
                // It may have failed in the middle: it is noted, so that it is tried again also by the next process.
                self.record_todo(todo_for_task(&task));
                self.retry_later(now, task);
            }
            (RunningJob::Task(task), GitJobOutcome::Deleted | GitJobOutcome::Staged) => self.end_task(&task),
            (job, GitJobOutcome::Aligned(aligned)) => self.lookup_queue.push_back(LookupPurpose::Finish(job, aligned)),
            (RunningJob::Push { received_push, .. }, GitJobOutcome::Deleted) => {
                self.end_push(&received_push.push, Err(PushRejection::NotHosted))
            }
        }
    }
}

fn candidate(state: RepoState) -> CandidateState {
    CandidateState {
        event: state.version.id,
        refs: state.refs.into_iter().collect(),
        head: state.head,
        sources: Vec::new(),
    }
}
