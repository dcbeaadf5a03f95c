//! `graspd key` and `graspd event`: key files, signing and publishing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{Server, eventually};

#[test]
fn key_file_is_created_once_and_private() {
    let server = Server::start(&[("POLICY", "open")]);
    let path = server.folder().path().join("me.nsec");
    let npub = server.run(&["key", "me.nsec"]).expect_success();
    assert!(npub.starts_with("npub1"), "{npub}");
    assert_eq!(server.run(&["key", "me.nsec"]).expect_success(), npub, "an existing key is kept");
    assert_eq!(fs::metadata(&path).expect("cannot access the file").permissions().mode() & 0o777, 0o600);
    let both = server.run(&["key", "me.nsec", "--json"]).json_object();
    assert_eq!(both["npub"], npub.trim());

    let event: Value =
        server.run(&["event", "--key", "me.nsec", "--kind", "1", "--content", "hello", "--tag", "t=a=b"]).json_object();
    assert_eq!((&event["pubkey"], &event["tags"]), (&both["hex"], &json!([["t", "a=b"]])));
    let url = server.url();
    let id =
        server.run(&["event", "--key", "me.nsec", "--kind", "1", "--content", "hello", "--to", &url]).expect_success();
    assert_eq!(server.connect().query(&[json!({"kinds": [1]})]), [id.trim()]);

    fs::write(&path, "nsec1secret").expect("cannot write");
    let printed = server.run(&["key", "me.nsec"]).expect_failure(2);
    assert!(!printed.contains("nsec1secret"), "{printed}");
}

#[test]
fn rejected_event_is_a_failure() {
    let server = Server::start(&[]);
    let url = server.url();
    server.run(&["key", "me.nsec"]).expect_success();
    let printed = server.run(&["event", "--key", "me.nsec", "--kind", "1", "--to", &url]).expect_failure(1);
    assert!(printed.contains("rejected the event: "), "{printed}");
    assert!(server.run(&["event", "--key", "missing.nsec", "--kind", "1"]).expect_failure(1).contains("missing.nsec"));
    assert!(
        server
            .run(&["event", "--key", "me.nsec", "--kind", "1", "--tag", "t"])
            .expect_failure(2)
            .contains("NAME=VALUE")
    );
    assert!(
        server
            .run(&["event", "--key", "me.nsec", "--kind", "1", "--to", "http://x"])
            .expect_failure(2)
            .contains("ws://")
    );
}

/// Two versions of an event in one second: the one with the higher id has no effect, although the relay answers
/// `OK true`. The command says so and fails.
#[test]
fn event_that_loses_a_tie_is_a_failure() {
    let server = Server::start(&[("POLICY", "open")]);
    let url = server.url();
    server.run(&["key", "me.nsec"]).expect_success();
    let mut version = 0;
    eventually("a version loses a tie", || {
        version += 1;
        let content = version.to_string();
        let output = server.run(&[
            "event",
            "--key",
            "me.nsec",
            "--kind",
            "30618",
            "--tag",
            "d=tool",
            "--content",
            &content,
            "--to",
            &url,
        ]);
        if output.code == Some(0) {
            return None;
        }
        let printed = output.expect_failure(1);
        let expected = "the relay did not store the event: duplicate: superseded by an event with the same created_at \
                        and a lower id; this event has no effect, publish it again with a later created_at";
        assert!(printed.contains(expected), "{printed}");
        Some(())
    });
}

/// An announcement whose URLs have the right host and the wrong path is rejected with the exact URLs.
#[test]
fn announcement_with_a_wrong_path_is_told_the_expected_urls() {
    let server = Server::start(&[("DOMAIN", "code.example"), ("BASE_PATH", "/grasp")]);
    let npub = server.run(&["key", "me.nsec"]).expect_success();
    let npub = npub.trim();
    let to = server.url();
    let announce = |clone: &str, relays: &str| {
        let (clone, relays) = (format!("clone={clone}"), format!("relays={relays}"));
        server.run(&[
            "event",
            "--key",
            "me.nsec",
            "--kind",
            "30617",
            "--tag",
            "d=my tool",
            "--tag",
            &clone,
            "--tag",
            &relays,
            "--to",
            &to,
        ])
    };
    let printed =
        announce(&format!("https://code.example/{npub}/my%20tool.git"), "wss://code.example").expect_failure(1);
    let (clone, relays) = (format!("https://code.example/grasp/{npub}/my%20tool.git"), "wss://code.example/grasp");
    assert!(printed.contains(&format!("clone {clone} relays {relays}")), "{printed}");
    announce(&clone, relays).expect_success();
}
