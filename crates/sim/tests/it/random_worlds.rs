//! Random worlds: clients publish, push, delete, replace and vanish; git is slow and fails; the server crashes now
//! and then. The invariants hold all the time (checked by [`TestServer`] itself). At the end the server recovers, and
//! a restart finds nothing left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::admission::io::{EventSource, PushId};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{RepoPath, RepoState};
use grasp_sim::failure_context::FailureContext;
use grasp_sim::fixtures::oid;
use grasp_sim::git_model::is_branch_or_tag;
use grasp_sim::random::Rng;
use grasp_sim::signer::{Author, maintainers_tag, owned_tags};
use grasp_sim::test_server::{ClientPush, Crashed, TestServer, default_policy, service};

/// Objects and their dependencies.
const NEEDS: &[(char, char)] = &[('b', 'a'), ('c', 'b'), ('e', 'd')];
const OBJECTS: &str = "abcdef";
const NAMES: &[&str] = &["tool", "tool", "tool", "b:c"];

struct World {
    rng: Rng,
    authors: Vec<Author>,
    server: TestServer,
    /// Every signed event, submitted or not.
    past: Vec<Arc<SignedEvent>>,
    /// Pushes that were permitted and whose packs were not received.
    permitted: Vec<PushId>,
    /// How often each thing happened.
    tally: BTreeMap<&'static str, usize>,
}

impl World {
    fn new(seed: u64, authors: &[Author]) -> Self {
        let mut server = TestServer::new(AdmissionPolicy { strict_maintainers: seed % 5 == 4, ..default_policy() });
        for (later, earlier) in NEEDS {
            server.git().add_dependencies(&oid(*later), &[&oid(*earlier)]);
        }
        server.set_manual_git(true);
        let authors = authors.to_vec();
        Self { rng: Rng::new(seed), authors, server, past: Vec::new(), permitted: Vec::new(), tally: BTreeMap::new() }
    }

    fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn author(&mut self) -> Author {
        self.rng.pick(&self.authors).expect("not empty").clone()
    }

    fn name(&mut self) -> &'static str {
        self.rng.pick(NAMES).expect("not empty")
    }

    fn oid(&mut self) -> String {
        oid(char::from(OBJECTS.as_bytes()[self.rng.below(OBJECTS.len())]))
    }

    /// A short range, so that ties are frequent, which moves forward with the number of events.
    fn time(&mut self) -> u64 {
        9_000 + self.past.len() as u64 / 4 + self.rng.next_u64() % 6
    }

    fn repo_path(&mut self) -> RepoPath {
        let (author, name) = (self.author(), self.name());
        let repo = author.repo_id(name);
        if self.rng.one_in(4) { RepoPath::PullRequests(repo) } else { RepoPath::Announced(repo) }
    }

    fn expiration(&mut self) -> Vec<String> {
        let at = self.server.now().wall.0 + self.rng.next_u64() % 3_000;
        vec!["expiration".to_owned(), at.to_string()]
    }

    fn announcement(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let maintainers: Vec<Author> = (0..self.rng.below(3)).map(|_| self.author()).collect();
        let mut tags = if self.rng.one_in(5) {
            maintainers.iter().map(|maintainer| vec!["m".to_owned(), maintainer.hex()]).collect()
        } else {
            vec![maintainers_tag(&maintainers.iter().collect::<Vec<_>>())]
        };
        if self.rng.one_in(10) {
            tags.push(self.expiration());
        }
        // Relays change, so that the repository needs of sync change.
        tags.push(vec!["relays".to_owned(), format!("wss://{}.example", self.past.len() % 3)]);
        match self.rng.below(5) {
            0 => author.announcement_elsewhere_with(name, time, tags),
            _ => author.announcement_with(&service(), name, time, tags),
        }
    }

    fn state(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let mut tags = owned_tags(&[&["d", name]]);
        for branch in ["main", "dev"].iter().take(self.rng.below(3)) {
            tags.push(vec![format!("refs/heads/{branch}"), self.oid()]);
        }
        if self.rng.one_in(3) {
            tags.push(vec!["HEAD".to_owned(), "ref: refs/heads/dev".to_owned()]);
        }
        if self.rng.one_in(10) {
            tags.push(self.expiration());
        }
        author.sign_owned(kinds::STATE, time, tags, "")
    }

    fn pull_request(&mut self) -> Arc<SignedEvent> {
        let (author, name, time, commit) = (self.author(), self.name(), self.time(), self.oid());
        let mut tags = owned_tags(&[&["c", &commit]]);
        for _ in 0..=self.rng.below(2) {
            tags.push(vec!["a".to_owned(), self.author().repo(name)]);
        }
        if self.rng.one_in(2) {
            let repo_path = RepoPath::PullRequests(author.repo_id(name));
            tags.push(vec!["clone".to_owned(), format!("https://code.example/{}", repo_path.path())]);
        }
        author.sign_owned(kinds::PULL_REQUEST, time, tags, "")
    }

    fn removal(&mut self) -> Arc<SignedEvent> {
        let time = self.time();
        let Some(old) = self.rng.pick(&self.past).cloned() else { return self.announcement() };
        let author = self.authors.iter().find(|author| author.key() == old.pubkey).expect("known author").clone();
        match self.rng.below(12) {
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
        self.attempt(|server| server.try_submit(event, source));
    }

    /// Does something; after a crash the server is restarted.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut TestServer) -> Result<T, Crashed>) -> Option<T> {
        match act(&mut self.server) {
            Ok(result) => Some(result),
            Err(_) => {
                self.note("the server crashed");
                self.server.boot().expect("only one crash is injected");
                self.permitted.clear();
                None
            }
        }
    }

    /// Returns a push with all objects, either of a state, of a pull request, or of a random ref.
    fn random_push(&mut self) -> Option<ClientPush> {
        let mut client_push = ClientPush::new(self.repo_path());
        client_push.network = self.rng.one_in(2).then(|| "198.51.100.0/24".to_owned());
        client_push.brings = OBJECTS.chars().map(oid).collect();
        match self.rng.below(8) {
            0 => client_push = client_push.set("refs/heads/main", &self.oid()),
            1..=3 => {
                let pull_requests: Vec<_> = self
                    .past
                    .iter()
                    .filter_map(|event| Some((event.id, PullRequest::from_any_event(event)?)))
                    .collect();
                for _ in 0..=self.rng.below(2) {
                    let (id, request) = self.rng.pick(&pull_requests)?.clone();
                    let tip = if self.rng.one_in(6) { self.oid() } else { request.tip };
                    let target = self.rng.pick(&request.targets)?.clone();
                    if self.rng.one_in(2) {
                        client_push.repo_path = RepoPath::Announced(target);
                    }
                    client_push = client_push.pull(id, &tip);
                }
            }
            _ => {
                let states: Vec<RepoState> = self
                    .past
                    .iter()
                    .filter(|event| event.kind == kinds::STATE)
                    .filter_map(|event| RepoState::from_event(event))
                    .collect();
                let state = states.get(states.len().checked_sub(1 + self.rng.below(6))?)?.clone();
                let repos = self.server.repos_maintained_by(&state.identifier, state.author);
                client_push.repo_path = RepoPath::Announced(self.rng.pick(&repos)?.clone());
                for name in self.server.refs(&client_push.repo_path).into_keys().filter(|name| is_branch_or_tag(name)) {
                    client_push = client_push.delete(&name);
                }
                for (name, oid) in &state.refs {
                    client_push = client_push.set(name, oid);
                }
            }
        }
        Some(client_push)
    }

    fn push(&mut self) {
        let Some(client_push) = self.random_push() else { return };
        let Some(Some((id, permit))) = self.attempt(|server| server.request_push(&client_push)) else { return };
        match permit {
            Ok(_) => {
                self.note("a push was permitted");
                self.permitted.push(id);
            }
            Err(_) => drop(self.attempt(|server| server.end_push(id))),
        }
    }

    /// Continues a push: its packs are received, or the client disconnects, or pushes with a result are ended.
    fn continue_push(&mut self) {
        if let Some(nth) = (!self.permitted.is_empty()).then(|| self.rng.below(self.permitted.len())) {
            let id = self.permitted.swap_remove(nth);
            if self.rng.one_in(8) {
                self.attempt(|server| server.end_push(id));
            } else if let Some(Some(rejected)) = self.attempt(|server| server.receive_packs(id)) {
                assert!(rejected.is_err());
                self.attempt(|server| server.end_push(id));
            }
        }
        self.end_answered_pushes();
    }

    /// Ends the pushes that have a result.
    fn end_answered_pushes(&mut self) {
        let ongoing = self.server.ongoing_pushes();
        for (id, result) in
            ongoing.into_iter().filter_map(|id| Some((id, self.server.push_result(id)?))).collect::<Vec<_>>()
        {
            self.note(if result.is_ok() { "a push succeeded" } else { "a push failed" });
            self.attempt(|server| server.end_push(id));
        }
    }

    fn git(&mut self) {
        for _ in 0..=self.rng.below(12) {
            let running = self.server.running().len();
            if running == 0 {
                break;
            }
            let nth = self.rng.below(running);
            if self.rng.one_in(40) {
                self.note("a git job failed");
                self.attempt(|server| server.fail_git_job(nth));
            } else {
                self.attempt(|server| server.step_git_job(nth));
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(40) {
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
                // The push may come before the event.
                if self.rng.one_in(2) {
                    self.submit(&event);
                }
            }
            11 => {
                let event = self.removal();
                self.past.push(event.clone());
                self.submit(&event);
            }
            12..=14 => {
                if let Some(old) = self.rng.pick(&self.past).cloned() {
                    self.submit(&old);
                }
            }
            15..=20 => self.push(),
            21..=26 => self.continue_push(),
            27 => {
                let secs = self.rng.next_u64() % 1_500;
                self.attempt(|server| server.try_advance(secs));
            }
            28 => {
                let steps = self.rng.below(25);
                self.server.crash_after_steps(steps);
            }
            29 => {
                let commits = self.rng.below(10);
                self.server.fail_commit_after(commits);
            }
            _ => self.git(),
        }
    }

    /// Recovers, and checks that all pushes have a result and a restart changes nothing.
    fn recover(&mut self) {
        self.server.clear_fault();
        for id in self.server.ongoing_pushes() {
            if self.server.push_result(id).is_none() && self.permitted.contains(&id) {
                self.server.end_push(id).expect("no crash is injected");
            }
        }
        self.server.recover();
        self.end_answered_pushes();
        assert_eq!(self.server.ongoing_pushes(), [], "every push has a result");
        let before = (self.server.event_ids(), self.server.visible_refs());
        self.server.restart();
        self.server.run_git_jobs().expect("no crash is injected");
        assert_eq!((self.server.event_ids(), self.server.visible_refs()), before, "(left: after a restart)");
    }

    fn served(&self, kind: u16) -> bool {
        let served: Vec<EventId> = self.server.event_ids().0.into_iter().collect();
        self.past.iter().any(|event| event.kind == kind && served.contains(&event.id))
    }
}

fn run_worlds(seeds: std::ops::Range<u64>, steps: usize) {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    let mut tally: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in seeds {
        let mut world = World::new(seed, &authors);
        let context = FailureContext(format!("in world {seed}"));
        for step in 0..steps {
            world.step();
            if step % 40 == 39 {
                world.recover();
            }
        }
        world.recover();
        drop(context);
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
        "a git job failed",
        "the server crashed",
    ] {
        assert!(tally.get(what).is_some_and(|count| *count > 10), "worlds without enough activity: {tally:?}");
    }
}

#[test]
fn invariants_hold_in_random_worlds() {
    run_worlds(0..400, 200);
}
