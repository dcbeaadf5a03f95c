//! What ngit-grasp leaves moves in.

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

use crate::support::admin::Said;
use crate::support::git::{MAIN, Maintainer, THEN, Work, ls_remote, refs};
use crate::support::test_server::{Stage, main_at};

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Keeps events as ngit-grasp does.
fn store(folder: &Path, events: &[&Arc<SignedEvent>]) {
    fs::create_dir_all(folder).expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let database = NostrLMDB::open(folder).expect("opens");
        for event in events {
            let event = Event::from_json(event.json()).expect("an event");
            database.save_event(&event).await.expect("saves");
        }
    });
}

/// Keeps a repository as ngit-grasp does.
fn keep(git: &Path, who: &Maintainer, d: &str, work: &Work, refs: &[(&str, &str)]) -> PathBuf {
    let folder = git.join(who.npub()).join(format!("{d}.git"));
    fs::create_dir_all(&folder).expect("a folder");
    let run = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("--git-dir").arg(&folder).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(command.status().expect("git runs").success(), "{arguments:?}");
    };
    run(&["init", "--quiet", "--bare"]);
    for (name, oid) in refs {
        run(&["fetch", "--quiet", text(&work.tree()), oid]);
        run(&["update-ref", name, oid]);
    }
    folder
}

/// All files below a folder with their bytes' length and time of change.
fn picture(folder: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("lists") {
        let path = entry.expect("an entry").path();
        let metadata = fs::metadata(&path).expect("there");
        files.insert(format!("{} {} {:?}", path.display(), metadata.len(), metadata.modified().expect("a time")));
        if path.is_dir() {
            files.extend(picture(&path));
        }
    }
    files
}

#[test]
fn events_and_repositories_of_ngit_grasp_move_in_and_an_interrupted_move_goes_on() {
    let mut stage = Stage::new();
    let [owner, other, guest, stranger] = stage.cast();
    let data = TempDir::new().expect("a folder");
    let (relay, git) = (data.path().join("relay"), data.path().join("git"));
    let work = Work::new();
    let first = work.commit("file", "first");
    let second = work.commit("file", "second");
    let tag = work.tag("v1");
    let tool_refs = [(MAIN, second.as_str()), ("refs/tags/v1", tag.as_str())];
    let tool = owner.announce("tool", THEN, &[&other]);
    let tool_state = other.state("tool", THEN + 1, &tool_refs);
    let tool_too = other.announce("tool", THEN, &[&owner]);
    let lib = owner.announce("my 🚀 lib", THEN, &[]);
    let lib_state = owner.state("my 🚀 lib", THEN, &main_at(&first));
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &first, &[]);
    let pull = format!("refs/nostr/{}", request.id);
    let issue = guest.author.sign(kinds::ISSUE, THEN, &[&["a", &owner.repo("tool")]], "it does not work");
    let parent = issue.id.to_string();
    let comment = guest.author.sign(1_111, THEN + 1, &[&["E", &parent], &["e", &parent], &["k", "1621"]], "really");
    let elsewhere = stranger.announce_elsewhere("thing", THEN, &[]);
    let astray = owner.announce("astray", THEN, &[]);
    let astray_state = owner.state("astray", THEN, &main_at(&second));
    let all = [
        &comment,
        &issue,
        &request,
        &tool_state,
        &lib_state,
        &tool,
        &tool_too,
        &lib,
        &elsewhere,
        &astray,
        &astray_state,
    ];
    store(&relay, &all);
    let with_pull = [&tool_refs[..], &[(pull.as_str(), first.as_str())]].concat();
    keep(&git, &owner, "tool", &work, &with_pull);
    keep(&git, &other, "tool", &work, &tool_refs);
    let encoded = grasp_core::repo::Identifier::new("my 🚀 lib").expect("a name").percent_encoded();
    keep(&git, &owner, &encoded, &work, &main_at(&first));
    // Its refs are not what its state says.
    keep(&git, &owner, "astray", &work, &main_at(&first));
    keep(&git, &stranger, "thing", &work, &main_at(&first));
    let before = picture(data.path());

    let look = stage.server.run(&["import-ngit-grasp", text(data.path()), "--json"]).object();
    assert_eq!((&look["events"], &look["repositories"]), (&json!(11), &json!(5)), "{look}");
    assert_eq!(look["kinds"], json!({"1111": 1, "1618": 1, "1621": 1, "30617": 5, "30618": 3}));
    assert_eq!(look["would_be_refused"], json!({"not_listed": 1}), "{look}");
    assert_eq!(look["repositories_without_announcement"].as_array().expect("a list").len(), 1, "{look}");
    let people = stage.server.run(&["import-ngit-grasp", text(data.path())]).well();
    assert!(people.contains("Nothing was changed") && people.contains("not listed"), "{people}");
    assert!(!stage.served(&tool));

    let beside = Path::new("..").join(data.path().file_name().expect("a name"));
    let arguments = ["import-ngit-grasp", text(&beside), "--execute", "--json", "--work", "aside"];
    for at in ["import.noted", "import.pushed", "import.pushed:2"] {
        let mut crashing = stage.server.operator(&arguments);
        assert_eq!(crashing.env("GRASPD_CRASH_AT", at).output().expect("runs").status.code(), None, "{at}");
        // The server notices that nobody is there.
        crate::support::eventually("the next one may begin", || {
            let said = stage.server.run(&["import", "/dev/null"]);
            (said.code == Some(0)).then_some(())
        });
    }
    let said = stage.server.run(&arguments).object();
    let refused = said["repositories_refused"].as_array().expect("a list");
    assert!(refused.iter().all(|one| one["why"].as_str().is_some_and(|why| !why.is_empty())), "{said}");
    stage.expect_served(&[&tool, &tool_too, &tool_state, &lib, &lib_state, &request, &issue, &comment]);
    assert!(!stage.served(&elsewhere) && !stage.served(&astray) && !stage.served(&astray_state));
    stage.eventually_refs(&owner, "tool", &with_pull);
    assert_eq!(stage.remote(&other, "tool").refs.get(MAIN), Some(&second));
    assert_eq!(ls_remote(&stage.url(&owner, "my 🚀 lib")).refs, refs(&main_at(&first)));
    let clone = Work::clone(&stage.url(&owner, "tool"));
    assert_eq!(clone.oid("HEAD"), second);
    clone.fsck();
    assert_eq!(picture(data.path()), before, "nothing was changed there");
    // Once more changes nothing.
    let again = stage.server.run(&arguments).object();
    assert_eq!(again["repositories"], 0, "{again}");
    stage.server.run(&["verify"]).well();
}

#[test]
fn what_could_not_be_moved_for_now_is_moved_by_the_next_run() {
    let mut stage = Stage::new();
    let [owner, guest, ..] = stage.cast();
    let data = TempDir::new().expect("a folder");
    let work = Work::new();
    let oid = work.commit("file", "first");
    let (one, two) = (owner.announce("one", THEN, &[]), owner.announce("two", THEN, &[]));
    let (one_state, two_state) = (owner.state("one", THEN, &main_at(&oid)), owner.state("two", THEN, &main_at(&oid)));
    let issue = guest.author.sign(kinds::ISSUE, THEN, &[&["a", &owner.repo("two")]], "it does not work");
    store(&data.path().join("relay"), &[&one, &two, &one_state, &two_state, &issue]);
    for d in ["one", "two"] {
        keep(&data.path().join("git"), &owner, d, &work, &main_at(&oid));
    }
    let limit = |stage: &Stage, repositories: u8| {
        let settings = format!("quota_repositories_per_key = {repositories}\n");
        fs::write(stage.server.folder().path().join("graspd.toml"), settings).expect("written");
        stage.server.run(&["reload"]).well();
    };
    let arguments = ["import-ngit-grasp", text(data.path()), "--execute"];
    limit(&stage, 1);
    // Without git.
    let said = Said::of(&stage.server.operator(&arguments).env("PATH", "/nonexistent").output().expect("runs"));
    assert!(said.out.contains("failed: ") && said.out.contains("cannot run git"), "{}", said.out);
    said.badly(1);
    // With git, and no room for the second one.
    let said = stage.server.run(&arguments);
    assert!(said.out.contains("failed: two: events were rejected: too many repositories"), "{}", said.out);
    assert!(said.badly(1).contains("run it again"));
    stage.expect_served(&[&one, &one_state]);
    assert!(!stage.served(&two));
    limit(&stage, 2);
    let said = stage.server.run(&arguments).well();
    assert!(said.contains("All data is imported"), "{said}");
    stage.expect_served(&[&one, &one_state, &two, &two_state, &issue]);
    stage.eventually_refs(&owner, "two", &main_at(&oid));
}
