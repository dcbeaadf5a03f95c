//! `kill -9` at random moments while two clients push.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Chance;
use tempfile::TempDir;

use crate::support::git::{MAIN, Maintainer, THEN, Work, ls_remote, noise, refs, repo_path};
use crate::support::integrity::{entries, expect_objects, expect_sound, try_publish, try_served};
use crate::support::test_server::main_at;
use crate::support::{DEADLINE, Server, command, eventually};

const CLIENTS: usize = 2;

/// Repositories of each client, and pushes to each of them.
const REPOSITORIES: usize = 10;
const PUSHES: usize = 10;

/// Milliseconds that a server lives, at most.
const LIFE: usize = 1_000;

/// Every so many servers live until they have done a push of each client, so that large ones come to an end on slow machines, too.
const PATIENT: usize = 3;

const NAMED: [(&str, &str); 2] = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "error")];

/// The server of the moment, which everybody looks up anew.
struct AppState {
    folder: TempDir,
    server: Mutex<Server>,
    /// Pushes that git reported as done to each client.
    done: [AtomicUsize; CLIENTS],
    /// Letters to make packs large with.
    noise: String,
}

impl AppState {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let server = Mutex::new(Server::spawn(command(folder.path(), &NAMED)));
        Self { folder, server, done: Default::default(), noise: noise(10_000_000) }
    }

    /// Kills the server and starts another one in its folder.
    fn again(&self) {
        let mut server = self.server.lock().expect("it started");
        server.kill();
        *server = Server::spawn(command(self.folder.path(), &NAMED));
    }

    fn address(&self) -> SocketAddr {
        self.server.lock().expect("it started").address
    }

    fn url(&self, who: &Maintainer, d: &str) -> String {
        format!("http://{}{}", self.address(), repo_path(&who.npub(), d))
    }

    /// Publishes until it is answered.
    fn publish(&self, event: &SignedEvent) {
        let (accepted, text) = eventually("the event is answered", || try_publish(self.address(), event));
        assert!(accepted, "{text}: {}", event.json());
    }

    fn expect_served(&self, event: &SignedEvent) {
        let served = eventually("the question is answered", || try_served(self.address(), event));
        assert!(served, "git said that it is done, but this is not served: {}", event.json());
    }

    fn done(&self) -> [usize; CLIENTS] {
        self.done.each_ref().map(|done| done.load(Ordering::Relaxed))
    }

    fn is_over(&self) -> bool {
        self.done() == [REPOSITORIES * PUSHES; CLIENTS]
    }
}

/// A repository as its owner left it.
struct Left {
    path: String,
    state: Arc<SignedEvent>,
    commit: String,
}

/// What a client has done.
#[derive(Default)]
struct Record {
    left: Vec<Left>,
    /// Pushes that failed because the server went.
    lost: usize,
}

/// Publishes states and pushes what they say, each until git says that it is done.
fn push_on(house: &AppState, client: usize, who: &Maintainer) -> Record {
    let mut chance = Chance::new(20_264 + client as u64);
    let mut record = Record::default();
    for repository in 0..REPOSITORIES {
        let d = format!("tool-{repository}");
        let work = Work::new();
        let announcement = who.announce(&d, THEN, &[]);
        house.publish(&announcement);
        let mut last = None;
        for nth in 0..PUSHES {
            // The last brings some megabytes, so that the server is also killed while git takes them apart.
            let bytes = if nth + 1 == PUSHES { 4_000_000 + chance.below(5_000_000) } else { 16 };
            let commit = work.commit("file", &format!("{repository} {nth} {}", &house.noise[..bytes]));
            let state = who.state(&d, THEN + nth as u64, &main_at(&commit));
            house.publish(&state);
            eventually("git pushes", || {
                let said = work.push(&house.url(who, &d), &[&format!("+{commit}:{MAIN}")]);
                // The server has no reason to refuse it: if it is not done, the server is gone.
                assert!(said.success || !said.err.contains("E-"), "{}", said.err);
                record.lost += usize::from(!said.success);
                said.success.then_some(())
            });
            house.expect_served(&state);
            house.expect_served(&announcement);
            house.done[client].fetch_add(1, Ordering::Relaxed);
            last = Some((state, commit));
        }
        let (state, commit) = last.expect("some");
        record.left.push(Left { path: repo_path(&who.npub(), &d), state, commit });
    }
    record
}

/// Lets a server live for a while, which may be until it has done something for everybody.
fn live(house: &AppState, nth: usize, chance: &mut Chance) {
    let until = Instant::now() + Duration::from_millis(chance.below(LIFE) as u64);
    let limit = Instant::now() + DEADLINE;
    let before = house.done();
    let is_owing = || {
        let clients = before.into_iter().zip(house.done());
        clients.into_iter().any(|(before, now)| before == now && now < REPOSITORIES * PUSHES)
    };
    let is_patient = || nth.is_multiple_of(PATIENT) && is_owing() && Instant::now() < limit;
    while !house.is_over() && (Instant::now() < until || is_patient()) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_git_reported_as_done_is_served() {
    let house = AppState::new();
    let service = ServiceAddress::new("grasp.test", "").expect("a host name");
    let mut kills = 0;
    let records: Vec<Record> = thread::scope(|scope| {
        let (house, service) = (&house, &service);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let who = Maintainer::new(1 + client as u8, service);
                scope.spawn(move || push_on(house, client, &who))
            })
            .collect();
        let mut chance = Chance::new(20_263);
        // A client that gave up has panicked, and says why when it is joined.
        let gave_up = || clients.iter().all(thread::ScopedJoinHandle::is_finished);
        while !house.is_over() && !gave_up() {
            live(house, kills, &mut chance);
            house.again();
            kills += 1;
        }
        clients.into_iter().map(|client| client.join().expect("it pushed")).collect()
    });
    let lost: usize = records.iter().map(|record| record.lost).sum();
    eprintln!("{kills} kills, {lost} lost pushes");
    assert!(kills >= 25 && lost >= 10, "{kills} kills and {lost} lost pushes prove too little");

    let server = house.server.lock().expect("it started");
    for Left { path, state, commit } in records.iter().flat_map(|record| &record.left) {
        assert_eq!(try_served(server.address, state), Some(true), "{}", state.json());
        assert_eq!(ls_remote(&format!("http://{}{path}", server.address)).refs, refs(&main_at(commit)));
    }
    let paths: Vec<String> = records.iter().flat_map(|record| &record.left).map(|left| left.path.clone()).collect();
    expect_objects(&server, &paths);
    let folder = house.folder.path().join("data/git");
    expect_sound(&folder);
    assert!(entries(&folder.join("staged")).is_empty());
}
