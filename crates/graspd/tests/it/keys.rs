//! `graspd key` and `graspd event`: a key is kept, and what is refused is a failure.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::Server;

#[test]
fn a_key_is_made_once_and_is_private() {
    let server = Server::start(&[("POLICY", "open")]);
    let path = server.folder().path().join("me.nsec");
    let npub = server.run(&["key", "me.nsec"]).well();
    assert!(npub.starts_with("npub1"), "{npub}");
    assert_eq!(server.run(&["key", "me.nsec"]).well(), npub, "it stays");
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    let both = server.run(&["key", "me.nsec", "--json"]).object();
    assert_eq!(both["npub"], npub.trim());

    let event: Value =
        server.run(&["event", "--key", "me.nsec", "--kind", "1", "--content", "hello", "--tag", "t=a=b"]).object();
    assert_eq!((&event["pubkey"], &event["tags"]), (&both["hex"], &json!([["t", "a=b"]])));
    let url = server.url();
    let id = server.run(&["event", "--key", "me.nsec", "--kind", "1", "--content", "hello", "--to", &url]).well();
    assert_eq!(server.connect().query(&[json!({"kinds": [1]})]), [id.trim()]);

    fs::write(&path, "nsec1secret").expect("a file");
    let said = server.run(&["key", "me.nsec"]).badly(2);
    assert!(!said.contains("nsec1secret"), "{said}");
}

#[test]
fn what_is_refused_is_a_failure() {
    let server = Server::start(&[]);
    let url = server.url();
    server.run(&["key", "me.nsec"]).well();
    let said = server.run(&["event", "--key", "me.nsec", "--kind", "1", "--to", &url]).badly(1);
    assert!(said.contains("rejected the event: "), "{said}");
    assert!(server.run(&["event", "--key", "nobody.nsec", "--kind", "1"]).badly(1).contains("nobody.nsec"));
    assert!(server.run(&["event", "--key", "me.nsec", "--kind", "1", "--tag", "t"]).badly(2).contains("NAME=VALUE"));
    assert!(server.run(&["event", "--key", "me.nsec", "--kind", "1", "--to", "http://x"]).badly(2).contains("ws://"));
}
