//! Machine 1: what may enter, and when it may be served.
//!
//! It is told offers with the facts of the store and answers with writes, replies and bells. Decisions that do not need
//! its state are in [`policy`]; this file applies them to the [`Catalog`] and to [`purgatory`].

mod expiry;
pub mod git_job;
mod git_job_results;
mod git_jobs;
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

use io::{Facts, Input, Output, PushId, Restored, Source, Submission, Todo, Write};
use policy::{Mode, Rules, World};
use purgatory::{Purgatory, Search, Waiting, What};
use repo_queue::{Lanes, Task};

use git_jobs::Purpose;
use uploads::Uploads;

use crate::disk_budget::Mark;
use crate::fetch::io::FetchId;
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::{Signed, Verdict, kinds};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Announcement, Catalog, Identifier, RepoId, Site};
use crate::state_machine::Machine;
use crate::time::{Moment, Now};

/// The registrar.
#[derive(Debug)]
pub struct Registrar {
    rules: Rules,
    /// How full the disk budget is.
    space: Mark,
    catalog: Catalog,
    purgatory: Purgatory,
    wishes: VecDeque<Output>,
    /// Names whose announcements changed in this step; what follows from it is settled once, at its end.
    changed: BTreeSet<Identifier>,
    /// Repositories whose maintainers, or whether they are hosted at all, may have changed in this step.
    affected: BTreeSet<RepoId>,
    /// Repositories whose announcements changed in this step, and the affected ones.
    touched: BTreeSet<RepoId>,
    /// Uploads that wait for their events.
    uploads: Uploads,
    /// Work for the git room, and whose turn it is.
    lanes: Lanes,
    /// Durable notes of work.
    todos: BTreeSet<Todo>,
    /// Pushes that were permitted and are not over, with the events that must not expire meanwhile.
    pushes: BTreeMap<PushId, Vec<EventId>>,
    /// The same for fetches of the hunt.
    fetches: BTreeMap<FetchId, Vec<EventId>>,
    /// Why the store is being asked, and what it will be asked next.
    asked: Option<Purpose>,
    asking: VecDeque<Purpose>,
    /// Repositories that are to be looked at because there are other rules.
    review: VecDeque<RepoId>,
    /// Banned repositories that have gone, while what is about them is looked for.
    bereft: BTreeSet<RepoId>,
}

impl Registrar {
    /// A registrar that knows nothing yet: tell it what the store has first.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            space: Mark::Free,
            catalog: Catalog::default(),
            purgatory: Purgatory::default(),
            wishes: VecDeque::new(),
            changed: BTreeSet::new(),
            affected: BTreeSet::new(),
            touched: BTreeSet::new(),
            uploads: Uploads::default(),
            lanes: Lanes::default(),
            todos: BTreeSet::new(),
            pushes: BTreeMap::new(),
            fetches: BTreeMap::new(),
            asked: None,
            asking: VecDeque::new(),
            review: VecDeque::new(),
            bereft: BTreeSet::new(),
        }
    }

    /// The repositories, for views.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What waits, for views.
    #[must_use]
    pub fn purgatory(&self) -> &Purgatory {
        &self.purgatory
    }

    /// The rules that hold.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    fn restore(&mut self, now: Now, restored: Restored) {
        match restored {
            Restored::Served(_) | Restored::Exception(_) if self.rules.mode == Mode::Open => {}
            Restored::Served(event) if event.kind == kinds::STATE => {
                if let Some(identifier) = event.tag("d").and_then(Identifier::new) {
                    self.catalog.serve_state(event.pubkey, &identifier, event.stamp());
                }
            }
            Restored::Served(event) => self.restore_announcement(&event, false),
            Restored::Exception(event) => self.restore_announcement(&event, true),
            Restored::Held(event, deadline) => {
                self.restore_held(now, &event, deadline);
            }
            Restored::Todo(todo) => {
                self.todos.insert(todo);
            }
            Restored::Staged(upload) => {
                let left =
                    upload.deadline.secs_since(now.wall).clamp(limits::PURGATORY_GRACE_SECS, limits::PURGATORY_SECS);
                self.uploads.put(upload, now.mono.plus_secs(left));
            }
        }
        // Nothing has changed; it is as it was.
        self.affected.clear();
        self.touched.clear();
        self.changed.clear();
    }

    /// All has been told: what was interrupted goes on.
    fn ready(&mut self) {
        for todo in &self.todos {
            self.lanes.add(git_job_results::task_of(todo));
        }
        self.review_banned();
        let held: Vec<EventId> = self.purgatory.iter().map(|(id, _)| id).collect();
        for id in held {
            self.look(id);
        }
    }

    fn restore_announcement(&mut self, event: &Event, exception: bool) {
        if let Some(announcement) = self.rules.announcement(event) {
            self.catalog.put_announcement(Place::Served, Announcement { exception, ..announcement });
        }
    }

    fn submitted(&mut self, now: Now, submission: Submission) {
        let Submission { ticket, event, source, facts } = submission;
        let world = World { rules: &self.rules, catalog: &self.catalog, purgatory: &self.purgatory, space: self.space };
        // The precheck ran before the signature was checked; the clock may have passed an expiry since.
        let verdict = match self.rules.precheck(&event, event.json().len(), now.wall) {
            Some(refusal) => Verdict::Refuse(refusal),
            None => world.admit(&event, &source, &facts),
        };
        if event.kind == kinds::ANNOUNCEMENT && self.rules.mode == Mode::Grasp && facts.gone.is_none() {
            self.withdraw_if_delisted(&event, &verdict);
        }
        match &verdict {
            Verdict::Accept => self.accept(&event, &facts.targets),
            Verdict::Hold(_) => self.hold(now, &event, &source),
            Verdict::Pass => self.wish(Output::Pass(event)),
            Verdict::Known(_) => self.seen_again(now, event.id, &source),
            Verdict::Refuse(_) => {}
        }
        self.wish(Output::Reply(ticket, verdict));
    }

    fn accept(&mut self, event: &Arc<Signed>, targets: &[io::Target]) {
        self.write(Write::Put(event.clone()));
        match event.kind {
            kinds::DELETION => self.apply_deletion(event, targets),
            kinds::VANISH => self.apply_vanish(event),
            kinds::ANNOUNCEMENT if self.rules.mode == Mode::Grasp => self.serve_announcement(event),
            _ => {}
        }
    }

    fn serve_announcement(&mut self, event: &Event) {
        let Some(announcement) = self.rules.announcement(event) else { return };
        let repo = announcement.repo.clone();
        let stamp = announcement.stamp;
        let exception = !announcement.is_hosted() && !policy::is_left(&self.catalog, &repo);
        if exception {
            self.write(Write::Except(stamp.id));
        }
        self.put_announcement(Place::Served, Announcement { exception, ..announcement });
        let obsolete = self.catalog.announcement(&repo).and_then(|slots| slots.held.as_ref()).map(|held| held.stamp);
        if let Some(held) = obsolete.filter(|held| crate::nostr::supersedes(stamp, *held)) {
            self.unhold(held.id);
        }
    }

    fn hold(&mut self, now: Now, event: &Arc<Signed>, source: &Source) {
        self.write(Write::Hold(event.clone(), now.wall.plus_secs(self.rules.purgatory_secs)));
        let search = Search::From(expiry::hunted_from(now, source));
        self.note_held(now, event, now.mono.plus_secs(self.rules.purgatory_secs), search);
        if event.kind == kinds::STATE {
            self.extend_announcements(now, event);
        }
        self.look(event.id);
    }

    /// An announcement waits for as long as a state that could release it.
    fn extend_announcements(&mut self, now: Now, event: &Event) {
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else { return };
        for repo in self.hosts_of(&identifier, event.pubkey) {
            let held = self.catalog.announcement(&repo).and_then(|slots| slots.held.as_ref());
            let Some(id) = held.map(|held| held.stamp.id) else { continue };
            if self.purgatory.postpone(id, now.mono.plus_secs(self.rules.purgatory_secs)) {
                self.write(Write::Extend(id, now.wall.plus_secs(self.rules.purgatory_secs)));
            }
        }
    }

    /// Whether the git data of a held event is here already will be found out; the hunt hears of it.
    fn look(&mut self, id: EventId) {
        let Some(waiting) = self.purgatory.get(id) else { return };
        let author = waiting.author;
        match waiting.what.clone() {
            What::Announcement(repo) => self.lanes.add(Task::Align(Site::Announced(repo))),
            What::State(identifier) => {
                for site in self.looks_of(&identifier, author) {
                    self.lanes.add(Task::Align(site));
                }
                self.wish(Output::Quarry(identifier));
            }
            What::PullRequest(tip, sites) => {
                self.meet_uploads(id, &tip);
                let open: Vec<Site> = sites.into_iter().filter(|site| self.is_open(site)).collect();
                let uploaded = self.uploads.of_event(id).map(|upload| &upload.site);
                let taken: Vec<Site> = uploaded.filter(|site| self.takes(site, &open)).cloned().collect();
                for site in open.into_iter().chain(taken) {
                    self.wish(Output::Quarry(site.identifier().clone()));
                    self.lanes.add(Task::Pull(site, id));
                }
            }
        }
    }

    /// Takes a held event into the books. What it pushes out of them leaves the store too.
    fn note_held(&mut self, now: Now, event: &Signed, deadline: Moment, search: Search) {
        let what = match event.kind {
            kinds::ANNOUNCEMENT => {
                let Some(announcement) = self.rules.announcement(event) else { return };
                let repo = announcement.repo.clone();
                if let Some(older) = self.put_announcement(Place::Held, announcement) {
                    self.purgatory.take(older.stamp.id);
                    self.write(Write::Unhold(older.stamp.id));
                }
                What::Announcement(repo)
            }
            kinds::STATE => {
                let Some(identifier) = event.tag("d").and_then(Identifier::new) else { return };
                if let Some(oldest) =
                    self.catalog.hold_state(event.pubkey, &identifier, event.stamp(), limits::MAX_HELD_STATES)
                {
                    self.purgatory.take(oldest.id);
                    self.write(Write::Unhold(oldest.id));
                    if oldest.id == event.id {
                        return;
                    }
                }
                What::State(identifier)
            }
            _ => {
                let Some(request) = PullRequest::read(event) else { return };
                // Whether they are hosted may change while it waits.
                let targets = request.targets.iter().take(limits::MAX_TARGETS).cloned().map(Site::Announced);
                let mut sites: Vec<Site> = targets.chain(self.rules.submissions_of(event.pubkey, &request)).collect();
                sites.sort_unstable();
                sites.dedup();
                What::PullRequest(request.tip, sites)
            }
        };
        self.purgatory.put(
            event.id,
            Waiting {
                author: event.pubkey,
                created_at: event.created_at,
                what,
                bytes: event.json().len(),
                since: now.mono,
                deadline,
                search,
            },
        );
    }

    /// Judges a held event as if it came now (F3).
    fn is_still_wanted(&self, now: Now, event: &Signed, facts: Facts) -> bool {
        let world = World { rules: &self.rules, catalog: &self.catalog, purgatory: &self.purgatory, space: self.space };
        // That its author may publish it was shown when it was taken in.
        let source = Source::Client(vec![event.pubkey]);
        let verdict = world.admit(event, &source, &Facts { known: None, ..facts });
        let wanted = match verdict {
            Verdict::Hold(_) => true,
            Verdict::Refuse(refusal) => refusal.is_about_room(),
            Verdict::Accept | Verdict::Pass | Verdict::Known(_) => false,
        };
        wanted
            && self.purgatory.get(event.id).is_some()
            && self.rules.precheck(event, event.json().len(), now.wall).is_none()
    }

    /// Puts an announcement in its place and notes whom that concerns.
    fn put_announcement(&mut self, place: Place, announcement: Announcement) -> Option<Announcement> {
        let repo = announcement.repo.clone();
        self.change(&repo, |catalog| catalog.put_announcement(place, announcement))
    }

    /// Takes an announcement away and notes whom that concerns.
    fn take_announcement(&mut self, place: Place, repo: &RepoId, id: EventId) -> Option<Announcement> {
        self.change(repo, |catalog| catalog.take_announcement(place, repo, id))
    }

    fn change<R>(&mut self, repo: &RepoId, change: impl FnOnce(&mut Catalog) -> R) -> R {
        let look = |catalog: &Catalog| {
            let family = catalog.family(&repo.identifier);
            let best = family.and_then(|family| family.best(repo.owner));
            let reaching: Vec<_> = family.into_iter().flat_map(|family| family.hosts_reaching(repo.owner)).collect();
            (best.map(|best| (best.is_hosted(), best.roles.clone())), reaching)
        };
        let (before, hosts_before) = look(&self.catalog);
        let result = change(&mut self.catalog);
        let (after, hosts_after) = look(&self.catalog);
        if before != after {
            let owners = hosts_before.into_iter().chain(hosts_after).chain([repo.owner]);
            self.affected.extend(owners.map(|owner| RepoId { owner, identifier: repo.identifier.clone() }));
        }
        self.touched.insert(repo.clone());
        self.changed.insert(repo.identifier.clone());
        result
    }

    /// Whether a held event, or an upload, may be let go now that its time is over.
    fn is_engaged(&self, id: EventId) -> bool {
        let pushed = self.pushes.values().chain(self.fetches.values()).any(|events| events.contains(&id));
        let worked_on = |identifier: &Identifier| self.lanes.is_engaged(identifier);
        pushed
            || self.purgatory.get(id).is_some_and(|waiting| match &waiting.what {
                What::Announcement(repo) => worked_on(&repo.identifier),
                What::State(identifier) => worked_on(identifier),
                What::PullRequest(_, sites) => sites.iter().any(|site| worked_on(site.identifier())),
            })
    }

    /// Objects have come to the pools of a name.
    fn data_came(&mut self, identifier: &Identifier) {
        let hosts: Vec<_> = self.catalog.family(identifier).into_iter().flat_map(|family| family.hosts()).collect();
        for owner in hosts {
            self.lanes.add(Task::Align(Site::Announced(RepoId { owner, identifier: identifier.clone() })));
        }
        let pulls: Vec<(EventId, Site)> = self
            .purgatory
            .of_name(identifier)
            .filter_map(|(id, waiting)| match &waiting.what {
                What::PullRequest(_, sites) => Some(sites.iter().map(move |site| (id, site.clone()))),
                _ => None,
            })
            .flatten()
            .filter(|(_, site)| site.identifier() == identifier)
            .collect();
        for (id, site) in pulls {
            self.lanes.add(Task::Pull(site, id));
        }
    }

    /// Objects have come to a pool of this name: whatever waits for them is looked at again.
    fn look_again(&mut self, identifier: &Identifier) {
        let (mut authors, mut sites) = (BTreeSet::new(), BTreeSet::new());
        for (_, waiting) in self.purgatory.of_name(identifier) {
            match &waiting.what {
                What::Announcement(repo) => drop(sites.insert(Site::Announced(repo.clone()))),
                What::State(_) => drop(authors.insert(waiting.author)),
                What::PullRequest(_, named) => {
                    sites.extend(named.iter().filter(|site| site.identifier() == identifier).cloned());
                }
            }
        }
        for author in authors {
            sites.extend(self.looks_of(identifier, author));
        }
        for site in sites {
            self.lanes.add(Task::Align(site));
        }
    }

    fn write(&mut self, write: Write) {
        self.wish(Output::Write(write));
    }

    fn wish(&mut self, output: Output) {
        self.wishes.push_back(output);
    }
}

impl Machine for Registrar {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Restored(restored) => return self.restore(now, restored),
            Input::Ready => self.ready(),
            Input::Rules(rules) => self.change_rules(Rules::clone(&rules)),
            Input::Unwanted(summary) => self.remove(&summary, Place::Served),
            Input::Swept(repo) => self.swept(repo),
            Input::Submitted(submission) => self.submitted(now, submission),
            Input::Expired(summary) => self.remove(&summary, Place::Served),
            Input::Purged(summary) => self.forget_refs(&summary),
            Input::PushAsked(push) => self.asking.push_back(Purpose::Permit(push)),
            Input::PushArrived(arrival) => self.push_arrived(Box::new(arrival)),
            Input::PushEnded(push) => drop(self.pushes.remove(&push)),
            Input::Told(told) => self.told(now, told),
            Input::Ordered(order, outcome) => self.ordered(now, order, outcome),
            Input::DataCame(identifier) => self.data_came(&identifier),
            Input::Space(mark) => self.space = mark,
            Input::FetchBegan(fetch, events) => drop(self.fetches.insert(fetch, events)),
            Input::FetchArrived(haul) => self.lanes.add(Task::Adopt(haul)),
            Input::FetchEnded(fetch) => drop(self.fetches.remove(&fetch)),
            Input::Tried(events) => self.tried(&events),
            Input::Dropped(id) => self.unhold(id),
        }
        self.settle_changed();
        self.proceed();
    }

    fn poll(&mut self) -> Option<Output> {
        self.wishes.pop_front()
    }

    fn alarm(&self) -> Option<(Moment, &'static str)> {
        let alarms = [
            (self.purgatory.next_deadline(), "a held event expires"),
            (self.uploads.next_deadline(), "an upload without its event expires"),
            (self.lanes.alarm(), "work in the git room is tried again"),
            ((!self.review.is_empty()).then_some(Moment::default()), "there are other rules"),
        ];
        alarms.into_iter().filter_map(|(moment, why)| Some((moment?, why))).min()
    }

    fn wake(&mut self, now: Now) {
        self.lanes.wake(now.mono);
        self.review_some();
        for _ in 0..limits::EXPIRY_SLICE {
            let Some(id) = self.purgatory.overdue(now.mono) else { break };
            self.end_of_time(now, id);
        }
        for _ in 0..limits::EXPIRY_SLICE {
            let Some((event, site)) = self.uploads.overdue(now.mono) else { break };
            if self.lanes.is_engaged(site.identifier()) {
                self.uploads.postpone(event, &site, now.mono.plus_secs(limits::POSTPONE_SECS));
            } else {
                self.forget_upload(event, &site, true);
            }
        }
        self.settle_changed();
        self.proceed();
    }
}
