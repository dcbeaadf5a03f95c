//! What waits is looked at again whenever it could have become complete: by objects that came for something else, by a
//! repository that is announced later, by a maintainer who is named later.

use grasp_core::nostr::kinds;
use grasp_sim::fixtures::{m, main_at, o, oid, x};
use grasp_sim::git_model::pull_ref;
use grasp_sim::test_server::{Wish, service};

use super::runner::{Act, Script};
use super::scripts::main_is;
use super::{hosting, main_to, submission, tool};

#[test]
fn a_target_is_announced_after_the_pull_request() {
    let mut before = hosting(&[]);
    let pull = x().pull_request(200, &[&o().repo("tool"), &m().repo("tool")], &oid('b'));
    before.push(Act::Submit(pull.clone()));
    let acts = vec![
        Act::Submit(m().listed(&service(), "tool", 201, &[])),
        Act::Submit(main_at(&m(), 202, 'c')),
        Act::Push(main_to(&m(), 'c', "ab")),
    ];
    let (house, _) = Script { before, acts }.survives();
    for owner in [o(), m()] {
        assert_eq!(house.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')), "{owner:?}");
    }
}

#[test]
fn a_target_without_objects_of_its_own_reads_the_commit() {
    let mut before = hosting(&[]);
    before.extend([
        Act::Submit(main_at(&o(), 200, 'b')),
        Act::Push(main_to(&o(), 'b', "")),
        Act::Submit(o().state("tool", 201, &[])),
        Act::Submit(submission(&m(), 202, &[&x().repo("tool")], 'b')),
    ]);
    let acts = vec![Act::Submit(x().listed(&service(), "tool", 203, &[&o()]))];
    let (house, _) = Script { before, acts }.survives();
    assert_eq!(house.refs(&tool(&x())).len(), 1);
}

/// The ids of events decide about the order in which they are read back at boot.
#[test]
fn a_pull_request_for_a_repository_that_waits_in_every_order_of_reading() {
    let mut lower = 0;
    for at in 200..206 {
        let announcement = m().listed(&service(), "tool", 150, &[]);
        let pull = x().pull_request(at, &[&o().repo("tool"), &m().repo("tool")], &oid('d'));
        lower += usize::from(pull.id < announcement.id);
        let mut before = hosting(&[]);
        before.extend([Act::Submit(announcement), Act::Submit(pull.clone())]);
        let acts = vec![Act::Push(Wish::new(tool(&m())).pull(pull.id, &oid('d')))];
        let (house, _) = Script { before, acts }.survives();
        assert!(house.sets().0.contains(&pull.id));
    }
    assert!((1..6).contains(&lower), "{lower}");
}

/// X's state is complete as soon as O, who has the objects, names X.
#[test]
fn a_maintainer_is_named_whose_state_waits() {
    let mut before = hosting(&[]);
    before.extend([
        Act::Submit(x().listed(&service(), "tool", 150, &[])),
        Act::Submit(x().state("tool", 99, &[("refs/heads/main", &oid('a'))])),
    ]);
    let acts = vec![Act::Submit(o().listed(&service(), "tool", 200, &[&x()]))];
    let (house, _) = Script { before, acts }.survives();
    main_is(&house, &x(), Some('a'));
    assert!(house.sets().1.is_empty());
}

/// M's state is served, its repository was lost and is announced again; the objects come to O's, which it speaks for, too.
#[test]
fn the_objects_of_a_served_state_come_back_next_door() {
    let mut before = hosting(&[&m()]);
    let pull = x().pull_request(300, &[&o().repo("tool")], &oid('d'));
    before.extend([
        Act::Submit(m().listed(&service(), "tool", 50, &[])),
        Act::Submit(main_at(&m(), 51, 'd')),
        Act::Push(main_to(&m(), 'd', "")),
        Act::Submit(m().deletion(60, &[&["a", &m().repo("tool")]])),
        Act::Submit(m().listed(&service(), "tool", 61, &[])),
        Act::Submit(pull.clone()),
    ]);
    let acts = vec![Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('d')))];
    let (house, _) = Script { before, acts }.survives();
    main_is(&house, &m(), Some('d'));
    assert!(house.sets().1.is_empty());
}

/// An upload came to a repository that then went; its event came, and then the repository again.
#[test]
fn an_upload_is_wanted_again() {
    let pull = submission(&x(), 200, &[&o().repo("tool")], 'd');
    let mut before = hosting(&[]);
    before.extend([
        Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('d'))),
        Act::Submit(o().deletion(300, &[&["a", &o().repo("tool")], &["a", &o().coordinate(kinds::STATE, "tool")]])),
        Act::Submit(pull.clone()),
    ]);
    let acts = vec![Act::Submit(o().listed(&service(), "tool", 301, &[]))];
    let (house, _) = Script { before, acts }.survives();
    assert_eq!(house.refs(&tool(&o())).get(&pull_ref(pull.id)), Some(&oid('d')));
    assert!(house.staged().is_empty());
}
