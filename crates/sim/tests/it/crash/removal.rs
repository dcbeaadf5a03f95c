//! How things go: deletion, withdrawal, expiry, vanishing, and a maintainer who is one no more.

use grasp_core::limits;
use grasp_core::nostr::kinds;
use grasp_sim::fixtures::{m, main_at, o, oid, x};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::{maintainers_tag, owned};
use grasp_sim::test_server::{Wish, service};

use super::runner::{Act, Script};
use super::scripts::main_is;
use super::{hosting, main_to, prs, submission, tool};

/// O's and M's repositories, each of which follows both, and X's, which follows O's. `main` is at `b`, by M.
fn three() -> Vec<Act> {
    let mut acts = hosting(&[&m()]);
    acts.extend([
        Act::Submit(m().listed(&service(), "tool", 150, &[&o()])),
        Act::Submit(x().listed(&service(), "tool", 151, &[&o()])),
        Act::Submit(main_at(&m(), 200, 'b')),
        Act::Push(main_to(&m(), 'b', "")),
    ]);
    acts
}

#[test]
fn deletion_of_the_only_state() {
    let acts = vec![Act::Submit(o().deletion(300, &[&["a", &o().coordinate(kinds::STATE, "tool")]]))];
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    main_is(&house, &o(), None);
}

#[test]
fn deletion_of_a_state_goes_back_to_another() {
    let acts = vec![Act::Submit(m().deletion(300, &[&["a", &m().coordinate(kinds::STATE, "tool")]]))];
    let (house, _) = Script { before: three(), acts }.survives();
    for owner in [o(), m(), x()] {
        main_is(&house, &owner, Some('a'));
    }
}

/// A newer state waits for data that is not here: what was deleted goes all the same.
#[test]
fn deletion_of_a_state_while_another_waits() {
    let mut before = hosting(&[]);
    before.push(Act::Submit(main_at(&o(), 400, 'c')));
    let state = main_at(&o(), 101, 'a');
    let (house, _) = Script { before, acts: vec![Act::Submit(o().delete(300, &[&state]))] }.survives();
    main_is(&house, &o(), None);
}

#[test]
fn deletion_of_a_pull_request() {
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(m().listed(&service(), "tool", 150, &[&o()])));
    let pull = submission(&x(), 200, &[&o().repo("tool")], 'b');
    // It was also pushed to another maintainer's.
    before.extend([
        Act::Submit(pull.clone()),
        Act::Push(Wish::new(prs(&x())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
        Act::Push(Wish::new(tool(&m())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ]);
    let (mut house, _) = Script { before, acts: vec![Act::Submit(x().delete(300, &[&pull]))] }.survives();
    for repo_path in [tool(&o()), tool(&m()), prs(&x())] {
        assert_eq!(house.refs(&repo_path).get(&pull_ref(pull.id)), None, "{repo_path}");
    }
    assert!(house.git().folder(&prs(&x())).is_none());
}

#[test]
fn one_of_two_submissions_goes() {
    let [one, other] = [(200, 'b'), (201, 'c')].map(|(at, digit)| submission(&x(), at, &[&m().repo("tool")], digit));
    let before = vec![
        Act::Submit(one.clone()),
        Act::Submit(other.clone()),
        Act::Push(Wish::new(prs(&x())).pull(one.id, &oid('b')).pull(other.id, &oid('c')).bring(&[&oid('a')])),
    ];
    let (house, _) = Script { before, acts: vec![Act::Submit(x().delete(300, &[&one]))] }.survives();
    assert_eq!(house.refs(&prs(&x())).into_keys().collect::<Vec<_>>(), [pull_ref(other.id)]);
}

#[test]
fn deletion_of_an_announcement_whose_objects_others_read() {
    let acts = vec![Act::Submit(m().deletion(300, &[&["a", &m().repo("tool")]]))];
    let (mut house, _) = Script { before: three(), acts }.survives();
    main_is(&house, &o(), Some('b'));
    assert!(house.git().folder(&tool(&m())).is_none());
}

#[test]
fn deletion_of_everything_and_a_new_beginning() {
    let tags: &[&[&str]] = &[&["a", &o().repo("tool")], &["a", &o().coordinate(kinds::STATE, "tool")]];
    let mut acts = vec![Act::Submit(o().deletion(300, tags))];
    acts.extend([
        Act::Submit(o().listed(&service(), "tool", 301, &[])),
        Act::Submit(main_at(&o(), 302, 'd')),
        Act::Push(main_to(&o(), 'd', "")),
    ]);
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    main_is(&house, &o(), Some('d'));
}

#[test]
fn withdrawal() {
    for before in [hosting(&[]), three()] {
        let acts = vec![
            Act::Submit(o().listed(&service(), "tool", 300, &[&m()])),
            Act::Submit(m().unlisted("tool", 301, &[])),
        ];
        let (house, _) = Script { before: before.clone(), acts }.survives();
        assert!(house.admission().hosted_repo(&m().repo_id("tool")).is_none());
        // Refused, and hosting has ended.
        let script = Script { before, acts: vec![] };
        let mut house = script.survives().0;
        house.submit(&o().unlisted("tool", 400, &[]));
        assert!(house.git().folder(&tool(&o())).is_none());
    }
}

#[test]
fn expiry_of_what_waits() {
    let mut before = hosting(&[&m()]);
    let held = x().pull_request(201, &[&o().repo("tool")], &oid('d'));
    before.extend([
        Act::Submit(m().listed(&service(), "tool", 150, &[])),
        Act::Submit(main_at(&m(), 200, 'c')),
        Act::Submit(held),
        Act::Push(Wish::new(tool(&o())).pull(x().note(1, &[], "").id, &oid('e'))),
        Act::Push(Wish::new(tool(&m())).pull(x().note(2, &[], "").id, &oid('f'))),
    ]);
    let (mut house, _) = Script { before, acts: vec![Act::Wait(limits::PURGATORY_EXPIRY_SECS)] }.survives();
    assert_eq!((house.sets().1.len(), house.staged().len(), house.git().staged().len()), (0, 0, 0));
    main_is(&house, &o(), Some('a'));
}

/// A repository that is not served yet has got a pull request's ref; then nobody pushes to it.
#[test]
fn expiry_of_a_repository_with_a_ref() {
    let mut before = hosting(&[]);
    let pull = x().pull_request(201, &[&o().repo("tool"), &m().repo("tool")], &oid('b'));
    before.extend([
        Act::Submit(m().listed(&service(), "tool", 150, &[])),
        Act::Submit(pull.clone()),
        Act::Push(Wish::new(tool(&m())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ]);
    let (mut house, _) = Script { before, acts: vec![Act::Wait(limits::PURGATORY_EXPIRY_SECS)] }.survives();
    assert!(house.git().folder(&tool(&m())).is_none());
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), Some(&oid('b')));
}

#[test]
fn expiry_of_what_is_served() {
    let soon = |at: u64| vec!["expiration".to_owned(), (10_000 + at).to_string()];
    let mut tags = owned(&[&["d", "tool"], &["refs/heads/main", &oid('b')]]);
    tags.push(soon(100));
    let state = m().sign_owned(kinds::STATE, 200, tags, "");
    let announcement = o().listed_with(&service(), "tool", 99, vec![maintainers_tag(&[&m()]), soon(2_000)]);
    let before = vec![
        Act::Submit(announcement),
        Act::Submit(main_at(&o(), 101, 'a')),
        Act::Push(main_to(&o(), 'a', "")),
        Act::Submit(x().listed(&service(), "tool", 151, &[&o()])),
        Act::Submit(state),
        Act::Push(main_to(&o(), 'b', "")),
    ];
    let (house, _) = Script { before: before.clone(), acts: vec![Act::Wait(100)] }.survives();
    main_is(&house, &o(), Some('a'));
    main_is(&house, &x(), Some('a'));
    let (mut house, _) = Script { before, acts: vec![Act::Wait(2_000)] }.survives();
    assert!(house.git().folder(&tool(&o())).is_none());
    main_is(&house, &x(), Some('a'));
}

#[test]
fn vanishing() {
    for author in [o(), m(), x()] {
        let mut before = three();
        let pull = submission(&x(), 250, &[&o().repo("tool"), &x().repo("tool")], 'c');
        before.extend([
            Act::Submit(pull.clone()),
            Act::Push(Wish::new(prs(&x())).pull(pull.id, &oid('c')).bring(&[&oid('a'), &oid('b')])),
        ]);
        let (mut house, _) = Script { before, acts: vec![Act::Submit(author.vanish(300, &["ALL_RELAYS"]))] }.survives();
        assert_eq!(house.git().folder(&tool(&author)), None);
        let left = house.refs(&tool(&if author == o() { x() } else { o() }));
        assert_eq!(left.contains_key(&pull_ref(pull.id)), author != x());
    }
}

#[test]
fn the_set_of_maintainers_shrinks() {
    // O's is at M's state, whose objects are in M's pool.
    let acts = vec![Act::Submit(o().listed(&service(), "tool", 300, &[]))];
    let (mut house, _) = Script { before: three(), acts }.survives();
    main_is(&house, &o(), Some('a'));
    main_is(&house, &x(), Some('a'));
    main_is(&house, &m(), Some('b'));
    assert!(house.git().folder(&tool(&o())).expect("a folder").alternates.is_empty());
    // X's names nobody any more: it has its own objects and nothing that is signed.
    let acts = vec![Act::Submit(x().listed(&service(), "tool", 300, &[]))];
    let (mut house, _) = Script { before: three(), acts }.survives();
    main_is(&house, &x(), None);
    assert!(house.git().folder(&tool(&x())).expect("a folder").alternates.is_empty());
}

#[test]
fn the_set_of_maintainers_grows() {
    let mut before = hosting(&[]);
    before.extend([
        Act::Submit(m().listed(&service(), "tool", 150, &[])),
        Act::Submit(main_at(&m(), 200, 'b')),
        Act::Push(main_to(&m(), 'b', "a")),
    ]);
    let acts = vec![Act::Submit(o().listed(&service(), "tool", 300, &[&m()]))];
    let (house, _) = Script { before, acts }.survives();
    main_is(&house, &o(), Some('b'));
}
