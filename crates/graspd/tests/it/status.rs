//! Health checks, the status page and the replication status of repositories.

use serde_json::Value;

use crate::support::peers::{Project, SyncServer};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{Server, eventually};

/// Returns status, lower-case head and body of a response.
fn get(server: &Server, path: &str) -> (u16, String, String) {
    let response = server.get(path, "");
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("no status in the response");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn json(server: &Server, path: &str) -> (u16, Value) {
    let (status, _, body) = get(server, path);
    (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("invalid JSON at {path}: {body}")))
}

#[test]
fn healthy_server_is_alive_and_ready() {
    let server = Server::start(&[]);
    let (status, alive) = json(&server, "/healthz");
    assert_eq!((status, &alive["alive"]), (200, &Value::Bool(true)), "{alive}");
    assert_eq!(alive["checks"]["event_loop"]["ok"], true, "{alive}");
    let (status, ready) = json(&server, "/readyz");
    assert_eq!((status, &ready["ready"]), (200, &Value::Bool(true)), "{ready}");
    for check in ["event_loop", "health_monitor", "writer", "store", "disk_events", "disk_git", "git", "serving"] {
        assert_eq!(ready["checks"][check]["ok"], true, "{check}: {ready}");
    }
    for path in ["/healthz", "/readyz", "/status", "/status.json"] {
        let response = server.http(&format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(response.starts_with("HTTP/1.1 405"), "{response}");
    }
}

#[test]
fn server_with_full_disk_is_alive_but_not_ready() {
    // The reserve is larger than any free space.
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
fn server_without_git_is_not_ready() {
    let folder = tempfile::TempDir::new().expect("cannot create a folder");
    let path = std::env::var_os("PATH").expect("no PATH");
    let git = std::env::split_paths(&path)
        .map(|folder| folder.join("git"))
        .find(|git| git.exists())
        .expect("git is not in PATH");
    std::os::unix::fs::symlink(&git, folder.path().join("git")).expect("cannot create a link");
    let data = tempfile::TempDir::new().expect("cannot create a folder");
    let mut command = crate::support::command(data.path(), &[]);
    command.env("PATH", folder.path());
    let server = Server::spawn(command);
    assert_eq!(get(&server, "/readyz").0, 200);
    std::fs::remove_file(folder.path().join("git")).expect("cannot remove the link");
    eventually("the missing git is noticed", || {
        (json(&server, "/readyz").1["checks"]["git"]["ok"] == false).then_some(())
    });
    assert_eq!(get(&server, "/readyz").0, 503);
}

#[test]
fn status_contains_no_private_data() {
    let mut test_server = TestServer::with_settings(&[("RELAY_NAME", "<b>\"Test\"</b>"), ("GRASP06_ENABLE", "true")]);
    let owner = test_server.maintainer(1);
    let (work, oid) = one_commit("a");
    test_server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let held = owner.announce("waiting", crate::support::git::BASE_TIME, &[]);
    test_server.publish_held(&held);
    // A pull request whose commit was not pushed: the name of its repository is not public either.
    let (guest, absent) = (test_server.maintainer(5), test_server.maintainer(6));
    let own = test_server.public_prs_url(&guest, "lib");
    test_server.publish_held(&guest.pull_request(
        crate::support::git::BASE_TIME,
        &[&absent.repo("lib")],
        &"ab".repeat(20),
        &[&own],
    ));
    test_server.publish_rejected(&owner.announce_elsewhere("away", crate::support::git::BASE_TIME, &[]), "");
    let status = eventually("the status is up to date", || {
        let (code, status) = json(&test_server.process, "/status.json");
        assert_eq!(code, 200);
        let waiting = &status["purgatory"];
        (waiting["announcements"] == 1 && waiting["pull_requests"] == 1 && status["repositories"] == 2)
            .then_some(status)
    });
    assert_eq!(status["ready"], true, "{status}");
    assert_eq!(status["relays"], Value::Null, "sync is disabled");
    assert_eq!(status["websockets"], 1);
    assert!(status["rejected"]["events"]["not_listed"].as_u64() >= Some(1), "{status}");
    assert!(status["purgatory"]["oldest_seconds"].is_u64() && status["purgatory"]["next_deadline_seconds"].is_u64());
    assert!(status["budgets"]["connections"]["used"].as_u64() >= Some(1), "{status}");
    assert!(status["disk"]["volumes"]["git"]["free"].as_u64() > Some(0), "{status}");
    let (_, head, page) = get(&test_server.process, "/status");
    assert!(head.contains("script-src 'self'") && head.contains("cache-control: no-store"), "{head}");
    assert!(!page.contains("<b>\"Test\"") && page.contains("&lt;b&gt;&quot;Test&quot;"), "{page}");
    assert!(page.contains("<script src=\"status.js\" defer></script>"), "{page}");
    assert_eq!(page.matches("<script").count(), 1);
    let (code, head, script) = get(&test_server.process, "/status.js");
    assert!(code == 200 && head.contains("text/javascript") && script.contains("status.json"), "{head}");
    for text in [page, status.to_string()] {
        for private in ["127.0.0.1:", &owner.npub(), &guest.npub(), &held.id.to_string(), "waiting.git", "lib.git"] {
            assert!(!text.contains(private), "{private} in {text}");
        }
    }

    // Events that wait for git data of a served repository are listed.
    test_server.publish_held(&owner.state("tool", crate::support::git::BASE_TIME + 9, &main_at(&"cd".repeat(20))));
    let soonest = eventually("the waiting state is listed", || {
        let (_, status) = json(&test_server.process, "/status.json");
        status["purgatory"]["next_to_expire"].as_array().filter(|soonest| !soonest.is_empty()).cloned()
    });
    let [state] = &soonest[..] else { panic!("{soonest:?}") };
    assert_eq!((state["kind"].as_str(), state["why"].as_str()), (Some("state"), Some("waiting for its git data")));
    assert!(state["repository"].as_str().is_some_and(|path| path.ends_with("/tool.git")), "{state}");
    assert!((1..=1_800).contains(&state["seconds"].as_u64().expect("no seconds")), "{state}");
    assert!(get(&test_server.process, "/status").2.contains("/tool.git: waiting for its git data, expires in"));
}

#[test]
fn status_page_can_be_disabled() {
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
fn replication_status_of_a_repository_is_shown() {
    let mut here = SyncServer::start(&[]);
    let mut there = SyncServer::start(&[]);
    let project = Project::new(1, "common", &[here.address, there.address], &["ws://127.0.0.1:9"]);
    here.host(&project);
    // A live subscription delivers only new events, so the neighbour hosts the repository after the connection.
    here.eventually_state(&there.relay_url(), 3.0);
    there.host(&project);
    let path = format!("/{}", project.owner.repo_id("common").path());
    let known = eventually("the neighbour has the state", || {
        let (code, known) = json(&here.process, &format!("{path}/replication.json"));
        assert_eq!(code, 200);
        (known["relays"][1]["has"]["state"] == "current" && known["relays"][1]["connection"] == "connected")
            .then_some(known)
    });
    assert_eq!(known["state"]["id"], project.state.id.to_string());
    assert_eq!(known["relays"][0]["connection"], "this service", "{known}");
    assert_eq!(known["relays"][0]["has"]["state"], "current", "{known}");
    assert_eq!(known["relays"][2]["has"]["state"], "not_seen", "{known}");
    assert_eq!(known["git_servers"][0]["how"], "this service", "{known}");
    assert_eq!(known["git_servers"][1]["has"]["state"], "current", "{known}");
    let (code, _, page) = get(&here.process, &path);
    assert_eq!(code, 200);
    assert!(page.contains("<h2>Replication</h2>") && page.contains("up to date, known since"), "{page}");

    // After a restart it is found again, although the neighbour has no new events.
    here.stop();
    here.start_again();
    eventually("the neighbour has the state after the restart", || {
        let known = json(&here.process, &format!("{path}/replication.json")).1;
        let has = [&known["relays"][1]["has"]["state"], &known["git_servers"][1]["has"]["state"]];
        has.iter().all(|has| *has == "current").then_some(())
    });

    let status = eventually("the status lists both relays", || {
        let (_, status) = json(&here.process, "/status.json");
        (status["relays"].as_array().map(Vec::len) == Some(2) && status["relays"][1]["state"].is_string())
            .then_some(status)
    });
    let relays = status["relays"].as_array().expect("no relays");
    let neighbour =
        relays.iter().find(|relay| relay["url"].as_str().is_some_and(|url| url.contains(&there.address.to_string())));
    let neighbour = neighbour.unwrap_or_else(|| panic!("{status}"));
    assert_eq!(neighbour["repositories"], 1, "{status}");
    assert!(neighbour["lag_seconds"].is_null() || neighbour["state"] != "connected", "{status}");
}
