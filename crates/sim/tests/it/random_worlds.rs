//! Random worlds: people publish, push, delete, replace and vanish; git is slow and fails; the world ends now and then. The
//! laws hold all the time (they are checked by [`House`] itself). In the end everything heals, and a new start finds
//! nothing left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::admission::io::{EventSource, PushId};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{RepoPath, RepoState};
use grasp_sim::fixtures::oid;
use grasp_sim::git_model::is_branch_or_tag;
use grasp_sim::random::Chance;
use grasp_sim::signer::{Author, maintainers_tag, owned};
use grasp_sim::test_server::{Crashed, House, Wish, rules, service};

/// Objects, and what they need.
const NEEDS: &[(char, char)] = &[('b', 'a'), ('c', 'b'), ('e', 'd')];
const OBJECTS: &str = "abcdef";
const NAMES: &[&str] = &["tool", "tool", "tool", "b:c"];

struct World {
    chance: Chance,
    authors: Vec<Author>,
    house: House,
    /// Everything that was ever signed, published or not.
    past: Vec<Arc<SignedEvent>>,
    /// Pushes that were permitted and have not arrived.
    permitted: Vec<PushId>,
    /// How often each thing happened.
    tally: BTreeMap<&'static str, usize>,
}

impl World {
    fn new(seed: u64, authors: &[Author]) -> Self {
        let mut house = House::new(AdmissionPolicy { strict_maintainers: seed % 5 == 4, ..rules() });
        for (later, earlier) in NEEDS {
            house.git().need(&oid(*later), &[&oid(*earlier)]);
        }
        house.be_lazy(true);
        let authors = authors.to_vec();
        Self {
            chance: Chance::new(seed),
            authors,
            house,
            past: Vec::new(),
            permitted: Vec::new(),
            tally: BTreeMap::new(),
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn author(&mut self) -> Author {
        self.chance.pick(&self.authors).expect("not empty").clone()
    }

    fn name(&mut self) -> &'static str {
        self.chance.pick(NAMES).expect("not empty")
    }

    fn oid(&mut self) -> String {
        oid(char::from(OBJECTS.as_bytes()[self.chance.below(OBJECTS.len())]))
    }

    /// Few times, so that ties abound, and later ones later.
    fn time(&mut self) -> u64 {
        9_000 + self.past.len() as u64 / 4 + self.chance.draw() % 6
    }

    fn repo_path(&mut self) -> RepoPath {
        let (author, name) = (self.author(), self.name());
        let repo = author.repo_id(name);
        if self.chance.one_in(4) { RepoPath::PullRequests(repo) } else { RepoPath::Announced(repo) }
    }

    fn expiration(&mut self) -> Vec<String> {
        let at = self.house.now().wall.0 + self.chance.draw() % 3_000;
        vec!["expiration".to_owned(), at.to_string()]
    }

    fn announcement(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let keepers: Vec<Author> = (0..self.chance.below(3)).map(|_| self.author()).collect();
        let mut tags = if self.chance.one_in(5) {
            keepers.iter().map(|keeper| vec!["m".to_owned(), keeper.hex()]).collect()
        } else {
            vec![maintainers_tag(&keepers.iter().collect::<Vec<_>>())]
        };
        if self.chance.one_in(10) {
            tags.push(self.expiration());
        }
        // Relays come and go, so that what sync follows changes.
        tags.push(vec!["relays".to_owned(), format!("wss://{}.example", self.past.len() % 3)]);
        match self.chance.below(5) {
            0 => author.unlisted_with(name, time, tags),
            _ => author.listed_with(&service(), name, time, tags),
        }
    }

    fn state(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let mut tags = owned(&[&["d", name]]);
        for branch in ["main", "dev"].iter().take(self.chance.below(3)) {
            tags.push(vec![format!("refs/heads/{branch}"), self.oid()]);
        }
        if self.chance.one_in(3) {
            tags.push(vec!["HEAD".to_owned(), "ref: refs/heads/dev".to_owned()]);
        }
        if self.chance.one_in(10) {
            tags.push(self.expiration());
        }
        author.sign_owned(kinds::STATE, time, tags, "")
    }

    fn pull_request(&mut self) -> Arc<SignedEvent> {
        let (author, name, time, commit) = (self.author(), self.name(), self.time(), self.oid());
        let mut tags = owned(&[&["c", &commit]]);
        for _ in 0..=self.chance.below(2) {
            tags.push(vec!["a".to_owned(), self.author().repo(name)]);
        }
        if self.chance.one_in(2) {
            let repo_path = RepoPath::PullRequests(author.repo_id(name));
            tags.push(vec!["clone".to_owned(), format!("https://code.example/{}", repo_path.path())]);
        }
        author.sign_owned(kinds::PULL_REQUEST, time, tags, "")
    }

    fn removal(&mut self) -> Arc<SignedEvent> {
        let time = self.time();
        let Some(old) = self.chance.pick(&self.past).cloned() else { return self.announcement() };
        let author = self.authors.iter().find(|author| author.key() == old.pubkey).expect("one of them").clone();
        match self.chance.below(12) {
            0 => author.vanish(time, &["ALL_RELAYS"]),
            1..=4 => match old.coordinate() {
                Some(at) => author.deletion(time, &[&["a", &at.to_string()]]),
                None => author.delete(time, &[&old]),
            },
            _ => author.delete(time, &[&old]),
        }
    }

    fn submit(&mut self, event: &Arc<SignedEvent>) {
        let source = EventSource::Client(vec![event.pubkey]);
        self.attempt(|house| house.try_submit(event, source));
    }

    /// Does something; if the world ends, it begins anew.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut House) -> Result<T, Crashed>) -> Option<T> {
        match act(&mut self.house) {
            Ok(result) => Some(result),
            Err(_) => {
                self.note("the world ended");
                self.house.boot().expect("only one end is planned");
                self.permitted.clear();
                None
            }
        }
    }

    /// A push that brings everything, to make a state true, to bring a pull request, or for no good reason.
    fn wish(&mut self) -> Option<Wish> {
        let mut wish = Wish::new(self.repo_path());
        wish.network = self.chance.one_in(2).then(|| "198.51.100.0/24".to_owned());
        wish.brings = OBJECTS.chars().map(oid).collect();
        match self.chance.below(8) {
            0 => wish = wish.set("refs/heads/main", &self.oid()),
            1..=3 => {
                let pull_requests: Vec<_> = self
                    .past
                    .iter()
                    .filter_map(|event| Some((event.id, PullRequest::from_any_event(event)?)))
                    .collect();
                for _ in 0..=self.chance.below(2) {
                    let (id, request) = self.chance.pick(&pull_requests)?.clone();
                    let tip = if self.chance.one_in(6) { self.oid() } else { request.tip };
                    let target = self.chance.pick(&request.targets)?.clone();
                    if self.chance.one_in(2) {
                        wish.repo_path = RepoPath::Announced(target);
                    }
                    wish = wish.pull(id, &tip);
                }
            }
            _ => {
                let states: Vec<RepoState> = self
                    .past
                    .iter()
                    .filter(|event| event.kind == kinds::STATE)
                    .filter_map(|event| RepoState::from_event(event))
                    .collect();
                let state = states.get(states.len().checked_sub(1 + self.chance.below(6))?)?.clone();
                let repos = self.house.repos_of(&state.identifier, state.author);
                wish.repo_path = RepoPath::Announced(self.chance.pick(&repos)?.clone());
                for name in self.house.refs(&wish.repo_path).into_keys().filter(|name| is_branch_or_tag(name)) {
                    wish = wish.delete(&name);
                }
                for (name, oid) in &state.refs {
                    wish = wish.set(name, oid);
                }
            }
        }
        Some(wish)
    }

    fn push(&mut self) {
        let Some(wish) = self.wish() else { return };
        let Some(Some((id, permit))) = self.attempt(|house| house.ask(&wish)) else { return };
        match permit {
            Ok(_) => {
                self.note("a push was permitted");
                self.permitted.push(id);
            }
            Err(_) => drop(self.attempt(|house| house.end(id))),
        }
    }

    /// Some push goes on: it arrives, or whoever was answered goes away, or gives up.
    fn go_on(&mut self) {
        if let Some(nth) = (!self.permitted.is_empty()).then(|| self.chance.below(self.permitted.len())) {
            let id = self.permitted.swap_remove(nth);
            if self.chance.one_in(8) {
                self.attempt(|house| house.end(id));
            } else if let Some(Some(refused)) = self.attempt(|house| house.arrive(id)) {
                assert!(refused.is_err());
                self.attempt(|house| house.end(id));
            }
        }
        self.leave();
    }

    /// Whoever has an answer leaves.
    fn leave(&mut self) {
        let ongoing = self.house.ongoing();
        for (id, result) in ongoing.into_iter().filter_map(|id| Some((id, self.house.result(id)?))).collect::<Vec<_>>()
        {
            self.note(if result.is_ok() { "a push succeeded" } else { "a push failed" });
            self.attempt(|house| house.end(id));
        }
    }

    fn git(&mut self) {
        for _ in 0..=self.chance.below(12) {
            let running = self.house.running().len();
            if running == 0 {
                break;
            }
            let nth = self.chance.below(running);
            if self.chance.one_in(40) {
                self.note("an order failed");
                self.attempt(|house| house.fail(nth));
            } else {
                self.attempt(|house| house.step(nth));
            }
        }
    }

    fn step(&mut self) {
        match self.chance.below(40) {
            0..=3 => {
                let event = self.announcement();
                self.past.push(event.clone());
                self.submit(&event);
            }
            4..=8 => {
                let event = self.state();
                self.past.push(event.clone());
                self.submit(&event);
            }
            9..=10 => {
                let event = self.pull_request();
                self.past.push(event.clone());
                // Git may come first.
                if self.chance.one_in(2) {
                    self.submit(&event);
                }
            }
            11 => {
                let event = self.removal();
                self.past.push(event.clone());
                self.submit(&event);
            }
            12..=14 => {
                if let Some(old) = self.chance.pick(&self.past).cloned() {
                    self.submit(&old);
                }
            }
            15..=20 => self.push(),
            21..=26 => self.go_on(),
            27 => {
                let secs = self.chance.draw() % 1_500;
                self.attempt(|house| house.try_advance(secs));
            }
            28 => {
                let steps = self.chance.below(25);
                self.house.crash_in(steps);
            }
            29 => {
                let commits = self.chance.below(10);
                self.house.fail_commit_in(commits);
            }
            _ => self.git(),
        }
    }

    /// Everything comes to an end, and well.
    fn heal(&mut self) {
        self.house.be_kind();
        for id in self.house.ongoing() {
            if self.house.result(id).is_none() && self.permitted.contains(&id) {
                self.house.end(id).expect("no end is planned");
            }
        }
        self.house.heal();
        self.leave();
        assert_eq!(self.house.ongoing(), [], "every push is answered");
        let before = (self.house.sets(), self.house.views());
        self.house.restart();
        self.house.work().expect("no end is planned");
        assert_eq!((self.house.sets(), self.house.views()), before, "(left: after a new start)");
    }

    fn served(&self, kind: u16) -> bool {
        let served: Vec<EventId> = self.house.sets().0.into_iter().collect();
        self.past.iter().any(|event| event.kind == kind && served.contains(&event.id))
    }
}

fn live(seeds: std::ops::Range<u64>, steps: usize) {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    let mut tally: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in seeds {
        let mut world = World::new(seed, &authors);
        let naming = Naming(seed);
        for step in 0..steps {
            world.step();
            if step % 40 == 39 {
                world.heal();
            }
        }
        world.heal();
        drop(naming);
        for (kind, what) in [(kinds::STATE, "a state is served"), (kinds::PULL_REQUEST, "a pull request is served")] {
            if world.served(kind) {
                world.note(what);
            }
        }
        for (what, count) in world.tally {
            *tally.entry(what).or_default() += count;
        }
    }
    for what in [
        "a pull request is served",
        "a push failed",
        "a push succeeded",
        "a push was permitted",
        "a state is served",
        "an order failed",
        "the world ended",
    ] {
        assert!(tally.get(what).is_some_and(|count| *count > 10), "worlds that are worth living in: {tally:?}");
    }
}

#[test]
fn the_laws_hold_in_random_worlds() {
    live(0..100, 200);
}

struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed in world {}", self.0);
        }
    }
}
