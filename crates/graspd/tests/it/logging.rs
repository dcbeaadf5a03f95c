//! The log: JSON lines, their targets, and the lines for the start, for pushes and for events.

use std::sync::Arc;

use grasp_core::repo::ServiceAddress;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, repo_path};
use crate::support::test_server::{main_at, one_commit};
use crate::support::wire::request_with_body;
use crate::support::{Client, Server, eventually};

/// The targets of the log lines of the server: one per feature.
const TARGETS: [&str; 8] = ["sync", "git", "relay", "writer", "http", "fetch", "admin", "store"];

/// Starts a server that logs JSON lines at this level.
fn start(level: &str) -> Server {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    Server::start_with_log(&folder, &[("DOMAIN", "grasp.test"), ("LOG_FORMAT", "json"), ("LOG_LEVEL", level)])
}

/// Returns the log lines that are complete. Panics if one is not a JSON object.
fn lines(server: &Server) -> Vec<Value> {
    let log = server.log();
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let parse = |line: &str| -> Value {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value.is_object(), "{line}");
        value
    };
    complete.lines().map(parse).collect()
}

/// Waits until lines with this message are in the log, and returns them.
fn eventually_logged(server: &Server, message: &str) -> Vec<Value> {
    eventually(&format!("`{message}` is logged"), || {
        let found: Vec<Value> = lines(server).into_iter().filter(|line| line["fields"]["message"] == message).collect();
        (!found.is_empty()).then_some(found)
    })
}

/// A repository that is served by the server.
struct HostedRepo {
    owner: Maintainer,
    work: WorkTree,
    url: String,
    client: Client,
}

/// Publishes a repository and pushes its data.
fn host_repo(server: &Server) -> HostedRepo {
    let service = ServiceAddress::new("grasp.test", "").expect("invalid service address");
    let owner = Maintainer::new(1, &service);
    let (work, oid) = one_commit("content");
    let mut client = server.connect();
    for event in [owner.announce("tool", BASE_TIME, &[]), owner.state("tool", BASE_TIME, &main_at(&oid))] {
        let (accepted, reason) = client.publish(&event);
        assert!(accepted, "{reason}");
    }
    let url = format!("http://{}{}{}", server.address, server.base, repo_path(&owner.npub(), "tool"));
    work.push(&url, &[&format!("{oid}:{MAIN}")]).expect_success();
    HostedRepo { owner, work, url, client }
}

#[test]
fn json_log_has_one_object_per_line_and_reports_the_start() {
    let mut server = start("info");
    let started = eventually_logged(&server, "server started");
    assert_eq!(started.len(), 1, "{started:?}");
    let (target, fields) = (&started[0]["target"], &started[0]["fields"]);
    assert_eq!((target.as_str(), fields["version"].as_str()), (Some("admin"), Some(env!("CARGO_PKG_VERSION"))));
    for (field, folder) in [("data", "data/relay"), ("git_data", "data/git")] {
        let path = fields[field].as_str().unwrap_or_default();
        assert!(path.ends_with(folder), "{field}: {fields}");
    }
    assert_eq!(server.stop(), Some(0));
    assert!(server.log().ends_with('\n'), "the last line is complete");
    let lines = lines(&server);
    assert!(lines.iter().any(|line| line["fields"]["message"] == "stopped"), "{lines:?}");
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(), "{line}");
    }
}

#[test]
fn each_push_gives_one_line_with_repository_refs_and_result() {
    let server = start("info");
    let HostedRepo { owner, work, url, .. } = host_repo(&server);
    let undeclared = work.commit("file", "undeclared");
    let output = work.push(&url, &[&format!("{undeclared}:refs/heads/undeclared")]);
    assert!(!output.success, "{}", output.text());

    let accepted = eventually_logged(&server, "push accepted");
    let rejected = eventually_logged(&server, "push rejected");
    let repo = repo_path(&owner.npub(), "tool");
    for (lines, refs) in [(&accepted, MAIN), (&rejected, "refs/heads/undeclared")] {
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line = &lines[0];
        assert_eq!((line["level"].as_str(), line["target"].as_str()), (Some("INFO"), Some("git")), "{line}");
        assert_eq!(line["fields"]["refs"], refs, "{line}");
        // Repository and client are fields of the span of the push.
        assert_eq!(line["span"]["name"], "push", "{line}");
        assert_eq!(line["span"]["repo"].as_str(), Some(repo.trim_start_matches('/')), "{line}");
        assert!(line["span"]["client"].is_string() && line["spans"].is_array(), "{line}");
    }
    assert!(accepted[0]["fields"]["bytes"].as_u64() > Some(0), "{accepted:?}");
    let fields = &rejected[0]["fields"];
    assert!(fields["code"].as_str().is_some_and(|code| code.starts_with("E-")), "{fields}");
    assert!(fields["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{fields}");
}

/// Pushes without readable commands get an HTTP error instead of a report. They are logged like other rejected pushes.
#[test]
fn pushes_that_get_an_http_error_are_logged_as_rejected() {
    let server = start("info");
    let HostedRepo { owner, .. } = host_repo(&server);
    let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    for (header, status) in [("Content-Encoding: br", 415), ("Accept: */*", 400)] {
        let headers = ["Content-Type: application/x-git-receive-pack-request", header];
        assert_eq!(request_with_body(&server, &path, &headers, b"").status, status);
    }
    let rejected = eventually("both pushes are logged", || {
        let rejected = eventually_logged(&server, "push rejected");
        (rejected.len() == 2).then_some(rejected)
    });
    for line in rejected {
        assert_eq!(line["fields"]["code"], "E-PUSH-BODY", "{line}");
        assert_eq!(line["span"]["name"], "push", "{line}");
    }
}

#[test]
fn debug_log_has_a_line_per_event_and_no_lines_of_libraries() {
    let mut server = start("debug");
    let HostedRepo { owner, mut client, .. } = host_repo(&server);
    let issue = owner.author.issue(BASE_TIME, &owner.repo("tool"));
    assert_eq!(client.publish(&issue), (true, String::new()));
    let unrelated = owner.author.note(BASE_TIME, &[], "unrelated");
    assert!(!client.publish(&unrelated).0);

    for (message, event) in [("event accepted", &issue), ("event rejected", &unrelated)] {
        let id = event.id.to_string();
        let line = eventually(&format!("`{message}` is logged"), || {
            lines(&server).into_iter().find(|line| line["fields"]["message"] == message && line["fields"]["id"] == id)
        });
        assert_eq!((line["level"].as_str(), line["target"].as_str()), (Some("DEBUG"), Some("writer")), "{line}");
        assert_eq!(line["fields"]["source"], "client", "{line}");
    }
    assert_eq!(server.stop(), Some(0));
    for line in lines(&server) {
        assert!(TARGETS.iter().any(|target| line["target"] == *target), "{line}");
    }
}
