//! Attacks on purgatory and on the maintainer exception: owners of served repositories are not affected.

use grasp_core::nostr::kinds;
use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::bystander::Bystander;
use crate::support::git::BASE_TIME;
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{BEHIND_PROXY, Client, eventually};

fn connect(server: &TestServer, address: &str) -> Client {
    server.process.connect_from(Some(address)).unwrap_or_else(|status| panic!("{address} is rejected: {status:?}"))
}

/// A held announcement, which needs no git data, let the announcements of the maintainers that it names be served. Notes
/// that tag them were accepted and stayed after it had expired.
#[test]
fn held_announcement_serves_nothing() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("PURGATORY_EXPIRY_SECS", "5")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let (owner, maintainer) = (server.maintainer(2), server.maintainer(3));
    let mut attacker = connect(&server, "203.0.113.5");
    let announcement = owner.announce("spam", BASE_TIME, &[&maintainer]);
    let exception = maintainer.author.announcement_elsewhere("spam", BASE_TIME, &[]);
    for event in [&announcement, &exception] {
        let (is_accepted, text) = attacker.publish(event);
        assert!(is_accepted && text.starts_with("purgatory: "), "{text}");
    }
    let tag = |nth: u64| {
        let tags: [&[&str]; 2] = [&["e", &exception.id.to_string()], &["a", &maintainer.author.repo("spam")]];
        Author::new(9).note(BASE_TIME + nth, &tags, "spam")
    };
    for nth in 0..200 {
        let (is_accepted, text) = attacker.publish(&tag(nth));
        assert!(!is_accepted && text.starts_with("restricted: "), "{text}");
    }
    bystander.expect_unaffected(&server, "notes that tag a held announcement");
    eventually("both announcements expire", || {
        let (is_accepted, _) = attacker.publish(&maintainer.author.announcement_elsewhere("spam", BASE_TIME + 1, &[]));
        (!is_accepted).then_some(())
    });
    let attackers = [&owner.author, &maintainer.author, &Author::new(9)].map(Author::hex);
    assert!(attacker.query(&[json!({"authors": attackers})]).is_empty());

    // Once the repository is served, so is the announcement of its maintainer.
    let (work, oid) = one_commit("real");
    let invited = maintainer.author.announcement_elsewhere("real", BASE_TIME, &[]);
    let announcement = owner.announce("real", BASE_TIME, &[&maintainer]);
    let state = owner.state("real", BASE_TIME, &main_at(&oid));
    for event in [&announcement, &state, &invited] {
        server.publish(event);
    }
    assert!(!server.is_served(&invited));
    work.git(&["push", "--quiet", &server.url(&owner, "real"), "HEAD:refs/heads/main"]).expect_success();
    server.expect_served(&[&announcement, &state, &invited]);
    assert_eq!(attacker.query(&[json!({"kinds": [kinds::ANNOUNCEMENT], "#d": ["real"]})]).len(), 2);
}
