//! Work of the writer for one input: whatever others have announced, no event keeps the writer busy for long.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::admission::Admission;
use grasp_core::admission::io::{
    AdmissionInput, AdmissionOutput, EventLookups, EventSource, RepoLookupResult, RestoredItem, StoreWrite,
};
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::{Decision, PublicKey, Rejection, SignedEvent, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::state_machine::StateMachine;
use grasp_core::time::{MonoTime, Now, Timestamp};
use grasp_sim::fixtures::{main_state, main_to, maintainer, owner, tool};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{TestServer, default_policy, service};

/// The work of a turn, of its last item, and of an input whose consequences are left to later turns. An event that visits
/// each of some thousand repositories for each of them would do millions of units.
const MAX_WORK: u64 = 5 * limits::WORK_PER_TURN;

/// The admission machine alone. All repositories are empty. Events are not signed, so that there can be many.
struct Machine {
    admission: Admission,
    now: Now,
    writes: Vec<StoreWrite>,
    /// The most work of one input or one turn, the longest time, and the number of turns.
    work: u64,
    longest: Duration,
    turns: usize,
}

impl Machine {
    fn new() -> Self {
        let now = Now { mono: MonoTime(0), wall: Timestamp(10_000) };
        let admission = Admission::new(default_policy());
        Self { admission, now, writes: Vec::new(), work: 0, longest: Duration::ZERO, turns: 0 }
    }

    /// Restores held announcements and continues as after a start.
    fn restore(&mut self, events: impl Iterator<Item = Arc<SignedEvent>>) {
        self.restore_items(events.map(|event| RestoredItem::Held(event, Timestamp(10_600))));
    }

    /// Restores what the store has and continues as after a start.
    fn restore_items(&mut self, items: impl Iterator<Item = RestoredItem>) {
        for item in items {
            self.admission.handle(self.now, AdmissionInput::Restored(item));
        }
        self.turn(Some(AdmissionInput::Ready));
        self.run();
    }

    /// Submits an event and does everything that follows from it.
    fn submit(&mut self, event: &Arc<SignedEvent>) -> Decision {
        let source = EventSource::Client(Vec::new());
        let (event, lookups) = (event.clone(), EventLookups::default());
        self.admission.wake(self.now);
        self.drain();
        let input =
            AdmissionInput::EventSubmitted { event, source, network: None, submitter: None, digest: None, lookups };
        let decision = self.turn(Some(input)).expect("a submission is answered");
        self.run();
        decision
    }

    fn run(&mut self) {
        while self.admission.alarm().is_some_and(|(at, _)| at == MonoTime::default()) {
            self.turn(None);
        }
    }

    #[allow(clippy::disallowed_methods, reason = "the time is printed and not tested")]
    fn turn(&mut self, input: Option<AdmissionInput>) -> Option<Decision> {
        let started = Instant::now();
        let before = if input.is_some() { self.admission.turn_work() } else { 0 };
        match input {
            Some(input) => self.admission.handle(self.now, input),
            None => self.admission.wake(self.now),
        }
        let decision = self.drain();
        self.turns += 1;
        self.longest = self.longest.max(started.elapsed());
        self.work = self.work.max(self.admission.turn_work().saturating_sub(before));
        decision
    }

    fn drain(&mut self) -> Option<Decision> {
        let mut decision = None;
        while let Some(output) = self.admission.poll() {
            match output {
                AdmissionOutput::Lookup(_) => {
                    self.admission.handle(self.now, AdmissionInput::LookupDone(RepoLookupResult::default()));
                }
                AdmissionOutput::Reply(reply) => decision = Some(reply),
                AdmissionOutput::Write(write) => self.writes.push(write),
                _ => {}
            }
        }
        decision
    }

    /// Returns the measurements since the last call. Panics if a turn did too much work.
    #[track_caller]
    fn expect_bounded(&mut self, what: &str) -> String {
        let (work, longest, turns) = (self.work, self.longest, self.turns);
        (self.work, self.longest, self.turns) = (0, Duration::ZERO, 0);
        assert!(work <= MAX_WORK, "{what}: {work} units in one of {turns} turns, {longest:?}");
        format!("{what}: {work} units, {longest:?}, {turns} turns")
    }
}

fn key(nth: usize) -> PublicKey {
    let mut bytes = [9; 32];
    bytes[..8].copy_from_slice(&((nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
    PublicKey(bytes)
}

fn unsigned(kind: u16, author: PublicKey, at: u64, tags: Vec<Vec<String>>) -> Arc<SignedEvent> {
    let mut id = author.0;
    id[24..].copy_from_slice(&(at + 1_000_000 * u64::from(kind)).to_be_bytes());
    let (created_at, content) = (Timestamp(at), String::new());
    let event = Event { id: EventId(id), pubkey: author, created_at, kind, tags, content, sig: [0; 64] };
    Arc::new(SignedEvent::from_trusted(event))
}

/// Returns an announcement that names this service, or another one.
fn announcement(author: PublicKey, at: u64, maintainers: &[PublicKey], is_hosted: bool) -> Arc<SignedEvent> {
    let repo = RepoId { owner: author, identifier: Identifier::new("tool").expect("valid") };
    let (clone, relay) = match is_hosted {
        true => (service().clone_url(&repo), service().relay_url()),
        false => ("https://other.example/x.git".to_owned(), "wss://other.example".to_owned()),
    };
    let mut tags = vec![vec!["d".to_owned(), "tool".to_owned()]];
    tags.push(vec!["clone".to_owned(), clone]);
    tags.push(vec!["relays".to_owned(), relay]);
    let names = maintainers.iter().map(ToString::to_string);
    tags.push(std::iter::once("maintainers".to_owned()).chain(names).collect());
    unsigned(kinds::ANNOUNCEMENT, author, at, tags)
}

fn state(author: PublicKey, at: u64) -> Arc<SignedEvent> {
    let refs = vec!["refs/heads/main".to_owned(), "a".repeat(40)];
    unsigned(kinds::STATE, author, at, vec![vec!["d".to_owned(), "tool".to_owned()], refs])
}

/// Thousands of held announcements name A. A's announcement, and everything else of A, used to visit all of them several
/// times, and their git tasks all ran in one turn.
#[test]
fn event_that_concerns_thousands_of_repositories_is_processed_in_slices() {
    for count in [1_000, 4_000] {
        let mut machine = Machine::new();
        let named = key(1_000_000);
        machine.restore((0..count).map(|nth| announcement(key(nth), 100, &[named], true)));
        let mut measured = vec![machine.expect_bounded("start")];
        assert!(matches!(machine.submit(&announcement(named, 100, &[key(0)], true)), Decision::Hold(_)));
        measured.push(machine.expect_bounded("announcement"));
        machine.submit(&announcement(named, 101, &[key(0), key(1), key(2_000_000)], true));
        measured.push(machine.expect_bounded("changed maintainers"));
        assert!(matches!(machine.submit(&state(named, 102)), Decision::Hold(_)));
        measured.push(machine.expect_bounded("state"));
        assert!(matches!(machine.submit(&state(key(7), 102)), Decision::Hold(_)));
        measured.push(machine.expect_bounded("state of another"));
        machine.submit(&announcement(named, 103, &[], false));
        measured.push(machine.expect_bounded("withdrawal"));
        eprintln!("{count} repositories: {measured:#?}");
    }
}

/// The same with chains: each announcement names the next author, so that a walk from the end visits all.
#[test]
fn chain_of_thousands_of_maintainers_is_processed_in_slices() {
    let count = 1_500;
    let mut machine = Machine::new();
    machine.restore((0..count).map(|nth| announcement(key(nth), 100, &[key(nth + 1)], true)));
    let mut measured = vec![machine.expect_bounded("start")];
    for nth in [count, count - 1, count / 2, 0] {
        machine.submit(&announcement(key(nth), 101, &[key(nth + 1), key(0)], true));
        measured.push(machine.expect_bounded("announcement"));
        machine.submit(&state(key(nth), 101));
        measured.push(machine.expect_bounded("state"));
    }
    eprintln!("{measured:#?}");
}

/// A graph of announcements by the maintainer exception. Every event with its identifier used to visit all of them, and
/// for each of them all that lead to it. Their number is limited.
#[test]
fn graph_of_exceptions_is_bounded() {
    let (owners, layer) = (17, 60);
    let mut machine = Machine::new();
    let hosted = |at: u64, nth: usize| {
        let named: Vec<PublicKey> = (0..layer).map(|other| key(1_000 + layer * nth + other)).collect();
        announcement(key(nth), at, &named, true)
    };
    let first = (0..owners * layer).map(|nth| {
        let named: Vec<PublicKey> = (0..4).map(|other| key(10_000 + 4 * nth + other)).collect();
        announcement(key(1_000 + nth), 100, &named, false)
    });
    let second = (0..3_200).map(|nth| announcement(key(10_000 + nth), 100, &[key(1_000 + nth % 1_000)], false));
    machine.restore((0..owners).map(|nth| hosted(100, nth)).chain(first).chain(second));
    let held = owners + owners * layer + 3_200;
    assert_eq!(machine.admission.purgatory().len(), held);
    let mut measured = vec![machine.expect_bounded("start")];
    machine.submit(&hosted(101, 0));
    measured.push(machine.expect_bounded("announcement of an owner"));
    machine.submit(&announcement(key(1_000), 101, &[key(10_000), key(10_001), key(10_002), key(10_003)], false));
    measured.push(machine.expect_bounded("announcement of a maintainer"));
    let more = |nth: usize| announcement(key(10_000 + 3_200 + nth), 100, &[], false);
    let answers: Vec<Decision> = (0..20).map(|nth| machine.submit(&more(nth))).collect();
    measured.push(machine.expect_bounded("new exceptions"));
    // Everything in the graph can be reached from every owner, so each of their repositories has too many.
    let rejected = Decision::Reject(Rejection::TooManyExceptions);
    assert!(answers.iter().all(|answer| *answer == rejected), "{answers:?}");
    assert_eq!(machine.admission.purgatory().len(), held);
    // They are removed with the repositories.
    for nth in 0..owners {
        machine.submit(&announcement(key(nth), 200, &[], false));
    }
    measured.push(machine.expect_bounded("withdrawal"));
    assert_eq!(machine.admission.purgatory().len(), 0);
    eprintln!("{held} announcements: {measured:#?}");
}

/// One repository has at most as many announcements by the maintainer exception as maintainers.
#[test]
fn exceptions_per_repository_are_limited() {
    let mut machine = Machine::new();
    let hubs: Vec<PublicKey> = (0..10).map(|nth| key(100 + nth)).collect();
    let listed = |hub: usize| (0..40).map(|nth| key(1_000 + 40 * hub + nth)).collect::<Vec<_>>();
    machine.submit(&announcement(key(0), 100, &hubs, true));
    for (nth, hub) in hubs.iter().enumerate() {
        assert!(matches!(machine.submit(&announcement(*hub, 100, &listed(nth), false)), Decision::Hold(_)));
    }
    let answers: Vec<Decision> =
        (0..400).map(|nth| machine.submit(&announcement(key(1_000 + nth), 100, &[], false))).collect();
    let rejected = Decision::Reject(Rejection::TooManyExceptions);
    let held = answers.iter().filter(|answer| matches!(answer, Decision::Hold(_))).count();
    assert_eq!(held + hubs.len(), limits::MAX_EXCEPTIONS_PER_REPOSITORY);
    assert!(answers[held..].iter().all(|answer| *answer == rejected), "{answers:?}");
    // Another repository that names one of them has a limit of its own.
    machine.submit(&announcement(key(1), 100, &[key(1_399)], true));
    let again = announcement(key(1_399), 100, &[], false);
    assert!(matches!(machine.submit(&again), Decision::Hold(_)));
    // What is there can be replaced.
    assert!(matches!(machine.submit(&announcement(key(1_000), 101, &[], false)), Decision::Hold(_)));
}

/// Announcements by the maintainer exception cannot displace repositories with the same identifier, or use up what each of
/// these may have.
#[test]
fn exceptions_per_identifier_are_limited() {
    let mut machine = Machine::new();
    let (owners, each) = (100, limits::MAX_EXCEPTIONS_PER_IDENTIFIER / 100);
    let listed = |nth: usize| (0..each).map(|other| key(1_000 + each * nth + other)).collect::<Vec<_>>();
    let hosted = (0..owners).map(|nth| RestoredItem::Served(announcement(key(nth), 100, &listed(nth), true)));
    let exceptions =
        (0..owners).flat_map(listed).map(|key| RestoredItem::Exception(announcement(key, 100, &[], false)));
    machine.restore_items(hosted.chain(exceptions));
    let listed: Vec<PublicKey> = (0..20).map(|nth| key(20_000 + nth)).collect();
    // The repository of another owner is accepted, and so are a few announcements of its maintainers.
    assert!(matches!(machine.submit(&announcement(key(10_000), 100, &listed, true)), Decision::Hold(_)));
    let answers: Vec<Decision> =
        listed.iter().map(|maintainer| machine.submit(&announcement(*maintainer, 100, &[], false))).collect();
    let (held, others) = answers.split_at(limits::RESERVED_EXCEPTIONS_PER_REPOSITORY);
    assert!(held.iter().all(|answer| matches!(answer, Decision::Hold(_))), "{answers:?}");
    assert!(others.iter().all(|answer| *answer == Decision::Reject(Rejection::TooManyExceptions)), "{answers:?}");
    machine.expect_bounded("announcements");
}

/// Served repositories are not displaced by others with the same identifier.
#[test]
fn repositories_with_one_identifier_are_limited() {
    let mut machine = Machine::new();
    let most = limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER;
    machine.restore_items((0..most).map(|nth| RestoredItem::Served(announcement(key(nth), 100, &[], true))));
    let rejected = Decision::Reject(Rejection::TooManyWithIdentifier);
    assert_eq!(machine.submit(&announcement(key(most), 100, &[], true)), rejected);
    assert_eq!(machine.submit(&announcement(key(0), 101, &[], true)), Decision::Accept);
    machine.expect_bounded("announcement");
}

/// Repositories with the same identifier are limited. A new one takes the place of the oldest one without a state.
#[test]
fn announcements_with_one_identifier_are_limited() {
    let mut machine = Machine::new();
    let most = limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER;
    let held = (0..most).map(|nth| announcement(key(nth), 100, &[], true));
    machine.restore(held);
    machine.now.mono = MonoTime(1_000);
    assert!(matches!(machine.submit(&announcement(key(most), 100, &[], true)), Decision::Hold(_)));
    let dropped: Vec<&StoreWrite> =
        machine.writes.iter().filter(|write| matches!(write, StoreWrite::DropHeld(_))).collect();
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert_eq!(machine.admission.purgatory().len(), most);
    machine.expect_bounded("announcement");
    // A replacement needs no space.
    assert!(matches!(machine.submit(&announcement(key(most), 101, &[], true)), Decision::Hold(_)));
    assert_eq!(machine.admission.purgatory().len(), most);
}

/// Repositories that read the objects of the members of O's maintainer set. When the set changes, all of them are aligned
/// in slices. A crash between two slices, or in one, loses nothing.
#[test]
fn crash_between_slices_loses_no_dependent_repository() {
    let mut server = TestServer::default();
    server.skip_invariants(true);
    for (author, at) in [(owner(), 101), (maintainer(), 90)] {
        server.submit(&author.announcement(&service(), "tool", 80, &[]));
        server.submit(&main_state(&author, at, 'a'));
        server.push(&main_to(&author, 'a', "")).expect("push succeeds");
    }
    let follower = |nth: usize| Author::in_group(1 + (nth / 250) as u8, (nth % 250) as u8);
    let followers: Vec<Author> = (0..limits::DEPENDENT_SLICE_REPOS + 40).map(follower).collect();
    for follower in &followers {
        server.submit(&follower.announcement(&service(), "tool", 100, &[&owner()]));
    }
    let alternates = |server: &mut TestServer, follower: &Author| {
        server.git().folder(&tool(follower)).expect("has a folder").alternates.clone()
    };
    for follower in &followers {
        assert_eq!(alternates(&mut server, follower), [tool(&owner())].into());
    }
    let change = owner().announcement(&service(), "tool", 200, &[&maintainer()]);
    let both = BTreeSet::from([tool(&owner()), tool(&maintainer())]);
    let mut crashes = 0;
    for steps in [0, 1, 2, 3, 4, 6, 12, 100] {
        let mut crashed = server.fork();
        crashed.crash_after_steps(steps);
        let result = crashed.try_submit(&change, EventSource::Client(Vec::new()));
        crashes += usize::from(result.is_err());
        crashed.clear_fault();
        crashed.restart();
        crashed.recover();
        // If the crash came before the commit, the event is not stored.
        crashed.submit(&change);
        for follower in &followers {
            assert_eq!(alternates(&mut crashed, follower), both, "crash after {steps} steps");
        }
        assert_eq!(crashed.todos(), BTreeSet::new(), "crash after {steps} steps");
    }
    assert!(crashes > 5, "{crashes} crashes");
}
