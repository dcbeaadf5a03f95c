//! `graspd import-ngit-grasp`: takes over the events and repositories of an ngit-grasp server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use nostr_lmdb::NostrLMDB;
use nostr_sdk::prelude::{Event, JsonUtil, NostrDatabase};
use serde_json::json;
use tempfile::TempDir;

use crate::support::admin::CommandOutput;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, ls_remote, refs};
use crate::support::test_server::{TestServer, main_at};

fn path_str(path: &Path) -> &str {
    path.to_str().expect("not text")
}

/// Stores events in the database format of ngit-grasp.
fn store_events(folder: &Path, events: &[&Arc<SignedEvent>]) {
    fs::create_dir_all(folder).expect("cannot create a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("cannot create a runtime");
    runtime.block_on(async {
        let database = NostrLMDB::open(folder).expect("cannot open");
        for event in events {
            let event = Event::from_json(event.json()).expect("no event");
            database.save_event(&event).await.expect("cannot save the event");
        }
    });
}

/// Creates a repository in the layout of ngit-grasp.
fn create_repo(git: &Path, who: &Maintainer, d: &str, work: &WorkTree, refs: &[(&str, &str)]) -> PathBuf {
    let folder = git.join(who.npub()).join(format!("{d}.git"));
    fs::create_dir_all(&folder).expect("cannot create a folder");
    let run = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("--git-dir").arg(&folder).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(command.status().expect("cannot run git").success(), "{arguments:?}");
    };
    run(&["init", "--quiet", "--bare"]);
    for (name, oid) in refs {
        run(&["fetch", "--quiet", path_str(&work.tree()), oid]);
        run(&["update-ref", name, oid]);
    }
    folder
}

/// Returns all files below a folder with their size and modification time.
fn file_listing(folder: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("cannot list the folder") {
        let path = entry.expect("cannot read the folder entry").path();
        let metadata = fs::metadata(&path).expect("cannot read the metadata");
        files.insert(format!(
            "{} {} {:?}",
            path.display(),
            metadata.len(),
            metadata.modified().expect("no modification time")
        ));
        if path.is_dir() {
            files.extend(file_listing(&path));
        }
    }
    files
}

#[test]
fn events_and_repositories_are_imported_and_an_interrupted_import_continues() {
    let mut server = TestServer::new();
    let [owner, other, guest, outsider] = server.maintainers();
    let data = TempDir::new().expect("cannot create a temporary folder");
    let (relay, git) = (data.path().join("relay"), data.path().join("git"));
    let work = WorkTree::new();
    let first = work.commit("file", "first");
    let second = work.commit("file", "second");
    let tag = work.tag("v1");
    let tool_refs = [(MAIN, second.as_str()), ("refs/tags/v1", tag.as_str())];
    let tool = owner.announce("tool", BASE_TIME, &[&other]);
    let tool_state = other.state("tool", BASE_TIME + 1, &tool_refs);
    let tool_by_other = other.announce("tool", BASE_TIME, &[&owner]);
    let lib = owner.announce("my 🚀 lib", BASE_TIME, &[]);
    let lib_state = owner.state("my 🚀 lib", BASE_TIME, &main_at(&first));
    let request = guest.pull_request(BASE_TIME, &[&owner.repo("tool")], &first, &[]);
    let pull = format!("refs/nostr/{}", request.id);
    let issue = guest.author.sign(kinds::ISSUE, BASE_TIME, &[&["a", &owner.repo("tool")]], "it does not work");
    let parent = issue.id.to_string();
    let comment =
        guest.author.sign(1_111, BASE_TIME + 1, &[&["E", &parent], &["e", &parent], &["k", "1621"]], "really");
    let not_listed = outsider.announce_elsewhere("thing", BASE_TIME, &[]);
    let mismatch = owner.announce("mismatch", BASE_TIME, &[]);
    let mismatch_state = owner.state("mismatch", BASE_TIME, &main_at(&second));
    let all = [
        &comment,
        &issue,
        &request,
        &tool_state,
        &lib_state,
        &tool,
        &tool_by_other,
        &lib,
        &not_listed,
        &mismatch,
        &mismatch_state,
    ];
    store_events(&relay, &all);
    let with_pull = [&tool_refs[..], &[(pull.as_str(), first.as_str())]].concat();
    create_repo(&git, &owner, "tool", &work, &with_pull);
    create_repo(&git, &other, "tool", &work, &tool_refs);
    let encoded = grasp_core::repo::Identifier::new("my 🚀 lib").expect("no name").percent_encoded();
    create_repo(&git, &owner, &encoded, &work, &main_at(&first));
    // Its refs do not match its state.
    create_repo(&git, &owner, "mismatch", &work, &main_at(&first));
    create_repo(&git, &outsider, "thing", &work, &main_at(&first));
    let before = file_listing(data.path());

    let dry_run = server.process.run(&["import-ngit-grasp", path_str(data.path()), "--json"]).json_object();
    assert_eq!((&dry_run["events"], &dry_run["repositories"]), (&json!(11), &json!(5)), "{dry_run}");
    assert_eq!(dry_run["kinds"], json!({"1111": 1, "1618": 1, "1621": 1, "30617": 5, "30618": 3}));
    assert_eq!(dry_run["would_be_rejected"], json!({"not_listed": 1}), "{dry_run}");
    assert_eq!(dry_run["repositories_without_announcement"].as_array().expect("not a list").len(), 1, "{dry_run}");
    let text = server.process.run(&["import-ngit-grasp", path_str(data.path())]).expect_success();
    assert!(text.contains("Nothing was changed") && text.contains("not listed"), "{text}");
    assert!(!server.is_served(&tool));

    let beside = Path::new("..").join(data.path().file_name().expect("no name"));
    let arguments = ["import-ngit-grasp", path_str(&beside), "--execute", "--json", "--work", "aside"];
    for at in ["import.noted", "import.pushed", "import.pushed:2"] {
        let mut crashing = server.process.cli_command(&arguments);
        assert_eq!(
            crashing.env("GRASPD_CRASH_AT", at).output().expect("cannot run the program").status.code(),
            None,
            "{at}"
        );
        // Wait until the server has noticed the end of the client.
        crate::support::eventually("another import can start", || {
            let summary = server.process.run(&["import", "/dev/null"]);
            (summary.code == Some(0)).then_some(())
        });
    }
    let summary = server.process.run(&arguments).json_object();
    let rejected = summary["repositories_rejected"].as_array().expect("not a list");
    assert!(rejected.iter().all(|one| one["why"].as_str().is_some_and(|why| !why.is_empty())), "{summary}");
    server.expect_served(&[&tool, &tool_by_other, &tool_state, &lib, &lib_state, &request, &issue, &comment]);
    assert!(!server.is_served(&not_listed) && !server.is_served(&mismatch) && !server.is_served(&mismatch_state));
    server.eventually_refs(&owner, "tool", &with_pull);
    assert_eq!(server.ls_remote(&other, "tool").refs.get(MAIN), Some(&second));
    assert_eq!(ls_remote(&server.url(&owner, "my 🚀 lib")).refs, refs(&main_at(&first)));
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    assert_eq!(clone.oid("HEAD"), second);
    clone.fsck();
    assert_eq!(file_listing(data.path()), before, "the data of ngit-grasp is unchanged");
    // Another run changes nothing.
    let again = server.process.run(&arguments).json_object();
    assert_eq!(again["repositories"], 0, "{again}");
    server.process.run(&["verify"]).expect_success();
}

#[test]
fn failed_repositories_are_imported_by_the_next_run() {
    let mut server = TestServer::new();
    let [owner, guest, ..] = server.maintainers();
    let data = TempDir::new().expect("cannot create a temporary folder");
    let work = WorkTree::new();
    let oid = work.commit("file", "first");
    let (one, two) = (owner.announce("one", BASE_TIME, &[]), owner.announce("two", BASE_TIME, &[]));
    let (one_state, two_state) =
        (owner.state("one", BASE_TIME, &main_at(&oid)), owner.state("two", BASE_TIME, &main_at(&oid)));
    let issue = guest.author.sign(kinds::ISSUE, BASE_TIME, &[&["a", &owner.repo("two")]], "it does not work");
    store_events(&data.path().join("relay"), &[&one, &two, &one_state, &two_state, &issue]);
    for d in ["one", "two"] {
        create_repo(&data.path().join("git"), &owner, d, &work, &main_at(&oid));
    }
    let limit = |server: &TestServer, repositories: u8| {
        let settings = format!("quota_repositories_per_key = {repositories}\n");
        fs::write(server.process.folder().path().join("graspd.toml"), settings).expect("cannot write");
        server.process.run(&["reload"]).expect_success();
    };
    let arguments = ["import-ngit-grasp", path_str(data.path()), "--execute"];
    limit(&server, 1);
    // Without git.
    let summary = CommandOutput::new(
        &server.process.cli_command(&arguments).env("PATH", "/nonexistent").output().expect("cannot run the program"),
    );
    assert!(summary.stdout.contains("failed: ") && summary.stdout.contains("cannot run git"), "{}", summary.stdout);
    summary.expect_failure(1);
    // With git, and a quota of one repository.
    let summary = server.process.run(&arguments);
    assert!(summary.stdout.contains("failed: two: events were rejected: too many repositories"), "{}", summary.stdout);
    assert!(summary.expect_failure(1).contains("run it again"));
    server.expect_served(&[&one, &one_state]);
    assert!(!server.is_served(&two));
    limit(&server, 2);
    let summary = server.process.run(&arguments).expect_success();
    assert!(summary.contains("All data is imported"), "{summary}");
    server.expect_served(&[&one, &one_state, &two, &two_state, &issue]);
    server.eventually_refs(&owner, "two", &main_at(&oid));
}
