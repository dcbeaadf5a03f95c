//! What the operator sees of repositories and of what waits for git data: `graspd repos`, `graspd purgatory`.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::{MAIN, THEN};
use crate::support::git_server::{GitServer, Mood};
use crate::support::peers::{Neighbour, Project};
use crate::support::test_server::{End, Stage, main_at, one_commit};

#[test]
fn repositories_are_listed() {
    let mut stage = Stage::new();
    let [owner, other, ..] = stage.cast();
    let (work, oid) = one_commit("content");
    let (_, state) = stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    stage.hold(&other.announce("empty", THEN, &[]));
    let newer = owner.state("tool", THEN + 1, &main_at(&"a".repeat(40)));
    stage.hold(&newer);

    let rows = stage.server.run(&["repos", "--json"]).json();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{rows:?}"));
    let tool = row("tool");
    assert_eq!(tool["owner"], owner.npub().as_str());
    assert_eq!(tool["state"], "behind");
    assert_eq!(tool["state_event"], state.id.to_string().as_str());
    assert_eq!(tool["refs"], 1);
    assert!(tool["bytes"].as_u64() > Some(100), "{tool}");
    assert_eq!((&tool["held"], &tool["maintainers"], &tool["relays"]), (&json!(1), &json!(1), &Value::Null));
    let empty = row("empty");
    assert_eq!((&empty["state"], &empty["refs"], &empty["held"]), (&json!("waiting"), &json!(0), &json!(1)));
    assert_eq!(rows.len(), 2);

    let text = stage.server.run(&["repos"]).well();
    assert!(text.starts_with("OWNER") && text.contains("tool") && text.contains("behind"), "{text}");
    let names = |arguments: &[&str]| -> Vec<String> {
        let rows = stage.server.run(&[&["repos", "--json"], arguments].concat()).json();
        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&["tool"]), ["tool"]);
    assert_eq!(names(&[&format!("{}/tool.git", owner.npub())]), ["tool"]);
    assert_eq!(names(&["--owner", &other.npub()]), ["empty"]);
    assert_eq!(names(&["--missing"]).len(), 2);
    assert_eq!(names(&["--missing", "--owner", &owner.npub()]), ["tool"]);
    assert!(names(&["nothing"]).is_empty());
    assert_eq!(stage.server.run(&["repos", "nothing"]).well(), "No repository matches.\n");
    assert!(stage.server.run(&["repos", "--owner", "me"]).badly(1).contains("npub1"));
}

#[test]
fn relays_that_have_it_are_counted() {
    let (mut a, mut b) = (Neighbour::start(&[]), Neighbour::start(&[]));
    let project = Project::new(1, "common", &[a.place, b.place], &[]);
    a.host(&project);
    a.eventually_state(&b.relay(), 3.0);
    let row = a.server.run(&["repos", "common", "--json"]).object();
    assert_eq!((&row["relays"]["named"], &row["relays"]["complete"]), (&json!(1), &json!(0)), "it has nothing of it");
    b.host(&project);
    eventually("the other has it", || {
        let row = a.server.run(&["repos", "common", "--json"]).object();
        (row["state"] == "current" && row["relays"] == json!({"named": 1, "complete": 1, "unknown": 0})).then_some(())
    });
    assert_eq!(a.server.run(&["repos", "--missing", "--json"]).json().len(), 0);
}

#[test]
fn what_waits_is_listed_and_dropped_for_good() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let announcement = owner.announce("tool", THEN, &[]);
    let oid = "ab".repeat(20);
    let state = owner.state("tool", THEN, &main_at(&oid));
    stage.hold(&announcement);
    stage.hold(&state);

    let rows = stage.server.run(&["purgatory", "--json"]).json();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let row = rows.iter().find(|row| row["kind"] == "state").expect("a state waits");
    assert_eq!(row["id"], state.id.to_string().as_str());
    assert_eq!((&row["names"], &row["needs"], &row["objects"]), (&json!(["tool"]), &json!(1), &json!([oid])));
    assert!((1_700..=1_800).contains(&row["left_seconds"].as_u64().expect("a number")), "{row}");
    for arguments in [&["purgatory"][..], &["purgatory", "list"]] {
        let text = stage.server.run(arguments).well();
        for expected in ["EVENT", "state", "announcement", "tool", &oid[..12], &state.id.to_string()[..12], "min"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    for wrong in ["tool", "abc", "zz", &"0".repeat(64), &"f".repeat(65)] {
        let said = stage.server.run(&["purgatory", "drop", wrong]).badly(1);
        assert!(said.contains("nothing that waits") && said.contains("graspd purgatory"), "{said}");
    }
    stage.server.run(&["purgatory", "drop"]).badly(2);
    // A few digits are enough.
    let said = stage.server.run(&["purgatory", "drop", &state.id.to_string()[..10]]).well();
    assert!(said.contains("the state") && said.contains(&state.id.to_string()) && said.contains("tool"), "{said}");
    let left = |stage: &Stage| -> Vec<Value> {
        stage.server.run(&["purgatory", "--json"]).json().iter().map(|row| row["kind"].clone()).collect()
    };
    assert_eq!(left(&stage), ["announcement"]);
    stage.server.run(&["purgatory", "drop", &state.id.to_string()]).badly(1);
    // What the command said is on disk.
    let mut stage = stage.again(End::Killed);
    assert_eq!(left(&stage), ["announcement"]);
    // Nothing is held against it.
    stage.hold(&state);
    assert_eq!(left(&stage).len(), 2);
    let dropped = stage.server.run(&["purgatory", "drop", &announcement.id.to_string(), "--json"]).object();
    assert_eq!(dropped["dropped"]["kind"], "announcement");
    assert!(!stage.exists(&owner, "tool"), "nothing announces it any more");
    stage.server.run(&["purgatory", "drop", &state.id.to_string()]).well();
    assert_eq!(stage.server.run(&["purgatory"]).well(), "No event waits for git data.\n");
}

#[test]
fn a_pull_request_that_waits_can_go() {
    let mut stage = Stage::new();
    let [owner, contributor, ..] = stage.cast();
    let (work, oid) = one_commit("content");
    stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let tip = "cd".repeat(20);
    let pull = contributor.author.sign(1618, THEN, &[&["a", &owner.author.repo("tool")], &["c", &tip]], "please");
    stage.hold(&pull);
    let row = stage.server.run(&["purgatory", "--json"]).object();
    assert_eq!((&row["kind"], &row["objects"]), (&json!("pull_request"), &json!([tip])));
    stage.server.run(&["purgatory", "drop", &pull.id.to_string()]).well();
    assert_eq!(stage.server.run(&["purgatory", "--json"]).json().len(), 0);
    stage.expect_refs(&owner, "tool", &main_at(&oid));
}

#[test]
fn missing_git_data_is_looked_for_at_once() {
    let elsewhere = GitServer::start();
    elsewhere.be(Mood::Refusing(404, String::new()));
    let mut server = Neighbour::start(&[]);
    let (work, oid) = one_commit("content");
    let owner = grasp_sim::signer::Author::new(1);
    let path = owner.repo_id("tool").path();
    let tags = vec![
        vec!["d".to_owned(), "tool".to_owned()],
        vec!["clone".to_owned(), format!("http://{}/{path}", server.place), elsewhere.url("tool")],
        vec!["relays".to_owned(), server.relay()],
    ];
    let announcement = owner.sign_owned(30617, THEN, tags, "");
    let state = owner.state("tool", THEN, &[(MAIN, &oid)]);
    server.publish(&announcement);
    server.publish(&state);
    // A client that publishes is expected to push: nothing is looked for within the first minutes.
    let waiting = |server: &Neighbour| {
        let rows = server.server.run(&["purgatory", "--json"]).json();
        rows.into_iter().find(|row| row["kind"] == "state" && row["search"].is_object())
    };
    let row = eventually("the search knows of it", || waiting(&server));
    assert!(row["search"]["next_in_seconds"].as_u64() > Some(30), "{row}");
    assert_eq!(row["search"]["places"][0]["url"], elsewhere.url("tool").as_str());
    assert_eq!(elsewhere.asked(), Vec::<String>::new());
    let said = server.server.run(&["purgatory", "retry", "tool"]).well();
    assert!(said.contains("one repository"), "{said}");
    eventually("it is asked", || (!elsewhere.asked().is_empty()).then_some(()));
    let text = eventually("it says what came of it", || {
        let text = server.server.run(&["purgatory"]).well();
        (text.contains("absent") || text.contains("lacks")).then_some(text)
    });
    assert!(text.contains(elsewhere.url("tool").split('/').nth(2).expect("a host")), "{text}");

    elsewhere.take("tool", &work, &[MAIN]);
    elsewhere.be(Mood::Kind);
    let retried = server.server.run(&["purgatory", "retry", &state.id.to_string()[..16], "--json"]).object();
    assert_eq!((&retried["count"], retried["repositories"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    server.eventually_served(&[&announcement, &state]);
    eventually("nothing is looked for any more", || {
        server.server.run(&["purgatory", "retry"]).well().contains("No git data is missing").then_some(())
    });
    assert!(server.server.run(&["purgatory", "retry", "other"]).badly(1).contains("nothing that waits"));
}

#[test]
fn without_a_search_nothing_is_retried() {
    let stage = Stage::new();
    assert!(stage.server.run(&["purgatory", "retry"]).badly(1).contains("SYNC_ENABLE is false"));
}
