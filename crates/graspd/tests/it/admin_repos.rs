//! Commands for repositories and for events that wait for git data: `graspd repos` and `graspd purgatory`.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::{BASE_TIME, MAIN};
use crate::support::git_server::{GitServer, GitServerMode};
use crate::support::peers::{Project, SyncServer};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

#[test]
fn repositories_are_listed() {
    let mut server = TestServer::new();
    let [owner, other, ..] = server.maintainers();
    let (work, oid) = one_commit("content");
    let (_, state) = server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    server.publish_held(&other.announce("empty", BASE_TIME, &[]));
    let newer = owner.state("tool", BASE_TIME + 1, &main_at(&"a".repeat(40)));
    server.publish_held(&newer);

    let rows = server.process.run(&["repos", "--json"]).json_lines();
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

    let text = server.process.run(&["repos"]).expect_success();
    assert!(text.starts_with("OWNER") && text.contains("tool") && text.contains("behind"), "{text}");
    let names = |arguments: &[&str]| -> Vec<String> {
        let rows = server.process.run(&[&["repos", "--json"], arguments].concat()).json_lines();
        rows.iter().map(|row| row["name"].as_str().expect("no name").to_owned()).collect()
    };
    assert_eq!(names(&["tool"]), ["tool"]);
    assert_eq!(names(&[&format!("{}/tool.git", owner.npub())]), ["tool"]);
    assert_eq!(names(&["--owner", &other.npub()]), ["empty"]);
    assert_eq!(names(&["--missing"]).len(), 2);
    assert_eq!(names(&["--missing", "--owner", &owner.npub()]), ["tool"]);
    let unknown = server.maintainer(9).npub();
    for arguments in [&["nothing"][..], &["nothing", "--json"], &["nothing", "--missing"], &["--owner", &unknown]] {
        let printed = server.process.run(&[&["repos"], arguments].concat()).expect_failure(1);
        assert!(printed.contains("no repository has this name or owner"), "{arguments:?}: {printed}");
    }
    assert!(server.process.run(&["repos", "--owner", "me"]).expect_failure(1).contains("npub1"));
}

#[test]
fn synced_relays_are_counted() {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let project = Project::new(1, "common", &[a.address, b.address], &[]);
    a.host(&project);
    a.eventually_state(&b.relay_url(), 3.0);
    let row = a.process.run(&["repos", "common", "--json"]).json_object();
    assert_eq!(
        (&row["relays"]["named"], &row["relays"]["complete"]),
        (&json!(1), &json!(0)),
        "the relay has no event of the repository"
    );
    b.host(&project);
    eventually("the relay has all events", || {
        let row = a.process.run(&["repos", "common", "--json"]).json_object();
        (row["state"] == "current" && row["relays"] == json!({"named": 1, "complete": 1, "unknown": 0})).then_some(())
    });
    assert_eq!(a.process.run(&["repos", "--missing", "--json"]).json_lines().len(), 0);
    let printed = a.process.run(&["repos", "common", "--missing"]).expect_success();
    assert_eq!(printed, "No repository matches.\n", "the repository exists and lacks nothing");
}

#[test]
fn held_events_are_listed_and_dropped_permanently() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    let oid = "ab".repeat(20);
    let state = owner.state("tool", BASE_TIME, &main_at(&oid));
    server.publish_held(&announcement);
    server.publish_held(&state);

    let rows = server.process.run(&["purgatory", "--json"]).json_lines();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let row = rows.iter().find(|row| row["kind"] == "state").expect("no held state");
    assert_eq!(row["id"], state.id.to_string().as_str());
    assert_eq!((&row["names"], &row["needs"], &row["objects"]), (&json!(["tool"]), &json!(1), &json!([oid])));
    assert!((1_700..=1_800).contains(&row["left_seconds"].as_u64().expect("not a number")), "{row}");
    for arguments in [&["purgatory"][..], &["purgatory", "list"]] {
        let text = server.process.run(arguments).expect_success();
        for expected in ["EVENT", "state", "announcement", "tool", &oid[..12], &state.id.to_string()[..12], "min"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    for wrong in ["tool", "abc", "zz", &"0".repeat(64), &"f".repeat(65)] {
        let printed = server.process.run(&["purgatory", "drop", wrong]).expect_failure(1);
        assert!(
            printed.contains("no held event or repository matches") && printed.contains("graspd purgatory"),
            "{printed}"
        );
    }
    server.process.run(&["purgatory", "drop"]).expect_failure(2);
    // A prefix of the id is enough.
    let printed = server.process.run(&["purgatory", "drop", &state.id.to_string()[..10]]).expect_success();
    assert!(
        printed.contains("the state") && printed.contains(&state.id.to_string()) && printed.contains("tool"),
        "{printed}"
    );
    let left = |server: &TestServer| -> Vec<Value> {
        server.process.run(&["purgatory", "--json"]).json_lines().iter().map(|row| row["kind"].clone()).collect()
    };
    assert_eq!(left(&server), ["announcement"]);
    server.process.run(&["purgatory", "drop", &state.id.to_string()]).expect_failure(1);
    // The removal is durable.
    let mut server = server.restart(StopSignal::Kill);
    assert_eq!(left(&server), ["announcement"]);
    // A dropped event can be published again.
    server.publish_held(&state);
    assert_eq!(left(&server).len(), 2);
    let dropped = server.process.run(&["purgatory", "drop", &announcement.id.to_string(), "--json"]).json_object();
    assert_eq!(dropped["dropped"]["kind"], "announcement");
    assert!(!server.repo_exists(&owner, "tool"), "a repository without an announcement is removed");
    server.process.run(&["purgatory", "drop", &state.id.to_string()]).expect_success();
    assert_eq!(server.process.run(&["purgatory"]).expect_success(), "No event waits for git data.\n");
}

#[test]
fn held_pull_request_can_be_dropped() {
    let mut server = TestServer::new();
    let [owner, contributor, ..] = server.maintainers();
    let (work, oid) = one_commit("content");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let tip = "cd".repeat(20);
    let pull = contributor.author.sign(1618, BASE_TIME, &[&["a", &owner.author.repo("tool")], &["c", &tip]], "please");
    server.publish_held(&pull);
    let row = server.process.run(&["purgatory", "--json"]).json_object();
    assert_eq!((&row["kind"], &row["objects"]), (&json!("pull_request"), &json!([tip])));
    server.process.run(&["purgatory", "drop", &pull.id.to_string()]).expect_success();
    assert_eq!(server.process.run(&["purgatory", "--json"]).json_lines().len(), 0);
    server.expect_refs(&owner, "tool", &main_at(&oid));
}

#[test]
fn retry_fetches_missing_git_data_at_once() {
    let git_server = GitServer::start();
    git_server.set_mode(GitServerMode::Failing(404, String::new()));
    let mut server = SyncServer::start(&[]);
    let (work, oid) = one_commit("content");
    let owner = grasp_sim::signer::Author::new(1);
    let path = owner.repo_id("tool").path();
    let tags = vec![
        vec!["d".to_owned(), "tool".to_owned()],
        vec!["clone".to_owned(), format!("http://{}/{path}", server.address), git_server.url("tool")],
        vec!["relays".to_owned(), server.relay_url()],
    ];
    let announcement = owner.sign_owned(30617, BASE_TIME, tags, "");
    let state = owner.state("tool", BASE_TIME, &[(MAIN, &oid)]);
    server.publish(&announcement);
    server.publish(&state);
    // A client that publishes is expected to push: no fetch is started within the first minutes.
    let held_state = |server: &SyncServer| {
        let rows = server.process.run(&["purgatory", "--json"]).json_lines();
        rows.into_iter().find(|row| row["kind"] == "state" && row["search"].is_object())
    };
    let row = eventually("the fetch is scheduled", || held_state(&server));
    assert!(row["search"]["next_in_seconds"].as_u64() > Some(30), "{row}");
    assert_eq!(row["search"]["sources"][0]["url"], git_server.url("tool").as_str());
    assert_eq!(git_server.requests(), Vec::<String>::new());
    let printed = server.process.run(&["purgatory", "retry", "tool"]).expect_success();
    assert!(printed.contains("one repository"), "{printed}");
    eventually("the git server is asked", || (!git_server.requests().is_empty()).then_some(()));
    let text = eventually("the outcome is shown", || {
        let text = server.process.run(&["purgatory"]).expect_success();
        (text.contains("absent") || text.contains("lacks")).then_some(text)
    });
    assert!(text.contains(git_server.url("tool").split('/').nth(2).expect("no host")), "{text}");

    git_server.import_refs("tool", &work, &[MAIN]);
    git_server.set_mode(GitServerMode::Normal);
    let retried = server.process.run(&["purgatory", "retry", &state.id.to_string()[..16], "--json"]).json_object();
    assert_eq!((&retried["count"], retried["repositories"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    server.eventually_served(&[&announcement, &state]);
    eventually("no fetch is pending", || {
        server.process.run(&["purgatory", "retry"]).expect_success().contains("No git data is missing").then_some(())
    });
    assert!(
        server
            .process
            .run(&["purgatory", "retry", "other"])
            .expect_failure(1)
            .contains("no held event or repository matches")
    );
}

#[test]
fn retry_fails_when_fetching_is_disabled() {
    let server = TestServer::new();
    assert!(server.process.run(&["purgatory", "retry"]).expect_failure(1).contains("SYNC_ENABLE is false"));
}
