//! A user who has nothing to do with an attack. Its requests must take about as long during the attack as on an idle
//! server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use serde_json::json;

use super::git::{BASE_TIME, MAIN, Maintainer, WorkTree};
use super::test_server::{TestServer, main_at, one_commit};

/// The address of the user: no attack comes from its network.
const ADDRESS: &str = "198.51.100.77";

/// What a round does, in order.
const STEPS: [&str; 4] = ["EVENT", "REQ", "push", "clone"];

/// How many rounds are measured on the idle server.
const IDLE_ROUNDS: usize = 3;

/// A user with a served repository, on a server that trusts loopback as a proxy
/// ([`BEHIND_PROXY`](super::BEHIND_PROXY)).
pub struct Bystander {
    owner: Maintainer,
    d: String,
    work: WorkTree,
    url: String,
    /// The slowest of the rounds on the idle server, for each step.
    idle: [Duration; STEPS.len()],
    rounds: u64,
}

impl Bystander {
    /// Creates a served repository for the `n`th test key and measures rounds while the server is idle.
    #[track_caller]
    pub fn new(server: &mut TestServer, n: u8, d: &str) -> Self {
        let owner = server.maintainer(n);
        let (work, oid) = one_commit("first");
        server.create_repo(&owner, d, &[], &work, &main_at(&oid));
        let url = server.url(&owner, d);
        let idle = [Duration::ZERO; STEPS.len()];
        let mut bystander = Self { owner, d: d.to_owned(), work, url, idle, rounds: 0 };
        for _ in 0..IDLE_ROUNDS {
            let round = bystander.run_round(server);
            for (slowest, took) in bystander.idle.iter_mut().zip(round) {
                *slowest = took.max(*slowest);
            }
        }
        bystander
    }

    /// Runs a round. Panics with `what` if a step fails or takes longer than [`allowed`].
    #[track_caller]
    pub fn expect_unaffected(&mut self, server: &TestServer, what: &str) {
        let round = self.run_round(server);
        eprintln!("{what}: {round:?}, idle: {:?}", self.idle);
        for ((step, took), idle) in STEPS.iter().zip(round).zip(self.idle) {
            let limit = allowed(idle);
            assert!(took <= limit, "{what}: {step} took {took:?}, allowed are {limit:?}, idle it took {idle:?}");
        }
    }

    /// Publishes an issue on a new connection, queries it, publishes a state and pushes its commit, and clones. Returns
    /// how long each step took.
    #[track_caller]
    fn run_round(&mut self, server: &TestServer) -> [Duration; STEPS.len()] {
        self.rounds += 1;
        let at = BASE_TIME + self.rounds;
        let issue = self.owner.author.issue(at, &self.owner.repo(&self.d));
        let oid = self.work.commit("file", &format!("round {}", self.rounds));
        let state = self.owner.state(&self.d, at, &main_at(&oid));

        let start = Instant::now();
        let mut client = server.process.connect_from(Some(ADDRESS)).expect("connection rejected");
        let mut publish = |event: &Arc<SignedEvent>| {
            let (is_accepted, text) = client.publish(event);
            assert!(is_accepted, "{text}: {}", event.json());
        };
        publish(&issue);
        let published = start.elapsed();

        let start = Instant::now();
        publish(&state);
        let state_published = start.elapsed();

        let start = Instant::now();
        assert_eq!(client.query(&[json!({"ids": [issue.id.to_string()]})]), [issue.id.to_string()]);
        let queried = start.elapsed();

        let header = format!("http.extraHeader=X-Forwarded-For: {ADDRESS}");
        let start = Instant::now();
        self.work.git(&["-c", &header, "push", "--quiet", &self.url, &format!("{oid}:{MAIN}")]).expect_success();
        let pushed = state_published + start.elapsed();

        let start = Instant::now();
        let (clone, output) = WorkTree::try_clone(&["-c", &header], &self.url, &[]);
        output.expect_success();
        let cloned = start.elapsed();
        assert_eq!(clone.oid("HEAD"), oid);
        [published, queried, pushed, cloned]
    }
}

/// Returns how long a step may take during an attack: twice its time on the idle server. Two seconds more are always
/// allowed, because tests run in parallel on busy machines, and short steps vary by more than their own length there.
fn allowed(idle: Duration) -> Duration {
    (2 * idle).max(idle + Duration::from_secs(2))
}
