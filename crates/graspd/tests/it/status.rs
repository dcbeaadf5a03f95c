//! Health, the status page and where repositories stand: what a running server shows to whoever watches over it.

use serde_json::Value;

use crate::support::peers::{Neighbour, Project};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::{Server, eventually};

/// Status and body of an answer.
fn get(server: &Server, path: &str) -> (u16, String, String) {
    let answer = server.get(path, "");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn json(server: &Server, path: &str) -> (u16, Value) {
    let (status, _, body) = get(server, path);
    (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON at {path}: {body}")))
}

#[test]
fn a_service_that_is_well_says_so() {
    let server = Server::start(&[]);
    let (status, alive) = json(&server, "/healthz");
    assert_eq!((status, &alive["alive"]), (200, &Value::Bool(true)), "{alive}");
    assert_eq!(alive["checks"]["loop"]["ok"], true, "{alive}");
    let (status, ready) = json(&server, "/readyz");
    assert_eq!((status, &ready["ready"]), (200, &Value::Bool(true)), "{ready}");
    for check in ["loop", "watchman", "writer", "store", "disk_events", "disk_git", "git", "serving"] {
        assert_eq!(ready["checks"][check]["ok"], true, "{check}: {ready}");
    }
    for path in ["/healthz", "/readyz", "/status", "/status.json"] {
        let answer = server.http(&format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    }
}

#[test]
fn a_full_disk_is_not_ready_and_alive() {
    // A terabyte is to be kept free.
    let server = Server::start(&[("STORE_RESERVE_BYTES", "1099511627776")]);
    let (status, ready) = json(&server, "/readyz");
    assert_eq!((status, &ready["ready"]), (503, &Value::Bool(false)), "{ready}");
    for (check, expected) in [("disk_events", false), ("store", false), ("writer", true), ("git", true)] {
        assert_eq!(ready["checks"][check]["ok"], expected, "{check}: {ready}");
    }
    assert_eq!(get(&server, "/healthz").0, 200);
    let (status, _, page) = get(&server, "/status");
    assert_eq!(status, 200);
    assert!(page.contains("not ready") && page.contains("disk events"), "{page}");
}

#[test]
fn without_git_it_is_not_ready() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = std::env::var_os("PATH").expect("a path");
    let git = std::env::split_paths(&path).map(|folder| folder.join("git")).find(|git| git.exists()).expect("git");
    std::os::unix::fs::symlink(&git, folder.path().join("git")).expect("a link");
    let data = tempfile::TempDir::new().expect("a folder");
    let mut command = crate::support::command(data.path(), &[]);
    command.env("PATH", folder.path());
    let server = Server::spawn(command);
    assert_eq!(get(&server, "/readyz").0, 200);
    std::fs::remove_file(folder.path().join("git")).expect("it was there");
    eventually("git is missed", || (json(&server, "/readyz").1["checks"]["git"]["ok"] == false).then_some(()));
    assert_eq!(get(&server, "/readyz").0, 503);
}

#[test]
fn the_status_tells_what_there_is_and_nothing_private() {
    let mut stage = Stage::with(&[("RELAY_NAME", "<b>\"AppState\"</b>"), ("GRASP06_ENABLE", "true")]);
    let owner = stage.person(1);
    let (work, oid) = one_commit("a");
    stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let lonely = owner.announce("waiting", crate::support::git::THEN, &[]);
    stage.hold(&lonely);
    // A submission of which nothing has come: its name is nobody's business either.
    let (guest, absent) = (stage.person(5), stage.person(6));
    let own = stage.public_prs_url(&guest, "lib");
    stage.hold(&guest.pull_request(crate::support::git::THEN, &[&absent.repo("lib")], &"ab".repeat(20), &[&own]));
    stage.refuse(&owner.announce_elsewhere("away", crate::support::git::THEN, &[]), "");
    let status = eventually("the status knows it", || {
        let (code, status) = json(&stage.server, "/status.json");
        assert_eq!(code, 200);
        let waiting = &status["purgatory"];
        (waiting["announcements"] == 1 && waiting["pull_requests"] == 1 && status["repositories"] == 2)
            .then_some(status)
    });
    assert_eq!(status["ready"], true, "{status}");
    assert_eq!(status["relays"], Value::Null, "sync is off");
    assert_eq!(status["websockets"], 1);
    assert!(status["refused"]["events"]["not_listed"].as_u64() >= Some(1), "{status}");
    assert!(status["purgatory"]["oldest_seconds"].is_u64() && status["purgatory"]["next_deadline_seconds"].is_u64());
    assert!(status["budgets"]["connections"]["used"].as_u64() >= Some(1), "{status}");
    assert!(status["disk"]["volumes"]["git"]["free"].as_u64() > Some(0), "{status}");
    let (_, head, page) = get(&stage.server, "/status");
    assert!(head.contains("script-src 'self'") && head.contains("cache-control: no-store"), "{head}");
    assert!(!page.contains("<b>\"AppState\"") && page.contains("&lt;b&gt;&quot;AppState&quot;"), "{page}");
    assert!(page.contains("<script src=\"status.js\" defer></script>"), "{page}");
    assert_eq!(page.matches("<script").count(), 1);
    let (code, head, script) = get(&stage.server, "/status.js");
    assert!(code == 200 && head.contains("text/javascript") && script.contains("status.json"), "{head}");
    for text in [page, status.to_string()] {
        for private in ["127.0.0.1:", &owner.npub(), &guest.npub(), &lonely.id.to_string(), "waiting.git", "lib.git"] {
            assert!(!text.contains(private), "{private} in {text}");
        }
    }

    // What waits for a repository that is served is told.
    stage.hold(&owner.state("tool", crate::support::git::THEN + 9, &main_at(&"cd".repeat(20))));
    let soonest = eventually("it is told until when a state waits", || {
        let (_, status) = json(&stage.server, "/status.json");
        status["purgatory"]["soonest"].as_array().filter(|soonest| !soonest.is_empty()).cloned()
    });
    let [state] = &soonest[..] else { panic!("{soonest:?}") };
    assert_eq!((state["kind"].as_str(), state["why"].as_str()), (Some("state"), Some("its git data is awaited")));
    assert!(state["repository"].as_str().is_some_and(|path| path.ends_with("/tool.git")), "{state}");
    assert!((1..=1_800).contains(&state["seconds"].as_u64().expect("seconds")), "{state}");
    assert!(get(&stage.server, "/status").2.contains("/tool.git: its git data is awaited, gives up in"));
}

#[test]
fn an_operator_can_turn_the_status_off() {
    for word in ["false", "private"] {
        let server = Server::start(&[("STATUS_ENABLE", word)]);
        for path in ["/status", "/status.json", "/status.js"] {
            assert_eq!(get(&server, path).0, 404, "{path}");
        }
        assert_eq!(get(&server, "/readyz").0, 200);
    }
    let below = Server::start(&[("BASE_PATH", "/grasp")]);
    for path in ["/grasp/status", "/status", "/grasp/status.json", "/readyz", "/grasp/readyz"] {
        assert_eq!(get(&below, path).0, 200, "{path}");
    }
}

#[test]
fn a_repository_shows_where_else_it_is() {
    let mut here = Neighbour::start(&[]);
    let mut there = Neighbour::start(&[]);
    let project = Project::new(1, "common", &[here.place, there.place], &["ws://127.0.0.1:9"]);
    here.host(&project);
    // Only what a relay says is seen: it says nothing of what it had before.
    here.eventually_state(&there.relay(), 3.0);
    there.host(&project);
    let path = format!("/{}", project.owner.repo_id("common").path());
    let known = eventually("the neighbour is known to have the state", || {
        let (code, known) = json(&here.server, &format!("{path}/replication.json"));
        assert_eq!(code, 200);
        (known["relays"][1]["has"]["state"] == "current" && known["relays"][1]["connection"] == "connected")
            .then_some(known)
    });
    assert_eq!(known["state"]["id"], project.state.id.to_string());
    assert_eq!(known["relays"][0]["connection"], "this service", "{known}");
    assert_eq!(known["relays"][0]["has"]["state"], "current", "{known}");
    assert_eq!(known["relays"][2]["has"]["state"], "unseen", "{known}");
    assert_eq!(known["git_servers"][0]["how"], "this service", "{known}");
    assert_eq!(known["git_servers"][1]["has"]["state"], "current", "{known}");
    let (code, _, page) = get(&here.server, &path);
    assert_eq!(code, 200);
    assert!(page.contains("Where it is") && page.contains("has it, known since"), "{page}");

    // It is found out again after a restart, although nothing has to be sent.
    here.stop();
    here.again();
    eventually("the neighbour is known to have the state again", || {
        let known = json(&here.server, &format!("{path}/replication.json")).1;
        let has = [&known["relays"][1]["has"]["state"], &known["git_servers"][1]["has"]["state"]];
        has.iter().all(|has| *has == "current").then_some(())
    });

    let status = eventually("the status has both relays", || {
        let (_, status) = json(&here.server, "/status.json");
        (status["relays"].as_array().map(Vec::len) == Some(2) && status["relays"][1]["state"].is_string())
            .then_some(status)
    });
    let relays = status["relays"].as_array().expect("relays");
    let neighbour =
        relays.iter().find(|relay| relay["url"].as_str().is_some_and(|url| url.contains(&there.place.to_string())));
    let neighbour = neighbour.unwrap_or_else(|| panic!("{status}"));
    assert_eq!(neighbour["repositories"], 1, "{status}");
    assert!(neighbour["lag_seconds"].is_null() || neighbour["state"] != "connected", "{status}");
}
