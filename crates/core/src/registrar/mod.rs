//! Machine 1: what may enter, and when it may be served.
//!
//! It is told offers with the facts of the store and answers with writes, replies and bells. Decisions that do not need
//! its state are in [`policy`]; this file applies them to the [`Catalog`] and to [`purgatory`].

pub mod io;
pub mod order;
pub mod policy;
pub mod purgatory;
pub mod push;
mod removal;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use io::{DataFound, Facts, Input, Look, Output, Restored, Source, Submission, Write};
use policy::{Mode, Rules, World};
use purgatory::{Purgatory, Waiting, What};

use crate::limits;
use crate::machine::Machine;
use crate::nostr::event::Event;
use crate::nostr::{PublicKey, Signed, Verdict, kinds};
use crate::repo::catalog::Place;
use crate::repo::pr::PullRequest;
use crate::repo::{Announcement, Catalog, Identifier, RepoId, State};
use crate::time::{Moment, Now};

/// The registrar.
#[derive(Debug)]
pub struct Registrar {
    rules: Rules,
    catalog: Catalog,
    purgatory: Purgatory,
    wishes: VecDeque<Output>,
    /// Names whose announcements changed in this step; what follows from it is settled once, at its end.
    changed: BTreeSet<Identifier>,
}

impl Registrar {
    /// A registrar that knows nothing yet: tell it what the store has first.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            catalog: Catalog::default(),
            purgatory: Purgatory::default(),
            wishes: VecDeque::new(),
            changed: BTreeSet::new(),
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

    /// The rules it was made with.
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
                // However long the server was down, everybody gets a little time to go on.
                let left = deadline
                    .secs_since(now.wall)
                    .clamp(limits::PURGATORY_GRACE_SECS, self.rules.purgatory_secs.max(limits::PURGATORY_GRACE_SECS));
                self.note_held(&event, now.mono.plus_secs(left));
            }
        }
    }

    fn restore_announcement(&mut self, event: &Event, exception: bool) {
        if let Some(announcement) = Announcement::read(event, &self.rules.service) {
            self.catalog.put_announcement(Place::Served, Announcement { exception, ..announcement });
        }
    }

    fn submitted(&mut self, now: Now, submission: Submission) {
        let Submission { ticket, event, source, facts } = submission;
        let world = World { rules: &self.rules, catalog: &self.catalog, purgatory: &self.purgatory };
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
            Verdict::Hold(_) => self.hold(now, &event),
            Verdict::Pass => self.wish(Output::Pass(event)),
            Verdict::Known(_) | Verdict::Refuse(_) => {}
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
        let Some(announcement) = Announcement::read(event, &self.rules.service) else { return };
        let repo = announcement.repo.clone();
        let stamp = announcement.stamp;
        let exception = !announcement.listed;
        if exception {
            self.write(Write::Except(stamp.id));
        }
        self.catalog.put_announcement(Place::Served, Announcement { exception, ..announcement });
        let obsolete = self.catalog.announcement(&repo).and_then(|slots| slots.held.as_ref()).map(|held| held.stamp);
        if let Some(held) = obsolete.filter(|held| crate::nostr::supersedes(stamp, *held)) {
            self.unhold(held.id);
        }
        self.changed.insert(repo.identifier);
    }

    fn hold(&mut self, now: Now, event: &Arc<Signed>) {
        self.write(Write::Hold(event.clone(), now.wall.plus_secs(self.rules.purgatory_secs)));
        self.note_held(event, now.mono.plus_secs(self.rules.purgatory_secs));
        match event.kind {
            kinds::ANNOUNCEMENT => {
                self.changed.extend(event.tag("d").and_then(Identifier::new));
            }
            kinds::STATE => self.look_for_state(event),
            _ => self.look_for_pull_request(event),
        }
    }

    /// Takes a held event into the books. What it pushes out of them leaves the store too.
    fn note_held(&mut self, event: &Signed, deadline: Moment) {
        let what = match event.kind {
            kinds::ANNOUNCEMENT => {
                let Some(announcement) = Announcement::read(event, &self.rules.service) else { return };
                let repo = announcement.repo.clone();
                if let Some(older) = self.catalog.put_announcement(Place::Held, announcement) {
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
            _ => What::PullRequest(PullRequest::read(event).map(|request| request.targets).unwrap_or_default()),
        };
        self.purgatory.put(
            event.id,
            Waiting { author: event.pubkey, created_at: event.created_at, what, bytes: event.json().len(), deadline },
        );
    }

    fn look_for_state(&mut self, event: &Event) {
        let Some(state) = State::read(event) else { return };
        self.wish(Output::Quarry(state.identifier.clone()));
        if !state.is_satisfiable() {
            return;
        }
        let repos = self.repos_of(&state.identifier, state.author);
        self.wish(Output::Look(Look { event: event.id, repos, oids: state.oids() }));
    }

    fn look_for_pull_request(&mut self, event: &Event) {
        let Some(request) = PullRequest::read(event) else { return };
        for repo in &request.targets {
            self.wish(Output::Quarry(repo.identifier.clone()));
        }
        self.wish(Output::Look(Look { event: event.id, repos: request.targets, oids: vec![request.tip] }));
    }

    fn repos_of(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoId> {
        let hosts = self
            .catalog
            .family(identifier)
            .into_iter()
            .flat_map(|family| family.hosts_of(author, self.rules.strict_maintainers));
        hosts.take(limits::MAX_LOOKS).map(|owner| RepoId { owner, identifier: identifier.clone() }).collect()
    }

    /// Git data has come: what waited for it is served, the announcement first so that fast clients find it (G1-41).
    fn data_found(&mut self, now: Now, found: DataFound) {
        let DataFound { event, repo, facts } = found;
        match facts.known {
            Some(Place::Served) if event.kind == kinds::STATE && self.may_speak(&event, &repo) => {
                self.release_announcement(&repo);
            }
            Some(Place::Held) if self.is_still_wanted(now, &event, facts) => match event.kind {
                kinds::STATE if self.may_speak(&event, &repo) => self.release_state(&event, &repo),
                kind if kinds::is_pull_request(kind) && self.is_hosted(&repo) => {
                    self.release_pull_request(&event, &repo)
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Judges a held event as if it came now (F3).
    fn is_still_wanted(&self, now: Now, event: &Signed, facts: Facts) -> bool {
        let world = World { rules: &self.rules, catalog: &self.catalog, purgatory: &self.purgatory };
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

    fn is_hosted(&self, repo: &RepoId) -> bool {
        self.catalog.family(&repo.identifier).is_some_and(|family| family.is_hosted(repo.owner))
    }

    fn may_speak(&self, event: &Event, repo: &RepoId) -> bool {
        let strict = self.rules.strict_maintainers;
        event.tag("d") == Some(repo.identifier.as_str())
            && self.is_hosted(repo)
            && self
                .catalog
                .family(&repo.identifier)
                .is_some_and(|family| family.maintainers(repo.owner, strict).contains(&event.pubkey))
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
    }

    fn release_pull_request(&mut self, event: &Event, repo: &RepoId) {
        self.purgatory.take(event.id);
        self.write(Write::Release(event.id));
        self.wish(Output::Quarry(repo.identifier.clone()));
        self.wish(Output::Interest(repo.identifier.clone()));
    }

    fn release_announcement(&mut self, repo: &RepoId) {
        let Some(held) = self.catalog.announcement(repo).and_then(|slots| slots.held.clone()) else { return };
        self.purgatory.take(held.stamp.id);
        self.catalog.take_announcement(Place::Held, repo, held.stamp.id);
        self.write(Write::Release(held.stamp.id));
        self.catalog.put_announcement(Place::Served, held);
        self.changed.insert(repo.identifier.clone());
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
            Input::Restored(restored) => self.restore(now, restored),
            Input::Submitted(submission) => self.submitted(now, submission),
            Input::Expired(summary) => self.remove(&summary, Place::Served),
            Input::DataFound(found) => self.data_found(now, found),
        }
        self.settle_changed();
    }

    fn poll(&mut self) -> Option<Output> {
        self.wishes.pop_front()
    }

    fn alarm(&self) -> Option<(Moment, &'static str)> {
        self.purgatory.next_deadline().map(|deadline| (deadline, "a held event expires"))
    }

    fn wake(&mut self, now: Now) {
        for _ in 0..limits::EXPIRY_SLICE {
            let Some(id) = self.purgatory.overdue(now.mono) else { break };
            self.unhold(id);
        }
        self.settle_changed();
    }
}
