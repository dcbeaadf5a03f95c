//! Events as lines of JSON: out of a server, into another, whatever is killed in between.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::git::THEN;
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::{Client, Server, eventually};

const OPEN: (&str, &str) = ("POLICY", "open");

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// So many notes of a few authors.
fn notes(count: u64) -> Vec<Arc<SignedEvent>> {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    (0..count).map(|nth| authors[nth as usize % 4].note(THEN + nth, &[], &format!("note {nth} \u{2028}\n"))).collect()
}

fn write(path: &Path, events: &[Arc<SignedEvent>]) {
    let lines: String = events.iter().map(|event| format!("{}\n", event.json())).collect();
    fs::write(path, lines).expect("writes");
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).expect("reads").lines().map(str::to_owned).collect()
}

/// The ids of all events at a server.
fn ids(server: &Server) -> BTreeSet<String> {
    let said = server.run(&["export", "-"]);
    let event =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["id"].as_str().expect("an id").to_owned();
    said.well().lines().map(event).collect()
}

fn note_of(path: &Path) -> Value {
    let text = fs::read_to_string(format!("{}.graspd-import", path.display())).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[test]
fn what_is_exported_is_canonical_in_order_and_goes_on() {
    let server = Server::start(&[OPEN]);
    let folder = TempDir::new().expect("a folder");
    let (file, input) = (folder.path().join("events.jsonl"), folder.path().join("input.jsonl"));
    let all = notes(700);
    write(&input, &all[..500]);
    let said = server.run(&["import", text(&input), "--json"]).object();
    assert_eq!(said, json!({"accepted": 500, "held": 0, "known": 0, "refused": {}, "wanting": {}}));
    server.run(&["export", text(&file)]).well();
    let expected: Vec<String> = all[..500].iter().map(|event| event.json().to_owned()).collect();
    assert_eq!(lines(&file), expected);
    assert!(server.run(&["export", text(&file)]).badly(1).contains("--resume"), "nothing is overwritten");

    // A line that was written in part is written anew.
    write(&input, &all[400..]);
    let said = server.run(&["import", text(&input), "--json"]).object();
    assert_eq!((&said["accepted"], &said["known"]), (&json!(200), &json!(100)));
    let mut torn = fs::read(&file).expect("reads");
    torn.extend_from_slice(b"{\"id\":\"half");
    fs::write(&file, torn).expect("writes");
    server.run(&["export", text(&file), "--resume"]).well();
    let expected: Vec<String> = all.iter().map(|event| event.json().to_owned()).collect();
    assert_eq!(lines(&file), expected);
    assert!(server.run(&["export", text(&file), "--resume", "--kinds", "1"]).badly(1).contains("other conditions"));

    // Conditions.
    let count = |arguments: &[&str]| server.run(&[&["export", "-"], arguments].concat()).well().lines().count();
    assert_eq!(count(&[]), 700);
    assert_eq!(count(&["--kinds", "30617"]), 0);
    assert_eq!(count(&["--authors", &Author::new(1).key().npub()]), 175);
    let two = format!("{},{}", Author::new(1).key(), Author::new(2).key());
    assert_eq!(count(&["--authors", &two, "--since", &(THEN + 100).to_string()]), 300);
    assert_eq!(count(&["--until", &(THEN + 9).to_string()]), 10);
    assert_eq!(count(&["--after-seq", "650"]), 50);
    assert!(server.run(&["export", "-", "--authors", "nobody"]).badly(1).contains("author"));

    // From another program, with what is no event.
    let mut child = server.operator(&["import", "-", "--json"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut forged = all[0].json().to_owned();
    forged = forged.replace("note 0", "note 1");
    let stream = format!("\n{}\r\nnonsense\n{forged}\n{}", all[5].json(), notes(701)[700].json());
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), stream.as_bytes()).expect("writes");
    let output = child.wait_with_output().expect("ends");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&said["accepted"], &said["known"]), (&json!(1), &json!(1)), "{said}");
    assert_eq!(said["refused"], json!({"malformed": 1, "forged": 1}), "{said}");
}

#[test]
fn what_comes_before_its_parent_is_tried_once_more_and_git_data_is_waited_for() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, oid) = one_commit("first");
    let (announcement, state) = stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let guest = Author::new(9);
    let coordinate = owner.repo("tool");
    let issue = guest.sign(kinds::ISSUE, THEN, &[&["a", &coordinate], &["subject", "x"]], "it does not work");
    let parent = issue.id.to_string();
    let comment = guest.sign(1_111, THEN + 1, &[&["e", &parent], &["k", "1621"]], "really");
    let grandparent = comment.id.to_string();
    let reply = guest.sign(1_111, THEN + 2, &[&["e", &grandparent], &["k", "1111"]], "yes");
    let stranger = guest.note(THEN, &[], "about something else");
    let protected = owner.author.sign(kinds::ISSUE, THEN, &[&["a", &coordinate], &["-"]], "mine");
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("events.jsonl");
    write(&file, &[reply.clone(), comment.clone(), issue.clone(), stranger.clone(), protected.clone()]);
    crash(&stage.server, &file, "import.forgotten");
    let said = stage.server.run(&["import", text(&file)]).well();
    for expected in ["accepted", "rejected: unrelated", "rejected: protected", "total"] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    stage.expect_served(&[&issue, &comment, &reply]);
    assert!(!stage.served(&stranger) && !stage.served(&protected));
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("lists").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(left, ["events.jsonl"], "nothing is left behind");
    stage.server.run(&["import", text(&file), "--protected"]).well();
    stage.expect_served(&[&protected]);

    // A repository with everything that belongs to it, into another server of the same name.
    let export = folder.path().join("tool.jsonl");
    stage.server.run(&["export", text(&export), "--repo", "tool"]).well();
    assert_eq!(lines(&export).len(), 6);
    let mut other = Stage::new();
    let said = other.server.run(&["import", text(&export), "--json"]).object();
    assert_eq!(said["held"], 2, "announcement and state wait for git data: {said}");
    work.push(&other.url(&owner, "tool"), &[&format!("{oid}:refs/heads/main")]).done();
    other.expect_served(&[&announcement, &state]);
    // What had nothing to belong to has it now.
    other.server.run(&["import", text(&export), "--protected"]).well();
    other.expect_served(&[&issue, &comment, &reply, &protected]);

    // An export goes on whoever has imported it, with what belongs to an event that it has already.
    let parent = reply.id.to_string();
    let late = guest.sign(1_111, THEN + 3, &[&["e", &parent], &["k", "1111"]], "no");
    stage.publish(&late);
    stage.server.run(&["export", text(&export), "--repo", "tool", "--resume"]).well();
    let exported = lines(&export);
    assert_eq!((exported.len(), exported.last().map(String::as_str)), (7, Some(late.json())));
}

/// Ends an import at a place.
fn crash(server: &Server, file: &Path, at: &str) {
    let mut crashing = server.operator(&["import", text(file)]);
    assert_eq!(crashing.env("GRASPD_CRASH_AT", at).output().expect("runs").status.code(), None, "{at}");
}

#[test]
fn a_note_is_of_one_file() {
    let server = Server::start(&[OPEN]);
    let folder = TempDir::new().expect("a folder");
    let (file, exported) = (folder.path().join("events.jsonl"), folder.path().join("exported.jsonl"));
    let all = notes(50);
    write(&file, &all[..10]);
    let interrupt = || {
        eventually("some of it is noted", || {
            crash(&server, &file, "import.noted");
            note_of(&file)["offset"].as_u64().filter(|offset| *offset > 0)
        })
    };
    interrupt();
    // It has grown.
    write(&file, &all[..15]);
    let said = server.run(&["import", text(&file)]);
    assert!(said.err.contains("continuing an interrupted import"), "{}", said.err);
    said.well();
    // It is another one.
    write(&file, &all[15..25]);
    interrupt();
    write(&file, &all[25..]);
    server.run(&["import", text(&file)]).well();
    assert_eq!(ids(&server).len(), all.len(), "it began anew");

    server.run(&["export", text(&exported)]).well();
    write(&exported, &notes(60)[10..]);
    let said = server.run(&["export", text(&exported), "--resume"]).badly(1);
    assert!(said.contains("another file"), "{said}");
    assert_eq!(lines(&exported).len(), 50, "it is left alone");
}

/// Begins an import.
fn begin(server: &Server, file: &Path) -> Child {
    server.operator(&["import", text(file)]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("runs")
}

#[test]
fn a_killed_import_goes_on_and_ends_the_same() {
    // As many as take a few seconds, so that somebody can be killed meanwhile.
    const COUNT: u64 = 50_000;
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("events.jsonl");
    let all = notes(COUNT);
    write(&file, &all);
    let mut server = Server::start(&[OPEN]);

    // The client is killed.
    let mut client = begin(&server, &file);
    eventually("some of it is noted", || note_of(&file)["offset"].as_u64().filter(|offset| *offset > 0));
    client.kill().expect("it was running");
    client.wait().expect("it is gone");
    let first = note_of(&file)["offset"].as_u64().expect("a note");
    let size = fs::metadata(&file).expect("a file").len();
    assert!(first < size, "it was under way: {first} of {size}");

    // The server is killed.
    eventually("the server has noticed", || {
        let mut client = begin(&server, &file);
        let went_on = eventually("it goes on, or is told to wait", || {
            let noted = note_of(&file)["offset"].as_u64().is_some_and(|offset| offset > first);
            let ended = client.try_wait().expect("can be waited for").is_some();
            (noted || ended).then_some(noted)
        });
        if went_on {
            server.kill();
        }
        let ended = client.wait().expect("it ends");
        assert!(!ended.success() || !went_on);
        went_on.then_some(())
    });
    let second = note_of(&file)["offset"].as_u64();
    assert!(second.is_some_and(|second| second > first && second < size), "{first} {second:?} {size}");
    let server = Server::start_in(server.folder(), &[OPEN]);
    let known = ids(&server);
    assert!(!known.is_empty() && known.len() < COUNT as usize);
    // Everything that was noted as done is there.
    let noted = usize::try_from(second.expect("a note")).expect("a number");
    let done = fs::read(&file).expect("reads")[..noted].iter().filter(|byte| **byte == b'\n').count();
    assert!(all[..done].iter().all(|event| known.contains(&event.id.to_string())), "{done} were acknowledged");

    let said = server.run(&["import", text(&file), "--json"]).object();
    assert_eq!(said["refused"], json!({}), "{said}");
    let expected: BTreeSet<String> = all.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(ids(&server), expected);
    assert_eq!(note_of(&file), Value::Null, "no note is left");
    let _: Client = server.connect();
}
