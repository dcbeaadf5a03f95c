//! Deadlines and bounds: nothing gives up while somebody works on it, and nobody can fill what is everybody's.

use grasp_core::admission::io::PushId;
use grasp_core::admission::push::PushRejection;
use grasp_core::limits;
use grasp_core::nostr::{Decision, EventId, kinds};
use grasp_core::repo::RepoPath;
use grasp_sim::fixtures::{m, main_at, o, oid, x};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{House, Wish, service};

fn tool(owner: &Author) -> RepoPath {
    RepoPath::Announced(owner.repo_id("tool"))
}

fn main_to(owner: &Author, digit: char) -> Wish {
    Wish::new(tool(owner)).set("refs/heads/main", &oid(digit))
}

/// O's `tool` is served with `main` at `a`.
fn hosting(maintainers: &[&Author]) -> House {
    let mut house = House::default();
    house.submit(&o().listed(&service(), "tool", 100, maintainers));
    house.submit(&main_at(&o(), 101, 'a'));
    house.push(&main_to(&o(), 'a')).expect("a good push");
    house
}

/// Asks, and is permitted.
fn permitted(house: &mut House, wish: &Wish) -> PushId {
    let (id, permit) = house.ask(wish).expect("no end is planned").expect("something changes");
    permit.expect("permitted");
    id
}

fn event(nth: usize) -> EventId {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&(nth as u64).to_be_bytes());
    EventId(bytes)
}

const LONG: u64 = 2 * limits::PURGATORY_EXPIRY_SECS;

#[test]
fn nothing_expires_while_it_is_pushed() {
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    let by_m = m().listed(&service(), "tool", 100, &[&x()]);
    let state = main_at(&x(), 101, 'a');
    let mut house = House::default();
    for event in [&announcement, &by_m, &state] {
        assert!(matches!(house.submit(event), Decision::Hold(_)));
    }
    let id = permitted(&mut house, &main_to(&o(), 'a'));
    house.advance(LONG);
    assert_eq!(house.sets().1.len(), 3, "the repository, who names X, and what X says");
    assert_eq!(house.arrive(id), Ok(None));
    assert_eq!(house.wait(id), Ok(Ok(())));
    house.end(id).expect("no end is planned");
    assert!(house.sets().0.is_superset(&[announcement.id, state.id].into()));
    // When it is over without having come, they give up.
    let newer = main_at(&x(), 102, 'b');
    house.submit(&newer);
    let id = permitted(&mut house, &main_to(&o(), 'b'));
    house.advance(LONG);
    assert!(house.sets().1.contains(&newer.id));
    house.end(id).expect("no end is planned");
    house.advance(limits::EXPIRY_POSTPONE_SECS);
    assert!(house.sets().1.is_empty());
}

#[test]
fn a_pull_request_does_not_expire_while_it_is_pushed() {
    let mut house = hosting(&[]);
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    house.submit(&pull);
    let id = permitted(&mut house, &Wish::new(tool(&o())).pull(pull.id, &oid('b')));
    house.advance(LONG);
    assert_eq!(house.arrive(id), Ok(None));
    assert_eq!(house.wait(id), Ok(Ok(())));
    assert!(house.sets().0.contains(&pull.id));
}

#[test]
fn a_stranger_who_only_uploads_keeps_nothing_alive() {
    let mut house = House::default();
    house.submit(&o().listed(&service(), "tool", 100, &[]));
    permitted(&mut house, &Wish::new(tool(&o())).pull(event(1), &oid('b')));
    house.advance(limits::PURGATORY_EXPIRY_SECS);
    assert!(house.sets().1.is_empty());
}

#[test]
fn nothing_expires_while_git_is_at_work_on_it() {
    let mut house = hosting(&[]);
    house.be_lazy(true);
    let state = o().state("tool", 200, &[("refs/heads/dev", &oid('a'))]);
    house.submit(&state);
    assert_eq!(house.running().len(), 1);
    house.advance(LONG);
    assert!(house.sets().1.contains(&state.id));
    house.work().expect("no end is planned");
    assert!(house.sets().0.contains(&state.id));
}

#[test]
fn an_upload_does_not_expire_while_git_takes_it_in() {
    for steps in 0..8 {
        let mut house = hosting(&[]);
        let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
        house.push(&Wish::new(tool(&o())).pull(pull.id, &oid('b'))).expect("put aside");
        house.advance(limits::PURGATORY_EXPIRY_SECS - 1);
        house.be_lazy(true);
        house.submit(&pull);
        for _ in 0..steps {
            house.step(0).expect("no end is planned");
        }
        house.advance(LONG / 4);
        house.work().expect("no end is planned");
        assert!(house.sets().0.contains(&pull.id), "after {steps} steps");
    }
}

#[test]
fn uploads_expire() {
    let mut house = hosting(&[]);
    house.push(&Wish::new(tool(&o())).pull(event(1), &oid('b')).from("n")).expect("put aside");
    house.advance(limits::PURGATORY_EXPIRY_SECS - 1);
    assert_eq!((house.staged().len(), house.git().staged().len()), (1, 1));
    house.restart();
    house.advance(limits::PURGATORY_STARTUP_GRACE_SECS);
    assert_eq!((house.staged().len(), house.git().staged().len()), (0, 0));
}

#[test]
fn what_one_network_uploads_is_bounded() {
    let mut house = hosting(&[]);
    let upload = |house: &mut House, events: std::ops::Range<usize>, network: &str, bytes: u64| {
        let mut wish = Wish::new(tool(&o())).from(network);
        for nth in events {
            wish = wish.pull(event(nth), &oid('b'));
        }
        wish.bytes = bytes;
        house.push(&wish)
    };
    let most = limits::MAX_UPLOADS_PER_PUSH;
    assert_eq!(upload(&mut house, 0..most + 1, "one", 1), Err(PushRejection::TooManyUploads));
    let mut next = 0;
    while next + most <= limits::MAX_UPLOADS_PER_NETWORK {
        assert_eq!(upload(&mut house, next..next + most, "one", 1), Ok(()));
        next += most;
    }
    let left = limits::MAX_UPLOADS_PER_NETWORK - next;
    assert_eq!(upload(&mut house, next..next + left + 1, "one", 1), Err(PushRejection::UploadsFull), "all or nothing");
    assert_eq!(upload(&mut house, next..next + left, "one", 1), Ok(()));
    next += left;
    assert_eq!(upload(&mut house, next..next + 1, "one", 1), Err(PushRejection::UploadsFull));
    assert_eq!(house.staged().len(), limits::MAX_UPLOADS_PER_NETWORK);
    // Others are not concerned.
    let half = limits::MAX_UPLOAD_BYTES_PER_NETWORK / 2;
    assert_eq!(upload(&mut house, next..next + 1, "other", half), Ok(()));
    assert_eq!(upload(&mut house, next + 1..next + 2, "other", half + 1), Err(PushRejection::UploadsFull));
    assert_eq!(upload(&mut house, next + 1..next + 2, "other", half), Ok(()));
    assert_eq!(house.git().incoming().len(), 0, "what was refused is thrown away");
    house.advance(limits::PURGATORY_EXPIRY_SECS);
    assert_eq!(upload(&mut house, 0..1, "one", 1), Ok(()));
}

#[test]
fn pushes_that_wait_for_their_turn_are_bounded() {
    let mut house = hosting(&[]);
    house.be_lazy(true);
    let mut ids = Vec::new();
    for nth in 0..limits::MAX_QUEUED_PUSHES + 3 {
        let id = permitted(&mut house, &Wish::new(tool(&o())).pull(event(nth), &oid('b')));
        assert_eq!(house.arrive(id), Ok(None));
        ids.push(id);
    }
    // One has its turn, and two too many came.
    let refused: Vec<usize> = (0..ids.len()).filter(|nth| house.result(ids[*nth]).is_some()).collect();
    assert_eq!(refused, [limits::MAX_QUEUED_PUSHES + 1, limits::MAX_QUEUED_PUSHES + 2]);
    assert_eq!(house.result(ids[refused[0]]), Some(Err(PushRejection::Busy)));
    assert_eq!(house.running().len(), 1);
    house.work().expect("no end is planned");
    assert!(ids[..=limits::MAX_QUEUED_PUSHES].iter().all(|id| house.result(*id) == Some(Ok(()))));
}

/// C5: anybody can name anybody. What the victim pushes is followed by all of them, one at a time and behind whatever the
/// victim pushes next.
#[test]
fn a_thousand_announcements_name_one_victim() {
    let mut house = hosting(&[]);
    house.be_lawless(true);
    let crowd: Vec<Author> = (1..=4).flat_map(|crowd| (0..250).map(move |n| Author::of_crowd(crowd, n))).collect();
    for stranger in &crowd {
        let announcement = stranger.listed(&service(), "tool", 100, &[&o()]);
        assert!(matches!(house.submit(&announcement), Decision::Hold(_)));
    }
    assert_eq!(house.hosted().len(), 1_001);
    assert!(house.sets().1.is_empty(), "each follows at once");
    house.be_lazy(true);
    house.submit(&main_at(&o(), 200, 'b'));
    house.work().expect("no end is planned");
    let first = permitted(&mut house, &main_to(&o(), 'b'));
    assert_eq!(house.arrive(first), Ok(None));
    assert_eq!(house.wait(first), Ok(Ok(())));
    assert_eq!(house.notes().len(), 1_000, "the victim is answered before anybody follows");
    assert_eq!(house.running().len(), 1, "one at a time");
    for _ in 0..100 {
        house.step(0).expect("no end is planned");
        assert_eq!(house.running().len(), 1);
    }
    let left = house.notes().len();
    assert!((900..1_000).contains(&left), "{left}");
    // The next push of the victim waits for one order, not for the crowd.
    house.submit(&main_at(&o(), 300, 'c'));
    let second = permitted(&mut house, &main_to(&o(), 'c'));
    assert_eq!(house.arrive(second), Ok(None));
    assert_eq!(house.wait(second), Ok(Ok(())));
    assert!(house.notes().len() >= left - 2, "{} of {left}", house.notes().len());
    // A stranger's own push has its turn as well.
    let pull = m().pull_request(400, &[&o().repo("tool")], &oid('d'));
    house.submit(&pull);
    let third = permitted(&mut house, &Wish::new(tool(&o())).pull(pull.id, &oid('d')));
    assert_eq!(house.arrive(third), Ok(None));
    assert_eq!(house.wait(third), Ok(Ok(())));
    house.work().expect("no end is planned");
    assert_eq!(house.notes().len(), 0);
    for owner in crowd.iter().chain([&o()]) {
        assert_eq!(house.refs(&tool(owner)).get("refs/heads/main"), Some(&oid('c')));
    }
}

/// X knows O's oids, and even O's state; X's repository cannot read O's objects unless X names O.
#[test]
fn a_stranger_of_the_same_name_reads_nothing() {
    let mut house = hosting(&[&m()]);
    house.submit(&x().listed(&service(), "tool", 200, &[]));
    let state = main_at(&x(), 201, 'a');
    house.submit(&state);
    assert!(house.sets().1.contains(&state.id), "the object is next door");
    assert!(house.git().folder(&tool(&x())).is_none());
    // A push that brings nothing is not connected.
    let id = permitted(&mut house, &Wish { brings: Default::default(), ..main_to(&x(), 'a') });
    assert!(matches!(house.arrive(id), Ok(Some(Err(PushRejection::Failed(_))))));
    house.end(id).expect("no end is planned");
    // That O names X lets O's read X's, not the reverse.
    house.submit(&o().listed(&service(), "tool", 300, &[&m(), &x()]));
    house.submit(&x().listed(&service(), "tool", 301, &[&o()]));
    assert!(house.sets().0.contains(&state.id));
    assert_eq!(house.git().folder(&tool(&x())).expect("a folder").alternates, [tool(&o())].into());
    // X thinks better of it: what X's refs need is X's own now.
    house.submit(&x().listed(&service(), "tool", 302, &[]));
    let folder = house.git().folder(&tool(&x())).expect("a folder").clone();
    assert_eq!((folder.alternates, folder.pool), ([].into(), [oid('a')].into()));
}

/// Whoever offers something to O's repository cannot hide the commit in a stranger's of the same name.
#[test]
fn a_pull_request_is_not_pushed_to_a_stranger() {
    let mut house = hosting(&[&m()]);
    house.submit(&x().listed(&service(), "tool", 200, &[&o()]));
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    house.submit(&pull);
    let result = house.push(&Wish::new(tool(&x())).pull(pull.id, &oid('b')));
    assert_eq!(result, Err(PushRejection::OtherRepository(pull_ref(pull.id))));
    // M is a maintainer of O's, whose repository reads what is at M's.
    house.submit(&m().listed(&service(), "tool", 200, &[&o()]));
    assert_eq!(house.push(&Wish::new(tool(&m())).pull(pull.id, &oid('b'))), Ok(()));
    for owner in [o(), m()] {
        assert_eq!(house.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')));
    }
    assert_eq!(house.refs(&tool(&x())).get(&pull_ref(pull.id)), None);
    assert!(house.sets().0.contains(&pull.id));
}

/// However many newer states wait, what is served counts.
#[test]
fn waiting_states_hide_no_served_one() {
    let mut house = hosting(&[&m(), &x()]);
    let served = m().state("tool", 102, &[("refs/heads/main", &oid('a')), ("refs/heads/dev", &oid('a'))]);
    house.submit(&served);
    assert!(house.sets().0.contains(&served.id));
    for author in [o(), m(), x()] {
        for nth in 0..limits::MAX_HELD_STATE_VERSIONS as u64 {
            house.submit(&author.state("tool", 1_000 + nth, &[("refs/heads/main", &oid('b'))]));
        }
    }
    assert!(house.sets().1.len() > limits::MAX_CANDIDATE_STATES);
    house.submit(&m().deletion(103, &[&["a", &m().coordinate(kinds::STATE, "tool")]]));
    let refs: Vec<_> = house.refs(&tool(&o())).into_iter().collect();
    assert_eq!(refs, [("refs/heads/main".to_owned(), oid('a'))]);
}

/// Work on other names leaves room for a push.
#[test]
fn pushes_have_orders_of_their_own() {
    let names: Vec<String> = (0..8).map(|nth| format!("tool{nth}")).collect();
    let mut house = House::default();
    for name in names.iter().map(String::as_str).chain(["tool"]) {
        house.submit(&o().listed(&service(), name, 100, &[]));
        house.submit(&o().state(name, 101, &[("refs/heads/main", &oid('a'))]));
        let repo_path = RepoPath::Announced(o().repo_id(name));
        house.push(&Wish::new(repo_path).set("refs/heads/main", &oid('a'))).expect("a good push");
    }
    house.be_lazy(true);
    for name in &names {
        house.submit(&o().state(name, 200, &[("refs/heads/dev", &oid('a'))]));
    }
    assert_eq!(house.running().len(), limits::MAX_CONCURRENT_GIT_JOBS - limits::GIT_JOBS_RESERVED_FOR_PUSHES);
    house.submit(&main_at(&o(), 200, 'b'));
    let id = permitted(&mut house, &main_to(&o(), 'b'));
    assert_eq!(house.arrive(id), Ok(None));
    let order = house.running().back().expect("it has its turn").clone();
    assert_eq!(order.repo_path, tool(&o()));
    while house.result(id).is_none() {
        let nth = house.place_of(order.id).expect("it is under way");
        house.step(nth).expect("no end is planned");
    }
    assert_eq!(house.result(id), Some(Ok(())));
    house.work().expect("no end is planned");
    assert!(house.sets().1.is_empty());
}
