//! Crash recovery of git operations. The server is killed at every crash point (`grasp_git::crash_point`) that an
//! operation passes. After a restart it must reach the same result as without the crash
//! (`docs/design/admission.md#crash-recovery`). A soak run tests all crash points of all operations; an everyday run tests
//! every fourth of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use grasp_sim::simulation::parallel::is_soak;
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, OLD, WorkTree, repo_path};
use crate::support::integrity::{ServerSnapshot, expect_intact_repos, expect_needed_objects, try_publish};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{DEADLINE, Server, command, eventually};

/// One step of a client.
enum Step {
    /// Counts crash points from here on. Without this step they are counted from the first step on.
    StartCounting,
    Publish(Arc<SignedEvent>),
    /// Pushes a refspec to a path.
    Push(String, String),
}

/// The steps of an operation, and a check that the operation is complete.
struct Plan {
    work: WorkTree,
    steps: Vec<Step>,
    is_complete: Box<dyn Fn(&ServerSnapshot) -> bool>,
}

impl Plan {
    /// Returns whether the server does the operation by itself, after the last step of the client.
    fn is_triggered_by_time(&self) -> bool {
        matches!(self.steps.last(), Some(Step::StartCounting))
    }

    fn start_counting(&self, run: &ServerRun<'_>) {
        if !self.is_triggered_by_time() {
            run.start_counting();
        }
    }

    fn is_done(&self, run: &ServerRun<'_>, users: &Users) -> bool {
        let (server, git, paths) = (&run.server, run.git_folder(), users.paths());
        if self.is_triggered_by_time() {
            let snapshot = ServerSnapshot::take(server, &git, &paths);
            return snapshot.has_empty_purgatory() && (self.is_complete)(&snapshot);
        }
        (self.is_complete)(&ServerSnapshot::take_without_purgatory(server, &git, &paths))
    }
}

/// An operation of the server, and the crash points that it passes.
struct Operation {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    prepare: fn(&mut TestServer, &Users) -> Plan,
    points: &'static [&'static [&'static str]],
}

/// The users of a test; each has a repository `tool`.
struct Users {
    owner: Maintainer,
    maintainer: Maintainer,
    follower: Maintainer,
    contributor: Maintainer,
}

impl Users {
    fn new(service: &ServiceAddress) -> Self {
        let [owner, maintainer, follower, contributor] = [1, 2, 4, 5].map(|n| Maintainer::new(n, service));
        Self { owner, maintainer, follower, contributor }
    }

    fn paths(&self) -> Vec<String> {
        let announced = [&self.owner, &self.maintainer, &self.follower].map(path);
        [&announced[..], &[self.submissions_path()]].concat()
    }

    fn submissions_path(&self) -> String {
        format!("/prs{}", path(&self.contributor))
    }

    /// Returns a pull request to the owner's repository.
    fn pull_request(&self, tip: &str, clone: &[&str]) -> Arc<SignedEvent> {
        self.contributor.pull_request(BASE_TIME, &[&self.owner.repo("tool")], tip, clone)
    }
}

fn path(who: &Maintainer) -> String {
    repo_path(&who.npub(), "tool")
}

fn pull_ref(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

/// Returns whether a repository has a ref with this value.
fn has_ref(snapshot: &ServerSnapshot, path: &str, name: &str, oid: &str) -> bool {
    snapshot.refs.get(path).is_some_and(|remote| remote.refs.get(name).is_some_and(|value| value == oid))
}

/// Returns the step that pushes `main` to a path.
fn push_main(path: String) -> Step {
    Step::Push(path, format!("+{MAIN}:{MAIN}"))
}

const SUBMISSIONS_ENABLED: (&str, &str) = ("GRASP06_ENABLE", "true");
const SHORT_EXPIRY: (&str, &str) = ("PURGATORY_EXPIRY_SECS", "2");

/// Crash points of every transaction of the writer.
const WRITER: &[&str] = &["writer.commit", "writer.committed", "writer.shown", "writer.answered"];
/// Crash points of the request of a push.
const PUSH: &[&str] = &["push.received", "push.checked", "push.done"];
/// Crash points of moving packs into a pool.
const ADOPT: &[&str] = &["align.pack", "align.idx"];
/// Crash points of changing the pools that a repository reads.
const ALTERNATES: &[&str] = &["align.alternates", "replace.written"];
/// Crash points of creating the folder of a repository.
const FOLDER: &[&str] = &["align.folder", "align.alternates", "replace.written"];
/// Crash points of deleting a repository.
const DELETE: &[&str] = &["delete.refs", "delete.head", "delete.released", "trash.moved"];
/// Crash points of leaving the packs of a deleted repository to the only repository that reads them.
const RELEASE: &[&str] = &["release.linked", "release.alternates", "replace.written"];

/// All operations, with every crash point that each of them passes.
const OPERATIONS: [Operation; 18] = [
    Operation { name: "first push", settings: &[], prepare: first_push, points: &[WRITER, PUSH, FOLDER, ADOPT] },
    Operation { name: "later push", settings: &[], prepare: later_push, points: &[WRITER, PUSH, ADOPT] },
    Operation {
        name: "state whose data is present",
        settings: &[],
        prepare: state_with_present_data,
        points: &[WRITER],
    },
    Operation { name: "follower", settings: &[], prepare: follower, points: &[WRITER, PUSH, ADOPT] },
    Operation { name: "new follower", settings: &[], prepare: new_follower, points: &[WRITER, FOLDER] },
    Operation {
        name: "push to a follower",
        settings: &[],
        prepare: push_to_a_follower,
        points: &[WRITER, PUSH, ADOPT, ALTERNATES],
    },
    Operation { name: "removed maintainer", settings: &[], prepare: removed_maintainer, points: &[WRITER] },
    Operation {
        name: "upload without event",
        settings: &[],
        prepare: upload_without_event,
        points: &[WRITER, PUSH, &["stage.moved"]],
    },
    Operation { name: "event after its upload", settings: &[], prepare: event_after_upload, points: &[WRITER, ADOPT] },
    Operation { name: "pull request push", settings: &[], prepare: pull_request_push, points: &[WRITER, PUSH, ADOPT] },
    Operation {
        name: "submission",
        settings: &[SUBMISSIONS_ENABLED],
        prepare: submission,
        points: &[WRITER, PUSH, FOLDER, ADOPT, &["align.pulls"]],
    },
    Operation { name: "state expires", settings: &[SHORT_EXPIRY], prepare: state_expires, points: &[WRITER] },
    Operation {
        name: "announcement expires",
        settings: &[SHORT_EXPIRY],
        prepare: announcement_expires,
        points: &[WRITER],
    },
    Operation {
        name: "upload expires",
        settings: &[SHORT_EXPIRY],
        prepare: upload_expires,
        points: &[WRITER, &["trash.moved"]],
    },
    Operation { name: "state deleted", settings: &[], prepare: state_deleted, points: &[WRITER] },
    Operation { name: "pull request deleted", settings: &[], prepare: pull_request_deleted, points: &[WRITER] },
    Operation {
        name: "announcement deleted",
        settings: &[],
        prepare: announcement_deleted,
        points: &[WRITER, DELETE, RELEASE],
    },
    Operation { name: "withdrawal", settings: &[], prepare: withdrawal, points: &[WRITER, DELETE, RELEASE] },
];

// ---- The operations ---------------------------------------------------------------------------

fn first_push(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.publish_held(&users.owner.announce("tool", BASE_TIME, &[]));
    server.publish_held(&users.owner.state("tool", BASE_TIME, &main_at(&c1)));
    let to = path(&users.owner);
    Plan {
        work,
        steps: vec![push_main(to.clone())],
        is_complete: Box::new(move |snapshot| has_ref(snapshot, &to, MAIN, &c1)),
    }
}

fn later_push(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    server.publish_held(&users.owner.state("tool", BASE_TIME + 1, &main_at(&c2)));
    let to = path(&users.owner);
    Plan {
        work,
        steps: vec![push_main(to.clone())],
        is_complete: Box::new(move |snapshot| has_ref(snapshot, &to, MAIN, &c2)),
    }
}

/// A state whose objects are already present. It changes HEAD too.
fn state_with_present_data(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.create_repo(&users.owner, "tool", &[], &work, &[(MAIN, &c2), (OLD, &c1)]);
    let state = users.owner.state("tool", BASE_TIME + 1, &[(OLD, &c2)]);
    let (id, at) = (state.id.to_string(), path(&users.owner));
    let is_complete =
        move |snapshot: &ServerSnapshot| snapshot.served.contains(&id) && has_ref(snapshot, &at, OLD, &c2);
    Plan { work, steps: vec![Step::Publish(state)], is_complete: Box::new(is_complete) }
}

/// Creates a repository of the owner, and one of the follower, whose announcement lists the owner as maintainer.
fn create_followed_repo(server: &mut TestServer, users: &Users) -> (WorkTree, String, Arc<SignedEvent>) {
    let (work, c1) = one_commit("one");
    let (announcement, _) = server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    server.publish(&users.follower.announce("tool", BASE_TIME, &[&users.owner]));
    server.eventually_refs(&users.follower, "tool", &main_at(&c1));
    (work, c1, announcement)
}

fn follower(server: &mut TestServer, users: &Users) -> Plan {
    let (work, _, _) = create_followed_repo(server, users);
    let c2 = work.commit("file", "two");
    server.publish_held(&users.owner.state("tool", BASE_TIME + 1, &main_at(&c2)));
    let (to, at) = (path(&users.owner), path(&users.follower));
    Plan { work, steps: vec![push_main(to)], is_complete: Box::new(move |snapshot| has_ref(snapshot, &at, MAIN, &c2)) }
}

fn new_follower(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    let announcement = users.follower.announce("tool", BASE_TIME, &[&users.owner]);
    let at = path(&users.follower);
    let id = announcement.id.to_string();
    let is_complete =
        move |snapshot: &ServerSnapshot| snapshot.served.contains(&id) && has_ref(snapshot, &at, MAIN, &c1);
    Plan { work, steps: vec![Step::Publish(announcement)], is_complete: Box::new(is_complete) }
}

/// The owner's state is pushed to the follower's repository, whose pool the owner's repository does not read.
fn push_to_a_follower(server: &mut TestServer, users: &Users) -> Plan {
    let (work, _, _) = create_followed_repo(server, users);
    let c2 = work.commit("file", "two");
    server.publish_held(&users.owner.state("tool", BASE_TIME + 1, &main_at(&c2)));
    let (to, at) = (path(&users.follower), path(&users.owner));
    Plan { work, steps: vec![push_main(to)], is_complete: Box::new(move |snapshot| has_ref(snapshot, &at, MAIN, &c2)) }
}

/// The owner's repository has refs at objects that the maintainer pushed to another repository, whose pool it may not
/// read once the maintainer is removed. The ref of a pull request stays.
fn removed_maintainer(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[&users.maintainer], &work, &main_at(&c1));
    server.publish(&users.maintainer.announce("tool", BASE_TIME, &[]));
    let c2 = work.commit("file", "two");
    let state = users.maintainer.state("tool", BASE_TIME + 1, &main_at(&c2));
    server.publish_held(&state);
    work.push(&server.url(&users.maintainer, "tool"), &["main"]).expect_success();
    server.eventually_refs(&users.owner, "tool", &main_at(&c2));
    let request = users.pull_request(&c2, &[]);
    server.publish(&request);
    server.eventually_refs(&users.owner, "tool", &[(MAIN, &c2), (&pull_ref(&request), &c2)]);
    let alone = users.owner.announce("tool", BASE_TIME + 1, &[]);
    let (id, at) = (alone.id.to_string(), path(&users.owner));
    let is_complete =
        move |snapshot: &ServerSnapshot| snapshot.served.contains(&id) && has_ref(snapshot, &at, MAIN, &c1);
    Plan { work, steps: vec![Step::Publish(alone)], is_complete: Box::new(is_complete) }
}

/// Creates a repository of the owner; returns a working tree with a commit for a pull request.
fn create_repo_with_feature(server: &mut TestServer, users: &Users) -> (WorkTree, String) {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    work.branch("feature");
    let tip = work.commit("feature", "two");
    (work, tip)
}

fn upload_without_event(server: &mut TestServer, users: &Users) -> Plan {
    let (work, tip) = create_repo_with_feature(server, users);
    let request = users.pull_request(&tip, &[]);
    let push = Step::Push(path(&users.owner), format!("{tip}:{}", pull_ref(&request)));
    Plan { work, steps: vec![push], is_complete: Box::new(|snapshot| snapshot.staged == 1) }
}

fn event_after_upload(server: &mut TestServer, users: &Users) -> Plan {
    let (work, tip) = create_repo_with_feature(server, users);
    let request = users.pull_request(&tip, &[]);
    work.push(&server.url(&users.owner, "tool"), &[&format!("{tip}:{}", pull_ref(&request))]).expect_success();
    let (id, at, name) = (request.id.to_string(), path(&users.owner), pull_ref(&request));
    let is_complete =
        move |snapshot: &ServerSnapshot| snapshot.served.contains(&id) && has_ref(snapshot, &at, &name, &tip);
    Plan { work, steps: vec![Step::Publish(request)], is_complete: Box::new(is_complete) }
}

fn pull_request_push(server: &mut TestServer, users: &Users) -> Plan {
    let (work, tip) = create_repo_with_feature(server, users);
    let request = users.pull_request(&tip, &[]);
    server.publish_held(&request);
    let (to, name) = (path(&users.owner), pull_ref(&request));
    let push = Step::Push(to.clone(), format!("{tip}:{name}"));
    Plan { work, steps: vec![push], is_complete: Box::new(move |snapshot| has_ref(snapshot, &to, &name, &tip)) }
}

/// A submission to `/prs/` is copied to its target repository.
fn submission(server: &mut TestServer, users: &Users) -> Plan {
    let (work, tip) = create_repo_with_feature(server, users);
    let request = users.pull_request(&tip, &[&server.public_prs_url(&users.contributor, "tool")]);
    server.publish_held(&request);
    let (to, at, name) = (users.submissions_path(), path(&users.owner), pull_ref(&request));
    let push = Step::Push(to.clone(), format!("{tip}:{name}"));
    let is_complete =
        move |snapshot: &ServerSnapshot| has_ref(snapshot, &to, &name, &tip) && has_ref(snapshot, &at, &name, &tip);
    Plan { work, steps: vec![push], is_complete: Box::new(is_complete) }
}

fn state_expires(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    let state = users.owner.state("tool", BASE_TIME + 1, &main_at(&"b".repeat(40)));
    Plan { work, steps: vec![Step::Publish(state), Step::StartCounting], is_complete: Box::new(|_| true) }
}

fn announcement_expires(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[], &work, &main_at(&c1));
    let announcement = users.follower.announce("tool", BASE_TIME, &[]);
    let is_complete = |snapshot: &ServerSnapshot| snapshot.refs.len() == 1;
    Plan { work, steps: vec![Step::Publish(announcement), Step::StartCounting], is_complete: Box::new(is_complete) }
}

fn upload_expires(server: &mut TestServer, users: &Users) -> Plan {
    let plan = upload_without_event(server, users);
    let is_complete = |snapshot: &ServerSnapshot| snapshot.staged == 0;
    Plan {
        steps: plan.steps.into_iter().chain([Step::StartCounting]).collect(),
        is_complete: Box::new(is_complete),
        ..plan
    }
}

/// The repository goes back to an earlier state, whose commit is present.
fn state_deleted(server: &mut TestServer, users: &Users) -> Plan {
    let (work, c1) = one_commit("one");
    server.create_repo(&users.owner, "tool", &[&users.maintainer], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let state = server.push_state(&users.owner, &users.maintainer, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    let (at, deletion) = (path(&users.owner), users.maintainer.delete(BASE_TIME + 2, &[&state]));
    Plan {
        work,
        steps: vec![Step::Publish(deletion)],
        is_complete: Box::new(move |snapshot| has_ref(snapshot, &at, MAIN, &c1)),
    }
}

fn pull_request_deleted(server: &mut TestServer, users: &Users) -> Plan {
    let (work, tip) = create_repo_with_feature(server, users);
    let request = users.pull_request(&tip, &[]);
    server.publish_held(&request);
    let name = pull_ref(&request);
    work.push(&server.url(&users.owner, "tool"), &[&format!("{tip}:{name}")]).expect_success();
    let (at, deletion) = (path(&users.owner), users.contributor.delete(BASE_TIME, &[&request]));
    Plan {
        work,
        steps: vec![Step::Publish(deletion)],
        is_complete: Box::new(move |snapshot| !has_ref(snapshot, &at, &name, &tip)),
    }
}

/// The follower's repository has to copy objects first.
fn announcement_deleted(server: &mut TestServer, users: &Users) -> Plan {
    let (work, _, announcement) = create_followed_repo(server, users);
    let deletion = users.owner.delete(BASE_TIME, &[&announcement]);
    Plan { work, steps: vec![Step::Publish(deletion)], is_complete: Box::new(|snapshot| snapshot.folders.len() == 1) }
}

fn withdrawal(server: &mut TestServer, users: &Users) -> Plan {
    let (work, _, _) = create_followed_repo(server, users);
    let elsewhere = users.owner.announce_elsewhere("tool", BASE_TIME + 1, &[]);
    Plan { work, steps: vec![Step::Publish(elsewhere)], is_complete: Box::new(|snapshot| snapshot.folders.len() == 1) }
}

// ---- The test run -----------------------------------------------------------------------------

/// A running server in a folder.
struct ServerRun<'a> {
    folder: &'a Path,
    server: Server,
}

impl<'a> ServerRun<'a> {
    /// Starts a server that kills itself at the given crash point (`name:nth`). Crash points are counted from
    /// [`start_counting`](Self::start_counting) on.
    fn start(folder: &'a Path, settings: &[(&str, &str)], crash_point: Option<&str>) -> Self {
        let named = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "error")];
        let mut command = command(folder, &[&named, settings].concat());
        command.env("GRASPD_CRASH_LOG", folder.join("passed"));
        command.envs(crash_point.map(|point| ("GRASPD_CRASH_AT", point)));
        Self { folder, server: Server::spawn(command) }
    }

    fn start_counting(&self) {
        fs::write(self.folder.join("passed"), "").expect("cannot write the file");
    }

    /// Takes the steps of a plan from index `from` on. Returns the number of steps that were taken when the last one
    /// was acknowledged or the server was killed.
    fn take_steps(&mut self, plan: &Plan, from: usize) -> usize {
        for (nth, step) in plan.steps.iter().enumerate().skip(from) {
            let (acknowledged, error) = match step {
                Step::StartCounting => {
                    self.start_counting();
                    (true, String::new())
                }
                Step::Publish(event) => {
                    let answer = try_publish(self.server.address, event);
                    (answer.is_some(), "no answer".to_owned())
                }
                Step::Push(path, refspec) => {
                    let url = format!("http://{}{path}", self.server.address);
                    let output = plan.work.push(&url, &[refspec]);
                    (output.success, output.stderr)
                }
            };
            if !acknowledged {
                assert!(self.ends_within(DEADLINE), "the server still runs: {error}");
                return nth;
            }
        }
        plan.steps.len()
    }

    fn ends_within(&mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            if let Some(status) = self.server.child.try_wait().expect("cannot wait for the server") {
                assert_eq!(status.signal(), Some(9), "{status}");
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    fn git_folder(&self) -> PathBuf {
        self.folder.join("data/git")
    }
}

/// Returns how often each crash point was passed.
fn passed_points(folder: &Path) -> BTreeMap<String, usize> {
    let mut passed = BTreeMap::new();
    for name in fs::read_to_string(folder.join("passed")).expect("cannot read the file").lines() {
        *passed.entry(name.to_owned()).or_default() += 1;
    }
    passed
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cannot run cp").success());
}

/// An everyday run tests one of this many crash points of an operation, because each needs two starts of the server:
/// all of them take about a third of the time of the end-to-end tests.
const EVERYDAY_INTERVAL: usize = 4;

/// Runs an operation once without a crash, then once for each crash point that is tested, with a crash there.
fn test_operation(name: &str) {
    let index = OPERATIONS.iter().position(|operation| operation.name == name).expect("unknown operation");
    let operation = &OPERATIONS[index];
    // The preparation is done once, without the short expiry.
    let without_expiry: Vec<_> =
        operation.settings.iter().copied().filter(|setting| *setting != SHORT_EXPIRY).collect();
    let mut server = TestServer::with_settings(&without_expiry);
    let users = Users::new(&server.service);
    let plan = (operation.prepare)(&mut server, &users);
    assert_eq!(server.process.stop(), Some(0));
    let prepared = server.process.folder().path();
    let runs = TempDir::new().expect("cannot create a temporary folder");

    let folder = runs.path().join("without-crash");
    copy(prepared, &folder);
    let mut run = ServerRun::start(&folder, operation.settings, None);
    plan.start_counting(&run);
    assert_eq!(run.take_steps(&plan, 0), plan.steps.len(), "{name}");
    eventually(name, || plan.is_done(&run, &users).then_some(()));
    assert_eq!(run.server.stop(), Some(0));
    let passed = passed_points(&folder);
    let listed: BTreeSet<&str> = operation.points.iter().copied().flatten().copied().collect();
    let names: BTreeSet<&str> = passed.keys().map(String::as_str).collect();
    assert_eq!(names, listed, "{name} passes other crash points than the table says");

    let run = ServerRun::start(&folder, operation.settings, None);
    let expected = ServerSnapshot::take(&run.server, &run.git_folder(), &users.paths());
    assert!((plan.is_complete)(&expected) && (expected.staged > 0 || expected.has_empty_purgatory()), "{expected:?}");
    expect_intact_repos(&run.git_folder());
    expect_needed_objects(&run.server, &users.paths());
    drop(run);

    let mut allowed = vec![expected];
    if plan.is_triggered_by_time() {
        // A held event gets more time at every start, so after a crash before its expiry it is still held.
        let folder = runs.path().join("still-held");
        copy(prepared, &folder);
        let mut run = ServerRun::start(&folder, &without_expiry, None);
        assert_eq!(run.take_steps(&plan, 0), plan.steps.len(), "{name}");
        allowed.push(ServerSnapshot::take(&run.server, &run.git_folder(), &users.paths()));
    }

    let mut crash_points = Vec::new();
    for (point, times) in &passed {
        // On disk these are the same as the commit before them.
        let is_after_commit = ["writer.shown", "writer.answered"].contains(&point.as_str());
        // Some of the passes come from the requests for the held events, which are not sent in the runs with a crash.
        let most = match (is_after_commit, plan.is_triggered_by_time()) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => *times,
        };
        crash_points.extend((1..=most.min(*times)).map(|nth| format!("{point}:{nth}")));
    }
    // Each operation starts at another crash point, so that a few operations together pass each of them.
    let (first, interval) = if is_soak() { (0, 1) } else { (index % EVERYDAY_INTERVAL, EVERYDAY_INTERVAL) };
    for crash_point in crash_points.iter().skip(first).step_by(interval) {
        let folder = runs.path().join(crash_point);
        copy(prepared, &folder);
        test_crash(operation, &plan, &users, &folder, crash_point, &allowed);
        fs::remove_dir_all(folder).expect("cannot remove the folder");
    }
}

/// Runs an operation with a crash, restarts the server and repeats the steps that were not acknowledged.
fn test_crash(
    operation: &Operation,
    plan: &Plan,
    users: &Users,
    folder: &Path,
    crash_point: &str,
    allowed: &[ServerSnapshot],
) {
    let what = format!("{} at {crash_point}", operation.name);
    let is_in_writer = crash_point.starts_with("writer.");
    let mut run = ServerRun::start(folder, operation.settings, Some(crash_point));
    plan.start_counting(&run);
    let taken = run.take_steps(plan, 0);
    // The writer may do in one transaction what it did in two before, but the first pass always happens.
    let timeout = if is_in_writer && !crash_point.ends_with(":1") { Duration::from_secs(1) } else { DEADLINE };
    let ended = run.ends_within(timeout);
    assert!(ended || timeout < DEADLINE, "{what}: the crash point was not reached");
    if !ended {
        run.server.kill();
    }
    drop(run);

    let mut run = ServerRun::start(folder, operation.settings, None);
    assert_eq!(run.take_steps(plan, taken), plan.steps.len(), "{what}");
    let mut snapshot = ServerSnapshot::default();
    let until = Instant::now() + DEADLINE;
    // Crash points outside of the writer come after the commit.
    let allowed = if is_in_writer { allowed } else { &allowed[..1] };
    while !allowed.contains(&snapshot) {
        assert!(Instant::now() < until, "{what}: {snapshot:?}\ninstead of {allowed:?}");
        snapshot = ServerSnapshot::take(&run.server, &run.git_folder(), &users.paths());
    }
    expect_intact_repos(&run.git_folder());
    expect_needed_objects(&run.server, &users.paths());
}

macro_rules! operation_tests {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            test_operation($name);
        }
    )*};
}

operation_tests! {
    crash_during_first_push: "first push",
    crash_during_later_push: "later push",
    crash_during_state_whose_data_is_present: "state whose data is present",
    crash_during_update_of_follower: "follower",
    crash_during_update_of_new_follower: "new follower",
    crash_during_push_to_follower: "push to a follower",
    crash_during_removal_of_maintainer: "removed maintainer",
    crash_during_upload_without_event: "upload without event",
    crash_during_event_after_its_upload: "event after its upload",
    crash_during_pull_request_push: "pull request push",
    crash_during_copy_of_submission: "submission",
    crash_during_expiry_of_state: "state expires",
    crash_during_expiry_of_announcement: "announcement expires",
    crash_during_expiry_of_upload: "upload expires",
    crash_during_deletion_of_state: "state deleted",
    crash_during_deletion_of_pull_request: "pull request deleted",
    crash_during_deletion_of_announcement: "announcement deleted",
    crash_during_withdrawal: "withdrawal",
}

/// Every crash point in the source is in the table of operations, or in the tests of backups and imports.
#[test]
fn every_crash_point_is_tested() {
    let tested: BTreeSet<String> =
        OPERATIONS.iter().flat_map(|operation| operation.points.concat()).map(str::to_owned).collect();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("folder has a parent");
    let mut points = BTreeSet::new();
    let mut folders = vec![crates.join("git/src"), crates.join("graspd/src")];
    while let Some(folder) = folders.pop() {
        for path in crate::support::integrity::entries(&folder) {
            if path.is_dir() {
                // Maintenance has tests of its own for its crash points.
                folders.extend((!path.ends_with("git/src/maintenance")).then_some(path));
                continue;
            }
            // Folders of the source contain certificates for tests, too.
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(path).expect("cannot read the file");
            let names = text.split("crash_point::point(\"").skip(1).filter_map(|rest| rest.split_once('"'));
            points.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    // Backups, restores, imports and the migration have tests of their own.
    let others: String = ["backup.rs", "import.rs", "import_ngit_grasp.rs", "migration.rs"]
        .map(|file| fs::read_to_string(crates.join("graspd/tests/it").join(file)).expect("cannot read the file"))
        .concat();
    let is_tested_elsewhere = |point: &String| others.contains(&format!("\"{point}\""));
    let points: BTreeSet<String> = points.into_iter().filter(|point| !is_tested_elsewhere(point)).collect();
    assert_eq!(tested, points);
}
