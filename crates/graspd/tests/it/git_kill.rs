//! Kills the server with SIGKILL at random moments while two clients push. Every push that git reported as done must be
//! served afterwards.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Rng;
use grasp_sim::simulation::parallel::is_soak;
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text, ls_remote, refs, repo_path};
use crate::support::integrity::{entries, expect_intact_repos, expect_needed_objects, try_publish, try_served};
use crate::support::test_server::main_at;
use crate::support::{DEADLINE, Server, command, eventually};

const CLIENTS: usize = 2;

/// Pushes to each repository.
const PUSHES: usize = 10;

/// Returns the number of repositories of each client.
fn repositories() -> usize {
    if is_soak() { 10 } else { 2 }
}

/// Maximum time from the start of a server to its kill, in milliseconds.
const MAX_UPTIME_MILLIS: usize = 1_000;

/// Every nth server runs until it has completed a push of each client, so that large pushes are completed on slow
/// machines, too.
const LONG_RUN_INTERVAL: usize = 3;

const SETTINGS: [(&str, &str); 2] = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "error")];

/// A server that is killed and restarted. Its address changes with every start.
struct KilledServer {
    folder: TempDir,
    server: Mutex<Server>,
    /// Number of pushes of each client that git reported as done.
    done: [AtomicUsize; CLIENTS],
    /// Text that makes packs large.
    filler: String,
}

impl KilledServer {
    fn new() -> Self {
        let folder = TempDir::new().expect("cannot create a temporary folder");
        let server = Mutex::new(Server::spawn(command(folder.path(), &SETTINGS)));
        Self { folder, server, done: Default::default(), filler: incompressible_text(10_000_000) }
    }

    /// Kills the server and starts another one in its folder.
    fn restart(&self) {
        let mut server = self.server.lock().expect("lock is not poisoned");
        server.kill();
        *server = Server::spawn(command(self.folder.path(), &SETTINGS));
    }

    fn address(&self) -> SocketAddr {
        self.server.lock().expect("lock is not poisoned").address
    }

    fn url(&self, who: &Maintainer, d: &str) -> String {
        format!("http://{}{}", self.address(), repo_path(&who.npub(), d))
    }

    /// Publishes an event until it is answered.
    fn publish(&self, event: &SignedEvent) {
        let (accepted, text) = eventually("the event is answered", || try_publish(self.address(), event));
        assert!(accepted, "{text}: {}", event.json());
    }

    fn expect_served(&self, event: &SignedEvent) {
        let served = eventually("the query is answered", || try_served(self.address(), event));
        assert!(served, "git reported success, but this event is not served: {}", event.json());
    }

    fn done(&self) -> [usize; CLIENTS] {
        self.done.each_ref().map(|done| done.load(Ordering::Relaxed))
    }

    fn is_complete(&self) -> bool {
        self.done() == [repositories() * PUSHES; CLIENTS]
    }
}

/// The last state of a repository that was pushed.
struct PushedRepo {
    path: String,
    state: Arc<SignedEvent>,
    commit: String,
}

/// The results of one client.
#[derive(Default)]
struct ClientResult {
    repos: Vec<PushedRepo>,
    /// Number of pushes that failed because the server was killed.
    lost: usize,
}

/// Publishes states and pushes their commits, each until git reports success.
fn run_client(server: &KilledServer, client: usize, who: &Maintainer) -> ClientResult {
    let mut rng = Rng::new(20_264 + client as u64);
    let mut result = ClientResult::default();
    for repository in 0..repositories() {
        let d = format!("tool-{repository}");
        let work = WorkTree::new();
        let announcement = who.announce(&d, BASE_TIME, &[]);
        server.publish(&announcement);
        let mut last = None;
        for nth in 0..PUSHES {
            // The last push has some megabytes, so that the server is also killed while git indexes them.
            let bytes = if nth + 1 == PUSHES { 4_000_000 + rng.below(5_000_000) } else { 16 };
            let commit = work.commit("file", &format!("{repository} {nth} {}", &server.filler[..bytes]));
            let state = who.state(&d, BASE_TIME + nth as u64, &main_at(&commit));
            server.publish(&state);
            eventually("the push succeeds", || {
                let output = work.push(&server.url(who, &d), &[&format!("+{commit}:{MAIN}")]);
                // The server has no reason to reject the push: it may only fail because the server was killed.
                assert!(output.success || !output.stderr.contains("E-"), "{}", output.stderr);
                result.lost += usize::from(!output.success);
                output.success.then_some(())
            });
            server.expect_served(&state);
            server.expect_served(&announcement);
            server.done[client].fetch_add(1, Ordering::Relaxed);
            last = Some((state, commit));
        }
        let (state, commit) = last.expect("at least one push");
        result.repos.push(PushedRepo { path: repo_path(&who.npub(), &d), state, commit });
    }
    result
}

/// Waits for a random time. Every nth server runs until it has completed a push of each client.
fn let_run(server: &KilledServer, nth: usize, rng: &mut Rng) {
    let until = Instant::now() + Duration::from_millis(rng.below(MAX_UPTIME_MILLIS) as u64);
    let limit = Instant::now() + DEADLINE;
    let before = server.done();
    let has_pending_client = || {
        let clients = before.into_iter().zip(server.done());
        clients.into_iter().any(|(before, now)| before == now && now < repositories() * PUSHES)
    };
    let is_long_run = || nth.is_multiple_of(LONG_RUN_INTERVAL) && has_pending_client() && Instant::now() < limit;
    while !server.is_complete() && (Instant::now() < until || is_long_run()) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_reported_push_is_served_after_kills() {
    let server = KilledServer::new();
    let service = ServiceAddress::new("grasp.test", "").expect("valid host name");
    let mut kills = 0;
    let results: Vec<ClientResult> = thread::scope(|scope| {
        let (server, service) = (&server, &service);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let who = Maintainer::new(1 + client as u8, service);
                scope.spawn(move || run_client(server, client, &who))
            })
            .collect();
        let mut rng = Rng::new(20_263);
        // A client that gave up has panicked; its message is shown when it is joined.
        let gave_up = || clients.iter().all(thread::ScopedJoinHandle::is_finished);
        while !server.is_complete() && !gave_up() {
            let_run(server, kills, &mut rng);
            server.restart();
            kills += 1;
        }
        clients.into_iter().map(|client| client.join().expect("the pushing thread panicked")).collect()
    });
    let lost: usize = results.iter().map(|result| result.lost).sum();
    eprintln!("{kills} kills, {lost} lost pushes");
    let (min_kills, min_lost) = if is_soak() { (25, 10) } else { (4, 1) };
    assert!(kills >= min_kills && lost >= min_lost, "too few kills ({kills}) or lost pushes ({lost})");

    let process = server.server.lock().expect("lock is not poisoned");
    for PushedRepo { path, state, commit } in results.iter().flat_map(|result| &result.repos) {
        assert_eq!(try_served(process.address, state), Some(true), "{}", state.json());
        assert_eq!(ls_remote(&format!("http://{}{path}", process.address)).refs, refs(&main_at(commit)));
    }
    let paths: Vec<String> = results.iter().flat_map(|result| &result.repos).map(|repo| repo.path.clone()).collect();
    expect_needed_objects(&process, &paths);
    let folder = server.folder.path().join("data/git");
    expect_intact_repos(&folder);
    assert!(entries(&folder.join("staged")).is_empty());
}
