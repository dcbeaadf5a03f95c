//! What follows when git has done its part: events become visible, others are told to follow, notes are cleared.

use std::collections::BTreeSet;

use super::Admission;
use super::git_job::{AlignmentResult, ReceivedPack};
use super::io::{
    AdmissionOutput, PendingUpload, ReceivedPush, RepoLookupResult, RequestedPush, StoreWrite, StoredEvent, Todo,
};
use super::push::{PushPermit, PushRejection};
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{RepoId, RepoPath, RepoState};
use crate::time::Now;

/// A push whose objects and refs are in place.
pub(super) struct FinishedPush {
    pub(super) received_push: Box<ReceivedPush>,
    pub(super) permit: PushPermit,
    pub(super) staged: Vec<(EventId, u64)>,
    pub(super) aligned: AlignmentResult,
}

impl Admission {
    pub(super) fn finish_push(&mut self, now: Now, pushed: &FinishedPush, lookup: &RepoLookupResult) {
        let push = &pushed.received_push.push;
        let result = self.release_pushed(now, pushed, lookup);
        if result.is_ok() {
            self.store_uploads(now, pushed, lookup);
            self.recheck_held(push.repo_path.identifier());
        } else {
            self.discard_staged(&pushed.staged);
            self.schedule_realignment(&push.repo_path, &pushed.permit);
        }
        self.end_push(push, result);
    }

    /// Refs may have moved for something that did not come to pass: the site goes back to what is signed. Objects may have
    /// come all the same.
    pub(super) fn schedule_realignment(&mut self, repo_path: &RepoPath, permit: &PushPermit) {
        self.recheck_held(repo_path.identifier());
        self.add_todo(Todo { repo_path: repo_path.clone(), pull_request: None });
        for (event, _) in &permit.pull_requests {
            self.add_todo(Todo { repo_path: repo_path.clone(), pull_request: Some(*event) });
        }
    }

    /// Serves what a push has brought the data of. All of it must still be wanted.
    fn release_pushed(
        &mut self,
        now: Now,
        pushed: &FinishedPush,
        lookup: &RepoLookupResult,
    ) -> Result<(), PushRejection> {
        let FinishedPush { permit, aligned, received_push, .. } = pushed;
        let repo_path = &received_push.push.repo_path;
        let in_place = permit.pull_requests.iter().all(|(id, _)| aligned.pull_requests.contains(id));
        if !in_place || aligned.chosen != permit.state.map(|version| version.id) {
            return Err(PushRejection::Failed("git could not find everything that the pushed refs need".to_owned()));
        }
        let state =
            aligned.chosen.map(|id| lookup.events.get(&id).ok_or(PushRejection::AuthorityChanged)).transpose()?;
        let pull_requests: Option<Vec<&StoredEvent>> =
            permit.pull_requests.iter().map(|(id, _)| lookup.events.get(id)).collect();
        let pull_requests = pull_requests.ok_or(PushRejection::AuthorityChanged)?;
        // All of it or nothing: everything is judged before anything is written.
        let wanted = |pull: &&StoredEvent| {
            pull.status == EventStatus::Served || self.is_still_acceptable(now, &pull.event, pull.lookups.clone())
        };
        if !pull_requests.iter().all(wanted) {
            return Err(PushRejection::AuthorityChanged);
        }
        if let Some(state) = state
            && !self.release_followed(now, repo_path, state)
        {
            return Err(PushRejection::AuthorityChanged);
        }
        let mut all = true;
        for pull in pull_requests {
            all &= self.serve_pull_request(now, repo_path, pull);
        }
        if all { Ok(()) } else { Err(PushRejection::AuthorityChanged) }
    }

    fn store_uploads(&mut self, now: Now, pushed: &FinishedPush, lookup: &RepoLookupResult) {
        let RequestedPush { repo_path, network, .. } = &pushed.received_push.push;
        for (event, folder) in &pushed.staged {
            let Some(delivery) = pushed.received_push.uploads.iter().find(|upload| upload.event == *event) else {
                continue;
            };
            let upload = PendingUpload {
                repo_path: repo_path.clone(),
                event: *event,
                tip: delivery.tip.clone(),
                folder: *folder,
                bytes: delivery.bytes,
                network: network.clone(),
                deadline: now.wall.plus_secs(self.policy.purgatory_secs),
            };
            self.write(StoreWrite::AddUpload(upload.clone()));
            if let Some(replaced) = self.uploads.insert(upload, now.mono.plus_secs(self.policy.purgatory_secs)) {
                self.emit(AdmissionOutput::DiscardPack(ReceivedPack::Staged(replaced.folder)));
            }
            // The event may have come while its objects were put aside.
            if let Some(request) = lookup.events.get(event).and_then(|found| PullRequest::from_any_event(&found.event))
            {
                self.drop_mismatched_uploads(*event, &request.tip);
                self.add_todo(Todo { repo_path: repo_path.clone(), pull_request: Some(*event) });
            }
        }
    }

    pub(super) fn finish_task(
        &mut self,
        now: Now,
        task: &RepoTask,
        aligned: &AlignmentResult,
        lookup: &RepoLookupResult,
    ) {
        let repo_path = task.repo_path();
        let mut gone = false;
        if let Some(chosen) = aligned.chosen {
            gone = !lookup.events.get(&chosen).is_some_and(|state| self.release_followed(now, repo_path, state));
        }
        if let (RepoTask::Align(_) | RepoTask::Adopt(_), false, Some(chosen)) = (task, gone, aligned.chosen) {
            self.release_superseded(now, repo_path, chosen, lookup);
        }
        for pull in &aligned.pull_requests {
            gone |= !lookup.events.get(pull).is_some_and(|pull| self.serve_pull_request(now, repo_path, pull));
        }
        if gone {
            // What was signed has changed while git was at work: once more, with what is signed now.
            self.add_todo(Todo { repo_path: repo_path.clone(), pull_request: None });
        }
        let brought = match task {
            RepoTask::PullRequest(..) => !aligned.pull_requests.is_empty(),
            RepoTask::Adopt(_) => true,
            RepoTask::Align(_) | RepoTask::Delete(_) => false,
        };
        if brought {
            self.recheck_held(repo_path.identifier());
        }
        if aligned.is_empty && matches!(repo_path, RepoPath::PullRequests(_)) {
            self.record_todo(Todo { repo_path: repo_path.clone(), pull_request: None });
            self.queues.add(RepoTask::Delete(repo_path.clone()));
        }
        self.end_task(task);
    }

    /// A repository stands where a state wants it: the state and the announcement are served. False if the state has lost
    /// its right to be followed.
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

    /// A better state is followed; those that wait and name nothing but what refs point to are complete, too.
    fn release_superseded(&mut self, now: Now, repo_path: &RepoPath, chosen: EventId, lookup: &RepoLookupResult) {
        let tips: BTreeSet<&String> = lookup.refs.values().collect();
        let worse = self.states_for(repo_path).into_iter().skip_while(|(id, _)| *id != chosen).skip(1);
        for (id, _) in worse.filter(|(_, status)| *status == EventStatus::Held) {
            let Some(found) = lookup.events.get(&id) else { continue };
            let complete =
                |state: &RepoState| state.is_satisfiable() && state.refs.values().all(|oid| tips.contains(oid));
            if RepoState::from_event(&found.event).is_some_and(|state| complete(&state)) {
                self.release_followed(now, repo_path, found);
            }
        }
    }

    /// A pull request's ref is in place: the event is served. False if it is not wanted any more.
    fn serve_pull_request(&mut self, now: Now, repo_path: &RepoPath, pull: &StoredEvent) -> bool {
        if pull.status == EventStatus::Held {
            // Whose repository it is, and whose objects are read there, may have changed.
            let meant =
                |request| self.accepts_pull_request(repo_path, &self.pull_request_paths(pull.event.pubkey, &request));
            if !PullRequest::from_any_event(&pull.event).is_some_and(meant) {
                return false;
            }
            if !self.is_still_acceptable(now, &pull.event, pull.lookups.clone()) {
                self.drop_held(pull.event.id);
                return false;
            }
            self.release_pull_request(&pull.event, repo_path);
        }
        true
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
        // It speaks for these repositories too; they follow one by one.
        for other in self.maintained_by(&repo.identifier, event.pubkey) {
            if other != *repo {
                self.add_todo(Todo { repo_path: RepoPath::Announced(other), pull_request: None });
            }
        }
    }

    fn release_pull_request(&mut self, event: &Event, repo_path: &RepoPath) {
        self.purgatory.remove(event.id);
        self.write(StoreWrite::Release(event.id));
        self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        self.remove_upload(event.id, repo_path, false);
        let Some(request) = PullRequest::from_any_event(event) else { return };
        // It should be at all of these too, and what was uploaded elsewhere has nothing to wait for any more.
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
    }

    /// A push is answered and its lane is free.
    pub(super) fn end_push(&mut self, push: &RequestedPush, result: Result<(), PushRejection>) {
        self.emit(AdmissionOutput::PushDone(push.id, result));
        self.queues.free(push.repo_path.identifier());
    }

    /// A task is done, or has become needless.
    pub(super) fn end_task(&mut self, task: &RepoTask) {
        if let RepoTask::Adopt(fetched_pack) = task {
            self.emit(AdmissionOutput::PackAdopted(fetched_pack.fetch));
            return self.queues.free(fetched_pack.repo_path.identifier());
        }
        let todo = todo_for_task(task);
        if let Some(event) = todo.pull_request {
            self.remove_upload(event, &todo.repo_path, false);
        }
        // There may have been another reason for the same while it was done.
        let retires = || todo.pull_request.is_none() && self.queues.has(&RepoTask::Delete(todo.repo_path.clone()));
        let again = self.queues.has(&task_for_todo(&todo)) || retires() || self.is_scan_pending(&todo);
        if !again && self.todos.remove(&todo) {
            self.write(StoreWrite::RemoveTodo(todo));
        }
        self.queues.free(task.repo_path().identifier());
    }

    /// Notes, durably, that a site must be worked on, and lets it wait for its turn.
    pub(super) fn add_todo(&mut self, todo: Todo) {
        self.queues.add(task_for_todo(&todo));
        self.record_todo(todo);
    }

    /// Notes, durably, that a site must be worked on.
    pub(super) fn record_todo(&mut self, todo: Todo) {
        if self.todos.insert(todo.clone()) {
            self.write(StoreWrite::AddTodo(todo));
        }
    }

    /// A pull request's event is here: uploads that brought another commit go.
    pub(super) fn drop_mismatched_uploads(&mut self, event: EventId, tip: &str) {
        let wrong: Vec<RepoPath> = self
            .uploads
            .by_event(event)
            .filter(|upload| upload.tip != tip)
            .map(|upload| upload.repo_path.clone())
            .collect();
        for repo_path in wrong {
            self.remove_upload(event, &repo_path, true);
        }
    }

    /// Forgets an upload. One that git has taken in already is kept if its event still waits for it.
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

    pub(super) fn discard_staged(&mut self, staged: &[(EventId, u64)]) {
        for (_, folder) in staged {
            self.emit(AdmissionOutput::DiscardPack(ReceivedPack::Staged(*folder)));
        }
    }

    /// Where the data of an author's state is looked for: strangers who name the author must not push its own repository, or
    /// one that is served, out of the list.
    pub(super) fn search_paths(&self, identifier: &crate::repo::Identifier, author: PublicKey) -> Vec<RepoPath> {
        let hosts = self.maintained_by(identifier, author);
        let mut ranked: Vec<(bool, bool, RepoPath)> = hosts
            .into_iter()
            .map(|repo| (repo.owner != author, RepoPath::Announced(repo)))
            .map(|(foreign, repo_path)| (foreign, !self.is_served(&repo_path), repo_path))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().take(limits::MAX_OBJECT_CHECK_REPOS).map(|(_, _, repo_path)| repo_path).collect()
    }

    /// The hosted repositories of a name that an author may speak for.
    pub(super) fn maintained_by(&self, identifier: &crate::repo::Identifier, author: PublicKey) -> Vec<RepoId> {
        let group = self.catalog.group(identifier).into_iter();
        let owners = group.flat_map(|group| group.maintained_by(author, self.policy.strict_maintainers));
        owners.map(|owner| RepoId { owner, identifier: identifier.clone() }).collect()
    }
}

/// The note of a task.
pub(super) fn todo_for_task(task: &RepoTask) -> Todo {
    match task {
        RepoTask::PullRequest(repo_path, event) => Todo { repo_path: repo_path.clone(), pull_request: Some(*event) },
        RepoTask::Align(_) | RepoTask::Delete(_) | RepoTask::Adopt(_) => {
            Todo { repo_path: task.repo_path().clone(), pull_request: None }
        }
    }
}

/// What a note asks for.
pub(super) fn task_for_todo(todo: &Todo) -> RepoTask {
    match todo.pull_request {
        Some(event) => RepoTask::PullRequest(todo.repo_path.clone(), event),
        None => RepoTask::Align(todo.repo_path.clone()),
    }
}
