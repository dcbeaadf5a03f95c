//! When the disk does not take any more: clear refusals, no damage, and work goes on when there is space again.

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

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

/// Failures are what these tests are about; the server need not tell of them.
const QUIET: (&str, &str) = ("LOG_LEVEL", "off");

/// Large enough that a megabyte is full soon.
fn large(author: &Author, nth: u64) -> Arc<SignedEvent> {
    author.note(THEN + nth, &[&["t", "large"]], &format!("{nth} {}", "x".repeat(20_000)))
}

/// What became of events: every one was either taken or refused with an error.
#[derive(Default)]
struct Published {
    taken: Vec<String>,
    refused: Vec<Arc<SignedEvent>>,
}

impl Published {
    fn publish(&mut self, client: &mut Client, event: Arc<SignedEvent>) -> bool {
        let (accepted, text) = client.publish(&event);
        if accepted {
            assert_eq!(text, "");
            self.taken.push(event.id.to_string());
        } else {
            assert!(text.starts_with("error: "), "{text}");
            self.refused.push(event);
        }
        accepted
    }

    /// Publishes large events until so many were refused.
    fn until_refused(&mut self, client: &mut Client, author: &Author, times: usize) {
        let before = self.refused.len();
        for nth in 0.. {
            assert!(nth < 2_000, "the disk takes everything");
            self.publish(client, large(author, nth));
            if self.refused.len() - before == times {
                return;
            }
        }
    }

    /// Everything that was taken is served, and nothing that was refused.
    fn check(&self, client: &mut Client) {
        let mut served = client.query(&[json!({"kinds": [1], "limit": 5_000})]);
        let mut taken = self.taken.clone();
        served.sort_unstable();
        taken.sort_unstable();
        assert!(served == taken, "{} are served, {} were taken", served.len(), taken.len());
        client.send(&json!(["COUNT", "c", {"#t": ["large"]}]));
        assert_eq!(client.receive(), json!(["COUNT", "c", {"count": taken.len()}]));
        client.send(&json!(["NEG-OPEN", "n", {"kinds": [1]}, "6100000200"]));
        assert_eq!(client.receive()[0], "NEG-MSG");
        client.send(&json!(["NEG-CLOSE", "n"]));
    }

    /// Sends the refused ones again, which now must be taken.
    fn resend(&mut self, client: &mut Client) {
        for event in std::mem::take(&mut self.refused) {
            assert!(self.publish(client, event), "there is space again");
        }
    }
}

// ---- A commit that fails ----------------------------------------------------------------------

/// The same server, in a shell that lets no file grow beyond some blocks: writes fail with EFBIG.
fn limited(folder: &Path, settings: &[(&str, &str)], blocks: u32) -> Command {
    let server = command(folder, settings);
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\"")).arg(server.get_program());
    shell.current_dir(folder).env_clear();
    for (name, value) in server.get_envs() {
        shell.env(name, value.expect("set"));
    }
    shell
}

#[test]
fn a_commit_that_fails_is_a_refusal_and_nothing_else() {
    let settings = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), QUIET];
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let author = Author::new(1);
    let mut published = Published::default();
    // One or two megabytes, as the shell counts blocks.
    let mut server = Server::spawn(limited(folder.path(), &settings, 2_048));
    let mut client = server.connect();
    published.until_refused(&mut client, &author, 20);
    assert!(published.taken.len() > 5, "{}", published.taken.len());
    // The same connection and new ones are served as before.
    published.check(&mut client);
    let mut other = server.connect();
    published.check(&mut other);
    // Many at once fail together, each with its answer.
    let burst: Vec<_> = (5_000..5_050).map(|nth| large(&author, nth)).collect();
    for event in &burst {
        other.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in burst {
        let answer = other.receive();
        assert_eq!((&answer[0], &answer[1]), (&json!("OK"), &json!(event.id.to_string())));
        if answer[2] == true {
            published.taken.push(event.id.to_string());
        } else {
            assert!(answer[3].as_str().expect("a reason").starts_with("error: "), "{answer}");
            published.refused.push(event);
        }
    }
    published.check(&mut other);
    assert!(server.child.try_wait().expect("can be asked").is_none(), "it lives");
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

/// Fills the disk, looks at what happens, makes space, and goes on with the same process.
fn fill_and_free(reserve: &str, text: &str) {
    let settings = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", reserve), QUIET];
    let Some(disk) = SmallDisk::mount() else { return reserve_instead_of_a_full_disk() };
    let author = Author::new(1);
    let mut published = Published::default();
    let mut server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    for nth in 10_000..10_020 {
        assert!(published.publish(&mut client, large(&author, nth)));
    }
    let ballast = disk.fill(2 * 1024 * 1024);
    published.until_refused(&mut client, &author, 20);
    assert_eq!(client.publish(&large(&author, 20_000)), (false, text.to_owned()));
    published.check(&mut client);
    published.check(&mut server.connect());
    assert!(server.child.try_wait().expect("can be asked").is_none(), "it lives");

    std::fs::remove_file(ballast).expect("it was there");
    let first = large(&author, 30_000);
    eventually("there is space again", || published.publish(&mut client, first.clone()).then_some(()));
    published.refused.retain(|event| event.id != first.id);
    published.resend(&mut client);
    published.check(&mut client);

    // Full again, and this time it does not live to see the end.
    disk.fill(512 * 1024);
    published.until_refused(&mut client, &Author::new(2), 3);
    published.check(&mut client);
    server.kill();
    std::fs::remove_file(disk.folder.path().join("ballast")).expect("it was there");
    let server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    published.check(&mut client);
    published.resend(&mut client);
    published.check(&mut client);
}

#[test]
fn a_full_disk_without_a_reserve() {
    fill_and_free("0", "error: could not store the event, try again later");
}

#[test]
fn a_full_disk_with_a_reserve() {
    fill_and_free("1048576", "error: the disk is full, nothing was stored");
}

/// What did not get onto the disk did not happen, also in the books that the server keeps in memory.
#[test]
fn an_announcement_that_was_not_stored_gives_no_rights() {
    let settings = [("POLICY", "grasp"), ("DOMAIN", "grasp.test"), ("STORE_RESERVE_BYTES", "0"), QUIET];
    let Some(disk) = SmallDisk::mount() else { return reserve_instead_of_a_full_disk() };
    let service = ServiceAddress::new("grasp.test", "").expect("a host name");
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let server = Server::start_in(&disk.folder, &settings);
    let mut client = server.connect();
    // A repository that is held before: its large states fill the disk.
    assert!(client.publish(&owner.listed(&service, "before", THEN, &[])).0);
    let ballast = disk.fill(1024 * 1024);
    let refs: Vec<String> = (0..400).map(|nth| format!("refs/heads/{nth}-{}", "x".repeat(100))).collect();
    let refs: Vec<(&str, &str)> =
        refs.iter().map(|name| (name.as_str(), "abababababababababababababababababababab")).collect();
    let state = |at| owner.state("before", at, &refs);
    let mut held = Vec::new();
    loop {
        assert!(held.len() < 1_000, "the disk takes everything");
        let event = state(THEN + held.len() as u64);
        let (accepted, text) = client.publish(&event);
        if !accepted {
            assert!(text.starts_with("error: "), "{text}");
            break;
        }
        held.push(event);
    }
    // Announcements as large as the states are refused as well, with their own states in the same breath.
    let padding = vec!["padding".to_owned(), "x".repeat(60_000)];
    let maintainers = vec!["maintainers".to_owned(), maintainer.hex()];
    let new = owner.listed_with(&service, "new", THEN, vec![maintainers, padding]);
    let of_new = maintainer.state("new", THEN, &[]);
    for event in [&new, &of_new] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    let answers = [client.receive(), client.receive()];
    assert_eq!((&answers[0][1], &answers[0][2]), (&json!(new.id.to_string()), &json!(false)), "{}", answers[0]);
    assert_eq!((&answers[1][1], &answers[1][2]), (&json!(of_new.id.to_string()), &json!(false)), "{}", answers[1]);

    std::fs::remove_file(ballast).expect("it was there");
    // For a moment the server does not even try.
    let (accepted, text) = eventually("the store works again", || {
        Some(client.publish(&of_new)).filter(|(_, text)| !text.starts_with("error: "))
    });
    assert!(!accepted && text.starts_with("invalid: no announcement exists"), "{text}");
    assert_eq!(client.publish(&new), (true, "purgatory: won't be served until git data arrives".to_owned()));
    assert_eq!(client.publish(&of_new), (true, "purgatory: won't be served until git data arrives".to_owned()));
    // The newest states of the repository that was there before are still held.
    for event in held.iter().rev().take(5) {
        assert_eq!(client.publish(event), (true, "purgatory: already waiting for git data".to_owned()));
    }
}

/// With a reserve larger than any disk nothing is stored, and everything else goes on. Needs no rights.
#[test]
fn reserve_instead_of_a_full_disk() {
    let roomy = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", "0"), QUIET];
    let full = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000"), ("STORE_RESERVE_BYTES", "1099511627776"), QUIET];
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let author = Author::new(1);
    let mut published = Published::default();
    let mut server = Server::start_in(&folder, &roomy);
    let mut client = server.connect();
    for nth in 0..20 {
        assert!(published.publish(&mut client, large(&author, nth)));
    }
    server.kill();

    let mut server = Server::start_in(&folder, &full);
    let mut client = server.connect();
    published.check(&mut client);
    for nth in 100..110 {
        let event = large(&author, nth);
        assert_eq!(client.publish(&event), (false, "error: the disk is full, nothing was stored".to_owned()));
        published.refused.push(event);
    }
    published.check(&mut client);
    server.kill();

    let server = Server::start_in(&folder, &roomy);
    let mut client = server.connect();
    published.check(&mut client);
    published.resend(&mut client);
    published.check(&mut client);
}

/// Whatever is offered gets an answer, also when it is no event: else a connection would wait for it for ever.
#[test]
fn what_is_no_event_is_answered_on_a_full_disk_too() {
    let server = Server::start(&[("POLICY", "open"), ("STORE_RESERVE_BYTES", "1099511627776"), QUIET]);
    let mut client = server.connect();
    client.socket.get_mut().set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("an option");
    let id = "ab".repeat(32);
    client.send(&json!(["EVENT", {"id": id}]));
    let answer = client.receive();
    assert_eq!((&answer[0], &answer[1], &answer[2]), (&json!("OK"), &json!(id), &json!(false)), "{answer}");
    client.send(&json!(["EVENT", {"content": "no id"}]));
    let answer = client.receive();
    assert_eq!(answer[0], "NOTICE", "{answer}");
}
