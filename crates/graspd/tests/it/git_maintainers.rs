//! Whose word counts where, and repositories that follow each other.

use grasp_sim::signer::owned;

use crate::support::eventually;
use crate::support::git::{MAIN, THEN, Work};
use crate::support::test_server::{Stage, main_at, one_commit};

/// O lists M, M lists R, X lists O; R has no announcement.
#[test]
fn s15_3_whose_states_allow_a_push_where() {
    let mut stage = Stage::new();
    let cast = stage.cast();
    let [o, m, r, x] = &cast;
    let all = [true; 4];
    for (d, host, set) in [("o", o, [true, true, true, false]), ("m", m, [false, true, true, false]), ("x", x, all)] {
        stage.hold(&o.announce(d, THEN, &[m]));
        stage.hold(&m.announce(d, THEN, &[r]));
        stage.hold(&x.announce(d, THEN, &[o]));
        assert!(!stage.exists(r, d), "R has announced nothing");
        for (n, (by, may)) in cast.iter().zip(set).enumerate() {
            let (work, commit) = one_commit(&format!("{d} {n}"));
            // Each is newer than all before it.
            let state = by.state(d, THEN + n as u64, &main_at(&commit));
            stage.hold(&state);
            let said = work.push(&stage.url(host, d), &["+main"]);
            assert_eq!(said.success, may, "{n} at {d}: {}", said.err);
            if may {
                stage.expect_served(&[&state]);
                stage.expect_refs(host, d, &main_at(&commit));
            } else {
                assert!(said.err.contains("E-STATE-"), "{}", said.err);
            }
        }
    }
}

#[test]
fn g1_61_followers_are_aligned_after_a_push() {
    let mut stage = Stage::new();
    let [o, m, r, x] = stage.cast();
    let announcements =
        [o.announce("tool", THEN, &[&m]), m.announce("tool", THEN, &[&r]), x.announce("tool", THEN, &[&o])];
    for announcement in &announcements {
        stage.hold(announcement);
    }
    // The owner's word counts with O and X, not with M.
    let (work, c1) = one_commit("one");
    let t1 = work.tag("v1");
    let declared = [(MAIN, c1.as_str()), ("refs/tags/v1", t1.as_str())];
    stage.advance(&o, &o, "tool", THEN, &work, &declared);
    stage.eventually_refs(&x, "tool", &declared);
    stage.eventually_served(&announcements[2]);
    stage.eventually_head(&x, "tool", MAIN);
    assert!(!stage.served(&announcements[1]));
    stage.expect_refs(&m, "tool", &[]);

    // R's counts with all three, and M's repository is served with it.
    let c2 = work.commit("file", "two");
    stage.advance(&o, &r, "tool", THEN + 1, &work, &main_at(&c2));
    for who in [&m, &x] {
        stage.eventually_refs(who, "tool", &main_at(&c2));
        let clone = Work::clone(&stage.url(who, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c2);
    }
    stage.eventually_served(&announcements[1]);

    // X's own word counts with X only.
    let c3 = work.commit("file", "three");
    stage.advance(&x, &x, "tool", THEN + 2, &work, &main_at(&c3));
    for who in [&o, &m] {
        stage.expect_refs(who, "tool", &main_at(&c2));
    }
}

#[test]
fn g1_61_a_push_to_a_follower_reaches_whom_it_follows() {
    let mut stage = Stage::new();
    let [o, _, _, x] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&o, "tool", &[], &work, &main_at(&c1));
    stage.publish(&x.announce("tool", THEN, &[&o]));
    stage.eventually_refs(&x, "tool", &main_at(&c1));
    // X has something of its own in between, which the owner builds upon.
    let c2 = work.commit("file", "two");
    stage.advance(&x, &x, "tool", THEN + 1, &work, &main_at(&c2));
    stage.expect_refs(&o, "tool", &main_at(&c1));
    let c3 = work.commit("file", "three");
    stage.advance(&x, &o, "tool", THEN + 2, &work, &main_at(&c3));
    stage.eventually_refs(&o, "tool", &main_at(&c3));
    Work::clone(&stage.url(&o, "tool")).fsck();
}

#[test]
fn g1_15_an_announcement_whose_data_is_here_is_served_without_a_push() {
    let mut stage = Stage::new();
    let [o, m, _, x] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&o, "tool", &[&m], &work, &main_at(&c1));
    // M's state counts with O while M has announced nothing.
    let c2 = work.commit("file", "two");
    stage.advance(&o, &m, "tool", THEN + 1, &work, &main_at(&c2));
    for (who, others) in [(&m, &[][..]), (&x, &[&o])] {
        let announcement = who.announce("tool", THEN, others);
        stage.publish(&announcement);
        stage.eventually_served(&announcement);
        stage.eventually_refs(who, "tool", &main_at(&c2));
        let clone = Work::clone(&stage.url(who, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c2);
    }
}

#[test]
fn g1_12_a_served_announcement_is_replaced_at_once() {
    let mut stage = Stage::new();
    let [o, m, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let (first, state) = stage.found(&o, "tool", &[], &work, &main_at(&c1));
    let second = o.announce("tool", THEN + 1, &[&m]);
    stage.publish(&second);
    stage.eventually_served(&second);
    assert!(!stage.served(&first));
    stage.expect_served(&[&state]);
    stage.expect_refs(&o, "tool", &main_at(&c1));
    // And the new maintainer may speak.
    let c2 = work.commit("file", "two");
    stage.advance(&o, &m, "tool", THEN + 2, &work, &main_at(&c2));
}

#[test]
fn whoever_is_no_maintainer_any_more_is_not_followed() {
    let mut stage = Stage::new();
    let [o, m, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&o, "tool", &[&m], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    stage.advance(&o, &m, "tool", THEN + 1, &work, &main_at(&c2));
    let alone = o.announce("tool", THEN + 1, &[]);
    stage.publish(&alone);
    stage.eventually_served(&alone);
    // The newest state of those who remain.
    stage.eventually_refs(&o, "tool", &main_at(&c1));
    let c3 = work.commit("file", "three");
    stage.refuse(&m.state("tool", THEN + 2, &main_at(&c3)), "restricted: ");
    work.push(&stage.url(&o, "tool"), &["main"]).refused(&["E-STATE-"]);
    Work::clone(&stage.url(&o, "tool")).fsck();
}

#[test]
fn g1_10_delisting_ends_hosting() {
    let mut stage = Stage::new();
    let [o, m, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let (announcement, _) = stage.found(&o, "tool", &[&m], &work, &main_at(&c1));
    let of_m = m.announce("tool", THEN, &[&o]);
    stage.publish(&of_m);
    stage.eventually_refs(&m, "tool", &main_at(&c1));
    // M names O, so O's word is kept, but that is no reason to go on hosting for O.
    let elsewhere = o.announce_elsewhere("tool", THEN + 1, &[&m]);
    stage.publish(&elsewhere);
    stage.expect_served(&[&elsewhere]);
    eventually("the repository is gone", || (!stage.exists(&o, "tool")).then_some(()));
    assert!(!stage.served(&announcement));
    work.push(&stage.url(&o, "tool"), &["main"]).refused(&["not found"]);
    // Who followed has what it needs.
    let clone = Work::clone(&stage.url(&m, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c1);
    // Coming back is possible, with something newer.
    stage.client.publish(&announcement);
    assert!(!stage.served(&announcement) && !stage.exists(&o, "tool"));
    stage.publish(&o.announce("tool", THEN + 2, &[&m]));
    eventually("the repository is back", || stage.exists(&o, "tool").then_some(()));
}

#[test]
fn g1_08_announcements_by_the_maintainer_exception_have_no_repository() {
    let mut stage = Stage::new();
    let [o, m, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&o, "tool", &[&m], &work, &main_at(&c1));
    let elsewhere = m.announce_elsewhere("tool", THEN, &[]);
    assert_eq!(stage.client.publish(&elsewhere), (true, String::new()));
    stage.expect_served(&[&elsewhere]);
    assert!(!stage.exists(&m, "tool"));
    work.push(&stage.url(&m, "tool"), &["main"]).refused(&["not found"]);
}

#[test]
fn s2_6_3_role_tags_ask_for_an_answer() {
    let mut stage = Stage::new();
    let [o, m, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let role = |who: &crate::support::git::Maintainer, more: &[&str]| {
        let key = who.author.hex();
        vec![[&["m", key.as_str()], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()]
    };
    stage.hold(&o.announce_with("tool", THEN, role(&m, &[])));
    let state = m.state("tool", THEN, &main_at(&c1));
    // Invited, but without an answer.
    stage.refuse(&state, "restricted: ");
    work.push(&stage.url(&o, "tool"), &["main"]).refused(&["E-STATE-MISSING"]);
    stage.publish(&m.announce_with("tool", THEN, role(&o, &[])));
    stage.hold(&state);
    work.push(&stage.url(&o, "tool"), &["main"]).done();
    stage.expect_served(&[&state]);
    // An ended role is none, nor is one that was never begun, whatever `maintainers` says beside it (G1-30).
    let mut never = role(&m, &["soon"]);
    never.extend(owned(&[&["maintainers", &m.author.hex()]]));
    for (at, roles) in [(1, role(&m, &["1700000000", "1710000000"])), (2, never)] {
        stage.publish(&o.announce_with("tool", THEN + at, roles));
        // What M said counts no more, and nobody else has said anything.
        stage.eventually_refs(&o, "tool", &[]);
        let commit = work.commit("file", &at.to_string());
        // M may still say so of the own repository.
        stage.publish(&m.state("tool", THEN + at, &main_at(&commit)));
        work.push(&stage.url(&o, "tool"), &["main"]).refused(&["E-STATE-"]);
    }
}

#[test]
fn s15_3_under_the_strict_rule_a_maintainer_lists_back() {
    let mut stage = Stage::with(&[("STRICT_MAINTAINERS", "true")]);
    let [o, m, r, x] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.hold(&o.announce("tool", THEN, &[&m]));
    let of_m = m.state("tool", THEN, &main_at(&c1));
    stage.refuse(&of_m, "restricted: ");
    stage.publish(&m.announce("tool", THEN, &[&r]));
    // M has a repository now, but O's does not follow it.
    stage.publish(&of_m);
    let url = stage.url(&o, "tool");
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING"]);
    stage.publish(&m.announce("tool", THEN + 1, &[&o, &r]));
    work.push(&url, &["main"]).done();
    stage.expect_served(&[&of_m]);

    // R only when R has announced and lists one of them.
    let c2 = work.commit("file", "two");
    stage.refuse(&r.state("tool", THEN + 1, &main_at(&c2)), "restricted: ");
    stage.publish(&r.announce("tool", THEN, &[&m]));
    stage.advance(&o, &r, "tool", THEN + 1, &work, &main_at(&c2));
    // X lists O, which does not make O's word X's.
    let of_x = x.announce("tool", THEN, &[&o]);
    stage.hold(&of_x);
    let c3 = work.commit("file", "three");
    let of_o = o.state("tool", THEN + 2, &main_at(&c3));
    stage.hold(&of_o);
    work.push(&stage.url(&x, "tool"), &["main"]).refused(&["E-STATE-MISSING"]);
    work.push(&url, &["main"]).done();
    stage.expect_served(&[&of_o]);
    stage.expect_refs(&x, "tool", &[]);
    assert!(!stage.served(&of_x));
}

#[test]
fn g1_10_delisting_by_somebody_whom_nobody_names() {
    let mut stage = Stage::new();
    let o = stage.person(1);
    let (work, c1) = one_commit("one");
    let (announcement, _) = stage.found(&o, "tool", &[], &work, &main_at(&c1));
    stage.refuse(&o.announce_elsewhere("tool", THEN + 1, &[]), "invalid: ");
    eventually("the repository is gone", || (!stage.exists(&o, "tool")).then_some(()));
    assert!(!stage.served(&announcement));
    stage.refuse(&announcement, "invalid: ");
    // From the beginning.
    stage.hold(&o.announce("tool", THEN + 2, &[]));
    stage.publish(&o.state("tool", THEN + 2, &main_at(&c1)));
    work.push(&stage.url(&o, "tool"), &["main"]).done();
    stage.expect_refs(&o, "tool", &main_at(&c1));
}
