//! A full disk under the store: events are rejected with a reason, nothing is damaged, and the server works again when
//! there is space.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::Author;
use serde_json::json;
use tempfile::TempDir;

use crate::support::small_disk::SmallDisk;
use crate::support::{Client, Server, command, eventually};

/// The time, in the past, from which tests count the `created_at` of their events.
const BASE_TIME: u64 = 1_700_000_000;

/// No log, because these tests cause many expected errors.
const NO_LOG: (&str, &str) = ("LOG_LEVEL", "off");

/// Returns an event that is large enough to fill a megabyte quickly.
fn large_note(author: &Author, nth: u64) -> Arc<SignedEvent> {
    author.note(BASE_TIME + nth, &[&["t", "large"]], &format!("{nth} {}", "x".repeat(20_000)))
}

/// The published events: each was either accepted, or rejected with an error.
#[derive(Default)]
struct PublishedEvents {
    accepted: Vec<String>,
    rejected: Vec<Arc<SignedEvent>>,
}

impl PublishedEvents {
    fn publish(&mut self, client: &mut Client, event: Arc<SignedEvent>) -> bool {
        let (accepted, text) = client.publish(&event);
        if accepted {
            assert_eq!(text, "");
            self.accepted.push(event.id.to_string());
        } else {
            assert!(text.starts_with("error: "), "{text}");
            self.rejected.push(event);
        }
        accepted
    }

    /// Publishes large events until this many were rejected.
    fn publish_until_rejected(&mut self, client: &mut Client, author: &Author, times: usize) {
        let before = self.rejected.len();
        for nth in 0.. {
            assert!(nth < 2_000, "the disk is never full");
            self.publish(client, large_note(author, nth));
            if self.rejected.len() - before == times {
                return;
            }
        }
    }

    /// Asserts that exactly the accepted events are served.
    fn check(&self, client: &mut Client) {
        let mut served = client.query(&[json!({"kinds": [1], "limit": 5_000})]);
        let mut accepted = self.accepted.clone();
        served.sort_unstable();
        accepted.sort_unstable();
        assert!(served == accepted, "{} are served, {} were accepted", served.len(), accepted.len());
        client.send(&json!(["COUNT", "c", {"#t": ["large"]}]));
        assert_eq!(client.receive(), json!(["COUNT", "c", {"count": accepted.len()}]));
        client.send(&json!(["NEG-OPEN", "n", {"kinds": [1]}, "6100000200"]));
        assert_eq!(client.receive()[0], "NEG-MSG");
        client.send(&json!(["NEG-CLOSE", "n"]));
    }

    /// Publishes the rejected events again, which must be accepted now.
    fn resend(&mut self, client: &mut Client) {
        for event in std::mem::take(&mut self.rejected) {
            assert!(self.publish(client, event), "rejected although there is space");
        }
    }
}

// ---- Failed commits ---------------------------------------------------------------------------

/// Returns a command that starts a server with a limit of the file size: writes beyond it fail with EFBIG.
fn limited_command(folder: &Path, settings: &[(&str, &str)], blocks: u32) -> Command {
    let server = command(folder, settings);
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\"")).arg(server.get_program());
    shell.current_dir(folder).env_clear();
    for (name, value) in server.get_envs() {
        shell.env(name, value.expect("variable has a value"));
    }
    shell
}

#[test]
fn failed_commit_rejects_its_events_only() {
    let settings = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), NO_LOG];
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let author = Author::new(1);
    let mut published = PublishedEvents::default();
    // One or two megabytes: shells differ in the size of a block.
    let mut server = Server::spawn(limited_command(folder.path(), &settings, 2_048));
    let mut client = server.connect();
    published.publish_until_rejected(&mut client, &author, 20);
    assert!(published.accepted.len() > 5, "{}", published.accepted.len());
    // The same connection and new ones still work.
    published.check(&mut client);
    let mut other = server.connect();
    published.check(&mut other);
    // Events of one batch fail together, and each is answered.
    let burst: Vec<_> = (5_000..5_050).map(|nth| large_note(&author, nth)).collect();
    for event in &burst {
        other.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in burst {
        let message = other.receive();
        assert_eq!((&message[0], &message[1]), (&json!("OK"), &json!(event.id.to_string())));
        if message[2] == true {
            published.accepted.push(event.id.to_string());
        } else {
            assert!(message[3].as_str().expect("OK has a text").starts_with("error: "), "{message}");
            published.rejected.push(event);
        }
    }
    published.check(&mut other);
    assert!(server.child.try_wait().expect("cannot wait for the server").is_none(), "the server has ended");
    server.kill();

    let mut server = Server::start_in(&folder, &settings);
    let mut client = server.connect();
    published.check(&mut client);
    published.resend(&mut client);
    published.check(&mut client);
    server.kill();
    let server = Server::start_in(&folder, &settings);
    published.check(&mut server.connect());
}

// ---- A full disk ------------------------------------------------------------------------------

/// Fills the disk, asserts that events are rejected with `text`, then frees space and continues with the same process.
fn test_full_disk(reserve: &str, text: &str) {
    let settings = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", reserve), NO_LOG];
    let Some(disk) = SmallDisk::mount() else { return only_deletions_are_stored_below_the_reserve() };
    let author = Author::new(1);
    let mut published = PublishedEvents::default();
    let mut server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    for nth in 10_000..10_020 {
        assert!(published.publish(&mut client, large_note(&author, nth)));
    }
    let ballast = disk.fill(2 * 1024 * 1024);
    published.publish_until_rejected(&mut client, &author, 20);
    assert_eq!(client.publish(&large_note(&author, 20_000)), (false, text.to_owned()));
    published.check(&mut client);
    published.check(&mut server.connect());
    assert!(server.child.try_wait().expect("cannot wait for the server").is_none(), "the server has ended");

    std::fs::remove_file(ballast).expect("cannot remove the file");
    let first = large_note(&author, 30_000);
    eventually("there is space again", || published.publish(&mut client, first.clone()).then_some(()));
    published.rejected.retain(|event| event.id != first.id);
    published.resend(&mut client);
    published.check(&mut client);

    // Full again; this time the server is killed before there is space.
    disk.fill(512 * 1024);
    published.publish_until_rejected(&mut client, &Author::new(2), 3);
    published.check(&mut client);
    server.kill();
    std::fs::remove_file(disk.folder.path().join("ballast")).expect("cannot remove the file");
    let server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    published.check(&mut client);
    published.resend(&mut client);
    published.check(&mut client);
}

#[test]
fn full_disk_without_a_reserve() {
    test_full_disk("0", "error: could not store the event, try again later");
}

#[test]
fn full_disk_with_a_reserve() {
    test_full_disk("1048576", "error: the disk is full, nothing was stored");
}

/// An announcement that could not be stored has no effect in memory either.
#[test]
fn announcement_that_was_not_stored_has_no_effect() {
    let settings = [("POLICY", "grasp"), ("DOMAIN", "grasp.test"), ("STORE_RESERVE_BYTES", "0"), NO_LOG];
    let Some(disk) = SmallDisk::mount() else { return only_deletions_are_stored_below_the_reserve() };
    let service = ServiceAddress::new("grasp.test", "").expect("valid host name");
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    // The large states of a held repository fill the disk.
    assert!(client.publish(&owner.announcement(&service, "before", BASE_TIME, &[])).0);
    let ballast = disk.fill(1024 * 1024);
    let refs: Vec<String> = (0..400).map(|nth| format!("refs/heads/{nth}-{}", "x".repeat(100))).collect();
    let refs: Vec<(&str, &str)> =
        refs.iter().map(|name| (name.as_str(), "abababababababababababababababababababab")).collect();
    let state = |at| owner.state("before", at, &refs);
    let mut held = Vec::new();
    loop {
        assert!(held.len() < 1_000, "the disk is never full");
        let event = state(BASE_TIME + held.len() as u64);
        let (accepted, text) = client.publish(&event);
        if !accepted {
            assert!(text.starts_with("error: "), "{text}");
            break;
        }
        held.push(event);
    }
    // A large announcement is rejected, and so is its state, which may be in the same batch.
    let padding = vec!["padding".to_owned(), "x".repeat(60_000)];
    let maintainers = vec!["maintainers".to_owned(), maintainer.hex()];
    let new = owner.announcement_with(&service, "new", BASE_TIME, vec![maintainers, padding]);
    let new_state = maintainer.state("new", BASE_TIME, &[]);
    for event in [&new, &new_state] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    let messages = [client.receive(), client.receive()];
    assert_eq!((&messages[0][1], &messages[0][2]), (&json!(new.id.to_string()), &json!(false)), "{}", messages[0]);
    assert_eq!(
        (&messages[1][1], &messages[1][2]),
        (&json!(new_state.id.to_string()), &json!(false)),
        "{}",
        messages[1]
    );

    std::fs::remove_file(ballast).expect("cannot remove the file");
    // For a short time after an error the server does not try to write.
    let (accepted, text) = eventually("the store works again", || {
        Some(client.publish(&new_state)).filter(|(_, text)| !text.starts_with("error: "))
    });
    assert!(!accepted && text.starts_with("invalid: no announcement exists"), "{text}");
    assert_eq!(client.publish(&new), (true, "purgatory: won't be served until git data arrives".to_owned()));
    assert_eq!(client.publish(&new_state), (true, "purgatory: won't be served until git data arrives".to_owned()));
    // The newest states of the repository that was there before are still held.
    for event in held.iter().rev().take(5) {
        assert_eq!(client.publish(event), (true, "purgatory: already waiting for git data".to_owned()));
    }
}

/// With a reserve larger than any disk only deletions are stored, and everything else works. Unlike the tests above, this one
/// does not need the permission to mount.
#[test]
fn only_deletions_are_stored_below_the_reserve() {
    let without_reserve = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", "0"), NO_LOG];
    let large_reserve =
        [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", "1099511627776"), NO_LOG];
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let author = Author::new(1);
    let mut published = PublishedEvents::default();
    let mut server = Server::start_in(&folder, &without_reserve);
    let mut client = server.connect();
    for nth in 0..20 {
        assert!(published.publish(&mut client, large_note(&author, nth)));
    }
    server.kill();

    let mut server = Server::start_in(&folder, &large_reserve);
    let mut client = server.connect();
    published.check(&mut client);
    for nth in 100..110 {
        let event = large_note(&author, nth);
        assert_eq!(client.publish(&event), (false, "error: the disk is full, nothing was stored".to_owned()));
        published.rejected.push(event);
    }
    published.check(&mut client);
    // A request that removes something is accepted; one that removes nothing is not.
    let useless = author.deletion(BASE_TIME + 200, &[&["e", &"ab".repeat(32)]]);
    assert_eq!(client.publish(&useless), (false, "error: the disk is full, nothing was stored".to_owned()));
    let target = published.accepted.remove(0);
    let deletion = author.deletion(BASE_TIME + 200, &[&["e", &target]]);
    assert_eq!(client.publish(&deletion), (true, String::new()));
    assert!(client.query(&[json!({"ids": [target]})]).is_empty(), "the event is deleted");
    published.check(&mut client);
    server.kill();

    let server = Server::start_in(&folder, &without_reserve);
    let mut client = server.connect();
    assert!(client.query(&[json!({"ids": [target]})]).is_empty(), "the deletion survives a crash");
    assert_eq!(client.query(&[json!({"ids": [deletion.id.to_string()]})]).len(), 1);
    published.check(&mut client);
    published.resend(&mut client);
    published.check(&mut client);
}

/// Every EVENT message is answered, also if it is invalid, because a client may wait for the message.
#[test]
fn invalid_event_is_answered_on_a_full_disk() {
    let server = Server::start(&[("POLICY", "open"), ("STORE_RESERVE_BYTES", "1099511627776"), NO_LOG]);
    let mut client = server.connect();
    let id = "ab".repeat(32);
    client.send(&json!(["EVENT", {"id": id}]));
    let message = client.receive();
    assert_eq!((&message[0], &message[1], &message[2]), (&json!("OK"), &json!(id), &json!(false)), "{message}");
    client.send(&json!(["EVENT", {"content": "no id"}]));
    let message = client.receive();
    assert_eq!(message[0], "NOTICE", "{message}");
}
