//! Pushes, and the alignment of repositories with the signed events: which git job to run, and with which content.
//!
//! Objects go to git first. Refs and events then change in one transaction; until then a held event or a todo records
//! the intent, so that interrupted work is found again at start
//! (docs/design/admission.md#order-of-durable-steps). When a git job has ended, the decision is taken again from the
//! beginning with fresh lookups (docs/design/admission.md#decisions-after-a-wait).
//!
//! Every step first needs a lookup ([`AdmissionOutput::Lookup`]). One lookup is in progress at a time.

use std::collections::BTreeMap;

use super::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, PullRequestRef,
    ReceivedPack, RefFallback,
};
use super::git_job_results::FinishedPush;
use super::hosting::ReviewedPullRequest;
use super::io::{
    AdmissionOutput, FetchedPack, PullRequestPage, ReceivedPush, RepoLookup, RepoLookupResult, RequestedPush,
    StoreWrite,
};
use super::purgatory::{HeldEvent, HeldKind};
use super::push::{PushContext, PushPermit, PushRejection, RefEvent};
use super::repo_queue::{RepoTask, RunningJob};
use super::{Admission, push};
use crate::disk_budget::{DiskLevel, QuotaUser};
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId, EventVersion};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::refs_hash;
use crate::repo::{RepoId, RepoPath, RepoState};
use crate::time::Now;

/// What a lookup is for.
#[derive(Clone, Debug)]
pub(super) enum LookupPurpose {
    /// Authorise a requested push.
    AuthorisePush(RequestedPush),
    /// Start a received push.
    StartPush(Box<ReceivedPush>),
    /// Start a task.
    StartTask(RepoTask),
    /// Align the repository after the uploads of a push have been staged.
    ResumePush(Box<ReceivedPush>, PushPermit, Vec<(EventId, u64)>),
    /// Release events after a git job has ended.
    FinishJob(RunningJob, AlignmentResult),
    /// Hold states again that apply to no repository any more: those of these authors, with the path's identifier.
    HoldStates(RepoPath, Vec<(PublicKey, EventVersion)>),
    /// Find a page of the pull requests for a repository that is no longer kept.
    FindPullRequests(RepoPath, PullRequestPage),
    /// Find the refs of pull requests in another repository.
    CheckPullRequestRefs(RepoPath, Vec<ReviewedPullRequest>),
}

impl Admission {
    /// Queues a received push.
    pub(super) fn push_received(&mut self, received_push: Box<ReceivedPush>) {
        if let Err(id) = self.queues.enqueue_push(received_push) {
            self.emit(AdmissionOutput::PushDone(id, Err(PushRejection::Busy)));
        }
    }

    /// Starts the next lookup, unless one is in progress.
    pub(super) fn start_next_lookup(&mut self) {
        if self.pending_lookup.is_some() {
            return;
        }
        let purpose = self.lookup_queue.pop_front();
        let purpose = purpose.or_else(|| self.queues.next_push().map(LookupPurpose::StartPush));
        if let Some(purpose) = purpose.or_else(|| self.next_task().map(LookupPurpose::StartTask)) {
            self.emit(AdmissionOutput::Lookup(self.lookup_for(&purpose)));
            self.pending_lookup = Some(purpose);
        }
    }

    /// Takes the next task, unless this turn has done enough work. Tasks that need no git job end at once, so that any
    /// number of them could follow each other. One task is always taken, so that other work cannot delay all of them.
    fn next_task(&mut self) -> Option<RepoTask> {
        if self.is_turn_used_up() && self.has_taken_task {
            self.has_deferred_tasks |= self.queues.has_ready_task();
            return None;
        }
        self.catalog.work().add(limits::WORK_PER_TASK);
        let task = self.queues.next_task();
        self.has_taken_task |= task.is_some();
        task
    }

    fn lookup_for(&self, purpose: &LookupPurpose) -> RepoLookup {
        let (repo_path, events) = match purpose {
            LookupPurpose::AuthorisePush(push) => (&push.repo_path, self.events_of_push(push)),
            LookupPurpose::StartPush(received_push) | LookupPurpose::ResumePush(received_push, ..) => {
                (&received_push.push.repo_path, self.events_of_push(&received_push.push))
            }
            LookupPurpose::StartTask(task @ (RepoTask::Align(_) | RepoTask::Adopt(_))) => {
                (task.repo_path(), self.states_for(task.repo_path()).into_iter().map(|(id, _)| id).collect())
            }
            LookupPurpose::StartTask(RepoTask::PullRequest(repo_path, event)) => (repo_path, vec![*event]),
            LookupPurpose::StartTask(RepoTask::Delete(repo_path)) => (repo_path, Vec::new()),
            LookupPurpose::FinishJob(job, aligned) => {
                let named = aligned.pull_requests.iter().chain(&aligned.dropped).copied();
                let mut events: Vec<EventId> = aligned.chosen.into_iter().chain(named).collect();
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
            LookupPurpose::HoldStates(repo_path, states) => {
                (repo_path, states.iter().map(|(_, version)| version.id).collect())
            }
            LookupPurpose::FindPullRequests(repo_path, _) | LookupPurpose::CheckPullRequestRefs(repo_path, _) => {
                (repo_path, Vec::new())
            }
        };
        let pull_requests = match purpose {
            LookupPurpose::FindPullRequests(_, page) => Some(*page),
            _ => None,
        };
        let find_orphans =
            matches!(purpose, LookupPurpose::StartTask(RepoTask::Align(_) | RepoTask::Adopt(_) | RepoTask::Delete(_)));
        let adds_objects = matches!(
            purpose,
            LookupPurpose::AuthorisePush(_)
                | LookupPurpose::StartPush(_)
                | LookupPurpose::StartTask(RepoTask::Adopt(_))
        );
        // Measuring is skipped if the push or pack is rejected for another reason anyway.
        let measure_disk = adds_objects
            && self.policy.quotas.has_byte_quotas()
            && self.disk_level != DiskLevel::Hard
            && self.is_available(repo_path);
        let find_folder = matches!(purpose, LookupPurpose::StartTask(_));
        RepoLookup { repo_path: repo_path.clone(), events, find_folder, find_orphans, measure_disk, pull_requests }
    }

    /// Returns the events that a decision about a push needs: those that its refs name. Of states only the digests are
    /// needed, which are in the catalog.
    fn events_of_push(&self, push: &RequestedPush) -> Vec<EventId> {
        let named = push.commands.iter().filter_map(|command| command.name.strip_prefix("refs/nostr/"));
        named.filter_map(EventId::from_hex).collect()
    }

    /// Continues the work that the lookup was for.
    pub(super) fn lookup_done(&mut self, now: Now, lookup: RepoLookupResult) {
        let purpose = self.pending_lookup.take();
        let bytes: usize = lookup.events.values().map(|found| found.event.json().len()).sum();
        self.catalog.work().add(bytes / limits::BYTES_PER_WORK_UNIT + lookup.refs.len());
        match purpose {
            Some(LookupPurpose::AuthorisePush(push)) => self.decide_push(&push, &lookup),
            Some(LookupPurpose::StartPush(received_push)) => self.start_push(received_push, &lookup),
            Some(LookupPurpose::ResumePush(received_push, permit, staged)) => {
                let operation = GitOperation::Align(self.push_alignment(&received_push, &permit, &lookup));
                self.start_git_job(
                    received_push.push.repo_path.clone(),
                    operation,
                    RunningJob::Push { received_push, permit, staged },
                );
            }
            Some(LookupPurpose::StartTask(task)) => self.start_task(task, &lookup),
            Some(LookupPurpose::FinishJob(RunningJob::Push { received_push, permit, staged }, aligned)) => {
                self.finish_push(now, &FinishedPush { received_push, permit, staged, aligned }, &lookup);
            }
            Some(LookupPurpose::FinishJob(RunningJob::Task(task), aligned)) => {
                self.finish_task(now, &task, &aligned, &lookup)
            }
            Some(LookupPurpose::HoldStates(repo_path, states)) => {
                self.hold_states(now, repo_path.identifier(), &states, &lookup);
            }
            Some(LookupPurpose::FindPullRequests(repo_path, _)) => {
                self.pull_requests_found(now, repo_path.repo(), &lookup);
            }
            Some(LookupPurpose::CheckPullRequestRefs(_, reviewed)) => {
                self.pull_request_refs_checked(now, reviewed, &lookup);
            }
            None => {}
        }
    }

    /// Answers a requested push. The events that a permitted push needs do not expire before it has ended.
    fn decide_push(&mut self, push: &RequestedPush, lookup: &RepoLookupResult) {
        let result = self.authorise_push(push, lookup);
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

    /// Decides about a push: whether the repository is hosted here and writable, the disk and the quota allow it, and the
    /// commands lead to a signed state ([`push::authorise`]).
    fn authorise_push(&self, push: &RequestedPush, lookup: &RepoLookupResult) -> Result<PushPermit, PushRejection> {
        if !self.is_available(&push.repo_path) {
            return Err(PushRejection::NotHosted);
        }
        if self.policy.lists.is_read_only && !self.is_listed(&push.repo_path) {
            return Err(PushRejection::ReadOnly);
        }
        if self.disk_level == DiskLevel::Hard {
            return Err(PushRejection::DiskFull);
        }
        let refs = branches_and_tags(lookup);
        let mut held_states = Vec::new();
        let mut current = None;
        for (state, status) in self.declared_states(&push.repo_path) {
            match status {
                EventStatus::Held => held_states.push(state),
                // The newest comes first.
                EventStatus::Served => current = current.or(Some(state)),
            }
        }
        let context = PushContext {
            repo_path: &push.repo_path,
            refs: &refs,
            held_states: &held_states,
            current: current.as_ref(),
        };
        let ref_event = |id: EventId| {
            lookup.events.get(&id).map_or(RefEvent::Unknown, |found| self.ref_event(&push.repo_path, &found.event))
        };
        let permit = push::authorise(&context, &push.commands, ref_event)?;
        let quotas = &self.policy.quotas;
        // Any client may upload a pull request, and its objects stay once the event is accepted. So uploads count, too.
        let quota_left = match permit.state {
            Some(_) => quotas.remaining(lookup.disk_usage, QuotaUser::Maintainers),
            None if quotas.has_byte_quotas() => {
                quotas.remaining(lookup.disk_usage + self.uploads.disk_usage(&push.repo_path), QuotaUser::Others)
            }
            None => None,
        };
        let permit = PushPermit { quota_left, ..permit };
        if !self.uploads.has_capacity(&push.network, permit.uploads.len(), 0) {
            return Err(PushRejection::UploadsFull);
        }
        Ok(permit)
    }

    /// Classifies the event that a pushed `refs/nostr/<id>` names.
    fn ref_event(&self, repo_path: &RepoPath, event: &Event) -> RefEvent {
        let Some(request) = PullRequest::from_any_event(event) else { return RefEvent::NotPullRequest };
        if self.accepts_pull_request(repo_path, &self.pull_request_paths(event.pubkey, &request)) {
            RefEvent::PullRequest(request.tip)
        } else {
            RefEvent::OtherRepository
        }
    }

    /// Starts the git job of a received push, if it is still permitted.
    fn start_push(&mut self, received_push: Box<ReceivedPush>, lookup: &RepoLookupResult) {
        let permit = match self
            .authorise_push(&received_push.push, lookup)
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
        let operation = if staged.is_empty() {
            GitOperation::Align(self.push_alignment(&received_push, &permit, lookup))
        } else {
            let from = |event: EventId| received_push.uploads.iter().find(|upload| upload.event == event);
            let moves = staged
                .iter()
                .filter_map(|(event, to)| Some((from(*event)?.received_pack.clone(), ReceivedPack::Staged(*to))));
            GitOperation::StageUploads(moves.collect())
        };
        self.start_git_job(repo_path, operation, RunningJob::Push { received_push, permit, staged });
    }

    /// Checks that the received packs contain what is permitted now. Events may have been stored or removed since the
    /// push was permitted.
    fn check_received(&self, received_push: &ReceivedPush, permit: PushPermit) -> Result<PushPermit, PushRejection> {
        let received = |event: &EventId| received_push.uploads.iter().find(|upload| upload.event == *event);
        if let Some((left, quota)) = permit.quota_left
            && received_push.bytes + received_push.uploads.iter().map(|upload| upload.bytes).sum::<u64>() > left
        {
            return Err(PushRejection::QuotaExceeded(quota));
        }
        let mut bytes = 0;
        for (event, _) in &permit.uploads {
            // The event was stored when the push was permitted and has been removed since, so its objects are not in a
            // pack of their own.
            bytes += received(event).ok_or(PushRejection::AuthorityChanged)?.bytes;
        }
        if !self.uploads.has_capacity(&received_push.push.network, permit.uploads.len(), bytes) {
            return Err(PushRejection::UploadsFull);
        }
        Ok(permit)
    }

    /// Returns the alignment that carries out a push.
    fn push_alignment(
        &self,
        received_push: &ReceivedPush,
        permit: &PushPermit,
        lookup: &RepoLookupResult,
    ) -> Alignment {
        // An event that was not known when the push was permitted may have been stored since.
        let known_since = received_push
            .uploads
            .iter()
            .filter(|upload| permit.pull_requests.iter().any(|(id, _)| *id == upload.event));
        let adopt = received_push
            .received_pack
            .iter()
            .cloned()
            .chain(known_since.map(|upload| upload.received_pack.clone()))
            .collect();
        let candidate = permit.state.and_then(|version| self.pushed_candidate(&received_push.push, version, lookup));
        // Events may have been removed while uploads were staged.
        let pull_requests = permit.pull_requests.iter().filter(|(event, _)| lookup.events.contains_key(event));
        let pull_request_ref =
            |(event, tip): &(EventId, String)| PullRequestRef { event: *event, tip: tip.clone(), sources: Vec::new() };
        let alternates = self.alternates_of(&received_push.push.repo_path);
        // If the pools that were checked are not the ones that are readable now, the check must be repeated.
        let checked_prune_count = received_push.checked_prune_count.filter(|_| alternates == received_push.alternates);
        Alignment {
            adopt,
            checked_prune_count,
            alternates,
            candidates: candidate.into_iter().collect(),
            pull_requests: pull_requests.map(pull_request_ref).collect(),
            ..Alignment::default()
        }
    }

    /// Returns the state that a push completes, with its refs: those after the push, because their hash is that of the
    /// state's refs.
    fn pushed_candidate(
        &self,
        push: &RequestedPush,
        version: EventVersion,
        lookup: &RepoLookupResult,
    ) -> Option<CandidateState> {
        let (state, _) =
            self.declared_states(&push.repo_path).into_iter().find(|(state, _)| state.version == version)?;
        let refs = push::refs_after(branches_and_tags(lookup), &push.commands)?;
        let is_declared = refs_hash(&refs) == state.digest.refs_hash;
        is_declared.then(|| CandidateState {
            event: version.id,
            is_served: false,
            refs: refs.into_iter().collect(),
            head: state.digest.head.clone(),
            sources: Vec::new(),
        })
    }

    /// Starts the git job of a task, or ends the task if there is nothing to do.
    fn start_task(&mut self, task: RepoTask, lookup: &RepoLookupResult) {
        let repo_path = task.repo_path().clone();
        let operation = match &task {
            // Its pull requests are being held again. Then the task is added again.
            RepoTask::Align(RepoPath::Announced(repo)) if self.ended_repos.contains(repo) => None,
            // A repository that follows a state of this one may still have to take its objects.
            RepoTask::Align(RepoPath::Announced(repo)) if !self.is_hosted(repo) && self.dependents.postpone(repo) => {
                None
            }
            RepoTask::Align(RepoPath::Announced(repo)) if !self.is_hosted(repo) => self.deletion(repo, lookup),
            RepoTask::Align(_) => self.alignment(&repo_path, lookup),
            RepoTask::Adopt(fetched_pack) => self.adoption(fetched_pack, lookup),
            RepoTask::PullRequest(_, event) => self.pull_request_alignment(&repo_path, *event, lookup),
            // A ref may have been created since the repository was found empty.
            RepoTask::Delete(_) => {
                (lookup.has_folder && lookup.refs.is_empty() && !lookup.is_degraded).then_some(GitOperation::Delete)
            }
        };
        if matches!(operation, Some(GitOperation::Delete)) && lookup.exists {
            self.write(StoreWrite::RemoveRefs(repo_path.clone()));
        }
        match operation {
            Some(operation) => self.start_git_job(repo_path, operation, RunningJob::Task(task)),
            None => {
                if !lookup.has_folder {
                    self.forget_degraded(&repo_path);
                }
                self.end_task(&task);
            }
        }
    }

    /// Returns the job that deletes a repository that is no longer hosted, or `None` if nothing of it is on disk or it is kept.
    fn deletion(&self, repo: &RepoId, lookup: &RepoLookupResult) -> Option<GitOperation> {
        (lookup.has_folder && !self.hosting(repo).is_kept).then_some(GitOperation::Delete)
    }

    /// Returns the job that aligns a repository with the signed events, or `None` if it can have no effect.
    fn alignment(&self, repo_path: &RepoPath, lookup: &RepoLookupResult) -> Option<GitOperation> {
        let align = self.desired_alignment(repo_path, lookup);
        // Without a folder, alternates and copy sources it has no object that a state could name.
        let has_no_source = |state: &CandidateState| !state.refs.is_empty() && state.sources.is_empty();
        let has_no_data =
            !lookup.has_folder && align.alternates.is_empty() && align.candidates.iter().all(has_no_source);
        let has_no_data = has_no_data || (!lookup.has_folder && align.candidates.is_empty());
        if has_no_data && (align.pull_requests.is_empty() || align.alternates.is_empty()) {
            return None;
        }
        Some(GitOperation::Align(align))
    }

    /// Returns the job that adopts a fetched pack and aligns the repository, or `None` if the pack cannot be accepted.
    fn adoption(&self, fetched_pack: &FetchedPack, lookup: &RepoLookupResult) -> Option<GitOperation> {
        // A fetch receives at most as many bytes as the quotas left when it started. The index of the pack comes on
        // top; if the pack were rejected for that, it would be fetched again and again.
        let has_capacity =
            self.policy.quotas.remaining(lookup.disk_usage, QuotaUser::Maintainers).is_none_or(|(left, _)| left > 0);
        (has_capacity && self.is_available(&fetched_pack.repo_path)).then(|| {
            let adopt = vec![fetched_pack.received_pack.clone()];
            let alignment = self.desired_alignment(&fetched_pack.repo_path, lookup);
            // With other pools, the check must be repeated.
            let verified = fetched_pack.verified.clone().filter(|it| it.alternates == alignment.alternates);
            GitOperation::Align(Alignment { adopt, verified, ..alignment })
        })
    }

    /// Returns the alignment of a repository with the signed events.
    fn desired_alignment(&self, repo_path: &RepoPath, lookup: &RepoLookupResult) -> Alignment {
        let states = self.states_for(repo_path);
        let is_served = self.is_served(repo_path);
        let parse = |(id, status): &(EventId, EventStatus)| {
            lookup.events.get(id).and_then(|found| Some((RepoState::from_event(&found.event)?, *status)))
        };
        let candidates: Vec<CandidateState> = states
            .iter()
            .filter_map(parse)
            // A state without refs is complete without any data, and must not release a held announcement.
            .filter(|(state, _)| state.is_satisfiable() && (is_served || !state.refs.is_empty()))
            .map(|(state, status)| CandidateState {
                sources: self.state_sources(repo_path, &state),
                ..candidate(state, status)
            })
            .collect();
        let alternates = self.alternates_of(repo_path);
        // Held states do not justify existing refs.
        let any_served = states.iter().any(|(_, status)| *status == EventStatus::Served);
        let fallback = if any_served { RefFallback::Keep } else { RefFallback::Clear };
        let pull_requests = self.held_pull_requests_at(repo_path);
        // A held pull request for other repositories has no ref here.
        let with_ref =
            lookup.refs.iter().filter_map(|(name, _)| name.strip_prefix("refs/nostr/").and_then(EventId::from_hex));
        let misplaced = with_ref
            .filter(|id| self.purgatory.get(*id).is_some() && pull_requests.iter().all(|request| request.event != *id));
        let drop_pull_requests = lookup.orphan_refs.iter().copied().chain(misplaced).collect();
        Alignment { alternates, candidates, fallback, pull_requests, drop_pull_requests, ..Alignment::default() }
    }

    /// Returns the held pull requests that are addressed to a repository.
    pub(super) fn held_pull_requests_at(&self, repo_path: &RepoPath) -> Vec<PullRequestRef> {
        let addressed = |(event, held_event): (EventId, &HeldEvent)| match &held_event.kind {
            HeldKind::PullRequest(tip, repo_paths) if self.has_served_path(repo_paths) => {
                Some(PullRequestRef { event, tip: tip.clone(), sources: Vec::new() })
            }
            _ => None,
        };
        self.purgatory.pull_requests_at(repo_path).filter_map(addressed).collect()
    }

    /// Returns other repositories that have the state's author as a maintainer. One of them may have its objects.
    fn state_sources(&self, repo_path: &RepoPath, state: &RepoState) -> Vec<RepoPath> {
        let others = self.search_paths(&state.identifier, state.author).into_iter();
        others.filter(|other| other != repo_path).take(limits::MAX_SOURCE_REPOS).collect()
    }

    /// Returns the job that creates the ref of a pull request, or removes it if the event is not stored. `None` if
    /// there is nothing to do.
    fn pull_request_alignment(
        &self,
        repo_path: &RepoPath,
        event: EventId,
        lookup: &RepoLookupResult,
    ) -> Option<GitOperation> {
        let Some(found) = lookup.events.get(&event) else {
            let has_ref = lookup.refs.get(&format!("refs/nostr/{event}")).is_some();
            let (alternates, drop_pull_requests) = (self.alternates_of(repo_path), vec![event]);
            return has_ref
                .then(|| GitOperation::Align(Alignment { alternates, drop_pull_requests, ..Alignment::default() }));
        };
        let request = PullRequest::from_any_event(&found.event)?;
        let repo_paths = self.pull_request_paths(found.event.pubkey, &request);
        let is_early = found.status == EventStatus::Held && !self.has_served_path(&repo_paths);
        if is_early || !self.accepts_pull_request(repo_path, &repo_paths) {
            return None;
        }
        let upload = self.uploads.get(event, repo_path).filter(|upload| upload.tip == request.tip);
        let adopt: Vec<ReceivedPack> = upload.map(|upload| ReceivedPack::Staged(upload.folder)).into_iter().collect();
        let alternates = self.alternates_of(repo_path);
        // A pull request that was pushed to a repository stays there. One that was submitted below `/prs/` is copied to
        // the repositories that it is addressed to.
        let sources: Vec<RepoPath> = match repo_path {
            RepoPath::PullRequests(_) => Vec::new(),
            // An alternate may have read the commit from a third repository.
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

    /// Starts a git job.
    fn start_git_job(&mut self, repo_path: RepoPath, operation: GitOperation, job: RunningJob) {
        let id = self.queues.start_job(repo_path.identifier().clone(), job);
        self.emit(AdmissionOutput::GitJob(GitJob { id, repo_path, operation }));
    }

    /// Schedules a task that failed for later. A fetched pack is not kept for that: what is missing is fetched again.
    fn retry_later(&mut self, now: Now, task: RepoTask) {
        let identifier = task.repo_path().identifier().clone();
        let retried = match task {
            RepoTask::Adopt(fetched_pack) => {
                self.emit(AdmissionOutput::PackAdopted(fetched_pack.fetch));
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier.clone()));
                RepoTask::Align(fetched_pack.repo_path)
            }
            other => other,
        };
        self.queues.delay(retried, now.mono.plus_secs(limits::GIT_JOB_RETRY_SECS));
        self.queues.release(&identifier);
    }

    /// Handles the outcome of a git job.
    pub(super) fn git_job_done(&mut self, now: Now, id: GitJobId, outcome: GitJobOutcome) {
        let Some((_, job)) = self.queues.end_job(id) else { return };
        match (job, outcome) {
            (RunningJob::Push { received_push, permit, staged }, GitJobOutcome::Staged) if permit.changes_refs() => {
                self.lookup_queue.push_back(LookupPurpose::ResumePush(received_push, permit, staged));
            }
            (job @ RunningJob::Push { .. }, GitJobOutcome::Staged) => {
                self.lookup_queue.push_back(LookupPurpose::FinishJob(job, AlignmentResult::default()));
            }
            (RunningJob::Push { received_push, staged, .. }, GitJobOutcome::Failed(error)) => {
                self.discard_staged(&staged);
                // Objects may have been added before the job failed.
                self.recheck_held(received_push.push.repo_path.identifier());
                self.end_push(&received_push.push, Err(PushRejection::Failed(error)));
            }
            (RunningJob::Task(task), GitJobOutcome::Failed(_)) => self.retry_later(now, task),
            (RunningJob::Task(task), GitJobOutcome::Deleted | GitJobOutcome::Staged) => {
                self.forget_degraded(task.repo_path());
                self.end_task(&task);
            }
            (job, GitJobOutcome::Aligned(aligned)) => {
                if let Some(packs) = aligned.packs.clone() {
                    self.write(StoreWrite::SetPacks(job.repo_path().clone(), packs));
                }
                self.lookup_queue.push_back(LookupPurpose::FinishJob(job, aligned));
            }
            (RunningJob::Push { received_push, .. }, GitJobOutcome::Deleted) => {
                self.end_push(&received_push.push, Err(PushRejection::NotHosted))
            }
        }
    }
}

/// Returns the branches and tags that a push starts from. Those of a degraded repository are not shown to the client,
/// so that it sends everything again.
fn branches_and_tags(lookup: &RepoLookupResult) -> BTreeMap<String, String> {
    let refs = lookup.refs.branches_and_tags().filter(|_| !lookup.is_degraded);
    refs.map(|(name, target)| (name.to_owned(), target.oid.clone())).collect()
}

fn candidate(state: RepoState, status: EventStatus) -> CandidateState {
    CandidateState {
        event: state.version.id,
        is_served: status == EventStatus::Served,
        refs: state.refs.into_iter().collect(),
        head: state.head,
        sources: Vec::new(),
    }
}
