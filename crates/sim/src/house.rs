//! A registrar on top of the model of the store, with a clock of its own and the laws that hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::machine::Machine;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::{PublicKey, Refusal, Signed, Stamp, Verdict, Verifier, kinds};
use grasp_core::registrar::Registrar;
use grasp_core::registrar::io::{DataFound, Gone, Input, Look, Output, Source, Submission, Ticket, Write};
use grasp_core::registrar::policy::{Mode, Rules};
use grasp_core::repo::pr::PullRequest;
use grasp_core::repo::{Identifier, RepoId, Service, State};
use grasp_core::time::{Moment, Now, Timestamp};

use crate::contract::Shelf;
use crate::memory::Memory;

/// Where the simulated service is reached.
#[must_use]
pub fn service() -> Service {
    Service::new("code.example", "").expect("a good address")
}

/// The rules of a plain installation.
#[must_use]
pub fn rules() -> Rules {
    Rules {
        service: service(),
        mode: Mode::Grasp,
        owner: None,
        strict_maintainers: false,
        max_event_bytes: 256 * 1024,
        purgatory_secs: limits::PURGATORY_SECS,
    }
}

/// The whole relay without its doors: a registrar, a store and a clock.
pub struct House {
    registrar: Registrar,
    memory: Memory,
    now: Now,
    tickets: u64,
    /// Every author that was ever heard of: the catalog cannot be walked without knowing whom to ask for.
    authors: BTreeSet<PublicKey>,
    /// Questions to git since the last [`looks`](House::looks).
    looks: Vec<Look>,
    /// What was only shown to listeners.
    passed: Vec<Arc<Signed>>,
    /// Names whose bells rang since the last [`bells`](House::bells).
    bells: (BTreeSet<Identifier>, BTreeSet<Identifier>),
}

impl Default for House {
    fn default() -> Self {
        Self::new(rules())
    }
}

impl House {
    /// An empty house. Its clock begins at wall time 10,000.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            registrar: Registrar::new(rules),
            memory: Memory::new(),
            now: Now { mono: Moment(0), wall: Timestamp(10_000) },
            tickets: 0,
            authors: BTreeSet::new(),
            looks: Vec::new(),
            passed: Vec::new(),
            bells: Default::default(),
        }
    }

    /// Offers an event, as a client that has shown no key.
    pub fn submit(&mut self, event: &Arc<Signed>) -> Verdict {
        self.submit_from(event, Source::Client(Vec::new()))
    }

    /// Offers an event.
    pub fn submit_from(&mut self, event: &Arc<Signed>, source: Source) -> Verdict {
        let verdict = self.judge(event, source);
        self.memory.commit();
        self.check();
        verdict
    }

    /// Offers a claimed event: its id and signature are checked first.
    pub fn receive(&mut self, event: Event) -> Verdict {
        match Verifier::default().check(event) {
            Ok(event) => self.submit(&Arc::new(event)),
            Err(forged) => Verdict::Refuse(Refusal::Forged(forged)),
        }
    }

    /// Offers several events in one batch, which commits or fails. After a failed commit the registrar is rebuilt (F4).
    pub fn submit_batch(&mut self, events: &[&Arc<Signed>], commits: bool) -> Vec<Verdict> {
        let verdicts = events.iter().map(|event| self.judge(event, Source::Client(Vec::new()))).collect();
        if commits {
            self.memory.commit();
            self.check();
            return verdicts;
        }
        self.memory.abort();
        self.rebuild();
        verdicts.iter().map(|_| Verdict::Refuse(Refusal::StoreFailed)).collect()
    }

    /// Says that git has what an event waits for.
    pub fn data_found(&mut self, event: EventId, repo: RepoId) {
        let served_or_held = self.memory.served_events().chain(self.memory.held_events());
        let found = served_or_held.into_iter().find(|other| other.id == event).cloned();
        if let Some(event) = found {
            let facts = self.memory.facts(&event, self.registrar.rules().questions(&event));
            self.tell(Input::DataFound(DataFound { event, repo, facts }));
        }
    }

    /// Lets git have these objects: whatever is held and satisfied by them is told so, in every hosted repository that
    /// it may be satisfied in. So are served states, in those of their repositories that still wait (G1-15).
    pub fn git_has(&mut self, oids: &BTreeSet<String>) {
        for event in self.memory.held_events().cloned().collect::<Vec<_>>() {
            let (repos, wanted) = match event.kind {
                kinds::STATE => self.wants_of_state(&event),
                kind if kinds::is_pull_request(kind) => {
                    PullRequest::read(&event).map(|request| (request.targets, vec![request.tip])).unwrap_or_default()
                }
                _ => continue,
            };
            self.find(event.id, repos, &wanted, oids);
        }
        let is_state = |event: &&Arc<Signed>| event.kind == kinds::STATE;
        for event in self.memory.served_events().filter(is_state).cloned().collect::<Vec<_>>() {
            let (mut repos, wanted) = self.wants_of_state(&event);
            let catalog = self.registrar.catalog();
            repos.retain(|repo| catalog.announcement(repo).is_some_and(|slots| slots.held.is_some()));
            self.find(event.id, repos, &wanted, oids);
        }
    }

    fn wants_of_state(&self, event: &Event) -> (Vec<RepoId>, Vec<String>) {
        let state = State::read(event).filter(State::is_satisfiable);
        state.map(|state| (self.repos_of(&state.identifier, state.author), state.oids())).unwrap_or_default()
    }

    fn find(&mut self, event: EventId, repos: Vec<RepoId>, wanted: &[String], oids: &BTreeSet<String>) {
        if wanted.iter().all(|oid| oids.contains(oid)) {
            for repo in repos {
                self.data_found(event, repo);
            }
        }
    }

    /// Lets time pass: held events give up at their deadlines, served ones at their own expiry.
    pub fn advance(&mut self, secs: u64) {
        let end = self.now.mono.plus_secs(secs);
        while let Some((alarm, _)) = self.registrar.alarm().filter(|(alarm, _)| *alarm <= end) {
            // Deadlines are whole seconds after whole seconds here, so that the wall clock keeps up.
            self.now.wall = self.now.wall.plus_secs(alarm.since(self.now.mono).as_secs());
            self.now.mono = self.now.mono.max(alarm);
            self.wake();
        }
        self.now.wall = self.now.wall.plus_secs(end.since(self.now.mono).as_secs());
        self.now.mono = end;
        self.wake();
        for summary in self.memory.due(self.now.wall) {
            self.tell(Input::Expired(summary));
        }
    }

    /// Steps the wall clock without time passing.
    pub fn set_wall(&mut self, wall: Timestamp) {
        self.now.wall = wall;
        self.wake();
    }

    /// As after a crash: what was committed stays, the registrar is rebuilt from it, the monotonic clock begins anew.
    pub fn restart(&mut self) {
        self.now.mono = Moment(0);
        self.rebuild();
    }

    /// The repositories hosted here that an author may speak for.
    #[must_use]
    pub fn repos_of(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoId> {
        let strict = self.registrar.rules().strict_maintainers;
        let family = self.registrar.catalog().family(identifier).into_iter();
        family
            .flat_map(|family| family.hosts_of(author, strict))
            .map(|owner| RepoId { owner, identifier: identifier.clone() })
            .collect()
    }

    /// The registrar.
    #[must_use]
    pub fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// The store.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// The ids of everything that is served and of everything that is held.
    #[must_use]
    pub fn sets(&self) -> (BTreeSet<EventId>, BTreeSet<EventId>) {
        let served = self.memory.served_events().map(|event| event.id).collect();
        (served, self.memory.held_events().map(|event| event.id).collect())
    }

    /// Takes the questions that were put to git.
    pub fn looks(&mut self) -> Vec<Look> {
        std::mem::take(&mut self.looks)
    }

    /// Takes the events that were only passed on.
    pub fn passed(&mut self) -> Vec<Arc<Signed>> {
        std::mem::take(&mut self.passed)
    }

    /// Takes the bells that rang: names for sync, names for the hunt.
    pub fn bells(&mut self) -> (BTreeSet<Identifier>, BTreeSet<Identifier>) {
        std::mem::take(&mut self.bells)
    }

    /// The way of one event through the open batch.
    fn judge(&mut self, event: &Arc<Signed>, source: Source) -> Verdict {
        self.authors.insert(event.pubkey);
        let rules = self.registrar.rules();
        if let Some(refusal) = rules.precheck(event, event.json().len(), self.now.wall) {
            return Verdict::Refuse(refusal);
        }
        let facts = self.memory.facts(event, rules.questions(event));
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let submission = Submission { ticket, event: event.clone(), source, facts };
        self.registrar.handle(self.now, Input::Submitted(submission));
        let mut replies = self.drain();
        match (replies.pop(), replies.pop()) {
            (Some((answered, verdict)), None) if answered == ticket => verdict,
            other => panic!("one submission, one reply, but: {other:?}"),
        }
    }

    fn tell(&mut self, input: Input) {
        self.registrar.handle(self.now, input);
        self.settle();
        self.check();
    }

    fn wake(&mut self) {
        self.registrar.wake(self.now);
        self.settle();
        self.check();
    }

    /// Checks that what the catalog derives as it goes (sets, names, hosts) is what a fresh one derives from the store.
    pub fn check_derived(&self, identifiers: &[&str]) {
        let mut fresh = Registrar::new(self.registrar.rules().clone());
        for restored in self.memory.restored() {
            fresh.handle(self.now, Input::Restored(restored));
        }
        let strict = self.registrar.rules().strict_maintainers;
        for identifier in identifiers.iter().filter_map(|name| Identifier::new(name)) {
            for author in &self.authors {
                let view = |registrar: &Registrar| {
                    let family = registrar.catalog().family(&identifier);
                    family.map(|family| {
                        let hosts: Vec<_> = family.hosts_of(*author, strict).collect();
                        let maintainers = family.maintainers(*author, strict);
                        (hosts, maintainers, family.has_host(), family.is_invited(*author, strict))
                    })
                };
                assert_eq!(view(&self.registrar), view(&fresh), "derived (left) about {author} and {identifier:?}");
                let named = |registrar: &Registrar| registrar.catalog().is_named(*author);
                assert_eq!(named(&self.registrar), named(&fresh), "whether {author} is named");
            }
        }
    }

    fn rebuild(&mut self) {
        self.registrar = Registrar::new(self.registrar.rules().clone());
        for restored in self.memory.restored() {
            // The laws hold when all of it has been told.
            self.registrar.handle(self.now, Input::Restored(restored));
            self.settle();
        }
        self.check();
    }

    fn settle(&mut self) {
        assert_eq!(self.drain(), [], "nobody asked");
        self.memory.commit();
    }

    /// Does what the registrar wants and gives back its replies.
    fn drain(&mut self) -> Vec<(Ticket, Verdict)> {
        let mut replies = Vec::new();
        while let Some(output) = self.registrar.poll() {
            match output {
                Output::Write(write) => self.write(&write),
                Output::Reply(ticket, verdict) => replies.push((ticket, verdict)),
                Output::Pass(event) => self.passed.push(event),
                Output::Look(look) => self.looks.push(look),
                Output::Interest(identifier) => {
                    self.bells.0.insert(identifier);
                }
                Output::Quarry(identifier) => {
                    self.bells.1.insert(identifier);
                }
            }
        }
        replies
    }

    /// A write that contradicts the store's own tables is a bug of the registrar.
    fn write(&mut self, write: &Write) {
        if let Write::Put(event) | Write::Hold(event, _) = write {
            let facts = self.memory.facts(event, Default::default());
            assert_eq!(facts.known, None, "{write:?} of something known");
            let loses = facts.current.is_some_and(|current| !grasp_core::nostr::supersedes(event.stamp(), current));
            assert!(!loses, "{write:?} of something superseded");
        }
        self.memory.write(write);
    }

    /// The laws.
    fn check(&self) {
        let (served, held) = self.sets();
        assert!(served.is_disjoint(&held), "both served and held: {:?}", served.intersection(&held));
        let mut coordinates = BTreeSet::new();
        for event in self.memory.served_events() {
            if let Some(at) = event.coordinate() {
                assert!(coordinates.insert(at.clone()), "two versions are served at {at}");
            }
            let gone = self.memory.whereabouts(event).1;
            let cannot_be_deleted = matches!(event.kind, kinds::DELETION | kinds::VANISH);
            assert!(
                gone.is_none() || (cannot_be_deleted && gone == Some(Gone::Deleted)) || event.kind == kinds::VANISH,
                "served although {gone:?}: {}",
                event.json()
            );
        }
        for id in &held {
            assert!(self.registrar.purgatory().get(*id).is_some(), "held but not in the books: {id}");
        }
        assert_eq!(held.len(), self.registrar.purgatory().len(), "in the books but not held");
        if self.registrar.rules().mode == Mode::Grasp {
            assert_eq!(self.remembered(), self.stored(), "the catalog (left) disagrees with the store");
            self.check_exceptions();
        }
    }

    /// An announcement of a repository that is not hosted here lives only beside one that is (F7).
    fn check_exceptions(&self) {
        for (repo, slots) in self.registrar.catalog().repositories() {
            let family = self.registrar.catalog().family(&repo.identifier);
            let lonely = slots.served.as_ref().is_some_and(|served| !served.listed)
                && !family.is_some_and(|family| family.has_host());
            assert!(!lonely, "an exception without any host: {repo}");
        }
    }

    fn remembered(&self) -> Books {
        let catalog = self.registrar.catalog();
        let mut books = Books::default();
        for (repo, slots) in catalog.repositories() {
            books.note(&repo, kinds::ANNOUNCEMENT, true, slots.served.as_ref().map(|served| served.stamp));
            books.note(&repo, kinds::ANNOUNCEMENT, false, slots.held.as_ref().map(|held| held.stamp));
        }
        for author in &self.authors {
            for identifier in catalog.identifiers_of(*author) {
                let repo = RepoId { owner: *author, identifier: identifier.clone() };
                let states = catalog.family(identifier).and_then(|family| family.states(*author));
                books.note(&repo, kinds::STATE, true, states.and_then(|states| states.served));
                books.note(&repo, kinds::STATE, false, states.into_iter().flat_map(|states| states.held.clone()));
            }
        }
        books
    }

    fn stored(&self) -> Books {
        let mut books = Books::default();
        let served = self.memory.served_events().map(|event| (event, true));
        for (event, is_served) in served.chain(self.memory.held_events().map(|event| (event, false))) {
            if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
                let repo = event.coordinate().as_ref().and_then(RepoId::of).expect("nothing else gets in");
                books.note(&repo, event.kind, is_served, Some(event.stamp()));
            }
        }
        books
    }
}

/// Announcements and states: whose, of which kind, served or held, which versions.
#[derive(PartialEq, Eq, Debug, Default)]
struct Books(BTreeMap<(RepoId, u16, bool), BTreeSet<(Timestamp, EventId)>>);

impl Books {
    fn note(&mut self, repo: &RepoId, kind: u16, served: bool, stamps: impl IntoIterator<Item = Stamp>) {
        for stamp in stamps {
            self.0.entry((repo.clone(), kind, served)).or_default().insert((stamp.created_at, stamp.id));
        }
    }
}
