//! What follows when git has done its part: events become visible, others are told to follow, notes are cleared.

use std::collections::BTreeSet;

use super::Registrar;
use super::git_job::{Aligned, Parcel};
use super::io::{Arrival, Found, Output, Push, Todo, Told, Upload, Write};
use super::push::{Permit, PushRefusal};
use super::repo_queue::Task;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{RepoId, Site, State};
use crate::time::Now;

/// A push whose objects and refs are in place.
pub(super) struct Pushed {
    pub(super) arrival: Box<Arrival>,
    pub(super) permit: Permit,
    pub(super) staged: Vec<(EventId, u64)>,
    pub(super) aligned: Aligned,
}

impl Registrar {
    pub(super) fn finish_push(&mut self, now: Now, pushed: &Pushed, told: &Told) {
        let push = &pushed.arrival.push;
        let result = self.release_pushed(now, pushed, told);
        if result.is_ok() {
            self.keep_uploads(now, pushed, told);
            self.look_again(push.site.identifier());
        } else {
            self.discard_staged(&pushed.staged);
            self.put_right(&push.site, &pushed.permit);
        }
        self.end_push(push, result);
    }

    /// Refs may have moved for something that did not come to pass: the site goes back to what is signed. Objects may have
    /// come all the same.
    pub(super) fn put_right(&mut self, site: &Site, permit: &Permit) {
        self.look_again(site.identifier());
        self.todo(Todo { site: site.clone(), pull: None });
        for (event, _) in &permit.pulls {
            self.todo(Todo { site: site.clone(), pull: Some(*event) });
        }
    }

    /// Serves what a push has brought the data of. All of it must still be wanted.
    fn release_pushed(&mut self, now: Now, pushed: &Pushed, told: &Told) -> Result<(), PushRefusal> {
        let Pushed { permit, aligned, arrival, .. } = pushed;
        let site = &arrival.push.site;
        let in_place = permit.pulls.iter().all(|(id, _)| aligned.pulls.contains(id));
        if !in_place || aligned.chosen != permit.state.map(|stamp| stamp.id) {
            return Err(PushRefusal::Failed("git could not find everything that the pushed refs need".to_owned()));
        }
        let state = aligned.chosen.map(|id| told.events.get(&id).ok_or(PushRefusal::Changed)).transpose()?;
        let pulls: Option<Vec<&Found>> = permit.pulls.iter().map(|(id, _)| told.events.get(id)).collect();
        let pulls = pulls.ok_or(PushRefusal::Changed)?;
        // All of it or nothing: everything is judged before anything is written.
        let wanted =
            |pull: &&Found| pull.place == Place::Served || self.is_still_wanted(now, &pull.event, pull.facts.clone());
        if !pulls.iter().all(wanted) {
            return Err(PushRefusal::Changed);
        }
        if let Some(state) = state
            && !self.follow(now, site, state)
        {
            return Err(PushRefusal::Changed);
        }
        let mut all = true;
        for pull in pulls {
            all &= self.serve_pull(now, site, pull);
        }
        if all { Ok(()) } else { Err(PushRefusal::Changed) }
    }

    fn keep_uploads(&mut self, now: Now, pushed: &Pushed, told: &Told) {
        let Push { site, network, .. } = &pushed.arrival.push;
        for (event, parcel) in &pushed.staged {
            let Some(delivery) = pushed.arrival.uploads.iter().find(|upload| upload.event == *event) else { continue };
            let upload = Upload {
                site: site.clone(),
                event: *event,
                tip: delivery.tip.clone(),
                parcel: *parcel,
                bytes: delivery.bytes,
                network: network.clone(),
                deadline: now.wall.plus_secs(self.rules.purgatory_secs),
            };
            self.write(Write::Stage(upload.clone()));
            if let Some(replaced) = self.uploads.put(upload, now.mono.plus_secs(self.rules.purgatory_secs)) {
                self.wish(Output::Discard(Parcel::Staged(replaced.parcel)));
            }
            // The event may have come while its objects were put aside.
            if let Some(request) = told.events.get(event).and_then(|found| PullRequest::read_if(&found.event)) {
                self.meet_uploads(*event, &request.tip);
                self.todo(Todo { site: site.clone(), pull: Some(*event) });
            }
        }
    }

    pub(super) fn finish_task(&mut self, now: Now, task: &Task, aligned: &Aligned, told: &Told) {
        let site = task.site();
        let mut gone = false;
        if let Some(chosen) = aligned.chosen {
            gone = !told.events.get(&chosen).is_some_and(|state| self.follow(now, site, state));
        }
        if let (Task::Align(_) | Task::Adopt(_), false, Some(chosen)) = (task, gone, aligned.chosen) {
            self.release_overtaken(now, site, chosen, told);
        }
        for pull in &aligned.pulls {
            gone |= !told.events.get(pull).is_some_and(|pull| self.serve_pull(now, site, pull));
        }
        if gone {
            // What was signed has changed while git was at work: once more, with what is signed now.
            self.todo(Todo { site: site.clone(), pull: None });
        }
        let brought = match task {
            Task::Pull(..) => !aligned.pulls.is_empty(),
            Task::Adopt(_) => true,
            Task::Align(_) | Task::Retire(_) => false,
        };
        if brought {
            self.look_again(site.identifier());
        }
        if aligned.empty && matches!(site, Site::Submitted(_)) {
            self.note(Todo { site: site.clone(), pull: None });
            self.lanes.add(Task::Retire(site.clone()));
        }
        self.end_task(task);
    }

    /// A repository stands where a state wants it: the state and the announcement are served. False if the state has lost
    /// its right to be followed.
    fn follow(&mut self, now: Now, site: &Site, state: &Found) -> bool {
        let Site::Announced(repo) = site else { return false };
        if !self.may_speak(&state.event, repo) {
            return false;
        }
        match state.place {
            Place::Served => self.release_announcement(repo),
            Place::Held if self.is_still_wanted(now, &state.event, state.facts.clone()) => {
                self.release_state(&state.event, repo);
            }
            Place::Held => {
                self.unhold(state.event.id);
                return false;
            }
        }
        true
    }

    /// A better state is followed; those that wait and name nothing but what refs point to are complete, too.
    fn release_overtaken(&mut self, now: Now, site: &Site, chosen: EventId, told: &Told) {
        let tips: BTreeSet<&String> = told.refs.values().collect();
        let worse = self.states_for(site).into_iter().skip_while(|(id, _)| *id != chosen).skip(1);
        for (id, _) in worse.filter(|(_, place)| *place == Place::Held) {
            let Some(found) = told.events.get(&id) else { continue };
            let complete = |state: &State| state.is_satisfiable() && state.refs.values().all(|oid| tips.contains(oid));
            if State::read(&found.event).is_some_and(|state| complete(&state)) {
                self.follow(now, site, found);
            }
        }
    }

    /// A pull request's ref is in place: the event is served. False if it is not wanted any more.
    fn serve_pull(&mut self, now: Now, site: &Site, pull: &Found) -> bool {
        if pull.place == Place::Held {
            // Whose repository it is, and whose objects are read there, may have changed.
            let meant = |request| self.takes(site, &self.sites_of(pull.event.pubkey, &request));
            if !PullRequest::read_if(&pull.event).is_some_and(meant) {
                return false;
            }
            if !self.is_still_wanted(now, &pull.event, pull.facts.clone()) {
                self.unhold(pull.event.id);
                return false;
            }
            self.release_pull_request(&pull.event, site);
        }
        true
    }

    fn release_state(&mut self, event: &Event, repo: &RepoId) {
        self.release_announcement(repo);
        self.purgatory.take(event.id);
        self.write(Write::Release(event.id));
        for obsolete in self.catalog.serve_state(event.pubkey, &repo.identifier, event.stamp()) {
            if obsolete.id != event.id {
                self.purgatory.take(obsolete.id);
                self.write(Write::Unhold(obsolete.id));
            }
        }
        self.wish(Output::Quarry(repo.identifier.clone()));
        // It speaks for these repositories too; they follow one by one.
        for other in self.hosts_of(&repo.identifier, event.pubkey) {
            if other != *repo {
                self.todo(Todo { site: Site::Announced(other), pull: None });
            }
        }
    }

    fn release_pull_request(&mut self, event: &Event, site: &Site) {
        self.purgatory.take(event.id);
        self.write(Write::Release(event.id));
        self.wish(Output::Quarry(site.identifier().clone()));
        self.forget_upload(event.id, site, false);
        let Some(request) = PullRequest::read_if(event) else { return };
        // It should be at all of these too, and what was uploaded elsewhere has nothing to wait for any more.
        let sites = self.sites_of(event.pubkey, &request);
        let uploaded = self.uploads.of_event(event.id).map(|upload| &upload.site);
        let others: BTreeSet<Site> =
            uploaded.filter(|other| self.takes(other, &sites)).chain(&sites).cloned().collect();
        for other in others.into_iter().filter(|other| other != site) {
            self.todo(Todo { site: other, pull: Some(event.id) });
        }
    }

    fn release_announcement(&mut self, repo: &RepoId) {
        let Some(held) = self.catalog.announcement(repo).and_then(|slots| slots.held.clone()) else { return };
        self.purgatory.take(held.stamp.id);
        self.take_announcement(Place::Held, repo, held.stamp.id);
        self.write(Write::Release(held.stamp.id));
        self.put_announcement(Place::Served, held);
    }

    /// A push is answered and its lane is free.
    pub(super) fn end_push(&mut self, push: &Push, result: Result<(), PushRefusal>) {
        self.wish(Output::PushDone(push.id, result));
        self.lanes.free(push.site.identifier());
    }

    /// A task is done, or has become needless.
    pub(super) fn end_task(&mut self, task: &Task) {
        if let Task::Adopt(haul) = task {
            self.wish(Output::Adopted(haul.fetch));
            return self.lanes.free(haul.site.identifier());
        }
        let todo = todo_of(task);
        if let Some(event) = todo.pull {
            self.forget_upload(event, &todo.site, false);
        }
        // There may have been another reason for the same while it was done.
        let retires = || todo.pull.is_none() && self.lanes.has(&Task::Retire(todo.site.clone()));
        let again = self.lanes.has(&task_of(&todo)) || retires() || self.is_bereft(&todo);
        if !again && self.todos.remove(&todo) {
            self.write(Write::Done(todo));
        }
        self.lanes.free(task.site().identifier());
    }

    /// Notes, durably, that a site must be worked on, and lets it wait for its turn.
    pub(super) fn todo(&mut self, todo: Todo) {
        self.lanes.add(task_of(&todo));
        self.note(todo);
    }

    /// Notes, durably, that a site must be worked on.
    pub(super) fn note(&mut self, todo: Todo) {
        if self.todos.insert(todo.clone()) {
            self.write(Write::Todo(todo));
        }
    }

    /// A pull request's event is here: uploads that brought another commit go.
    pub(super) fn meet_uploads(&mut self, event: EventId, tip: &str) {
        let wrong: Vec<Site> =
            self.uploads.of_event(event).filter(|upload| upload.tip != tip).map(|upload| upload.site.clone()).collect();
        for site in wrong {
            self.forget_upload(event, &site, true);
        }
    }

    /// Forgets an upload. One that git has taken in already is kept if its event still waits for it.
    pub(super) fn forget_upload(&mut self, event: EventId, site: &Site, even_if_awaited: bool) {
        let awaited = !even_if_awaited && self.purgatory.get(event).is_some();
        if awaited {
            return;
        }
        if let Some(upload) = self.uploads.take(event, site) {
            self.write(Write::Unstage(site.clone(), event));
            self.wish(Output::Discard(Parcel::Staged(upload.parcel)));
        }
    }

    pub(super) fn discard_staged(&mut self, staged: &[(EventId, u64)]) {
        for (_, parcel) in staged {
            self.wish(Output::Discard(Parcel::Staged(*parcel)));
        }
    }

    /// Where the data of an author's state is looked for: strangers who name the author must not push its own repository, or
    /// one that is served, out of the list.
    pub(super) fn looks_of(&self, identifier: &crate::repo::Identifier, author: PublicKey) -> Vec<Site> {
        let hosts = self.hosts_of(identifier, author);
        let mut ranked: Vec<(bool, bool, Site)> = hosts
            .into_iter()
            .map(|repo| (repo.owner != author, Site::Announced(repo)))
            .map(|(foreign, site)| (foreign, !self.is_served(&site), site))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().take(limits::MAX_LOOKS).map(|(_, _, site)| site).collect()
    }

    /// The hosted repositories of a name that an author may speak for.
    pub(super) fn hosts_of(&self, identifier: &crate::repo::Identifier, author: PublicKey) -> Vec<RepoId> {
        let family = self.catalog.family(identifier).into_iter();
        let owners = family.flat_map(|family| family.hosts_of(author, self.rules.strict_maintainers));
        owners.map(|owner| RepoId { owner, identifier: identifier.clone() }).collect()
    }
}

/// The note of a task.
pub(super) fn todo_of(task: &Task) -> Todo {
    match task {
        Task::Pull(site, event) => Todo { site: site.clone(), pull: Some(*event) },
        Task::Align(_) | Task::Retire(_) | Task::Adopt(_) => Todo { site: task.site().clone(), pull: None },
    }
}

/// What a note asks for.
pub(super) fn task_of(todo: &Todo) -> Task {
    match todo.pull {
        Some(event) => Task::Pull(todo.site.clone(), event),
        None => Task::Align(todo.site.clone()),
    }
}
