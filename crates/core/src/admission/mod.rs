//! Admission: decides which events are accepted, held in purgatory or served, authorises pushes, and plans git jobs per
//! repository (docs/design/admission.md).
//!
//! The first of three state machines. [`Admission`] receives [`AdmissionInput`]s, such as submitted events with their
//! store lookups, pushes and results of git jobs, and produces [`AdmissionOutput`]s: store writes, replies, git jobs
//! and notifications for sync and fetch. It is pure: no IO and no clock. In the server the writer thread runs it,
//! inside one store transaction per batch; `grasp-sim` runs it against simulated stores and git repositories.
//!
//! - [`policy`]: decisions about single events. This file applies them to the [`Catalog`] and to [`purgatory`].
//! - [`push`]: authorisation of pushes.
//! - `git_job_planner`, `git_job_results`, `repo_queue`: planning of git jobs and what follows from their results.
//! - `announcement_changes`, `dependents`, `exceptions`: what follows from a changed announcement.
//! - `removal`, `expiry`, `policy_change`, [`moderation`]: everything that removes events.
//! - `early_requests`: deletion and vanish requests that arrive before their targets.
//! - `hosting`: what is held again when hosting ends.
//! - `sync_targets`, `wanted_git_data`: what [`sync`](crate::sync) and [`fetch`](crate::fetch) should do.

mod announcement_changes;
mod degraded;
mod dependents;
mod early_requests;
mod exceptions;
mod expiry;
pub mod git_job;
mod git_job_planner;
mod git_job_results;
mod hosting;
pub mod io;
pub mod moderation;
pub mod policy;
mod policy_change;
pub mod purgatory;
pub mod push;
mod removal;
mod repo_queue;
mod sync_targets;
pub mod uploads;
pub mod views;
mod wanted_git_data;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use io::{
    AdmissionInput, AdmissionOutput, EventLookups, EventSource, PushId, RestoredItem, StoreWrite, Todo, TombstoneKind,
};
use policy::{AdmissionMode, AdmissionPolicy, IdentifierSpace, PolicyContext, Submission};
use purgatory::{HeldEvent, HeldKind, HeldSubmitter, Purgatory, SearchStatus};
use repo_queue::{RepoQueues, RepoTask};

use degraded::DegradedRepos;
use dependents::DependentQueue;
use early_requests::EarlyRequests;
use exceptions::ExceptionReview;
use git_job_planner::LookupPurpose;
use hosting::HostingChanges;
use uploads::PendingUploads;

use crate::disk_budget::DiskLevel;
use crate::fetch::io::FetchId;
use crate::limits;
use crate::nostr::event::{Event, EventId, EventVersion};
use crate::nostr::{Decision, SignedEvent, kinds};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::StateDigest;
use crate::repo::{Announcement, Catalog, Identifier, RepoId, RepoPath};
use crate::state_machine::StateMachine;
use crate::time::{MonoTime, Now};

/// The admission state machine.
#[derive(Debug)]
pub struct Admission {
    policy: AdmissionPolicy,
    /// The fill level of the disk budget.
    disk_level: DiskLevel,
    catalog: Catalog,
    purgatory: Purgatory,
    outputs: VecDeque<AdmissionOutput>,
    /// Identifiers whose announcements changed during this input. The consequences are handled once, at its end.
    changed_identifiers: BTreeSet<Identifier>,
    /// Repositories whose maintainer set, or whether they are hosted, may have changed during this input.
    affected_repos: BTreeSet<RepoId>,
    /// Repositories whose own announcements changed during this input.
    touched_repos: BTreeSet<RepoId>,
    /// Changes of hosting during this input.
    hosting_changes: HostingChanges,
    /// Repositories that depend on a changed announcement or state and are aligned in slices.
    dependents: DependentQueue,
    /// Announcements by the maintainer exception that are to be reviewed.
    exceptions: ExceptionReview,
    /// Held events that were restored and whose git data is still to be checked.
    held_to_check: VecDeque<EventId>,
    /// Whether git tasks wait because this turn has done enough work.
    has_deferred_tasks: bool,
    /// Whether a git task was taken in this turn.
    has_taken_task: bool,
    /// Repositories that are no longer kept and whose pull requests are being searched. Their folders stay meanwhile.
    ended_repos: BTreeSet<RepoId>,
    /// Where these searches continue.
    next_pages: Vec<(RepoId, EventVersion)>,
    /// Uploads whose event is not known yet.
    uploads: PendingUploads,
    /// Deletion and vanish requests of unknown keys.
    early_requests: EarlyRequests,
    /// Tasks and received pushes that wait for a git job, and the running jobs.
    queues: RepoQueues,
    /// Durable records of git work.
    todos: BTreeSet<Todo>,
    /// Permitted pushes that have not ended, with the events that must not expire meanwhile.
    pushes: BTreeMap<PushId, Vec<EventId>>,
    /// Running fetches, with the events that must not expire meanwhile.
    fetches: BTreeMap<FetchId, Vec<EventId>>,
    /// The purpose of the lookup that is in progress.
    pending_lookup: Option<LookupPurpose>,
    /// The purposes of the next lookups.
    lookup_queue: VecDeque<LookupPurpose>,
    /// Repositories with damaged or missing objects.
    degraded: DegradedRepos,
    /// Repositories that must be compared with a changed policy.
    repos_to_review: VecDeque<RepoId>,
    /// Banned repositories that were removed and whose related events are being searched.
    repos_to_scan: BTreeSet<RepoId>,
}

impl Admission {
    /// Creates a machine without any events. The stored items must be the first inputs ([`AdmissionInput::Restored`]).
    #[must_use]
    pub fn new(policy: AdmissionPolicy) -> Self {
        Self {
            policy,
            disk_level: DiskLevel::Free,
            catalog: Catalog::default(),
            purgatory: Purgatory::default(),
            outputs: VecDeque::new(),
            changed_identifiers: BTreeSet::new(),
            affected_repos: BTreeSet::new(),
            touched_repos: BTreeSet::new(),
            hosting_changes: HostingChanges::default(),
            dependents: DependentQueue::default(),
            exceptions: ExceptionReview::default(),
            held_to_check: VecDeque::new(),
            has_deferred_tasks: false,
            has_taken_task: false,
            ended_repos: BTreeSet::new(),
            next_pages: Vec::new(),
            uploads: PendingUploads::default(),
            early_requests: EarlyRequests::default(),
            queues: RepoQueues::default(),
            todos: BTreeSet::new(),
            pushes: BTreeMap::new(),
            fetches: BTreeMap::new(),
            pending_lookup: None,
            lookup_queue: VecDeque::new(),
            degraded: DegradedRepos::default(),
            repos_to_review: VecDeque::new(),
            repos_to_scan: BTreeSet::new(),
        }
    }

    /// Returns the repositories.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the held events.
    #[must_use]
    pub fn purgatory(&self) -> &Purgatory {
        &self.purgatory
    }

    /// Returns the current policy.
    #[must_use]
    pub fn policy(&self) -> &AdmissionPolicy {
        &self.policy
    }

    fn restore(&mut self, now: Now, restored: RestoredItem) {
        match restored {
            RestoredItem::Served(_) | RestoredItem::Exception(_) if self.policy.mode == AdmissionMode::Open => {}
            RestoredItem::Served(event) if event.kind == kinds::STATE => {
                if let Some(identifier) = event.tag("d").and_then(Identifier::new) {
                    if let Some(digest) = StateDigest::from_event(&event) {
                        self.catalog.set_digest(event.pubkey, &identifier, event.id, digest);
                    }
                    self.catalog.serve_state(event.pubkey, &identifier, event.version());
                }
            }
            RestoredItem::Served(event) => self.restore_announcement(&event, false),
            RestoredItem::Exception(event) => self.restore_announcement(&event, true),
            RestoredItem::Held(event, deadline) => {
                self.restore_held(now, &event, deadline);
            }
            RestoredItem::Degraded(repo_path) => self.restore_degraded(repo_path),
            RestoredItem::Todo(todo) => {
                self.todos.insert(todo);
            }
            RestoredItem::Upload(upload) => {
                let left = upload
                    .deadline
                    .secs_since(now.wall)
                    .clamp(limits::PURGATORY_STARTUP_GRACE_SECS, limits::PURGATORY_EXPIRY_SECS);
                self.uploads.insert(upload, now.mono.plus_secs(left));
            }
            RestoredItem::EarlyRequest(request) => {
                let left = request.expires_at.secs_since(now.wall).min(limits::EARLY_REQUEST_EXPIRY_SECS);
                self.early_requests.insert(request, now.mono.plus_secs(left));
            }
        }
        // Restoring changes nothing that others would have to be notified of.
        self.affected_repos.clear();
        self.touched_repos.clear();
        self.changed_identifiers.clear();
        self.forget_hosting_changes();
    }

    /// Continues interrupted work after all stored items have been restored.
    fn resume(&mut self) {
        for todo in &self.todos {
            self.queues.add(git_job_results::task_for_todo(todo));
        }
        self.resume_pull_request_searches();
        self.resume_degraded();
        self.resume_dependents();
        self.resume_exceptions();
        self.start_review();
        self.held_to_check = self.purgatory.iter().map(|(id, _)| id).collect();
        self.check_restored_events();
    }

    /// Checks the git data of the next restored events.
    fn check_restored_events(&mut self) {
        while !self.is_turn_used_up() {
            let Some(id) = self.held_to_check.pop_front() else { break };
            self.catalog.work().add(limits::WORK_PER_WRITE);
            self.check_git_data(id);
        }
    }

    /// Whether this turn of the writer has done enough work. The rest is done in the next turns.
    fn is_turn_used_up(&self) -> bool {
        self.catalog.work().get() >= limits::WORK_PER_TURN
    }

    /// Returns the work of this turn so far, in units ([`limits::WORK_PER_TURN`]).
    #[must_use]
    pub fn turn_work(&self) -> u64 {
        self.catalog.work().get()
    }

    fn restore_announcement(&mut self, event: &Event, is_exception: bool) {
        if let Some(announcement) = self.policy.announcement(event) {
            self.catalog.restore_announcement(EventStatus::Served, Announcement { is_exception, ..announcement });
        }
    }

    fn handle_submission(
        &mut self,
        now: Now,
        event: Arc<SignedEvent>,
        source: &EventSource,
        (network, submitter, digest): (Option<String>, Option<HeldSubmitter>, Option<StateDigest>),
        mut lookups: EventLookups,
    ) {
        if self.policy.ignores_deletions {
            // Requests from the time before they were ignored have no effect either.
            lookups.tombstone = lookups.tombstone.filter(|tombstone| *tombstone == TombstoneKind::Withdrawn);
        }
        let submission = Submission { submitter, digest, ..Submission::new(&self.policy, &event) };
        let decision = match self.policy.recheck(&event, now.wall) {
            Some(rejection) => Decision::Reject(rejection),
            None => self.policy_context().decide(&submission, source, &lookups),
        };
        let decision = self.apply_early_requests(now, &event, source, network, decision);
        if let Some(new) = submission.announcement.as_ref().filter(|_| lookups.tombstone.is_none()) {
            self.withdraw_if_delisted(new, &decision);
        }
        match &decision {
            Decision::Accept => self.accept(submission, &lookups.targets),
            Decision::Hold(_) => self.hold(now, submission, source),
            Decision::Broadcast => self.emit(AdmissionOutput::Broadcast(event)),
            Decision::Known(_) => self.resubmitted(now, event.id, source),
            Decision::Remember | Decision::Reject(_) => {}
        }
        self.emit(AdmissionOutput::Reply(decision));
    }

    fn policy_context(&self) -> PolicyContext<'_> {
        PolicyContext {
            policy: &self.policy,
            catalog: &self.catalog,
            purgatory: &self.purgatory,
            disk_level: self.disk_level,
            pushes: &self.pushes,
            fetches: &self.fetches,
        }
    }

    fn accept(&mut self, submission: Submission<'_>, targets: &[io::DeletionTarget]) {
        let event = submission.event;
        self.make_identifier_space(&submission);
        self.write(StoreWrite::Put(event.clone()));
        match event.kind {
            kinds::DELETION | kinds::VANISH if self.policy.ignores_deletions => {}
            kinds::DELETION => self.apply_deletion(event, targets),
            kinds::VANISH => self.apply_vanish(event),
            _ => submission.announcement.into_iter().for_each(|announcement| self.serve_announcement(announcement)),
        }
    }

    fn serve_announcement(&mut self, announcement: Announcement) {
        let repo = announcement.repo.clone();
        let version = announcement.version;
        let is_exception = !announcement.is_hosted() && !policy::is_archive_only(&self.catalog, &repo);
        if is_exception {
            self.write(StoreWrite::MarkException(version.id));
        }
        self.put_announcement(EventStatus::Served, Announcement { is_exception, ..announcement });
        let obsolete =
            self.catalog.announcement(&repo).and_then(|versions| versions.held.as_ref()).map(|held| held.version);
        if let Some(held) = obsolete.filter(|held| crate::nostr::supersedes(version, *held)) {
            self.drop_held(held.id);
        }
    }

    /// Removes a held announcement if there are too many with the identifier of a new one.
    fn make_identifier_space(&mut self, submission: &Submission<'_>) {
        let Some(new) = &submission.announcement else { return };
        if let IdentifierSpace::After(evicted) = self.policy_context().identifier_space(new) {
            self.drop_held(evicted);
        }
    }

    fn hold(&mut self, now: Now, submission: Submission<'_>, source: &EventSource) {
        let event = submission.event;
        self.make_identifier_space(&submission);
        let context = self.policy_context();
        for id in context.evictions(&context.hold_request(&submission)) {
            self.drop_held(id);
        }
        self.write(StoreWrite::Hold(event.clone(), now.wall.plus_secs(self.policy.purgatory_secs)));
        let search = SearchStatus::Pending(expiry::search_due(now, source));
        self.track_held(now, submission, now.mono.plus_secs(self.policy.purgatory_secs), search);
        if event.kind == kinds::STATE {
            self.extend_held_announcements(now, event);
        }
        self.check_git_data(event.id);
    }

    /// Extends the deadlines of held announcements to that of a state that could release them. If very many list its author,
    /// only those that are searched for its objects are extended.
    fn extend_held_announcements(&mut self, now: Now, event: &Event) {
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else { return };
        for repo_path in self.search_paths(&identifier, event.pubkey) {
            let held = self.catalog.announcement(repo_path.repo()).and_then(|versions| versions.held.as_ref());
            let Some(id) = held.map(|held| held.version.id) else { continue };
            if self.purgatory.extend_deadline(id, now.mono.plus_secs(self.policy.purgatory_secs)) {
                self.write(StoreWrite::ExtendHold(id, now.wall.plus_secs(self.policy.purgatory_secs)));
            }
        }
    }

    /// Schedules a check whether the git data of a held event is complete already, and notifies fetch.
    fn check_git_data(&mut self, id: EventId) {
        let Some(held_event) = self.purgatory.get(id) else { return };
        let author = held_event.author;
        match held_event.kind.clone() {
            HeldKind::Announcement(repo) if !self.is_hosted(&repo) => {}
            HeldKind::Announcement(repo) => self.queues.add(RepoTask::Align(RepoPath::Announced(repo))),
            HeldKind::State(identifier) => {
                for repo_path in self.search_paths(&identifier, author) {
                    self.queues.add(RepoTask::Align(repo_path));
                }
                self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
            }
            HeldKind::PullRequest(tip, repo_paths) => {
                self.drop_mismatched_uploads(id, &tip);
                if !self.has_served_path(&repo_paths) {
                    return;
                }
                let available: Vec<RepoPath> =
                    repo_paths.into_iter().filter(|repo_path| self.is_available(repo_path)).collect();
                let uploaded = self.uploads.by_event(id).map(|upload| &upload.repo_path);
                let accepting: Vec<RepoPath> =
                    uploaded.filter(|repo_path| self.accepts_pull_request(repo_path, &available)).cloned().collect();
                for repo_path in available.into_iter().chain(accepting) {
                    self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
                    self.queues.add(RepoTask::PullRequest(repo_path, id));
                }
            }
        }
    }

    /// Adds a held event to the catalog and to purgatory. Events that it displaces are deleted from the store.
    fn track_held(&mut self, now: Now, submission: Submission<'_>, deadline: MonoTime, search: SearchStatus) {
        let event = submission.event;
        let kind = match event.kind {
            kinds::ANNOUNCEMENT => {
                let Some(announcement) = submission.announcement.clone() else { return };
                let repo = announcement.repo.clone();
                // Only the maintainer exception holds the announcement of a repository that is not hosted.
                let is_exception = !announcement.is_hosted();
                let announcement = Announcement { is_exception, ..announcement };
                if let Some(older) = self.put_announcement(EventStatus::Held, announcement) {
                    self.purgatory.remove(older.version.id);
                    self.write(StoreWrite::DropHeld(older.version.id));
                }
                HeldKind::Announcement(repo)
            }
            kinds::STATE => {
                let Some(identifier) = event.tag("d").and_then(Identifier::new) else { return };
                let digest = submission.digest.clone().or_else(|| StateDigest::from_event(event));
                if let Some(digest) = digest {
                    self.catalog.set_digest(event.pubkey, &identifier, event.id, digest);
                }
                if let Some(oldest) =
                    self.catalog.hold_state(event.pubkey, &identifier, event.version(), limits::MAX_HELD_STATE_VERSIONS)
                {
                    self.purgatory.remove(oldest.id);
                    self.write(StoreWrite::DropHeld(oldest.id));
                    if oldest.id == event.id {
                        return;
                    }
                }
                HeldKind::State(identifier)
            }
            _ => {
                let Some(request) = PullRequest::from_event(event) else { return };
                // Targets that are not hosted are included, because that may change while the event is held.
                let targets =
                    request.targets.iter().take(limits::MAX_PULL_REQUEST_TARGETS).cloned().map(RepoPath::Announced);
                let mut repo_paths: Vec<RepoPath> =
                    targets.chain(self.policy.submission_paths(event.pubkey, &request)).collect();
                repo_paths.sort_unstable();
                repo_paths.dedup();
                HeldKind::PullRequest(request.tip, repo_paths)
            }
        };
        self.insert_held(now, submission, kind, deadline, search);
    }

    /// Adds a held event to purgatory.
    fn insert_held(
        &mut self,
        now: Now,
        submission: Submission<'_>,
        kind: HeldKind,
        deadline: MonoTime,
        search: SearchStatus,
    ) {
        let priority = self.policy_context().hold_request(&submission).priority;
        let Submission { event, submitter, .. } = submission;
        self.purgatory.insert(
            event.id,
            HeldEvent {
                author: event.pubkey,
                created_at: event.created_at,
                kind,
                bytes: event.json().len(),
                since: now.mono,
                deadline,
                search,
                submitter,
                priority,
            },
        );
    }

    /// Whether a held event would still be held if it were submitted now. Decisions that waited for git are taken again
    /// with fresh lookups (docs/design/admission.md#decisions-after-a-wait).
    fn is_still_acceptable(&self, now: Now, event: &Arc<SignedEvent>, lookups: EventLookups) -> bool {
        // Whether the client may publish a protected event was checked when the event was submitted.
        let source = EventSource::Client(vec![event.pubkey]);
        let submission = Submission::new(&self.policy, event);
        let lookups = EventLookups { stored: None, ..lookups };
        let decision = self.policy_context().decide(&submission, &source, &lookups);
        let is_acceptable = match decision {
            Decision::Hold(_) => true,
            Decision::Reject(rejection) => rejection.is_temporary(),
            Decision::Accept | Decision::Remember | Decision::Broadcast | Decision::Known(_) => false,
        };
        is_acceptable
            && self.purgatory.get(event.id).is_some()
            && self.policy.precheck(event, event.json().len(), now.wall).is_none()
    }

    /// Whether a push, a fetch or a git job that is queued or running may release this held event. It must not expire
    /// then.
    fn is_in_use(&self, id: EventId) -> bool {
        let has_git_work =
            |identifier: &Identifier| self.queues.is_in_use(identifier) || self.dependents.contains(identifier);
        self.policy_context().is_in_transfer(id)
            || self.purgatory.get(id).is_some_and(|held_event| match &held_event.kind {
                HeldKind::Announcement(repo) => has_git_work(&repo.identifier),
                HeldKind::State(identifier) => has_git_work(identifier),
                HeldKind::PullRequest(_, repo_paths) => {
                    repo_paths.iter().any(|repo_path| has_git_work(repo_path.identifier()))
                }
            })
    }

    /// Schedules tasks for all repositories with an identifier, after objects were added to their pools.
    fn git_data_added(&mut self, identifier: &Identifier) {
        let owners: Vec<_> =
            self.catalog.group(identifier).into_iter().flat_map(|group| group.hosted_owners()).collect();
        for owner in owners {
            self.queues.add(RepoTask::Align(RepoPath::Announced(RepoId { owner, identifier: identifier.clone() })));
        }
        let pull_requests: Vec<(EventId, RepoPath)> = self
            .purgatory
            .by_identifier(identifier)
            .filter_map(|(id, held_event)| match &held_event.kind {
                HeldKind::PullRequest(_, repo_paths) => {
                    Some(repo_paths.iter().map(move |repo_path| (id, repo_path.clone())))
                }
                _ => None,
            })
            .flatten()
            .filter(|(_, repo_path)| repo_path.identifier() == identifier)
            .collect();
        for (id, repo_path) in pull_requests {
            self.queues.add(RepoTask::PullRequest(repo_path, id));
        }
    }

    /// Schedules tasks for everything that is held for repositories with an identifier, after objects were added to a
    /// pool.
    fn recheck_held(&mut self, identifier: &Identifier) {
        let (mut authors, mut repo_paths) = (BTreeSet::new(), BTreeSet::new());
        for (_, held_event) in self.purgatory.by_identifier(identifier) {
            match &held_event.kind {
                HeldKind::Announcement(repo) if !self.is_hosted(repo) => {}
                HeldKind::Announcement(repo) => drop(repo_paths.insert(RepoPath::Announced(repo.clone()))),
                HeldKind::State(_) => drop(authors.insert(held_event.author)),
                HeldKind::PullRequest(_, named) => {
                    repo_paths.extend(named.iter().filter(|repo_path| repo_path.identifier() == identifier).cloned());
                }
            }
        }
        for author in authors {
            repo_paths.extend(self.search_paths(identifier, author));
        }
        for repo_path in repo_paths {
            self.queues.add(RepoTask::Align(repo_path));
        }
    }

    fn write(&mut self, write: StoreWrite) {
        self.catalog.work().add(limits::WORK_PER_WRITE);
        self.emit(AdmissionOutput::Write(write));
    }

    fn emit(&mut self, output: AdmissionOutput) {
        self.outputs.push_back(output);
    }
}

impl StateMachine for Admission {
    type Input = AdmissionInput;
    type Output = AdmissionOutput;

    fn handle(&mut self, now: Now, input: AdmissionInput) {
        match input {
            AdmissionInput::Restored(restored) => return self.restore(now, restored),
            AdmissionInput::Ready => self.resume(),
            AdmissionInput::PolicyChanged(policy) => self.change_policy(AdmissionPolicy::clone(&policy)),
            AdmissionInput::BannedEvent(summary) => self.remove(&summary, EventStatus::Served),
            AdmissionInput::BannedRepoScanned(repo) => self.scan_done(repo),
            AdmissionInput::EventSubmitted { event, source, network, submitter, digest, lookups } => {
                self.handle_submission(now, event, &source, (network, submitter, digest), lookups);
            }
            AdmissionInput::EventExpired(summary) => self.remove(&summary, EventStatus::Served),
            AdmissionInput::PullRequestPurged(summary) => self.schedule_ref_removal(&summary),
            AdmissionInput::PushRequested(push) => self.lookup_queue.push_back(LookupPurpose::AuthorisePush(push)),
            AdmissionInput::PushReceived(received_push) => self.push_received(Box::new(received_push)),
            AdmissionInput::PushEnded(push) => drop(self.pushes.remove(&push)),
            AdmissionInput::LookupDone(result) => self.lookup_done(now, result),
            AdmissionInput::GitJobDone(job, outcome) => self.git_job_done(now, job, outcome),
            AdmissionInput::RepoDegraded(repo_path, reason) => self.repo_degraded(repo_path, reason),
            AdmissionInput::GitDataAdded(identifier) => self.git_data_added(&identifier),
            AdmissionInput::DiskLevel(level) => self.disk_level = level,
            AdmissionInput::FetchStarted(fetch, events) => drop(self.fetches.insert(fetch, events)),
            AdmissionInput::PackFetched(fetched_pack) => self.queues.add(RepoTask::Adopt(fetched_pack)),
            AdmissionInput::FetchEnded(fetch) => drop(self.fetches.remove(&fetch)),
            AdmissionInput::SourcesTried(events) => self.sources_tried(&events),
            AdmissionInput::HeldEventsSeen(ids) => ids.into_iter().for_each(|id| self.search_soon(now, id)),
            AdmissionInput::HeldEventDropped(id) => self.drop_held(id),
        }
        self.process_changes(now);
        self.start_next_lookup();
    }

    fn poll(&mut self) -> Option<AdmissionOutput> {
        self.outputs.pop_front()
    }

    fn alarm(&self) -> Option<(MonoTime, &'static str)> {
        let alarms = [
            (self.purgatory.next_deadline(), "a held event expires"),
            (self.uploads.next_deadline(), "an upload without its event expires"),
            (self.early_requests.next_deadline(), "a request of an unknown key expires"),
            (self.queues.alarm(), "a failed git task is retried"),
            (self.has_work_left().then_some(MonoTime::default()), "work that did not fit into one turn continues"),
            (
                (!self.repos_to_review.is_empty()).then_some(MonoTime::default()),
                "repositories are reviewed after a policy change",
            ),
            (
                (!self.next_pages.is_empty()).then_some(MonoTime::default()),
                "pull requests of repositories that are no longer hosted are searched",
            ),
        ];
        alarms.into_iter().filter_map(|(time, reason)| Some((time?, reason))).min()
    }

    fn wake(&mut self, now: Now) {
        self.catalog.work().reset();
        (self.has_deferred_tasks, self.has_taken_task) = (false, false);
        self.queues.wake(now.mono);
        self.review_slice();
        self.align_dependents();
        self.check_restored_events();
        self.continue_pull_request_searches();
        for _ in 0..limits::EXPIRY_SLICE_EVENTS {
            let Some(id) = self.purgatory.next_expired(now.mono) else { break };
            self.expire_held(now, id);
        }
        self.expire_early_requests(now.mono);
        for _ in 0..limits::EXPIRY_SLICE_EVENTS {
            let Some((event, repo_path)) = self.uploads.next_expired(now.mono) else { break };
            if self.queues.is_in_use(repo_path.identifier()) {
                self.uploads.set_deadline(event, &repo_path, now.mono.plus_secs(limits::EXPIRY_POSTPONE_SECS));
            } else {
                self.remove_upload(event, &repo_path, true);
            }
        }
        self.process_changes(now);
        self.start_next_lookup();
    }
}
