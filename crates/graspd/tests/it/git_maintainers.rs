//! Maintainer sets: whose states are authoritative for which repository, and repositories that follow each other
//! (`docs/protocol.md#maintainer-sets`).

use grasp_sim::signer::owned_tags;

use crate::support::eventually;
use crate::support::git::{BASE_TIME, MAIN, WorkTree};
use crate::support::test_server::{TestServer, main_at, one_commit};

/// O lists M, M lists R, X lists O; R has no announcement. A push is authorised by a state of any member of the
/// maintainer set of the repository, which is the closure over the `maintainers` tags.
#[test]
fn push_is_authorised_by_states_of_the_maintainer_set() {
    let mut server = TestServer::new();
    let maintainers = server.maintainers();
    let [o, m, r, x] = &maintainers;
    let all = [true; 4];
    for (d, host, set) in [("o", o, [true, true, true, false]), ("m", m, [false, true, true, false]), ("x", x, all)] {
        server.publish_held(&o.announce(d, BASE_TIME, &[m]));
        server.publish_held(&m.announce(d, BASE_TIME, &[r]));
        server.publish_held(&x.announce(d, BASE_TIME, &[o]));
        assert!(!server.repo_exists(r, d), "R has no announcement");
        for (n, (signer, is_member)) in maintainers.iter().zip(set).enumerate() {
            let (work, commit) = one_commit(&format!("{d} {n}"));
            // Each state is newer than those before it.
            let state = signer.state(d, BASE_TIME + n as u64, &main_at(&commit));
            server.publish_held(&state);
            let output = work.push(&server.url(host, d), &["+main"]);
            assert_eq!(output.success, is_member, "{n} at {d}: {}", output.stderr);
            if is_member {
                server.expect_served(&[&state]);
                server.expect_refs(host, d, &main_at(&commit));
            } else {
                assert!(output.stderr.contains("E-STATE-"), "{}", output.stderr);
            }
        }
    }
}

/// After a push, every other repository for which the state is authoritative is aligned with it
/// (`docs/protocol.md#after-a-push`).
#[test]
fn followers_are_aligned_after_a_push() {
    let mut server = TestServer::new();
    let [o, m, r, x] = server.maintainers();
    let announcements = [
        o.announce("tool", BASE_TIME, &[&m]),
        m.announce("tool", BASE_TIME, &[&r]),
        x.announce("tool", BASE_TIME, &[&o]),
    ];
    for announcement in &announcements {
        server.publish_held(announcement);
    }
    // The state of O is authoritative for O and X, not for M.
    let (work, c1) = one_commit("one");
    let t1 = work.tag("v1");
    let declared = [(MAIN, c1.as_str()), ("refs/tags/v1", t1.as_str())];
    server.push_state(&o, &o, "tool", BASE_TIME, &work, &declared);
    server.eventually_refs(&x, "tool", &declared);
    server.eventually_served(&announcements[2]);
    server.eventually_head(&x, "tool", MAIN);
    assert!(!server.is_served(&announcements[1]));
    server.expect_refs(&m, "tool", &[]);

    // The state of R is authoritative for all three, and M's announcement is released with it.
    let c2 = work.commit("file", "two");
    server.push_state(&o, &r, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    for who in [&m, &x] {
        server.eventually_refs(who, "tool", &main_at(&c2));
        let clone = WorkTree::clone(&server.url(who, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c2);
    }
    server.eventually_served(&announcements[1]);

    // The state of X is authoritative for X only.
    let c3 = work.commit("file", "three");
    server.push_state(&x, &x, "tool", BASE_TIME + 2, &work, &main_at(&c3));
    for who in [&o, &m] {
        server.expect_refs(who, "tool", &main_at(&c2));
    }
}

/// A push to the repository of a follower aligns the repositories that it follows, too.
#[test]
fn push_to_a_follower_aligns_the_followed_repository() {
    let mut server = TestServer::new();
    let [o, _, _, x] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&o, "tool", &[], &work, &main_at(&c1));
    server.publish(&x.announce("tool", BASE_TIME, &[&o]));
    server.eventually_refs(&x, "tool", &main_at(&c1));
    // X has a commit of its own, and the next commit of the owner is based on it.
    let c2 = work.commit("file", "two");
    server.push_state(&x, &x, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    server.expect_refs(&o, "tool", &main_at(&c1));
    let c3 = work.commit("file", "three");
    server.push_state(&x, &o, "tool", BASE_TIME + 2, &work, &main_at(&c3));
    server.eventually_refs(&o, "tool", &main_at(&c3));
    WorkTree::clone(&server.url(&o, "tool")).fsck();
}

/// An announcement whose git data is already on this server is filled and released at once
/// (`docs/protocol.md#release`).
#[test]
fn announcement_whose_data_is_present_is_served_without_a_push() {
    let mut server = TestServer::new();
    let [o, m, _, x] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&o, "tool", &[&m], &work, &main_at(&c1));
    // M's state is authoritative for O although M has no announcement.
    let c2 = work.commit("file", "two");
    server.push_state(&o, &m, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    for (who, others) in [(&m, &[][..]), (&x, &[&o])] {
        let announcement = who.announce("tool", BASE_TIME, others);
        server.publish(&announcement);
        server.eventually_served(&announcement);
        server.eventually_refs(who, "tool", &main_at(&c2));
        let clone = WorkTree::clone(&server.url(who, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c2);
    }
}

/// See `docs/protocol.md#replacement-of-an-announcement`.
#[test]
fn served_announcement_is_replaced_at_once() {
    let mut server = TestServer::new();
    let [o, m, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let (first, state) = server.create_repo(&o, "tool", &[], &work, &main_at(&c1));
    let second = o.announce("tool", BASE_TIME + 1, &[&m]);
    server.publish(&second);
    server.eventually_served(&second);
    assert!(!server.is_served(&first));
    server.expect_served(&[&state]);
    server.expect_refs(&o, "tool", &main_at(&c1));
    // States of the new maintainer are authoritative.
    let c2 = work.commit("file", "two");
    server.push_state(&o, &m, "tool", BASE_TIME + 2, &work, &main_at(&c2));
}

#[test]
fn states_of_a_removed_maintainer_are_no_longer_followed() {
    let mut server = TestServer::new();
    let [o, m, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&o, "tool", &[&m], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    server.push_state(&o, &m, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    let alone = o.announce("tool", BASE_TIME + 1, &[]);
    server.publish(&alone);
    server.eventually_served(&alone);
    // The newest state of the remaining maintainers is followed.
    server.eventually_refs(&o, "tool", &main_at(&c1));
    let c3 = work.commit("file", "three");
    server.publish_rejected(&m.state("tool", BASE_TIME + 2, &main_at(&c3)), "restricted: ");
    work.push(&server.url(&o, "tool"), &["main"]).expect_failure(&["E-STATE-"]);
    WorkTree::clone(&server.url(&o, "tool")).fsck();
}

/// A newer announcement that no longer names this service de-lists the repository, even if its author is a maintainer
/// of another repository here (`docs/protocol.md#de-listing-and-withdrawal`).
#[test]
fn delisting_removes_the_repository_of_a_listed_maintainer() {
    let mut server = TestServer::new();
    let [o, m, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let (announcement, _) = server.create_repo(&o, "tool", &[&m], &work, &main_at(&c1));
    let of_m = m.announce("tool", BASE_TIME, &[&o]);
    server.publish(&of_m);
    server.eventually_refs(&m, "tool", &main_at(&c1));
    // M lists O, so the new announcement of O is served, but O's repository is no longer hosted.
    let elsewhere = o.announce_elsewhere("tool", BASE_TIME + 1, &[&m]);
    server.publish(&elsewhere);
    server.expect_served(&[&elsewhere]);
    eventually("the repository is removed", || (!server.repo_exists(&o, "tool")).then_some(()));
    assert!(!server.is_served(&announcement));
    work.push(&server.url(&o, "tool"), &["main"]).expect_failure(&["not found"]);
    // The repository of the follower stays complete.
    let clone = WorkTree::clone(&server.url(&m, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c1);
    // The old announcement is not accepted again, but a newer one is.
    server.client.publish(&announcement);
    assert!(!server.is_served(&announcement) && !server.repo_exists(&o, "tool"));
    server.publish(&o.announce("tool", BASE_TIME + 2, &[&m]));
    eventually("the repository exists again", || server.repo_exists(&o, "tool").then_some(()));
}

/// Maintainer exception: an announcement that does not name this service is served if a maintainer of a hosted
/// repository lists its author (`docs/protocol.md#maintainer-exception`).
#[test]
fn announcement_of_the_maintainer_exception_has_no_repository() {
    let mut server = TestServer::new();
    let [o, m, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&o, "tool", &[&m], &work, &main_at(&c1));
    let elsewhere = m.announce_elsewhere("tool", BASE_TIME, &[]);
    assert_eq!(server.client.publish(&elsewhere), (true, String::new()));
    server.expect_served(&[&elsewhere]);
    assert!(!server.repo_exists(&m, "tool"));
    work.push(&server.url(&m, "tool"), &["main"]).expect_failure(&["not found"]);
}

/// With role tags, a listed maintainer is only invited until its own announcement lists a member
/// (`docs/protocol.md#role-tags`).
#[test]
fn role_tags_require_a_reciprocal_announcement() {
    let mut server = TestServer::new();
    let [o, m, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let role = |who: &crate::support::git::Maintainer, more: &[&str]| {
        let key = who.author.hex();
        vec![[&["m", key.as_str()], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()]
    };
    server.publish_held(&o.announce_with("tool", BASE_TIME, role(&m, &[])));
    let state = m.state("tool", BASE_TIME, &main_at(&c1));
    // Invited, but not confirmed.
    server.publish_rejected(&state, "restricted: ");
    work.push(&server.url(&o, "tool"), &["main"]).expect_failure(&["E-STATE-MISSING"]);
    server.publish(&m.announce_with("tool", BASE_TIME, role(&o, &[])));
    server.publish_held(&state);
    work.push(&server.url(&o, "tool"), &["main"]).expect_success();
    server.expect_served(&[&state]);
    // A role that has ended does not count, nor does one with an invalid start, and the `maintainers` tag is ignored if
    // there is any role tag.
    let mut invalid = role(&m, &["soon"]);
    invalid.extend(owned_tags(&[&["maintainers", &m.author.hex()]]));
    for (at, roles) in [(1, role(&m, &["1700000000", "1710000000"])), (2, invalid)] {
        server.publish(&o.announce_with("tool", BASE_TIME + at, roles));
        // The state of M is no longer authoritative, and there is no other one.
        server.eventually_refs(&o, "tool", &[]);
        let commit = work.commit("file", &at.to_string());
        // The state is accepted for M's own repository.
        server.publish(&m.state("tool", BASE_TIME + at, &main_at(&commit)));
        work.push(&server.url(&o, "tool"), &["main"]).expect_failure(&["E-STATE-"]);
    }
}

/// With the strict setting, a listed maintainer counts only if its own announcement lists a confirmed member
/// (`docs/protocol.md#reciprocal-rule`).
#[test]
fn strict_rule_requires_a_reciprocal_announcement() {
    let mut server = TestServer::with_settings(&[("STRICT_MAINTAINERS", "true")]);
    let [o, m, r, x] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.publish_held(&o.announce("tool", BASE_TIME, &[&m]));
    let of_m = m.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_rejected(&of_m, "restricted: ");
    server.publish(&m.announce("tool", BASE_TIME, &[&r]));
    // M has an announcement now, but it does not list O, so O's repository does not follow M.
    server.publish(&of_m);
    let url = server.url(&o, "tool");
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING"]);
    server.publish(&m.announce("tool", BASE_TIME + 1, &[&o, &r]));
    work.push(&url, &["main"]).expect_success();
    server.expect_served(&[&of_m]);

    // R counts only once it has an announcement that lists a member.
    let c2 = work.commit("file", "two");
    server.publish_rejected(&r.state("tool", BASE_TIME + 1, &main_at(&c2)), "restricted: ");
    server.publish(&r.announce("tool", BASE_TIME, &[&m]));
    server.push_state(&o, &r, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    // X lists O, but O does not list X, so O's states are not authoritative for X.
    let of_x = x.announce("tool", BASE_TIME, &[&o]);
    server.publish_held(&of_x);
    let c3 = work.commit("file", "three");
    let of_o = o.state("tool", BASE_TIME + 2, &main_at(&c3));
    server.publish_held(&of_o);
    work.push(&server.url(&x, "tool"), &["main"]).expect_failure(&["E-STATE-MISSING"]);
    work.push(&url, &["main"]).expect_success();
    server.expect_served(&[&of_o]);
    server.expect_refs(&x, "tool", &[]);
    assert!(!server.is_served(&of_x));
}

/// An announcement that does not name this service is rejected if no hosted repository lists its author, but it still
/// de-lists the repository.
#[test]
fn delisting_by_a_rejected_announcement_removes_the_repository() {
    let mut server = TestServer::new();
    let o = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let (announcement, _) = server.create_repo(&o, "tool", &[], &work, &main_at(&c1));
    server.publish_rejected(&o.announce_elsewhere("tool", BASE_TIME + 1, &[]), "invalid: ");
    eventually("the repository is removed", || (!server.repo_exists(&o, "tool")).then_some(()));
    assert!(!server.is_served(&announcement));
    server.publish_rejected(&announcement, "invalid: ");
    // The repository can be announced again. It starts empty.
    server.publish_held(&o.announce("tool", BASE_TIME + 2, &[]));
    server.publish(&o.state("tool", BASE_TIME + 2, &main_at(&c1)));
    work.push(&server.url(&o, "tool"), &["main"]).expect_success();
    server.expect_refs(&o, "tool", &main_at(&c1));
}
