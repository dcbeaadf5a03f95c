//! What follows from the result of a git job: refs are set and events released, other repositories are scheduled, todos
//! are removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Admission;
use super::git_job::{AlignmentResult, ReceivedPack};
use super::io::{
    AdmissionOutput, PendingUpload, ReceivedPush, RepoLookupResult, RequestedPush, StoreWrite, StoredEvent, Todo,
};
use super::push::{PushPermit, PushRejection};
use super::repo_queue::RepoTask;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Identifier, Refs, RepoId, RepoPath, RepoState};
use crate::time::Now;

/// A push whose objects are in place.
pub(super) struct FinishedPush {
    pub(super) received_push: Box<ReceivedPush>,
    pub(super) permit: PushPermit,
    pub(super) staged: Vec<(EventId, u64)>,
    pub(super) aligned: AlignmentResult,
}

impl Admission {
    /// Sets the refs of a push, releases its events and answers it.
    pub(super) fn finish_push(&mut self, now: Now, pushed: &FinishedPush, lookup: &RepoLookupResult) {
        let push = &pushed.received_push.push;
        let result = self.release_pushed(now, pushed, lookup);
        if result.is_ok() {
            if pushed.permit.changes_refs() {
                self.set_refs(&push.repo_path, &pushed.aligned.refs, lookup);
                self.update_degraded(now, None, &push.repo_path, (&pushed.aligned, lookup));
            }
            self.store_uploads(now, pushed, lookup);
        } else {
            self.discard_staged(&pushed.staged);
        }
        // Objects were added in either case.
        self.recheck_held(push.repo_path.identifier());
        self.end_push(push, result);
    }

    /// Sets the refs of a repository, unless they are the same already.
    fn set_refs(&mut self, repo_path: &RepoPath, refs: &Arc<Refs>, lookup: &RepoLookupResult) {
        if *refs != lookup.refs {
            self.write(StoreWrite::SetRefs(repo_path.clone(), refs.clone()));
        }
    }

    /// Releases the events whose data was pushed. All of them must still be acceptable.
    fn release_pushed(
        &mut self,
        now: Now,
        pushed: &FinishedPush,
        lookup: &RepoLookupResult,
    ) -> Result<(), PushRejection> {
        let FinishedPush { permit, aligned, received_push, .. } = pushed;
        let repo_path = &received_push.push.repo_path;
        let all_refs_set = permit.pull_requests.iter().all(|(id, _)| aligned.pull_requests.contains(id));
        if !all_refs_set || aligned.chosen != permit.state.map(|version| version.id) {
            return Err(PushRejection::Failed("objects that the pushed refs need are missing".to_owned()));
        }
        let state =
            aligned.chosen.map(|id| lookup.events.get(&id).ok_or(PushRejection::AuthorityChanged)).transpose()?;
        let pull_requests: Option<Vec<&StoredEvent>> =
            permit.pull_requests.iter().map(|(id, _)| lookup.events.get(id)).collect();
        let pull_requests = pull_requests.ok_or(PushRejection::AuthorityChanged)?;
        // All events or none: everything is checked before anything is written.
        if !pull_requests.iter().all(|request| self.can_serve_pull_request(now, repo_path, request)) {
            return Err(PushRejection::AuthorityChanged);
        }
        if let Some(state) = state
            && !self.release_followed(now, repo_path, state)
        {
            return Err(PushRejection::AuthorityChanged);
        }
        for request in pull_requests.into_iter().filter(|request| request.status == EventStatus::Held) {
            self.release_pull_request(&request.event, repo_path);
        }
        Ok(())
    }

    /// Records the staged uploads of a push.
    fn store_uploads(&mut self, now: Now, pushed: &FinishedPush, lookup: &RepoLookupResult) {
        let RequestedPush { repo_path, network, .. } = &pushed.received_push.push;
        for (event, folder) in &pushed.staged {
            let Some(received) = pushed.received_push.uploads.iter().find(|upload| upload.event == *event) else {
                continue;
            };
            let upload = PendingUpload {
                repo_path: repo_path.clone(),
                event: *event,
                tip: received.tip.clone(),
                folder: *folder,
                bytes: received.bytes,
                network: network.clone(),
                deadline: now.wall.plus_secs(self.policy.purgatory_secs),
            };
            self.write(StoreWrite::AddUpload(upload.clone()));
            if let Some(replaced) = self.uploads.insert(upload, now.mono.plus_secs(self.policy.purgatory_secs)) {
                self.emit(AdmissionOutput::DiscardPack(ReceivedPack::Staged(replaced.folder)));
            }
            // The event may have been stored while its objects were staged.
            if let Some(request) = lookup.events.get(event).and_then(|found| PullRequest::from_any_event(&found.event))
            {
                self.drop_mismatched_uploads(*event, &request.tip);
                self.add_todo(Todo { repo_path: repo_path.clone(), pull_request: Some(*event) });
            }
        }
    }

    /// Sets the refs that a task has found, releases the events that belong to them, and ends the task. Refs whose events
    /// are not accepted any more are not set.
    pub(super) fn finish_task(
        &mut self,
        now: Now,
        task: &RepoTask,
        aligned: &AlignmentResult,
        lookup: &RepoLookupResult,
    ) {
        let repo_path = task.repo_path();
        let follows = |admission: &mut Self, chosen: EventId| {
            lookup.events.get(&chosen).is_some_and(|state| admission.release_followed(now, repo_path, state))
        };
        let is_outdated = aligned.chosen.is_some_and(|chosen| !follows(self, chosen));
        let has_outdated_pull_request = !is_outdated && self.finish_alignment(now, task, aligned, lookup);
        if is_outdated || has_outdated_pull_request {
            // The signed events have changed while the job was running. The repository is aligned with the current
            // ones.
            self.queues.add(RepoTask::Align(repo_path.clone()));
        }
        let added_objects = match task {
            RepoTask::PullRequest(..) => !aligned.pull_requests.is_empty(),
            RepoTask::Adopt(_) => true,
            RepoTask::Align(_) | RepoTask::Delete(_) => false,
        };
        if added_objects {
            self.recheck_held(repo_path.identifier());
        }
        // The refs of a degraded repository may be lost.
        let is_empty = aligned.refs.is_empty() && !aligned.was_degraded && !lookup.is_degraded;
        if is_empty && matches!(repo_path, RepoPath::PullRequests(_)) {
            self.record_todo(Todo { repo_path: repo_path.clone(), pull_request: None });
            self.queues.add(RepoTask::Delete(repo_path.clone()));
        }
        self.end_task(task);
    }

    /// Sets the refs of a repository and releases the pull requests that belong to them. Returns whether one of these is
    /// not accepted any more; its ref is not set.
    fn finish_alignment(
        &mut self,
        now: Now,
        task: &RepoTask,
        aligned: &AlignmentResult,
        lookup: &RepoLookupResult,
    ) -> bool {
        let repo_path = task.repo_path();
        if let (RepoTask::Align(_) | RepoTask::Adopt(_), Some(chosen)) = (task, aligned.chosen) {
            self.release_superseded(now, repo_path, chosen, (aligned, lookup));
        }
        let mut refs = aligned.refs.clone();
        let mut has_outdated = false;
        for id in &aligned.pull_requests {
            let stored = lookup.events.get(id);
            match stored.filter(|request| self.can_serve_pull_request(now, repo_path, request)) {
                Some(request) if request.status == EventStatus::Held => {
                    self.release_pull_request(&request.event, repo_path);
                }
                Some(_) => {}
                None => {
                    has_outdated = true;
                    Arc::make_mut(&mut refs).remove(&format!("refs/nostr/{id}"));
                    let rejected =
                        stored.filter(|held| !self.is_still_acceptable(now, &held.event, held.lookups.clone()));
                    rejected.into_iter().for_each(|held| self.drop_held(held.event.id));
                }
            }
        }
        self.set_refs(repo_path, &refs, lookup);
        self.update_degraded(now, Some(task), repo_path, (aligned, lookup));
        has_outdated
    }

    /// Releases a state that a repository is aligned with, and the repository's announcement. Returns false if the
    /// state may not apply to the repository any more.
    fn release_followed(&mut self, now: Now, repo_path: &RepoPath, state: &StoredEvent) -> bool {
        let RepoPath::Announced(repo) = repo_path else { return false };
        if !self.is_maintainer(&state.event, repo) {
            return false;
        }
        match state.status {
            EventStatus::Served => self.release_announcement(repo),
            EventStatus::Held if self.is_still_acceptable(now, &state.event, state.lookups.clone()) => {
                self.release_state(&state.event, repo);
            }
            EventStatus::Held => {
                self.drop_held(state.event.id);
                return false;
            }
        }
        true
    }

    /// Releases held states that are older than the chosen one and whose objects are all refs of the repository. They
    /// are complete, too.
    fn release_superseded(
        &mut self,
        now: Now,
        repo_path: &RepoPath,
        chosen: EventId,
        (aligned, lookup): (&AlignmentResult, &RepoLookupResult),
    ) {
        let tips: BTreeSet<&String> = aligned.refs.iter().map(|(_, target)| &target.oid).collect();
        let older = self.states_for(repo_path).into_iter().skip_while(|(id, _)| *id != chosen).skip(1);
        for (id, _) in older.filter(|(_, status)| *status == EventStatus::Held) {
            let Some(found) = lookup.events.get(&id) else { continue };
            let is_complete =
                |state: &RepoState| state.is_satisfiable() && state.refs.values().all(|oid| tips.contains(oid));
            if RepoState::from_event(&found.event).is_some_and(|state| is_complete(&state)) {
                self.release_followed(now, repo_path, found);
            }
        }
    }

    /// Returns whether a pull request is served, or may be released now that its commit is here.
    fn can_serve_pull_request(&self, now: Now, repo_path: &RepoPath, stored: &StoredEvent) -> bool {
        // Whether its targets are hosted, and whose objects they read, may have changed.
        let is_accepted =
            |request| self.accepts_pull_request(repo_path, &self.pull_request_paths(stored.event.pubkey, &request));
        stored.status == EventStatus::Served
            || (PullRequest::from_any_event(&stored.event).is_some_and(is_accepted)
                && self.is_still_acceptable(now, &stored.event, stored.lookups.clone()))
    }

    fn release_state(&mut self, event: &Event, repo: &RepoId) {
        self.release_announcement(repo);
        self.purgatory.remove(event.id);
        self.write(StoreWrite::Release(event.id));
        for obsolete in self.catalog.serve_state(event.pubkey, &repo.identifier, event.version()) {
            if obsolete.id != event.id {
                self.purgatory.remove(obsolete.id);
                self.write(StoreWrite::DropHeld(obsolete.id));
            }
        }
        self.emit(AdmissionOutput::WantedGitDataChanged(repo.identifier.clone()));
        // The state applies to other repositories, too. They are aligned one at a time.
        self.align_followers(&repo.identifier, event.pubkey, Some(repo));
    }

    fn release_pull_request(&mut self, event: &Event, repo_path: &RepoPath) {
        self.purgatory.remove(event.id);
        self.write(StoreWrite::Release(event.id));
        self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        self.remove_upload(event.id, repo_path, false);
        let Some(request) = PullRequest::from_any_event(event) else { return };
        // It should have a ref in all its repositories. Uploads to other repositories are no longer pending.
        let repo_paths = self.pull_request_paths(event.pubkey, &request);
        let uploaded = self.uploads.by_event(event.id).map(|upload| &upload.repo_path);
        let others: BTreeSet<RepoPath> = uploaded
            .filter(|other| self.accepts_pull_request(other, &repo_paths))
            .chain(&repo_paths)
            .cloned()
            .collect();
        for other in others.into_iter().filter(|other| other != repo_path) {
            self.add_todo(Todo { repo_path: other, pull_request: Some(event.id) });
        }
    }

    fn release_announcement(&mut self, repo: &RepoId) {
        let Some(held) = self.catalog.announcement(repo).and_then(|versions| versions.held.clone()) else { return };
        self.purgatory.remove(held.version.id);
        self.take_announcement(EventStatus::Held, repo, held.version.id);
        self.write(StoreWrite::Release(held.version.id));
        self.put_announcement(EventStatus::Served, held);
        // Pull requests that are held for the repository may get their refs now.
        let repo_path = RepoPath::Announced(repo.clone());
        if !self.held_pull_requests_at(&repo_path).is_empty() {
            self.queues.add(RepoTask::Align(repo_path));
        }
    }

    /// Answers a push and releases its queue.
    pub(super) fn end_push(&mut self, push: &RequestedPush, result: Result<(), PushRejection>) {
        self.emit(AdmissionOutput::PushDone(push.id, result));
        self.queues.release(push.repo_path.identifier());
    }

    /// Ends a task that is done or no longer needed.
    pub(super) fn end_task(&mut self, task: &RepoTask) {
        if let RepoTask::Adopt(fetched_pack) = task {
            self.emit(AdmissionOutput::PackAdopted(fetched_pack.fetch));
            return self.queues.release(fetched_pack.repo_path.identifier());
        }
        let todo = todo_for_task(task);
        if let Some(event) = todo.pull_request {
            self.remove_upload(event, &todo.repo_path, false);
        }
        // The same work may have been requested again while the task was running.
        let is_deletion_queued =
            || todo.pull_request.is_none() && self.queues.has(&RepoTask::Delete(todo.repo_path.clone()));
        let is_still_needed =
            self.queues.has(&task_for_todo(&todo)) || is_deletion_queued() || self.is_todo_kept(&todo);
        if !is_still_needed && self.todos.remove(&todo) {
            self.write(StoreWrite::RemoveTodo(todo));
        }
        self.queues.release(task.repo_path().identifier());
    }

    /// Records, durably, that a repository needs git work, and queues the task.
    pub(super) fn add_todo(&mut self, todo: Todo) {
        self.queues.add(task_for_todo(&todo));
        self.record_todo(todo);
    }

    /// Records, durably, that a repository needs git work.
    pub(super) fn record_todo(&mut self, todo: Todo) {
        if self.todos.insert(todo.clone()) {
            self.write(StoreWrite::AddTodo(todo));
        }
    }

    /// Removes uploads for a pull request that contain another commit than the event names.
    pub(super) fn drop_mismatched_uploads(&mut self, event: EventId, tip: &str) {
        let mismatched: Vec<RepoPath> = self
            .uploads
            .by_event(event)
            .filter(|upload| upload.tip != tip)
            .map(|upload| upload.repo_path.clone())
            .collect();
        for repo_path in mismatched {
            self.remove_upload(event, &repo_path, true);
        }
    }

    /// Removes an upload. Unless `even_if_awaited`, an upload whose event is still held is kept, because a git job may
    /// still need it.
    pub(super) fn remove_upload(&mut self, event: EventId, repo_path: &RepoPath, even_if_awaited: bool) {
        let awaited = !even_if_awaited && self.purgatory.get(event).is_some();
        if awaited {
            return;
        }
        if let Some(upload) = self.uploads.remove(event, repo_path) {
            self.write(StoreWrite::RemoveUpload(repo_path.clone(), event));
            self.emit(AdmissionOutput::DiscardPack(ReceivedPack::Staged(upload.folder)));
        }
    }

    /// Deletes the staged packs of a push that failed.
    pub(super) fn discard_staged(&mut self, staged: &[(EventId, u64)]) {
        for (_, folder) in staged {
            self.emit(AdmissionOutput::DiscardPack(ReceivedPack::Staged(*folder)));
        }
    }

    /// Returns the repositories in which the objects of an author's state are searched for, the author's own and served
    /// ones first.
    pub(super) fn search_paths(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoPath> {
        let group = self.catalog.group(identifier);
        let owners = group.map(|group| group.search_owners(author, self.policy.strict_maintainers)).unwrap_or_default();
        let repo_path =
            |owner: &PublicKey| RepoPath::Announced(RepoId { owner: *owner, identifier: identifier.clone() });
        owners.iter().map(repo_path).collect()
    }
}

/// Returns the todo that records a task.
pub(super) fn todo_for_task(task: &RepoTask) -> Todo {
    match task {
        RepoTask::PullRequest(repo_path, event) => Todo { repo_path: repo_path.clone(), pull_request: Some(*event) },
        RepoTask::Align(_) | RepoTask::Delete(_) | RepoTask::Adopt(_) => {
            Todo { repo_path: task.repo_path().clone(), pull_request: None }
        }
    }
}

/// Returns the task that a todo records.
pub(super) fn task_for_todo(todo: &Todo) -> RepoTask {
    match todo.pull_request {
        Some(event) => RepoTask::PullRequest(todo.repo_path.clone(), event),
        None => RepoTask::Align(todo.repo_path.clone()),
    }
}
