//! Sections 2.5 and 2.6: which states are taken, and from whom.

use super::common::*;

#[test]
fn g1_23_a_maintainers_state_is_taken() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    says(&mut house, &announcement, HELD);
    let (own, theirs) = (main_at(&o(), 101, 'a'), main_at(&m(), 102, 'b'));
    says(&mut house, &own, HELD);
    says(&mut house, &theirs, HELD);
    stands(&house, &[], &[&announcement, &own, &theirs]);
}

#[test]
fn g1_24_other_states_are_refused() {
    let mut house = House::default();
    says(&mut house, &main_at(&o(), 101, 'a'), NO_ANNOUNCEMENT);
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    says(&mut house, &announcement, HELD);
    says(&mut house, &main_at(&x(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &o().state("other", 101, &[]), NO_ANNOUNCEMENT);
    says(&mut house, &o().state("Tool", 101, &[]), NO_ANNOUNCEMENT);
    stands(&house, &[], &[&announcement]);
}

#[test]
fn g1_25_git_is_asked_on_arrival() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    house.orders();
    house.be_lazy(true);
    let emptied = o().state("tool", 200, &[("HEAD", "ref: refs/heads/main")]);
    says(&mut house, &emptied, HELD);
    let order = house.orders().pop().expect("a look at git");
    let GitOperation::Align(align) = order.operation else { panic!("{order:?}") };
    let candidates: Vec<_> = align.candidates.iter().map(|state| (state.event, state.refs.clone())).collect();
    let served = (state.id, vec![("refs/heads/main".to_owned(), oid('a'))]);
    assert_eq!(
        (order.repo_path, candidates),
        (RepoPath::Announced(o().repo_id("tool")), vec![(emptied.id, vec![]), served])
    );
    stands(&house, &[&announcement, &state], &[&emptied]);
    house.work().expect("no end is planned");
    stands(&house, &[&announcement, &emptied], &[]);
}

#[test]
fn g1_26_a_state_without_its_data_waits() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let newer = main_at(&o(), 200, 'b');
    says(&mut house, &newer, HELD);
    stands(&house, &[&announcement, &state], &[&newer]);
}

#[test]
fn g1_27_f5_a_state_is_superseded_by_a_served_one_only() {
    let (mut house, announcement, _) = hosting(rules(), &[]);
    let [s1, s2, s3] = [(200, 'b'), (201, 'c'), (202, 'd')].map(|(at, digit)| main_at(&o(), at, digit));
    for state in [&s3, &s1, &s2] {
        says(&mut house, state, HELD);
    }
    pushed(&mut house, &s2, &o());
    stands(&house, &[&announcement, &s2], &[&s3]);
    says(&mut house, &s1, OLD);
    stands(&house, &[&announcement, &s2], &[&s3]);
}

#[test]
fn g1_28_15_3_the_recursive_rule() {
    let mut house = House::default();
    let held = [
        o().listed(&service(), "tool", 100, &[&m()]),
        m().listed(&service(), "tool", 101, &[&r()]),
        x().listed(&service(), "tool", 102, &[&o()]),
    ];
    for announcement in &held {
        says(&mut house, announcement, HELD);
    }
    let identifier = Identifier::new("tool").expect("valid");
    for (author, owners) in
        [(o(), vec![o(), x()]), (m(), vec![o(), m(), x()]), (r(), vec![o(), m(), x()]), (x(), vec![x()])]
    {
        let expected: BTreeSet<_> = owners.iter().map(|owner| owner.repo_id("tool")).collect();
        let repos = house.repos_of(&identifier, author.key());
        assert_eq!(repos.into_iter().collect::<BTreeSet<_>>(), expected, "{author:?}");
        says(&mut house, &main_at(&author, 200, 'a'), HELD);
    }
}

#[test]
fn g1_28_data_is_found_only_where_the_author_may_speak() {
    let mut house = House::default();
    // If O named M, O's repository would read what is at M's.
    let (a, b) = (o().listed(&service(), "tool", 100, &[]), m().listed(&service(), "tool", 101, &[]));
    let state = main_at(&o(), 102, 'a');
    for event in [&a, &b, &state] {
        says(&mut house, event, HELD);
    }
    for wrong in [m().repo_id("tool"), o().repo_id("other"), r().repo_id("tool")] {
        house.data_found(state.id, wrong);
    }
    house.data_found(a.id, o().repo_id("tool"));
    stands(&house, &[], &[&a, &b, &state]);
    pushed(&mut house, &state, &o());
    stands(&house, &[&a, &state], &[&b]);
}

#[test]
fn g1_29_g1_30_role_tags_are_reciprocal_and_hide_maintainers() {
    let mut house = House::default();
    let roles = owned(&[&["m", &m().hex()], &["maintainers", &x().hex()]]);
    says(&mut house, &o().listed_with(&service(), "tool", 100, roles), HELD);
    says(&mut house, &main_at(&x(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &main_at(&m(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &m().listed(&service(), "tool", 102, &[&o()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), HELD);
    assert_eq!(house.repos_of(&Identifier::new("tool").expect("valid"), m().key()).len(), 2);
}

#[test]
fn g1_29_the_strict_rule_is_reciprocal_for_everybody() {
    let mut house = House::new(strict());
    says(&mut house, &o().listed(&service(), "tool", 100, &[&m()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &m().listed(&service(), "tool", 102, &[&o()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), HELD);
}
