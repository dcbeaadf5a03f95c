//! The server ends at every named place of everything it does with git data, as in a power cut. The next one ends up where
//! it would have been without.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{MAIN, Maintainer, OLD, THEN, Work, repo_path};
use crate::support::integrity::{Seen, expect_objects, expect_sound, try_publish};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::{DEADLINE, Server, command, eventually};

/// What a client does, one after the other.
enum Step {
    /// What is passed from here on counts; the first step unless it is given.
    Begin,
    Publish(Arc<SignedEvent>),
    /// To a path, a refspec.
    Push(String, String),
}

/// What is to be done, and how to see that it is.
struct Plan {
    work: Work,
    steps: Vec<Step>,
    done: Box<dyn Fn(&Seen) -> bool>,
}

impl Plan {
    /// Whether it begins when the last step has been taken, and the server goes on by itself.
    fn is_passive(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Begin))
    }

    fn begin(&self, life: &Life<'_>) {
        if !self.is_passive() {
            life.begin();
        }
    }

    fn is_done(&self, life: &Life<'_>, cast: &Cast) -> bool {
        let (server, git, paths) = (&life.server, life.git(), cast.paths());
        if self.is_passive() {
            let seen = Seen::at(server, &git, &paths);
            return seen.waits_for_nothing() && (self.done)(&seen);
        }
        (self.done)(&Seen::glance(server, &git, &paths))
    }
}

/// One thing that a server does, and the places that it passes.
struct Operation {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    prepare: fn(&mut Stage, &Cast) -> Plan,
    points: &'static [&'static [&'static str]],
}

/// The people, and their paths to `tool`.
struct Cast {
    owner: Maintainer,
    maintainer: Maintainer,
    follower: Maintainer,
    guest: Maintainer,
}

impl Cast {
    fn new(service: &ServiceAddress) -> Self {
        let [owner, maintainer, follower, guest] = [1, 2, 4, 5].map(|n| Maintainer::new(n, service));
        Self { owner, maintainer, follower, guest }
    }

    fn paths(&self) -> Vec<String> {
        let announced = [&self.owner, &self.maintainer, &self.follower].map(path);
        [&announced[..], &[self.submissions()]].concat()
    }

    fn submissions(&self) -> String {
        format!("/prs{}", path(&self.guest))
    }

    /// A pull request to the owner's repository.
    fn request(&self, tip: &str, clone: &[&str]) -> Arc<SignedEvent> {
        self.guest.pull_request(THEN, &[&self.owner.repo("tool")], tip, clone)
    }
}

fn path(who: &Maintainer) -> String {
    repo_path(&who.npub(), "tool")
}

fn name(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

/// Whether a repository has a ref there.
fn stands(seen: &Seen, path: &str, name: &str, oid: &str) -> bool {
    seen.refs.get(path).is_some_and(|remote| remote.refs.get(name).is_some_and(|here| here == oid))
}

/// Pushes `main` to a path.
fn push_main(path: String) -> Step {
    Step::Push(path, format!("+{MAIN}:{MAIN}"))
}

const ON: (&str, &str) = ("GRASP06_ENABLE", "true");
const SOON: (&str, &str) = ("PURGATORY_EXPIRY_SECS", "2");

/// Every turn of the registrar's desk.
const TURN: &[&str] = &["desk.commit", "desk.committed", "desk.shown", "desk.answered"];
/// A push at its door.
const DOOR: &[&str] = &["push.received", "push.checked", "push.done"];
/// Packs go into a pool.
const ADOPT: &[&str] = &["align.pack", "align.idx"];
/// Refs are replaced.
const REFS: &[&str] = &["replace.written", "align.refs"];
const HEAD: &[&str] = &["align.head"];
/// A repository gets its folder.
const FOLDER: &[&str] = &["align.folder", "align.lenders"];
/// A repository may not read a pool any more.
const SHRINK: &[&str] = &["align.copied", "align.lenders", "replace.written"];
const RETIRE: &[&str] = &["retire.copied", "trash.moved", "retire.gone"];

/// What is done, and the places that it passes, each of which is tried.
const OPERATIONS: [Operation; 18] = [
    Operation {
        name: "first push",
        settings: &[],
        prepare: first_push,
        points: &[TURN, DOOR, FOLDER, ADOPT, REFS, HEAD],
    },
    Operation { name: "later push", settings: &[], prepare: later_push, points: &[TURN, DOOR, ADOPT, REFS] },
    Operation { name: "arrival", settings: &[], prepare: arrival, points: &[TURN, REFS, HEAD] },
    Operation { name: "follower", settings: &[], prepare: follower, points: &[TURN, DOOR, ADOPT, REFS] },
    Operation { name: "new follower", settings: &[], prepare: new_follower, points: &[TURN, FOLDER, REFS, HEAD] },
    Operation {
        name: "push to a follower",
        settings: &[],
        prepare: push_to_a_follower,
        points: &[TURN, DOOR, ADOPT, &["align.taken"], REFS],
    },
    Operation {
        name: "dropped maintainer",
        settings: &[],
        prepare: dropped_maintainer,
        points: &[TURN, ADOPT, SHRINK, REFS],
    },
    Operation { name: "placeholder", settings: &[], prepare: placeholder, points: &[TURN, DOOR, &["stage.moved"]] },
    Operation {
        name: "event meets placeholder",
        settings: &[],
        prepare: event_meets_placeholder,
        points: &[TURN, ADOPT, REFS],
    },
    Operation {
        name: "pull request push",
        settings: &[],
        prepare: pull_request_push,
        points: &[TURN, DOOR, ADOPT, REFS],
    },
    Operation {
        name: "submission",
        settings: &[ON],
        prepare: submission,
        points: &[TURN, DOOR, FOLDER, ADOPT, &["align.pulls"], REFS],
    },
    Operation { name: "state expires", settings: &[SOON], prepare: state_expires, points: &[TURN] },
    Operation { name: "announcement expires", settings: &[SOON], prepare: announcement_expires, points: &[TURN] },
    Operation { name: "upload expires", settings: &[SOON], prepare: upload_expires, points: &[TURN, &["trash.moved"]] },
    Operation { name: "state deleted", settings: &[], prepare: state_deleted, points: &[TURN, REFS] },
    Operation { name: "pull request deleted", settings: &[], prepare: pull_request_deleted, points: &[TURN, REFS] },
    Operation {
        name: "announcement deleted",
        settings: &[],
        prepare: announcement_deleted,
        points: &[TURN, ADOPT, SHRINK, RETIRE],
    },
    Operation { name: "withdrawal", settings: &[], prepare: withdrawal, points: &[TURN, ADOPT, SHRINK, RETIRE] },
];

// ---- What is done -----------------------------------------------------------------------------

fn first_push(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.hold(&cast.owner.announce("tool", THEN, &[]));
    stage.hold(&cast.owner.state("tool", THEN, &main_at(&c1)));
    let to = path(&cast.owner);
    Plan { work, steps: vec![push_main(to.clone())], done: Box::new(move |seen| stands(seen, &to, MAIN, &c1)) }
}

fn later_push(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    stage.hold(&cast.owner.state("tool", THEN + 1, &main_at(&c2)));
    let to = path(&cast.owner);
    Plan { work, steps: vec![push_main(to.clone())], done: Box::new(move |seen| stands(seen, &to, MAIN, &c2)) }
}

/// Its data is here, and HEAD moves as well.
fn arrival(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.found(&cast.owner, "tool", &[], &work, &[(MAIN, &c2), (OLD, &c1)]);
    let state = cast.owner.state("tool", THEN + 1, &[(OLD, &c2)]);
    let (id, at) = (state.id.to_string(), path(&cast.owner));
    let done = move |seen: &Seen| seen.served.contains(&id) && stands(seen, &at, OLD, &c2);
    Plan { work, steps: vec![Step::Publish(state)], done: Box::new(done) }
}

/// A repository of the owner with a commit, and another that follows it.
fn followed(stage: &mut Stage, cast: &Cast) -> (Work, String, Arc<SignedEvent>) {
    let (work, c1) = one_commit("one");
    let (announcement, _) = stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    stage.publish(&cast.follower.announce("tool", THEN, &[&cast.owner]));
    stage.eventually_refs(&cast.follower, "tool", &main_at(&c1));
    (work, c1, announcement)
}

fn follower(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, _, _) = followed(stage, cast);
    let c2 = work.commit("file", "two");
    stage.hold(&cast.owner.state("tool", THEN + 1, &main_at(&c2)));
    let (to, at) = (path(&cast.owner), path(&cast.follower));
    Plan { work, steps: vec![push_main(to)], done: Box::new(move |seen| stands(seen, &at, MAIN, &c2)) }
}

fn new_follower(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    let announcement = cast.follower.announce("tool", THEN, &[&cast.owner]);
    let at = path(&cast.follower);
    let id = announcement.id.to_string();
    let done = move |seen: &Seen| seen.served.contains(&id) && stands(seen, &at, MAIN, &c1);
    Plan { work, steps: vec![Step::Publish(announcement)], done: Box::new(done) }
}

/// What the owner says is pushed to the follower, whose pool the owner's repository does not read.
fn push_to_a_follower(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, _, _) = followed(stage, cast);
    let c2 = work.commit("file", "two");
    stage.hold(&cast.owner.state("tool", THEN + 1, &main_at(&c2)));
    let (to, at) = (path(&cast.follower), path(&cast.owner));
    Plan { work, steps: vec![push_main(to)], done: Box::new(move |seen| stands(seen, &at, MAIN, &c2)) }
}

/// The owner's repository stands at what the maintainer pushed to another one, and may not read that any more. A pull
/// request to it stays.
fn dropped_maintainer(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[&cast.maintainer], &work, &main_at(&c1));
    stage.publish(&cast.maintainer.announce("tool", THEN, &[]));
    let c2 = work.commit("file", "two");
    let state = cast.maintainer.state("tool", THEN + 1, &main_at(&c2));
    stage.hold(&state);
    work.push(&stage.url(&cast.maintainer, "tool"), &["main"]).done();
    stage.eventually_refs(&cast.owner, "tool", &main_at(&c2));
    let request = cast.request(&c2, &[]);
    stage.publish(&request);
    stage.eventually_refs(&cast.owner, "tool", &[(MAIN, &c2), (&name(&request), &c2)]);
    let alone = cast.owner.announce("tool", THEN + 1, &[]);
    let (id, at) = (alone.id.to_string(), path(&cast.owner));
    let done = move |seen: &Seen| seen.served.contains(&id) && stands(seen, &at, MAIN, &c1);
    Plan { work, steps: vec![Step::Publish(alone)], done: Box::new(done) }
}

/// A repository of the owner, and a commit that a guest has for it.
fn offered(stage: &mut Stage, cast: &Cast) -> (Work, String) {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    work.branch("feature");
    let tip = work.commit("feature", "two");
    (work, tip)
}

fn placeholder(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, tip) = offered(stage, cast);
    let request = cast.request(&tip, &[]);
    let push = Step::Push(path(&cast.owner), format!("{tip}:{}", name(&request)));
    Plan { work, steps: vec![push], done: Box::new(|seen| seen.staged == 1) }
}

fn event_meets_placeholder(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, tip) = offered(stage, cast);
    let request = cast.request(&tip, &[]);
    work.push(&stage.url(&cast.owner, "tool"), &[&format!("{tip}:{}", name(&request))]).done();
    let (id, at, name) = (request.id.to_string(), path(&cast.owner), name(&request));
    let done = move |seen: &Seen| seen.served.contains(&id) && stands(seen, &at, &name, &tip);
    Plan { work, steps: vec![Step::Publish(request)], done: Box::new(done) }
}

fn pull_request_push(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, tip) = offered(stage, cast);
    let request = cast.request(&tip, &[]);
    stage.hold(&request);
    let (to, name) = (path(&cast.owner), name(&request));
    let push = Step::Push(to.clone(), format!("{tip}:{name}"));
    Plan { work, steps: vec![push], done: Box::new(move |seen| stands(seen, &to, &name, &tip)) }
}

/// What is submitted goes to the repository that it is for as well.
fn submission(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, tip) = offered(stage, cast);
    let request = cast.request(&tip, &[&stage.public_prs_url(&cast.guest, "tool")]);
    stage.hold(&request);
    let (to, at, name) = (cast.submissions(), path(&cast.owner), name(&request));
    let push = Step::Push(to.clone(), format!("{tip}:{name}"));
    let done = move |seen: &Seen| stands(seen, &to, &name, &tip) && stands(seen, &at, &name, &tip);
    Plan { work, steps: vec![push], done: Box::new(done) }
}

fn state_expires(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    let state = cast.owner.state("tool", THEN + 1, &main_at(&"b".repeat(40)));
    Plan { work, steps: vec![Step::Publish(state), Step::Begin], done: Box::new(|_| true) }
}

fn announcement_expires(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[], &work, &main_at(&c1));
    let announcement = cast.follower.announce("tool", THEN, &[]);
    let done = |seen: &Seen| seen.refs.len() == 1;
    Plan { work, steps: vec![Step::Publish(announcement), Step::Begin], done: Box::new(done) }
}

fn upload_expires(stage: &mut Stage, cast: &Cast) -> Plan {
    let plan = placeholder(stage, cast);
    let done = |seen: &Seen| seen.staged == 0;
    Plan { steps: plan.steps.into_iter().chain([Step::Begin]).collect(), done: Box::new(done), ..plan }
}

/// Back to what another one says, whose commit is here.
fn state_deleted(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, c1) = one_commit("one");
    stage.found(&cast.owner, "tool", &[&cast.maintainer], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let state = stage.advance(&cast.owner, &cast.maintainer, "tool", THEN + 1, &work, &main_at(&c2));
    let (at, deletion) = (path(&cast.owner), cast.maintainer.delete(THEN + 2, &[&state]));
    Plan { work, steps: vec![Step::Publish(deletion)], done: Box::new(move |seen| stands(seen, &at, MAIN, &c1)) }
}

fn pull_request_deleted(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, tip) = offered(stage, cast);
    let request = cast.request(&tip, &[]);
    stage.hold(&request);
    let name = name(&request);
    work.push(&stage.url(&cast.owner, "tool"), &[&format!("{tip}:{name}")]).done();
    let (at, deletion) = (path(&cast.owner), cast.guest.delete(THEN, &[&request]));
    Plan { work, steps: vec![Step::Publish(deletion)], done: Box::new(move |seen| !stands(seen, &at, &name, &tip)) }
}

/// Whoever follows has to copy first.
fn announcement_deleted(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, _, announcement) = followed(stage, cast);
    let deletion = cast.owner.delete(THEN, &[&announcement]);
    Plan { work, steps: vec![Step::Publish(deletion)], done: Box::new(|seen| seen.folders.len() == 1) }
}

fn withdrawal(stage: &mut Stage, cast: &Cast) -> Plan {
    let (work, _, _) = followed(stage, cast);
    let elsewhere = cast.owner.announce_elsewhere("tool", THEN + 1, &[]);
    Plan { work, steps: vec![Step::Publish(elsewhere)], done: Box::new(|seen| seen.folders.len() == 1) }
}

// ---- How it is tried --------------------------------------------------------------------------

/// One life of a server in a folder.
struct Life<'a> {
    folder: &'a Path,
    server: Server,
}

impl<'a> Life<'a> {
    /// The server ends itself at the given place, which is counted from [`begin`](Self::begin) on.
    fn start(folder: &'a Path, settings: &[(&str, &str)], at: Option<&str>) -> Self {
        let named = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "error")];
        let mut command = command(folder, &[&named, settings].concat());
        command.env("GRASPD_CRASH_LOG", folder.join("passed"));
        command.envs(at.map(|at| ("GRASPD_CRASH_AT", at)));
        Self { folder, server: Server::spawn(command) }
    }

    fn begin(&self) {
        fs::write(self.folder.join("passed"), "").expect("a file");
    }

    /// Takes steps, from one on; gives how many were taken in all when the last was, or the server was gone.
    fn act(&mut self, plan: &Plan, from: usize) -> usize {
        for (nth, step) in plan.steps.iter().enumerate().skip(from) {
            let (acknowledged, said) = match step {
                Step::Begin => {
                    self.begin();
                    (true, String::new())
                }
                Step::Publish(event) => {
                    let answer = try_publish(self.server.address, event);
                    (answer.is_some(), "no answer".to_owned())
                }
                Step::Push(path, refspec) => {
                    let url = format!("http://{}{path}", self.server.address);
                    let said = plan.work.push(&url, &[refspec]);
                    (said.success, said.err)
                }
            };
            if !acknowledged {
                assert!(self.ends_within(DEADLINE), "the server lives: {said}");
                return nth;
            }
        }
        plan.steps.len()
    }

    fn ends_within(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.server.child.try_wait().expect("can be asked") {
                assert_eq!(status.signal(), Some(9), "{status}");
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    fn git(&self) -> PathBuf {
        self.folder.join("data/git")
    }
}

/// How often each place was passed.
fn passed(folder: &Path) -> BTreeMap<String, usize> {
    let mut passed = BTreeMap::new();
    for name in fs::read_to_string(folder.join("passed")).expect("a log").lines() {
        *passed.entry(name.to_owned()).or_default() += 1;
    }
    passed
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("runs").success());
}

/// Does it once without a crash, and once for every time that it passes a place with a crash there.
fn rehearse(name: &str) {
    let operation = OPERATIONS.iter().find(|operation| operation.name == name).expect("an operation");
    // The preparation is done once, under patient settings.
    let patient: Vec<_> = operation.settings.iter().copied().filter(|setting| *setting != SOON).collect();
    let mut stage = Stage::with(&patient);
    let cast = Cast::new(&stage.service);
    let plan = (operation.prepare)(&mut stage, &cast);
    assert_eq!(stage.server.stop(), Some(0));
    let prepared = stage.server.folder().path();
    let tries = TempDir::new().expect("a folder");

    let folder = tries.path().join("without");
    copy(prepared, &folder);
    let mut life = Life::start(&folder, operation.settings, None);
    plan.begin(&life);
    assert_eq!(life.act(&plan, 0), plan.steps.len(), "{name}");
    eventually(name, || plan.is_done(&life, &cast).then_some(()));
    assert_eq!(life.server.stop(), Some(0));
    let places = passed(&folder);
    let listed: BTreeSet<&str> = operation.points.iter().copied().flatten().copied().collect();
    assert_eq!(places.keys().map(String::as_str).collect::<BTreeSet<_>>(), listed, "{name} passes other places");

    let life = Life::start(&folder, operation.settings, None);
    let expected = Seen::at(&life.server, &life.git(), &cast.paths());
    assert!((plan.done)(&expected) && (expected.staged > 0 || expected.waits_for_nothing()), "{expected:?}");
    expect_sound(&life.git());
    expect_objects(&life.server, &cast.paths());
    drop(life);

    let mut allowed = vec![expected];
    if plan.is_passive() {
        // Whatever waits is given some time after a start, so a crash before the end of waiting makes it wait on.
        let folder = tries.path().join("waiting");
        copy(prepared, &folder);
        let mut life = Life::start(&folder, &patient, None);
        assert_eq!(life.act(&plan, 0), plan.steps.len(), "{name}");
        allowed.push(Seen::at(&life.server, &life.git(), &cast.paths()));
    }

    for (place, times) in &places {
        // To the disk these are the same as the commit before them.
        let told = ["desk.shown", "desk.answered"].contains(&place.as_str());
        // Looking at what waits is work for the desk, which nobody does when it is tried.
        let most = match (told, plan.is_passive()) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => *times,
        };
        for nth in 1..=most.min(*times) {
            let at = format!("{place}:{nth}");
            let folder = tries.path().join(&at);
            copy(prepared, &folder);
            once(operation, &plan, &cast, &folder, &at, &allowed);
            fs::remove_dir_all(folder).expect("goes");
        }
    }
}

/// Does it with a crash, and again what was not acknowledged.
fn once(operation: &Operation, plan: &Plan, cast: &Cast, folder: &Path, at: &str, allowed: &[Seen]) {
    let what = format!("{} at {at}", operation.name);
    let mut life = Life::start(folder, operation.settings, Some(at));
    plan.begin(&life);
    let taken = life.act(plan, 0);
    // The desk may do in one turn what it did in two before; the first time is never left out.
    let patience = if at.starts_with("desk.") && !at.ends_with(":1") { Duration::from_secs(1) } else { DEADLINE };
    let ended = life.ends_within(patience);
    assert!(ended || patience < DEADLINE, "{what}: it never came there");
    if !ended {
        life.server.kill();
    }
    drop(life);

    let mut life = Life::start(folder, operation.settings, None);
    assert_eq!(life.act(plan, taken), plan.steps.len(), "{what}");
    let mut seen = Seen::default();
    let until = Instant::now() + DEADLINE;
    // What is not the desk's happens after the commit.
    let allowed = if at.starts_with("desk.") { allowed } else { &allowed[..1] };
    while !allowed.contains(&seen) {
        assert!(Instant::now() < until, "{what}: {seen:?}\ninstead of {allowed:?}");
        seen = Seen::at(&life.server, &life.git(), &cast.paths());
    }
    expect_sound(&life.git());
    expect_objects(&life.server, &cast.paths());
}

macro_rules! rehearsals {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            rehearse($name);
        }
    )*};
}

rehearsals! {
    a_first_push: "first push",
    a_later_push: "later push",
    a_state_whose_data_is_here: "arrival",
    a_follower_is_aligned: "follower",
    a_new_follower_is_aligned: "new follower",
    a_push_to_a_follower: "push to a follower",
    a_maintainer_is_dropped: "dropped maintainer",
    an_upload_that_nobody_has_signed: "placeholder",
    an_event_meets_its_upload: "event meets placeholder",
    a_pull_request_is_pushed: "pull request push",
    a_submission_is_mirrored: "submission",
    a_state_expires: "state expires",
    an_announcement_expires: "announcement expires",
    an_upload_expires: "upload expires",
    a_state_is_deleted: "state deleted",
    a_pull_request_is_deleted: "pull request deleted",
    an_announcement_is_deleted: "announcement deleted",
    a_repository_is_withdrawn: "withdrawal",
}

/// No place of the program is left out of the table.
#[test]
fn every_place_is_tried() {
    let tried: BTreeSet<String> =
        OPERATIONS.iter().flat_map(|operation| operation.points.concat()).map(str::to_owned).collect();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut places = BTreeSet::new();
    let mut folders = vec![crates.join("git/src"), crates.join("graspd/src")];
    while let Some(folder) = folders.pop() {
        for path in crate::support::integrity::entries(&folder) {
            if path.is_dir() {
                // The keeping in good order has tests of its own for this.
                folders.extend((!path.ends_with("git/src/maintain")).then_some(path));
                continue;
            }
            // Certificates for tests lie beside the source.
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(path).expect("source");
            let names = text.split("crash::point(\"").skip(1).filter_map(|rest| rest.split_once('"'));
            places.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    // Backups, restores and imports have theirs, too.
    let others: String = ["vault.rs", "import.rs", "foreign.rs"]
        .map(|file| fs::read_to_string(crates.join("graspd/tests/it").join(file)).expect("source"))
        .concat();
    let elsewhere = |place: &String| others.contains(&format!("\"{place}\""));
    let places: BTreeSet<String> = places.into_iter().filter(|place| !elsewhere(place)).collect();
    assert_eq!(tried, places);
}
