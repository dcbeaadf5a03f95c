//! `graspd export` and `graspd import`: events as lines of JSON, resumed after interruptions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::git::BASE_TIME;
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};
use crate::support::{Client, Server, command, eventually};

const OPEN: (&str, &str) = ("POLICY", "open");

fn path_str(path: &Path) -> &str {
    path.to_str().expect("not text")
}

/// Returns `count` notes by four authors.
fn notes(count: u64) -> Vec<Arc<SignedEvent>> {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    (0..count)
        .map(|nth| authors[nth as usize % 4].note(BASE_TIME + nth, &[], &format!("note {nth} \u{2028}\n")))
        .collect()
}

fn write_events(path: &Path, events: &[Arc<SignedEvent>]) {
    let lines: String = events.iter().map(|event| format!("{}\n", event.json())).collect();
    fs::write(path, lines).expect("cannot write");
}

fn read_lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).expect("cannot read").lines().map(str::to_owned).collect()
}

/// Returns the ids of all events of a server.
fn ids(server: &Server) -> BTreeSet<String> {
    let output = server.run(&["export", "-"]);
    let event = |line: &str| {
        serde_json::from_str::<Value>(line).expect("invalid JSON")["id"].as_str().expect("no id").to_owned()
    };
    output.expect_success().lines().map(event).collect()
}

/// Returns the checkpoint that an import keeps beside its file, or null.
fn checkpoint(path: &Path) -> Value {
    let text = fs::read_to_string(format!("{}.graspd-import", path.display())).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[test]
fn export_is_canonical_ordered_and_resumable() {
    let server = Server::start(&[OPEN]);
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let (file, input) = (folder.path().join("events.jsonl"), folder.path().join("input.jsonl"));
    let all = notes(700);
    write_events(&input, &all[..500]);
    let summary = server.run(&["import", path_str(&input), "--json"]).json_object();
    assert_eq!(
        summary,
        json!({"accepted": 500, "held": 0, "known": 0, "rejected": {}, "retryable": {}, "deferred": 0})
    );
    server.run(&["export", path_str(&file)]).expect_success();
    let expected: Vec<String> = all[..500].iter().map(|event| event.json().to_owned()).collect();
    assert_eq!(read_lines(&file), expected);
    assert!(
        server.run(&["export", path_str(&file)]).expect_failure(1).contains("--resume"),
        "an existing file is not overwritten"
    );

    // A partial line is written again.
    write_events(&input, &all[400..]);
    let summary = server.run(&["import", path_str(&input), "--json"]).json_object();
    assert_eq!((&summary["accepted"], &summary["known"]), (&json!(200), &json!(100)));
    let mut torn = fs::read(&file).expect("cannot read");
    torn.extend_from_slice(b"{\"id\":\"half");
    fs::write(&file, torn).expect("cannot write");
    server.run(&["export", path_str(&file), "--resume"]).expect_success();
    let expected: Vec<String> = all.iter().map(|event| event.json().to_owned()).collect();
    assert_eq!(read_lines(&file), expected);
    assert!(
        server
            .run(&["export", path_str(&file), "--resume", "--kinds", "1"])
            .expect_failure(1)
            .contains("other options")
    );

    // Filters.
    let count =
        |arguments: &[&str]| server.run(&[&["export", "-"], arguments].concat()).expect_success().lines().count();
    assert_eq!(count(&[]), 700);
    assert_eq!(count(&["--kinds", "30617"]), 0);
    assert_eq!(count(&["--authors", &Author::new(1).key().npub()]), 175);
    let two = format!("{},{}", Author::new(1).key(), Author::new(2).key());
    assert_eq!(count(&["--authors", &two, "--since", &(BASE_TIME + 100).to_string()]), 300);
    assert_eq!(count(&["--until", &(BASE_TIME + 9).to_string()]), 10);
    // All events are of 2023-11-14 22:13:20 UTC and the minutes after it.
    assert_eq!(count(&["--since", "2023-11-14", "--until", "2023-11-15T12:00:00Z"]), 700);
    assert_eq!((count(&["--since", "2023-11-15"]), count(&["--until", "2023-11-14"])), (0, 0));
    assert!(server.run(&["export", "-", "--since", "yesterday"]).expect_failure(2).contains("such as 2026-01-01"));
    assert_eq!(count(&["--after-seq", "650"]), 50);
    assert!(server.run(&["export", "-", "--authors", "not-a-key"]).expect_failure(1).contains("author"));

    // From a pipe, with lines that are not valid events.
    let mut child = server.cli_command(&["import", "-", "--json"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cannot run the program");
    let mut forged = all[0].json().to_owned();
    forged = forged.replace("note 0", "note 1");
    let stream = format!("\n{}\r\nnonsense\n{forged}\n{}", all[5].json(), notes(701)[700].json());
    std::io::Write::write_all(&mut child.stdin.take().expect("output is piped"), stream.as_bytes())
        .expect("cannot write");
    let output = child.wait_with_output().expect("cannot wait for the process");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("invalid JSON");
    assert_eq!((&summary["accepted"], &summary["known"]), (&json!(1), &json!(1)), "{summary}");
    assert_eq!(summary["rejected"], json!({"malformed": 1, "forged": 1}), "{summary}");
}

#[test]
fn events_before_their_parents_are_retried_and_states_wait_for_git_data() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, oid) = one_commit("first");
    let (announcement, state) = server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let guest = Author::new(9);
    let coordinate = owner.repo("tool");
    let issue = guest.sign(kinds::ISSUE, BASE_TIME, &[&["a", &coordinate], &["subject", "x"]], "it does not work");
    let parent = issue.id.to_string();
    let comment = guest.sign(1_111, BASE_TIME + 1, &[&["e", &parent], &["k", "1621"]], "really");
    let grandparent = comment.id.to_string();
    let reply = guest.sign(1_111, BASE_TIME + 2, &[&["e", &grandparent], &["k", "1111"]], "yes");
    let unrelated = guest.note(BASE_TIME, &[], "about something else");
    let protected = owner.author.sign(kinds::ISSUE, BASE_TIME, &[&["a", &coordinate], &["-"]], "mine");
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let file = folder.path().join("events.jsonl");
    write_events(&file, &[reply.clone(), comment.clone(), issue.clone(), unrelated.clone(), protected.clone()]);
    crash(&server.process, &file, "import.forgotten");
    let summary = server.process.run(&["import", path_str(&file)]).expect_success();
    for expected in ["accepted", "rejected: unrelated", "rejected: protected", "total"] {
        assert!(summary.contains(expected), "{expected} in {summary}");
    }
    server.expect_served(&[&issue, &comment, &reply]);
    assert!(!server.is_served(&unrelated) && !server.is_served(&protected));
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("cannot list the folder")
        .map(|entry| entry.expect("cannot read the folder entry").file_name())
        .collect();
    assert_eq!(left, ["events.jsonl"], "the checkpoint file is removed");
    server.process.run(&["import", path_str(&file), "--protected"]).expect_success();
    server.expect_served(&[&protected]);

    // A repository with all its events, into another server with the same domain.
    let export = folder.path().join("tool.jsonl");
    server.process.run(&["export", path_str(&export), "--repo", "tool"]).expect_success();
    assert_eq!(read_lines(&export).len(), 6);
    let mut other = TestServer::new();
    let summary = other.process.run(&["import", path_str(&export), "--json"]).json_object();
    assert_eq!(summary["held"], 2, "announcement and state wait for git data: {summary}");
    assert_eq!(summary["deferred"], 3, "issue, comment and reply wait for the repository: {summary}");
    assert_eq!(summary["rejected"], json!({"protected": 1}), "{summary}");
    // A second import changes nothing, and a crash loses nothing.
    let summary = other.process.run(&["import", path_str(&export)]).expect_success();
    assert!(summary.contains("deferred until"), "{summary}");
    let backup = folder.path().join("backup");
    other.process.run(&["backup", path_str(&backup)]).expect_success();
    assert_eq!(read_lines(&backup.join("deferred-events.jsonl")).len(), 3);
    other = other.restart(StopSignal::Kill);
    assert!(!other.is_served(&issue));
    work.push(&other.url(&owner, "tool"), &[&format!("{oid}:refs/heads/main")]).expect_success();
    other.expect_served(&[&announcement, &state]);
    for event in [&issue, &comment, &reply] {
        other.eventually_served(event);
    }
    other.process.run(&["import", path_str(&export), "--protected"]).expect_success();
    other.expect_served(&[&protected]);

    // A resumed export continues with events that are related to events that it already contains.
    let parent = reply.id.to_string();
    let late = guest.sign(1_111, BASE_TIME + 3, &[&["e", &parent], &["k", "1111"]], "no");
    server.publish(&late);
    server.process.run(&["export", path_str(&export), "--repo", "tool", "--resume"]).expect_success();
    let exported = read_lines(&export);
    assert_eq!((exported.len(), exported.last().map(String::as_str)), (7, Some(late.json())));
}

/// A server that crashes while it writes the deferred events loses none: the import is run again.
#[test]
fn crash_while_events_are_deferred_loses_none() {
    let settings = [("DOMAIN", "grasp.test"), ("GRASPD_CRASH_AT", "deferred_events.written")];
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let crashing = TestServer::start_in(&folder, &settings);
    let owner = crashing.maintainer(1);
    let (work, oid) = one_commit("first");
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    let state = owner.state("tool", BASE_TIME, &main_at(&oid));
    let coordinate = owner.repo("tool");
    let issues: Vec<_> = (0..20)
        .map(|nth| Author::new(9).sign(kinds::ISSUE, BASE_TIME + nth, &[&["a", &coordinate]], "broken"))
        .collect();
    let file = folder.path().join("events.jsonl");
    write_events(&file, &[&[announcement, state][..], &issues].concat());
    let failed = crashing.process.run(&["import", path_str(&file)]).expect_failure(1);
    assert!(failed.contains("Run the same command again"), "{failed}");
    let mut server = TestServer::start_in(&folder, &settings[..1]);
    let summary = server.process.run(&["import", path_str(&file), "--json"]).json_object();
    assert_eq!(summary["deferred"], 20, "{summary}");
    // A restored backup has them, too.
    let backup = folder.path().join("backup");
    server.process.run(&["backup", path_str(&backup)]).expect_success();
    server.process.kill();
    let restored = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let output = command(restored.path(), &settings[..1]).args(["restore", path_str(&backup)]).output();
    let output = output.expect("cannot run graspd");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut restored = TestServer::start_in(&restored, &settings[..1]);
    work.push(&restored.url(&owner, "tool"), &[&format!("{oid}:refs/heads/main")]).expect_success();
    for issue in &issues {
        restored.eventually_served(issue);
    }
}

/// Events are deferred until the outcome for their repository is known, and not longer.
#[test]
fn events_of_a_repository_that_expires_are_not_deferred_for_ever() {
    let settings = [("PURGATORY_EXPIRY_SECS", "3"), ("PURGATORY_DORMANT_SECS", "0")];
    let mut server = TestServer::with_settings(&settings);
    let owner = server.maintainer(1);
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    let coordinate = owner.repo("tool");
    let issue = Author::new(9).sign(kinds::ISSUE, BASE_TIME, &[&["a", &coordinate], &["subject", "x"]], "no");
    let unrelated = Author::new(9).note(BASE_TIME, &[], "about something else");
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let file = folder.path().join("events.jsonl");
    write_events(&file, &[issue.clone(), unrelated, announcement]);
    let summary = server.process.run(&["import", path_str(&file), "--json"]).json_object();
    assert_eq!((&summary["held"], &summary["deferred"]), (&json!(1), &json!(1)), "{summary}");
    assert_eq!(summary["retryable"], json!({"unrelated": 1}), "{summary}");
    let deferred = server.process.folder().path().join("data/relay/deferred-events.jsonl");
    assert!(deferred.exists());
    eventually("the issue is no longer deferred", || (!deferred.exists()).then_some(()));
    assert!(!server.is_served(&issue));
}

/// Runs an import that crashes at a crash point.
fn crash(server: &Server, file: &Path, at: &str) {
    let mut crashing = server.cli_command(&["import", path_str(file)]);
    assert_eq!(
        crashing.env("GRASPD_CRASH_AT", at).output().expect("cannot run the program").status.code(),
        None,
        "{at}"
    );
}

#[test]
fn checkpoint_belongs_to_one_file() {
    let server = Server::start(&[OPEN]);
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let (file, exported) = (folder.path().join("events.jsonl"), folder.path().join("exported.jsonl"));
    let all = notes(50);
    write_events(&file, &all[..10]);
    let interrupt = || {
        eventually("a checkpoint is written", || {
            crash(&server, &file, "import.noted");
            checkpoint(&file)["offset"].as_u64().filter(|offset| *offset > 0)
        })
    };
    interrupt();
    // The file has grown.
    write_events(&file, &all[..15]);
    let summary = server.run(&["import", path_str(&file)]);
    assert!(summary.stderr.contains("continuing an interrupted import"), "{}", summary.stderr);
    summary.expect_success();
    // The file was replaced.
    write_events(&file, &all[15..25]);
    interrupt();
    write_events(&file, &all[25..]);
    server.run(&["import", path_str(&file)]).expect_success();
    assert_eq!(ids(&server).len(), all.len(), "the import of the new file started from its beginning");

    server.run(&["export", path_str(&exported)]).expect_success();
    write_events(&exported, &notes(60)[10..]);
    let summary = server.run(&["export", path_str(&exported), "--resume"]).expect_failure(1);
    assert!(summary.contains("is not the file"), "{summary}");
    assert_eq!(read_lines(&exported).len(), 50, "the file is not changed");
}

/// Starts an import and returns its process.
fn start_import(server: &Server, file: &Path) -> Child {
    server
        .cli_command(&["import", path_str(file)])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("cannot run the program")
}

#[test]
fn killed_import_continues_and_imports_everything() {
    // Enough for a few seconds, in which client and server are killed.
    const COUNT: u64 = 50_000;
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let file = folder.path().join("events.jsonl");
    let all = notes(COUNT);
    write_events(&file, &all);
    let mut server = Server::start(&[OPEN]);

    // The client is killed.
    let mut client = start_import(&server, &file);
    eventually("a checkpoint is written", || checkpoint(&file)["offset"].as_u64().filter(|offset| *offset > 0));
    client.kill().expect("cannot kill the process");
    client.wait().expect("cannot wait for the process");
    let first = checkpoint(&file)["offset"].as_u64().expect("no checkpoint");
    let size = fs::metadata(&file).expect("cannot access the file").len();
    assert!(first < size, "the import was complete already: {first} of {size}");

    // The server is killed.
    eventually("the server has ended the first import", || {
        let mut client = start_import(&server, &file);
        let continued = eventually("the import continues or is rejected", || {
            let progressed = checkpoint(&file)["offset"].as_u64().is_some_and(|offset| offset > first);
            let ended = client.try_wait().expect("cannot wait for the process").is_some();
            (progressed || ended).then_some(progressed)
        });
        if continued {
            server.kill();
        }
        let ended = client.wait().expect("cannot wait for the process");
        assert!(!ended.success() || !continued);
        continued.then_some(())
    });
    let second = checkpoint(&file)["offset"].as_u64();
    assert!(second.is_some_and(|second| second > first && second < size), "{first} {second:?} {size}");
    let server = Server::start_in(server.folder(), &[OPEN]);
    let known = ids(&server);
    assert!(!known.is_empty() && known.len() < COUNT as usize);
    // Every event before the checkpoint is stored.
    let noted = usize::try_from(second.expect("no checkpoint")).expect("not a number");
    let done = fs::read(&file).expect("cannot read")[..noted].iter().filter(|byte| **byte == b'\n').count();
    assert!(
        all[..done].iter().all(|event| known.contains(&event.id.to_string())),
        "{done} events precede the checkpoint"
    );

    let summary = server.run(&["import", path_str(&file), "--json"]).json_object();
    assert_eq!(summary["rejected"], json!({}), "{summary}");
    let expected: BTreeSet<String> = all.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(ids(&server), expected);
    assert_eq!(checkpoint(&file), Value::Null, "the checkpoint is removed");
    let _: Client = server.connect();
}
