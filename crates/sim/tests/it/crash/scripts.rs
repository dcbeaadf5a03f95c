//! How things come: pushes, arrivals, followers, pull requests.

use grasp_core::nostr::kinds;
use grasp_sim::fixtures::{m, main_at, o, oid, r, x};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{House, Wish, service};

use super::runner::{Act, Script};
use super::{hosting, main_to, prs, submission, tool};

/// Where `main` is.
#[track_caller]
pub(crate) fn main_is(house: &House, owner: &Author, digit: Option<char>) {
    assert_eq!(house.refs(&tool(owner)).get("refs/heads/main"), digit.map(oid).as_ref());
}

#[test]
fn first_push() {
    let script = Script {
        before: vec![Act::Submit(o().listed(&service(), "tool", 100, &[])), Act::Submit(main_at(&o(), 101, 'b'))],
        acts: vec![Act::Push(main_to(&o(), 'b', "a"))],
    };
    let (house, accidents) = script.survives();
    main_is(&house, &o(), Some('b'));
    assert_eq!(house.sets().0.len(), 2);
    assert!(accidents > 50, "{accidents}");
}

#[test]
fn everything_from_the_beginning() {
    let (house, _) = Script { before: vec![], acts: hosting(&[]) }.survives();
    main_is(&house, &o(), Some('a'));
}

#[test]
fn a_push_that_replaces() {
    let mut before = hosting(&[]);
    let two = o().state("tool", 200, &[("refs/heads/dev", &oid('b')), ("HEAD", "ref: refs/heads/dev")]);
    before.push(Act::Submit(two.clone()));
    let wish = Wish::new(tool(&o())).set("refs/heads/dev", &oid('b')).delete("refs/heads/main");
    let (mut house, _) = Script { before, acts: vec![Act::Push(wish)] }.survives();
    main_is(&house, &o(), None);
    assert_eq!(house.git().folder(&tool(&o())).expect("a folder").head.as_deref(), Some("refs/heads/dev"));
    assert!(house.sets().0.contains(&two.id));
}

#[test]
fn arrival_with_data_present() {
    let two = o().state("tool", 200, &[("refs/heads/dev", &oid('a')), ("HEAD", "ref: refs/heads/dev")]);
    let (house, _) = Script { before: hosting(&[]), acts: vec![Act::Submit(two.clone())] }.survives();
    main_is(&house, &o(), None);
    assert!(house.sets().0.contains(&two.id));
}

#[test]
fn followers() {
    let mut before = hosting(&[&m()]);
    before.extend([
        Act::Submit(x().listed(&service(), "tool", 150, &[&o()])),
        Act::Submit(m().listed(&service(), "tool", 151, &[&o()])),
    ]);
    let acts = vec![Act::Submit(main_at(&m(), 200, 'b')), Act::Push(main_to(&o(), 'b', ""))];
    let (house, _) = Script { before, acts }.survives();
    for owner in [o(), m(), x()] {
        main_is(&house, &owner, Some('b'));
    }
    assert_eq!(house.sets().1.len(), 0);
}

#[test]
fn g1_15_an_announcement_whose_data_is_here() {
    let acts = vec![Act::Submit(x().listed(&service(), "tool", 150, &[&o()]))];
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    main_is(&house, &x(), Some('a'));
    assert_eq!(house.sets().1.len(), 0);
}

#[test]
fn a_pull_request_git_first() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let acts = vec![Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('b'))), Act::Submit(pull.clone())];
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), Some(&oid('b')));
    assert!(house.sets().0.contains(&pull.id));
}

#[test]
fn a_pull_request_event_first() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let acts = vec![Act::Submit(pull.clone()), Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('b')))];
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), Some(&oid('b')));
}

/// Its event came, but another commit was pushed before.
#[test]
fn g1_59_an_upload_of_another_commit_goes() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let acts =
        vec![Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('c')).bring(&[&oid('b')])), Act::Submit(pull.clone())];
    let (house, _) = Script { before: hosting(&[]), acts }.survives();
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), None);
    assert_eq!((house.staged(), house.sets().1), (vec![], [pull.id].into()));
}

#[test]
fn g6_06_submissions_are_mirrored() {
    let mut before = hosting(&[]);
    before.extend([
        Act::Submit(m().listed(&service(), "tool", 100, &[])),
        Act::Submit(main_at(&m(), 101, 'd')),
        Act::Push(main_to(&m(), 'd', "")),
    ]);
    let pull = submission(&x(), 200, &[&o().repo("tool"), &m().repo("tool")], 'b');
    let push = Act::Push(Wish::new(prs(&x())).pull(pull.id, &oid('b')).bring(&[&oid('a')]));
    for acts in [vec![Act::Submit(pull.clone()), push.clone()], vec![push, Act::Submit(pull.clone())]] {
        let (house, _) = Script { before: before.clone(), acts }.survives();
        for repo_path in [prs(&x()), tool(&o()), tool(&m())] {
            assert_eq!(house.refs(&repo_path).get(&pull_ref(pull.id)), Some(&oid('b')), "{repo_path}");
        }
    }
}

#[test]
fn g6_06_what_is_pushed_to_a_repository_is_not_mirrored_back() {
    let pull = submission(&x(), 200, &[&o().repo("tool")], 'b');
    let push = Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('b')));
    let (house, _) = Script { before: hosting(&[]), acts: vec![Act::Submit(pull.clone()), push] }.survives();
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), Some(&oid('b')));
    assert!(house.refs(&prs(&x())).is_empty());
}

/// Whoever offers something to one maintainer's repository may push it to another's of the same name.
#[test]
fn a_pull_request_pushed_to_another_repository_of_the_name() {
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(m().listed(&service(), "tool", 150, &[&o()])));
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let push = Act::Push(Wish::new(tool(&m())).pull(pull.id, &oid('b')));
    for acts in [vec![Act::Submit(pull.clone()), push.clone()], vec![push, Act::Submit(pull.clone())]] {
        let (house, _) = Script { before: before.clone(), acts }.survives();
        for owner in [o(), m()] {
            assert_eq!(house.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')), "{owner:?}");
        }
    }
}

/// Branches, a signed pull request and two that nobody has signed yet come together.
#[test]
fn a_mixed_push() {
    let repo = o().repo("tool");
    let [known, one, other] =
        [(200, 'd'), (201, 'e'), (202, 'f')].map(|(at, digit)| x().pull_request(at, &[&repo], &oid(digit)));
    let mut before = hosting(&[]);
    before.extend([Act::Submit(known.clone()), Act::Submit(main_at(&o(), 200, 'b'))]);
    let wish = main_to(&o(), 'b', "").pull(known.id, &oid('d')).pull(one.id, &oid('e')).pull(other.id, &oid('f'));
    let (house, _) = Script { before, acts: vec![Act::Push(wish), Act::Submit(one.clone())] }.survives();
    main_is(&house, &o(), Some('b'));
    let refs = house.refs(&tool(&o()));
    assert_eq!([known.id, one.id, other.id].map(|id| refs.contains_key(&pull_ref(id))), [true, true, false]);
    assert_eq!(house.staged().len(), 1);
}

/// A push brings the data of more than what it was for: of a newer state, and of a pull request.
#[test]
fn section_2_13_whatever_is_complete_now_is_served() {
    let mut before = hosting(&[&m()]);
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let tag = m().state("tool", 300, &[("refs/heads/main", &oid('c')), ("refs/tags/v1", &oid('b'))]);
    before.extend([Act::Submit(pull.clone()), Act::Submit(main_at(&o(), 250, 'c')), Act::Submit(tag.clone())]);
    let (house, _) = Script { before, acts: vec![Act::Push(main_to(&o(), 'c', "b"))] }.survives();
    assert_eq!(house.sets().1, [].into());
    let refs = house.refs(&tool(&o()));
    assert_eq!(refs.get("refs/tags/v1"), Some(&oid('b')));
    assert_eq!(refs.get(&pull_ref(pull.id)), Some(&oid('b')));
}

/// The repository of a target is announced only after the pull request's event is here.
#[test]
fn an_update_for_a_repository_that_waits() {
    let mut before = hosting(&[]);
    let tags: &[&[&str]] = &[&["a", &o().repo("tool")], &["a", &r().repo("tool")], &["c", &oid('d')]];
    let update = x().sign(kinds::PULL_REQUEST_UPDATE, 200, tags, "");
    before.extend([Act::Submit(r().listed(&service(), "tool", 150, &[])), Act::Submit(update.clone())]);
    let acts = vec![Act::Push(Wish::new(tool(&r())).pull(update.id, &oid('d')))];
    let (house, _) = Script { before, acts }.survives();
    for owner in [o(), r()] {
        assert_eq!(house.refs(&tool(&owner)).get(&pull_ref(update.id)), Some(&oid('d')), "{owner:?}");
    }
}
