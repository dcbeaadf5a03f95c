//! Lets single system calls along one push, one event, one clone, one fetch of missing git data and one start fail.
//! Afterwards, nothing that was acknowledged is lost, everything that is served is complete, the message is clear, and the
//! next attempt succeeds.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::Author;
use tempfile::TempDir;

use crate::support::fault_injection::{FaultInjection, SystemCall};
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, repo_path, try_ls_remote};
use crate::support::git_server::GitServer;
use crate::support::integrity::{expect_intact_repos, expect_needed_objects, try_publish, try_served};
use crate::support::peers::{relay_url, unused_address};
use crate::support::{Server, command, eventually};

/// What a client, another git server or the operator has a server do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Push,
    Event,
    Clone,
    /// Fetches missing git data from another git server.
    Fetch,
    Start,
}

impl Operation {
    /// Returns whether a message says what failed. If the server cannot send, a client only knows that the connection ended.
    fn is_clear(self, call: SystemCall, message: &str) -> bool {
        match self {
            _ if call == SystemCall::Send => !message.is_empty(),
            Self::Push => message.contains("E-") || message.contains("remote error: "),
            Self::Event => message.starts_with("error: ") && message.contains("try again later"),
            // If git fails in the middle of a pack, the client's git only says that it is incomplete.
            Self::Clone => message.contains("fatal: "),
            Self::Fetch => message.contains("error="),
            Self::Start => message.contains("graspd: "),
        }
    }

    /// Returns how many calls of each kind fail in the short tests. A git server that seems to fail is not asked for a while.
    fn samples(self) -> u32 {
        if self == Self::Fetch { 2 } else { 5 }
    }
}

/// A server whose system calls can fail.
struct FaultyServer {
    faults: Rc<FaultInjection>,
    folder: Arc<TempDir>,
    address: SocketAddr,
    /// `None` while it does not run.
    server: Option<Server>,
    owner: Maintainer,
    work: WorkTree,
    git_server: GitServer,
    /// The time of the last signed event. Every event has its own.
    time: u64,
    /// Events that the server has acknowledged and must serve.
    acknowledged: Vec<Arc<SignedEvent>>,
    /// The event that the operation is about to publish or to complete.
    event: Arc<SignedEvent>,
    /// The commits that the branch may have: before the operation, and after it.
    commits: [String; 2],
    /// The length of the log at the start of the operation.
    log_start: usize,
}

impl FaultyServer {
    /// Starts a server that serves one repository.
    fn new() -> Self {
        let address = unused_address();
        let service = ServiceAddress::new(&address.to_string(), "").expect("valid address");
        let (owner, work, git_server) = (Maintainer::new(1, &service), WorkTree::new(), GitServer::start());
        let path = repo_path(&owner.npub(), "tool");
        let tags = vec![
            vec!["d".to_owned(), "tool".to_owned()],
            vec!["clone".to_owned(), format!("http://{address}{path}"), git_server.url("tool")],
            vec!["relays".to_owned(), relay_url(address)],
        ];
        let event = Author::new(1).sign_owned(kinds::ANNOUNCEMENT, BASE_TIME, tags, "");
        let mut server = Self {
            faults: Rc::new(FaultInjection::new()),
            folder: Arc::new(TempDir::new().expect("cannot create a temporary folder")),
            address,
            server: None,
            owner,
            work,
            git_server,
            time: BASE_TIME,
            acknowledged: Vec::new(),
            event,
            commits: Default::default(),
            log_start: 0,
        };
        server.server = Some(server.try_start().expect("the server starts"));
        server.attempt(Operation::Event).expect("the announcement is accepted");
        let announcement = server.event.clone();
        server.prepare(Operation::Push);
        server.attempt(Operation::Push).expect("the push is accepted");
        server.acknowledged = vec![announcement, server.event.clone()];
        server
    }

    fn try_start(&self) -> Result<Server, String> {
        let address = self.address.to_string();
        let url = self.git_server.url("tool");
        let git_host = url.split([':', '/']).nth(3).expect("the URL has a host");
        let domain_limits = format!("{git_host}=10,6000");
        let settings = [
            ("BIND_ADDRESS", address.as_str()),
            ("DOMAIN", address.as_str()),
            ("SYNC_ENABLE", "true"),
            ("SYNC_ALLOW_NON_GLOBAL_TARGETS", "true"),
            // Every attempt is a request.
            ("SYNC_DOMAIN_LIMITS", domain_limits.as_str()),
            // Failed fetches of the same URL are only logged at this level.
            ("LOG_LEVEL", "warn,fetch=debug"),
        ];
        let mut command = command(self.folder.path(), &settings);
        self.faults.apply(&mut command);
        let log = File::options().create(true).append(true).open(self.log_path()).expect("cannot open the log file");
        command.stderr(log);
        Server::try_spawn_at(self.address, command).map_err(|status| format!("{status}: {}", self.log()))
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Returns what the server has logged since the operation was prepared.
    fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log[self.log_start.min(log.len())..]).into_owned()
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path())
    }

    /// Does everything that comes before an operation.
    fn prepare(&mut self, operation: Operation) {
        self.time += 1;
        self.log_start = fs::metadata(self.log_path()).map_or(0, |metadata| metadata.len() as usize);
        match operation {
            Operation::Push | Operation::Fetch => {
                let commit = self.work.commit("file", &format!("version {}", self.time));
                self.event = self.owner.state("tool", self.time, &[(MAIN, &commit)]);
                let (accepted, text) = try_publish(self.address, &self.event).expect("the server answers");
                assert!(accepted, "{text}");
                self.commits = [self.commits[1].clone(), commit];
                if operation == Operation::Fetch {
                    self.git_server.import_refs("tool", &self.work, &[&format!("+{MAIN}")]);
                }
            }
            Operation::Event => self.event = Author::new(2).issue(self.time, &self.owner.repo("tool")),
            // What was cloned before is cached.
            Operation::Clone => {
                self.prepare(Operation::Push);
                self.attempt(Operation::Push).expect("the push is accepted");
                self.expect_done(Operation::Push);
            }
            Operation::Start => self.server.take().expect("the server runs").kill(),
        }
    }

    /// Attempts an operation. On failure, returns the message that the client or the operator gets.
    fn attempt(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Push => {
                let output = self.work.push(&self.url(), &[&format!("+{}:{MAIN}", self.commits[1])]);
                if output.success { Ok(()) } else { Err(output.stderr) }
            }
            Operation::Event => match try_publish(self.address, &self.event) {
                Some((true, _)) => Ok(()),
                Some((false, text)) => Err(text),
                None => Err(CONNECTION_ENDED.to_owned()),
            },
            Operation::Clone => {
                let (clone, output) = WorkTree::try_clone(&[], &self.url(), &[]);
                if !output.success {
                    return Err(output.stderr);
                }
                clone.fsck();
                assert!(self.commits.contains(&clone.oid("HEAD")), "the clone has an unknown commit");
                Ok(())
            }
            Operation::Fetch => self.attempt_fetch(),
            Operation::Start => self.try_start().map(|server| self.server = Some(server)),
        }
    }

    /// Has the server fetch missing git data, and waits until it has done so or has logged a failure.
    fn attempt_fetch(&self) -> Result<(), String> {
        let before = self.log().len();
        let retried = eventually("the server knows what is missing", || {
            let mut retry = command(self.folder.path(), &[]);
            let output = retry.args(["purgatory", "retry"]).output().expect("cannot run graspd");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match output.status.success() {
                // A restart may have used what was fetched before.
                true if text(&output.stdout).contains("No git data is missing") => {
                    (try_served(self.address, &self.event) == Some(true)).then_some(Ok(()))
                }
                true => Some(Ok(())),
                false => Some(Err(text(&output.stderr))),
            }
        });
        retried?;
        let log = || self.log().get(before..).map(str::to_owned).unwrap_or_default();
        let failure = || ["fetch failed", "WARN", "ERROR"].iter().any(|text| log().contains(text)).then(|| Err(log()));
        // The server would count queries as calls, so the file is read.
        let packed_refs = self.git_folder().join("repos").join(&self.path()[1..]).join("packed-refs");
        let has_ref = || fs::read_to_string(&packed_refs).is_ok_and(|text| text.contains(&self.commits[1]));
        eventually("the ref is written, or a failure is logged", || if has_ref() { Some(Ok(())) } else { failure() })?;
        eventually("the state is served, or a failure is logged", || {
            if try_served(self.address, &self.event) == Some(true) { Some(Ok(())) } else { failure() }
        })
    }

    fn git_folder(&self) -> PathBuf {
        self.folder.path().join("data/git")
    }

    /// Returns whether the process has ended.
    fn has_ended(&mut self) -> bool {
        self.server.as_mut().is_none_or(|server| server.child.try_wait().expect("cannot wait for the server").is_some())
    }

    /// Restarts the server if it has ended, as a service manager does.
    fn restart_if_ended(&mut self) {
        if self.has_ended() {
            self.server = Some(self.try_start().unwrap_or_else(|error| panic!("the next start fails: {error}")));
        }
    }

    /// Asserts that nothing acknowledged is lost and nothing incomplete is served.
    fn expect_consistent(&self) {
        let is_served = |event: &SignedEvent| try_served(self.address, event).expect("the query is answered");
        for event in &self.acknowledged {
            let is_replaced = || event.kind == kinds::STATE && is_served(&self.event);
            assert!(is_served(event) || is_replaced(), "lost: {}", event.json());
        }
        let refs = try_ls_remote(&self.url()).expect("the refs are served").refs;
        let commit = refs.get(MAIN).expect("the branch is served");
        assert!(self.commits.contains(commit), "{commit} instead of {:?}", self.commits);
        expect_needed_objects(self.server.as_ref().expect("the server runs"), &[self.path()]);
    }

    /// Asserts that an operation is complete: its event is served, and its branch has the new commit.
    fn expect_done(&mut self, operation: Operation) {
        if matches!(operation, Operation::Clone | Operation::Start) {
            return;
        }
        eventually("the event is served", || (try_served(self.address, &self.event) == Some(true)).then_some(()));
        if operation != Operation::Event {
            let refs = try_ls_remote(&self.url()).expect("the refs are served").refs;
            assert_eq!(refs.get(MAIN), Some(&self.commits[1]));
            self.commits[0] = self.commits[1].clone();
            // The new state has replaced it.
            self.acknowledged.retain(|event| event.kind != self.event.kind);
        }
        self.acknowledged.push(self.event.clone());
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- log\n{}--", self.log());
        }
    }
}

/// What a client reports if the server closes the connection without an answer.
const CONNECTION_ENDED: &str = "the connection ended";

/// Lets the nth call of a kind fail during an operation, and checks everything afterwards. Returns whether there were so many
/// calls, and the message if the operation failed.
fn expect_recovery(
    server: &mut FaultyServer,
    operation: Operation,
    call: SystemCall,
    nth: u32,
) -> (bool, Option<String>) {
    server.prepare(operation);
    let faults = server.faults.clone();
    let (result, count) = faults.with_failing(call, nth, || server.attempt(operation));
    let log = server.log();
    assert!(!log.contains("panicked"), "the server panicked: {log}");
    if log.contains("shutting down") {
        eventually("the server ends", || server.has_ended().then_some(()));
    }
    server.restart_if_ended();
    server.expect_consistent();
    let message = match result {
        Ok(()) => None,
        // It has been started again.
        Err(message) if operation == Operation::Start => Some(message),
        Err(message) => {
            eventually("the next attempt succeeds", || match server.attempt(operation) {
                Ok(()) => Some(()),
                Err(next) if next.contains("try again later") => None,
                Err(next) => panic!("the next attempt fails: {next}\nafter: {message}\n{}", server.log()),
            });
            Some(message)
        }
    };
    server.expect_done(operation);
    (count >= nth, message)
}

/// Lets calls of every kind fail during an operation; `choose` selects them from the number of calls.
fn sweep(operation: Operation, choose: impl Fn(u32) -> Vec<u32>) {
    let (mut server, mut failed_calls) = (FaultyServer::new(), 0);
    for call in SystemCall::ALL {
        server.prepare(operation);
        let faults = server.faults.clone();
        let (result, count) = faults.with_failing(call, 0, || server.attempt(operation));
        result.unwrap_or_else(|error| panic!("{operation:?} without a fault: {error}"));
        server.expect_done(operation);
        for nth in choose(count) {
            eprintln!("{operation:?}: {call} {nth} of {count}");
            let (is_failed, message) = expect_recovery(&mut server, operation, call, nth);
            failed_calls += usize::from(is_failed);
            if let Some(message) = message {
                eprintln!("{}", message.trim_end());
                assert!(operation.is_clear(call, &message), "unclear message: {message}");
            }
        }
        expect_intact_repos(&server.git_folder());
    }
    assert!(failed_calls > 0, "no call failed: is the library loaded?");
}

/// Returns some of `count` calls: the first, the last, and some between them.
fn some(count: u32, samples: u32) -> Vec<u32> {
    let step = count.div_ceil(samples).max(1);
    let calls: BTreeSet<u32> = (1..=count).step_by(step as usize).chain((count > 0).then_some(count)).collect();
    calls.into_iter().collect()
}

/// Lets some calls of each kind fail.
fn sweep_some(operation: Operation) {
    sweep(operation, |count| some(count, operation.samples()));
}

/// Lets every call fail.
fn sweep_all(operation: Operation) {
    sweep(operation, |count| (1..=count).collect());
}

#[test]
fn some_calls_of_a_push() {
    sweep_some(Operation::Push);
}

#[test]
fn some_calls_of_an_event() {
    sweep_some(Operation::Event);
}

#[test]
fn some_calls_of_a_clone() {
    sweep_some(Operation::Clone);
}

#[test]
fn some_calls_of_a_fetch() {
    sweep_some(Operation::Fetch);
}

#[test]
fn some_calls_of_a_start() {
    sweep_some(Operation::Start);
}

#[test]
#[ignore = "takes some minutes"]
fn all_calls_of_a_push() {
    sweep_all(Operation::Push);
}

#[test]
#[ignore = "takes some minutes"]
fn all_calls_of_an_event() {
    sweep_all(Operation::Event);
}

#[test]
#[ignore = "takes some minutes"]
fn all_calls_of_a_clone() {
    sweep_all(Operation::Clone);
}

#[test]
#[ignore = "takes some minutes"]
fn all_calls_of_a_fetch() {
    sweep_all(Operation::Fetch);
}

#[test]
#[ignore = "takes some minutes"]
fn all_calls_of_a_start() {
    sweep_all(Operation::Start);
}
