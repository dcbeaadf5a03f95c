//! How git data and events come together: pushes, and bringing repositories into line with what is signed.
//!
//! Adding: git first, then the store; the held row is the intent. Removing: the store first, with a note of what is to be
//! done, then git. Whatever is interrupted is found again at boot and done once more. A decision that waited for git is
//! taken again from the beginning, with fresh facts, when git is done.

use std::collections::BTreeSet;

use super::git_job::{Align, Aligned, Candidate, Order, OrderId, Otherwise, Outcome, Parcel, Pull, Work};
use super::git_job_results::{Pushed, todo_of};
use super::io::{Arrival, Haul, Output, Push, Question, Told};
use super::purgatory::{Waiting, What};
use super::push::{Named, Permit, PushRefusal, Scene};
use super::repo_queue::{Job, Next, Task};
use super::{Registrar, push};
use crate::disk_budget::{Mark, Whose};
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{RepoId, Site, State};
use crate::time::Now;

/// Why the store was asked.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// May this push happen?
    Permit(Push),
    /// A push that arrived has its turn.
    Arrival(Box<Arrival>),
    /// A task has its turn.
    Task(Task),
    /// The uploads of a push are aside; the rest of it follows.
    Resume(Box<Arrival>, Permit, Vec<(EventId, u64)>),
    /// Git has done its part of a job.
    Finish(Job, Aligned),
}

impl Registrar {
    /// A complete push waits for its turn.
    pub(super) fn push_arrived(&mut self, arrival: Box<Arrival>) {
        if let Err(id) = self.lanes.join(arrival) {
            self.wish(Output::PushDone(id, Err(PushRefusal::Busy)));
        }
    }

    /// Asks the next thing that must be known, if nothing is being asked.
    pub(super) fn proceed(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let purpose = self.asking.pop_front().or_else(|| {
            self.lanes.next().map(|next| match next {
                Next::Arrival(arrival) => Purpose::Arrival(arrival),
                Next::Task(task) => Purpose::Task(task),
            })
        });
        if let Some(purpose) = purpose {
            self.wish(Output::Ask(self.question(&purpose)));
            self.asked = Some(purpose);
        }
    }

    fn question(&self, purpose: &Purpose) -> Question {
        let (site, events) = match purpose {
            Purpose::Permit(push) => (&push.site, self.events_of_push(push)),
            Purpose::Arrival(arrival) | Purpose::Resume(arrival, ..) => {
                (&arrival.push.site, self.events_of_push(&arrival.push))
            }
            Purpose::Task(task @ (Task::Align(_) | Task::Adopt(_))) => {
                (task.site(), self.states_for(task.site()).into_iter().map(|(id, _)| id).collect())
            }
            Purpose::Task(Task::Pull(site, event)) => (site, vec![*event]),
            Purpose::Task(Task::Retire(site)) => (site, Vec::new()),
            Purpose::Finish(job, aligned) => {
                let mut events: Vec<EventId> =
                    aligned.chosen.into_iter().chain(aligned.pulls.iter().copied()).collect();
                let site = match job {
                    Job::Task(task) => {
                        if let Task::Align(_) | Task::Adopt(_) = task {
                            let states = self.states_for(task.site()).into_iter();
                            events.extend(states.filter(|(_, place)| *place == Place::Held).map(|(id, _)| id));
                        }
                        task.site()
                    }
                    Job::Push { arrival, permit, .. } => {
                        events.extend(permit.state.map(|stamp| stamp.id));
                        events.extend(permit.pulls.iter().chain(&permit.uploads).map(|(id, _)| *id));
                        &arrival.push.site
                    }
                };
                (site, events)
            }
        };
        let strays = matches!(purpose, Purpose::Task(Task::Align(_) | Task::Adopt(_)));
        let grows = matches!(purpose, Purpose::Permit(_) | Purpose::Arrival(_) | Purpose::Task(Task::Adopt(_)));
        // Whoever is turned away anyhow costs nobody a look.
        let weigh = grows && self.rules.quotas.weigh() && self.space != Mark::Hard && self.is_open(site);
        Question { site: site.clone(), events, strays, weigh }
    }

    fn events_of_push(&self, push: &Push) -> Vec<EventId> {
        let named = push.commands.iter().filter_map(|command| command.name.strip_prefix("refs/nostr/"));
        let mut events: Vec<EventId> = named.filter_map(EventId::from_hex).collect();
        // Whoever brings nothing but pull requests needs no state.
        if events.len() < push.commands.len() {
            events.extend(self.states_for(&push.site).into_iter().map(|(id, _)| id));
        }
        events
    }

    /// The refs of a site cannot be read: nothing is decided without them.
    fn told_nothing(&mut self, now: Now, purpose: Purpose) {
        let sorry = || PushRefusal::Failed("the repository cannot be read".to_owned());
        match purpose {
            Purpose::Permit(push) => self.wish(Output::Permit(push.id, Err(sorry()))),
            Purpose::Arrival(arrival) => self.end_push(&arrival.push, Err(sorry())),
            Purpose::Resume(arrival, _, staged) => {
                self.discard_staged(&staged);
                self.end_push(&arrival.push, Err(sorry()));
            }
            Purpose::Task(task) => {
                self.put_off(now, task);
            }
            Purpose::Finish(..) => {}
        }
    }

    /// The store has answered.
    pub(super) fn told(&mut self, now: Now, told: Told) {
        let purpose = self.asked.take();
        // What git has done it has done; that needs no look at the refs.
        if let Some(purpose) = purpose.clone().filter(|purpose| told.failed && !matches!(purpose, Purpose::Finish(..)))
        {
            return self.told_nothing(now, purpose);
        }
        match purpose {
            Some(Purpose::Permit(push)) => self.permit(&push, &told),
            Some(Purpose::Arrival(arrival)) => self.begin_push(arrival, &told),
            Some(Purpose::Resume(arrival, permit, staged)) => {
                let work = Work::Align(self.align_push(&arrival, &permit, &told));
                self.order(arrival.push.site.clone(), work, Job::Push { arrival, permit, staged });
            }
            Some(Purpose::Task(task)) => self.begin_task(task, &told),
            Some(Purpose::Finish(Job::Push { arrival, permit, staged }, aligned)) => {
                self.finish_push(now, &Pushed { arrival, permit, staged, aligned }, &told);
            }
            Some(Purpose::Finish(Job::Task(task), aligned)) => self.finish_task(now, &task, &aligned, &told),
            None => {}
        }
    }

    fn permit(&mut self, push: &Push, told: &Told) {
        let result = self.authorise(push, told);
        if let Ok(permit) = &result {
            let mut needed: Vec<EventId> = permit.pulls.iter().map(|(id, _)| *id).collect();
            if let Some(state) = permit.state {
                needed.push(state.id);
                needed.extend(self.announcements_behind(&push.site));
            }
            self.pushes.insert(push.id, needed);
        }
        self.wish(Output::Permit(push.id, result));
    }

    fn authorise(&self, push: &Push, told: &Told) -> Result<Permit, PushRefusal> {
        if !self.is_open(&push.site) {
            return Err(PushRefusal::NotHosted);
        }
        if self.rules.lists.read_only {
            return Err(PushRefusal::ReadOnly);
        }
        if self.space == Mark::Hard {
            return Err(PushRefusal::DiskFull);
        }
        let refs = told.refs.iter().filter(|(name, _)| !name.starts_with("refs/nostr/"));
        let refs = refs.map(|(name, oid)| (name.clone(), oid.clone())).collect();
        let mut waiting = Vec::new();
        let mut current = None;
        for (id, _) in self.states_for(&push.site) {
            let Some(found) = told.events.get(&id) else { continue };
            match (State::read(&found.event), found.place) {
                (Some(state), Place::Held) => waiting.push(state),
                // The best comes first.
                (Some(state), Place::Served) if current.is_none() => current = Some(state),
                _ => {}
            }
        }
        let scene = Scene { site: &push.site, refs: &refs, waiting: &waiting, current: current.as_ref() };
        let named =
            |id: EventId| told.events.get(&id).map_or(Named::Unknown, |found| self.named(&push.site, &found.event));
        let permit = push::authorise(&scene, &push.commands, named)?;
        let quotas = &self.rules.quotas;
        // Anybody may offer a pull request, and what is offered may come to stay.
        let left = match permit.state {
            Some(_) => quotas.left(told.weight, Whose::Maintainers),
            None if quotas.weigh() => quotas.left(told.weight + self.uploads.weigh(&push.site), Whose::Others),
            None => None,
        };
        let permit = Permit { left, ..permit };
        if !self.uploads.has_room(&push.network, permit.uploads.len(), 0) {
            return Err(PushRefusal::NoRoom);
        }
        Ok(permit)
    }

    /// What an event is to a site at which somebody pushes its ref.
    fn named(&self, site: &Site, event: &Event) -> Named {
        let Some(request) = PullRequest::read_if(event) else { return Named::Other };
        if self.takes(site, &self.sites_of(event.pubkey, &request)) {
            Named::PullRequest(request.tip)
        } else {
            Named::Elsewhere
        }
    }

    fn begin_push(&mut self, arrival: Box<Arrival>, told: &Told) {
        let permit = match self.authorise(&arrival.push, told).and_then(|permit| self.fits(&arrival, permit)) {
            Ok(permit) => permit,
            Err(refusal) => return self.end_push(&arrival.push, Err(refusal)),
        };
        if permit.is_empty() {
            return self.end_push(&arrival.push, Ok(()));
        }
        let staged: Vec<(EventId, u64)> =
            permit.uploads.iter().map(|(event, _)| (*event, self.uploads.next_parcel())).collect();
        let site = arrival.push.site.clone();
        let work = if staged.is_empty() {
            Work::Align(self.align_push(&arrival, &permit, told))
        } else {
            let from = |event: EventId| arrival.uploads.iter().find(|upload| upload.event == event);
            let moves =
                staged.iter().filter_map(|(event, to)| Some((from(*event)?.parcel.clone(), Parcel::Staged(*to))));
            Work::Stage(moves.collect())
        };
        self.order(site, work, Job::Push { arrival, permit, staged });
    }

    /// Whether what arrived is what is permitted now. Between the two questions events may have come and gone.
    fn fits(&self, arrival: &Arrival, permit: Permit) -> Result<Permit, PushRefusal> {
        let delivered = |event: &EventId| arrival.uploads.iter().find(|upload| upload.event == *event);
        if let Some((left, quota)) = permit.left
            && arrival.bytes + arrival.uploads.iter().map(|upload| upload.bytes).sum::<u64>() > left
        {
            return Err(PushRefusal::Quota(quota));
        }
        let mut bytes = 0;
        for (event, _) in &permit.uploads {
            // An event that was here has gone: its objects came together with those of others.
            bytes += delivered(event).ok_or(PushRefusal::Changed)?.bytes;
        }
        if !self.uploads.has_room(&arrival.push.network, permit.uploads.len(), bytes) {
            return Err(PushRefusal::NoRoom);
        }
        Ok(permit)
    }

    fn align_push(&self, arrival: &Arrival, permit: &Permit, told: &Told) -> Align {
        // An event that was not known when the push began may have come meanwhile.
        let signed_meanwhile =
            arrival.uploads.iter().filter(|upload| permit.pulls.iter().any(|(id, _)| *id == upload.event));
        let adopt =
            arrival.parcel.iter().cloned().chain(signed_meanwhile.map(|upload| upload.parcel.clone())).collect();
        let state =
            permit.state.and_then(|stamp| told.events.get(&stamp.id)).and_then(|found| State::read(&found.event));
        // While uploads were put aside, events may have gone.
        let pulls = permit.pulls.iter().filter(|(event, _)| told.events.contains_key(event));
        let pull = |(event, tip): &(EventId, String)| Pull { event: *event, tip: tip.clone(), sources: Vec::new() };
        let lenders = self.lenders_of(&arrival.push.site);
        // What was checked against other pools than those that are readable now must be checked again.
        let checked = arrival.checked.filter(|_| lenders == arrival.lenders);
        Align {
            adopt,
            checked,
            lenders,
            candidates: state.into_iter().map(candidate).collect(),
            pulls: pulls.map(pull).collect(),
            ..Align::default()
        }
    }

    fn begin_task(&mut self, task: Task, told: &Told) {
        let site = task.site().clone();
        let work = match &task {
            Task::Align(Site::Announced(repo)) if !self.is_hosted(repo) => self.retirement(repo, told),
            Task::Align(_) => self.alignment(&site, told),
            Task::Adopt(haul) => self.adoption(haul, told),
            Task::Pull(_, event) => self.pull(&site, *event, told),
            // Something may have come since it was found to have nothing.
            Task::Retire(_) => (told.exists && told.refs.is_empty()).then(|| Work::Retire { readers: Vec::new() }),
        };
        match work {
            Some(work) => self.order(site, work, Job::Task(task)),
            None => self.end_task(&task),
        }
    }

    /// What is to be done about a repository that is hosted no more.
    fn retirement(&self, repo: &RepoId, told: &Told) -> Option<Work> {
        let family = self.catalog.family(&repo.identifier);
        // Its announcement is served still, and merely does not name this service: the service's own name has changed.
        let renamed = family.and_then(|family| family.best(repo.owner)).is_some_and(|best| !best.exception);
        if renamed || !told.exists {
            return None;
        }
        let hosts = family.into_iter().flat_map(|family| family.hosts());
        let hosts = hosts.map(|owner| Site::Announced(RepoId { owner, identifier: repo.identifier.clone() }));
        // One that is to go as well may be announced again before it has gone.
        let noted = self.todos.iter().map(|todo| &todo.site).filter(|site| site.identifier() == &repo.identifier);
        let sites: BTreeSet<Site> = hosts.chain(noted.cloned()).collect();
        let readers = sites.into_iter().map(|site| (site.clone(), self.lenders_of(&site))).collect();
        Some(Work::Retire { readers })
    }

    fn alignment(&self, site: &Site, told: &Told) -> Option<Work> {
        let align = self.aligned(site, told);
        // Without a folder of its own and without others' it has no object that a state could name.
        let nowhere = |state: &Candidate| !state.refs.is_empty() && state.sources.is_empty();
        let nothing_here = !told.exists && align.lenders.is_empty() && align.candidates.iter().all(nowhere);
        let nothing_here = nothing_here || (!told.exists && align.candidates.is_empty());
        if nothing_here && (align.pulls.is_empty() || align.lenders.is_empty()) {
            return None;
        }
        Some(Work::Align(align))
    }

    /// What the hunt has brought moves in, and the site follows what is signed.
    fn adoption(&self, haul: &Haul, told: &Told) -> Option<Work> {
        // A fetch brings no larger pack than the quotas left when it began. Its index comes on top, and whoever refused it
        // for that would fetch it again and again.
        let fits = self.rules.quotas.left(told.weight, Whose::Maintainers).is_none_or(|(left, _)| left > 0);
        (fits && self.is_open(&haul.site)).then(|| {
            let adopt = vec![haul.parcel.clone()];
            Work::Align(Align { adopt, ..self.aligned(&haul.site, told) })
        })
    }

    /// How a site should be.
    fn aligned(&self, site: &Site, told: &Told) -> Align {
        let states = self.states_for(site);
        let known = self.is_served(site);
        let read = |(id, _): &(EventId, Place)| told.events.get(id).and_then(|found| State::read(&found.event));
        let candidates: Vec<Candidate> = states
            .iter()
            .filter_map(read)
            // That a repository is empty is no proof that there is one.
            .filter(|state| state.is_satisfiable() && (known || !state.refs.is_empty()))
            .map(|state| Candidate { sources: self.sources_of(site, &state), ..candidate(state) })
            .collect();
        let lenders = self.lenders_of(site);
        // What merely waits does not speak for what is there.
        let any_served = states.iter().any(|(_, place)| *place == Place::Served);
        let otherwise = if any_served { Otherwise::Keep } else { Otherwise::Clear };
        let pulls = self.pulls_waiting_at(site);
        // What waits for its commit elsewhere has no ref here, either.
        let named = told.refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/").and_then(EventId::from_hex));
        let misplaced =
            named.filter(|id| self.purgatory.get(*id).is_some() && pulls.iter().all(|pull| pull.event != *id));
        let drop_pulls = told.strays.iter().copied().chain(misplaced).collect();
        Align { lenders, candidates, otherwise, pulls, drop_pulls, ..Align::default() }
    }

    /// The pull requests whose commits are waited for at a site.
    fn pulls_waiting_at(&self, site: &Site) -> Vec<Pull> {
        let here = |(event, waiting): (EventId, &Waiting)| match &waiting.what {
            What::PullRequest(tip, sites) if sites.contains(site) => {
                Some(Pull { event, tip: tip.clone(), sources: Vec::new() })
            }
            _ => None,
        };
        self.purgatory.of_name(site.identifier()).filter_map(here).collect()
    }

    /// The other sites that a state's author speaks for: one of them may have its objects.
    fn sources_of(&self, site: &Site, state: &State) -> Vec<Site> {
        let looks = self.looks_of(&state.identifier, state.author).into_iter();
        looks.filter(|other| other != site).take(limits::MAX_SOURCES).collect()
    }

    fn pull(&self, site: &Site, event: EventId, told: &Told) -> Option<Work> {
        let Some(found) = told.events.get(&event) else {
            let here = told.refs.contains_key(&format!("refs/nostr/{event}"));
            let (lenders, drop_pulls) = (self.lenders_of(site), vec![event]);
            return here.then(|| Work::Align(Align { lenders, drop_pulls, ..Align::default() }));
        };
        let request = PullRequest::read_if(&found.event)?;
        let sites = self.sites_of(found.event.pubkey, &request);
        if !self.takes(site, &sites) {
            return None;
        }
        let upload = self.uploads.get(event, site).filter(|upload| upload.tip == request.tip);
        let adopt: Vec<Parcel> = upload.map(|upload| Parcel::Staged(upload.parcel)).into_iter().collect();
        let lenders = self.lenders_of(site);
        // What is pushed to a repository stays there; what is submitted goes to the repositories that it is meant for.
        let sources: Vec<Site> = match site {
            Site::Submitted(_) => Vec::new(),
            // Another maintainer's may have it from a third one.
            Site::Announced(_) => sites.iter().filter(|other| *other != site).chain(&lenders).cloned().collect(),
        };
        if !told.exists && adopt.is_empty() && lenders.is_empty() && sources.is_empty() {
            return None;
        }
        let pulls = vec![Pull { event, tip: request.tip, sources }];
        Some(Work::Align(Align { adopt, lenders, pulls, ..Align::default() }))
    }

    fn order(&mut self, site: Site, work: Work, job: Job) {
        let id = self.lanes.begin(site.identifier().clone(), job);
        self.wish(Output::Order(Order { id, site, work }));
    }

    /// What could not be done is done later. A pack of the hunt is not kept for that: whatever of it is missing will be
    /// looked for again.
    fn put_off(&mut self, now: Now, task: Task) {
        let identifier = task.site().identifier().clone();
        let again = match task {
            Task::Adopt(haul) => {
                self.wish(Output::Adopted(haul.fetch));
                self.wish(Output::Quarry(identifier.clone()));
                Task::Align(haul.site)
            }
            other => other,
        };
        self.lanes.delay(again, now.mono.plus_secs(limits::ORDER_RETRY_SECS));
        self.lanes.free(&identifier);
    }

    /// Git has done what it could.
    pub(super) fn ordered(&mut self, now: Now, id: OrderId, outcome: Outcome) {
        let Some((_, job)) = self.lanes.end(id) else { return };
        match (job, outcome) {
            (Job::Push { arrival, permit, staged }, Outcome::Staged)
                if permit.state.is_some() || !permit.pulls.is_empty() =>
            {
                self.asking.push_back(Purpose::Resume(arrival, permit, staged));
            }
            (job @ Job::Push { .. }, Outcome::Staged) => {
                self.asking.push_back(Purpose::Finish(job, Aligned::default()));
            }
            (Job::Push { arrival, staged, permit }, Outcome::Failed(why)) => {
                self.discard_staged(&staged);
                self.put_right(&arrival.push.site, &permit);
                self.end_push(&arrival.push, Err(PushRefusal::Failed(why)));
            }
            (Job::Task(task), Outcome::Failed(_)) => {
                // It may have failed in the middle: it is noted, so that it is tried again also by the next process.
                self.note(todo_of(&task));
                self.put_off(now, task);
            }
            (Job::Task(task), Outcome::Retired | Outcome::Staged) => self.end_task(&task),
            (job, Outcome::Aligned(aligned)) => self.asking.push_back(Purpose::Finish(job, aligned)),
            (Job::Push { arrival, .. }, Outcome::Retired) => self.end_push(&arrival.push, Err(PushRefusal::NotHosted)),
        }
    }
}

fn candidate(state: State) -> Candidate {
    Candidate { event: state.stamp.id, refs: state.refs.into_iter().collect(), head: state.head, sources: Vec::new() }
}
