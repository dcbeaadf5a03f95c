//! Settings that change while the server runs: `graspd reload` and SIGHUP.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Server, eventually};

/// A server whose settings stand in a file.
fn start(settings: &str) -> Server {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    fs::write(folder.path().join("graspd.toml"), settings).expect("written");
    Server::start_with_log(&folder, &[("POLICY", "open")])
}

fn rewrite(server: &Server, settings: &str) {
    fs::write(server.folder().path().join("graspd.toml"), settings).expect("written");
}

fn hang_up(server: &Server) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
}

fn limitation(server: &Server) -> Value {
    let answer = server.get("/", "Accept: application/nostr+json\r\n");
    let document: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    document["limitation"].clone()
}

/// How much there is of something.
fn budget(server: &Server, name: &str) -> u64 {
    let answer = server.get("/status.json", "");
    let status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    status["budgets"][name]["limit"].as_u64().expect("a number")
}

/// Whether one more subscription is taken.
fn subscribes(client: &mut Client, name: &str) -> bool {
    client.send(&json!(["REQ", name, {"kinds": [1]}]));
    loop {
        let answer = client.receive();
        match answer[0].as_str() {
            Some("EOSE") if answer[1] == name => return true,
            Some("CLOSED") if answer[1] == name => return false,
            _ => {}
        }
    }
}

#[test]
fn limits_hold_at_once_for_those_who_are_there() {
    let server = start("relay_max_subscriptions = 1\nrelay_filter_limit = 2\n");
    let mut client = server.connect();
    let author = Author::new(1);
    for at in 0..5 {
        assert!(client.publish(&author.sign(1, 1_700_000_000 + at, &[], "note")).0);
    }
    assert!(subscribes(&mut client, "one") && !subscribes(&mut client, "two"));
    assert_eq!(limitation(&server)["max_subscriptions"], 1);

    rewrite(&server, "relay_max_subscriptions = 3\nrelay_filter_limit = 4\nnetwork_events_per_minute = 7\n");
    let done = server.run(&["reload", "--json"]).object();
    let names = |list: &Value| -> Vec<String> {
        list.as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&done["changed"]), ["RELAY_MAX_SUBSCRIPTIONS", "RELAY_FILTER_LIMIT", "NETWORK_EVENTS_PER_MINUTE"]);
    assert_eq!(done["changed"][0], json!({"name": "RELAY_MAX_SUBSCRIPTIONS", "from": "1", "to": "3"}));
    assert_eq!((&done["restart"], &done["warnings"]), (&json!([]), &json!([])));
    assert!(subscribes(&mut client, "two") && subscribes(&mut client, "three") && !subscribes(&mut client, "four"));
    assert_eq!(server.connect().query(&[json!({"kinds": [1]})]).len(), 4);
    let limitation = limitation(&server);
    assert_eq!((&limitation["max_subscriptions"], &limitation["max_limit"]), (&json!(3), &json!(4)));
    assert_eq!(limitation["max_events_per_minute_per_network"], 7);
    assert_eq!(server.run(&["reload"]).well(), "No setting has changed.\n");
    // Those who are there keep what they have when a limit shrinks.
    rewrite(&server, "relay_max_subscriptions = 1\nrelay_filter_limit = 4\nnetwork_events_per_minute = 7\n");
    let said = server.run(&["reload"]).well();
    assert_eq!(said, "RELAY_MAX_SUBSCRIPTIONS: 3 -> 1\n");
    assert!(!subscribes(&mut client, "four"));
    client.send(&json!(["CLOSE", "three"]));
    client.send(&json!(["CLOSE", "two"]));
    client.send(&json!(["CLOSE", "one"]));
    assert!(subscribes(&mut client, "five"));
}

#[test]
fn the_limits_of_the_service_hold_at_once() {
    let server = start("");
    let mut client = server.connect();
    let long = Author::new(1).sign(1, 1_700_000_000, &[], &"x".repeat(3_000));
    let settings = "max_connections = 900\nrelay_max_event_size_bytes = 2000\ndisk_budget_bytes = 1000000000\n\
                    git_max_push_bytes = 5000000\ngit_max_unsigned_push_bytes = 4000000\nrelay_name = 'New'\n";
    rewrite(&server, settings);
    let done = server.run(&["reload", "--json"]).object();
    assert_eq!((done["changed"].as_array().map(Vec::len), &done["restart"]), (Some(6), &json!([])), "{done}");
    let (accepted, why) = client.publish(&long);
    assert!(!accepted && why.starts_with("invalid: "), "{why}");
    let limitation = limitation(&server);
    assert_eq!((&limitation["max_connections"], &limitation["max_event_bytes"]), (&json!(900), &json!(2_000)));
    assert_eq!(limitation["grasp_storage"]["disk_budget_bytes"], 1_000_000_000);
    assert_eq!(limitation["grasp_storage"]["max_push_bytes"], 5_000_000);
    assert!(server.get("/", "").contains("<title>New"), "{}", server.get("/", ""));
    eventually("the watchman has gone round", || (budget(&server, "disk_bytes") == 1_000_000_000).then_some(()));
    assert_eq!(budget(&server, "connections"), 900);
    // There is one place beside this client's; others may still be going.
    rewrite(&server, &settings.replace("max_connections = 900", "max_connections = 2"));
    assert_eq!(server.run(&["reload"]).well(), "MAX_CONNECTIONS: 900 -> 2\n");
    let mut second = None;
    eventually("there is a place", || {
        second = server.try_connect();
        second.is_some().then_some(())
    });
    assert!(server.try_connect().is_none(), "one more than there may be");
    rewrite(&server, &settings.replace("max_connections = 900", "max_connections = 3"));
    assert_eq!(server.run(&["reload"]).well(), "MAX_CONNECTIONS: 2 -> 3\n");
    eventually("there is a place more", || server.try_connect());
    drop(second);
    assert!(!client.publish(&long).0);
}

#[test]
fn the_log_level_holds_at_once() {
    let server = start("log_level = 'warn'\n");
    server.run(&["status"]).well();
    assert!(!server.log().contains("DEBUG"), "{}", server.log());
    rewrite(&server, "log_level = 'debug'\n");
    assert_eq!(server.run(&["reload"]).well(), "LOG_LEVEL: warn -> debug\n");
    server.run(&["status"]).well();
    eventually("the command is logged", || server.log().contains("a command").then_some(()));
    rewrite(&server, "log_level = 'info,graspd::admin=debug'\n");
    server.run(&["reload"]).well();
    rewrite(&server, "log_level = 'off'\n");
    server.run(&["reload"]).well();
    let before = server.log();
    server.run(&["status"]).well();
    assert_eq!(server.log(), before);
}

#[test]
fn what_needs_a_restart_is_named_every_time() {
    let server = start("");
    rewrite(&server, "git_serve_processes = 7\nstrict_maintainers = true\nrelay_max_subscriptions = 9\n");
    for changed in ["RELAY_MAX_SUBSCRIPTIONS: 500 -> 9\n", ""] {
        let said = server.run(&["reload"]).well();
        assert_eq!(said, format!("{changed}These settings need a restart: STRICT_MAINTAINERS, GIT_SERVE_PROCESSES.\n"));
    }
    assert_eq!(budget(&server, "fetch"), 4, "it says what holds");
    // The same with a secret, which is not shown.
    let key = "1".repeat(64);
    rewrite(&server, &format!("relay_owner_nsec = '{key}'\nrelay_max_subscriptions = 9\nmetrics_token = 'hush'"));
    let done = server.run(&["reload", "--json"]).object();
    assert_eq!(done["restart"], json!(["RELAY_OWNER_NSEC", "METRICS_TOKEN"]));
    assert!(!server.log().contains(&key) && !done.to_string().contains("hush"));
}

#[test]
fn lists_and_quotas_hold_at_once() {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    fs::write(folder.path().join("bans.txt"), "# nobody\n").expect("written");
    fs::write(folder.path().join("graspd.toml"), "repository_blacklist = '@bans.txt'\n").expect("written");
    let server = Server::start_with_log(&folder, &[("DOMAIN", "grasp.test")]);
    let service = grasp_core::repo::ServiceAddress::new("grasp.test", "").expect("a host name");
    let mut client = server.connect();
    let (good, bad) = (Author::new(1), Author::new(2));
    assert!(client.publish(&bad.listed(&service, "one", 1_700_000_000, &[])).0);
    fs::write(folder.path().join("bans.txt"), format!("{}\n", bad.key().npub())).expect("written");
    let done = server.run(&["reload", "--json"]).object();
    assert_eq!((&done["lists_changed"], &done["banned"], &done["changed"]), (&json!(true), &json!(1), &json!([])));
    let (accepted, why) = client.publish(&bad.listed(&service, "two", 1_700_000_000, &[]));
    assert!(!accepted && why.starts_with("blocked: "), "{why}");
    // A line that cannot be read changes nothing.
    fs::write(folder.path().join("bans.txt"), "npub1nobody\n").expect("written");
    assert!(server.run(&["reload"]).badly(1).contains("line 1"));
    assert!(!client.publish(&bad.listed(&service, "two", 1_700_000_000, &[])).0);
    assert!(client.publish(&good.listed(&service, "one", 1_700_000_000, &[])).0);

    rewrite(&server, "quota_repositories_per_key = 1\n");
    let said = server.run(&["reload"]).well();
    assert!(
        said.contains("QUOTA_REPOSITORIES_PER_KEY: ") && said.contains("The moderation lists have changed"),
        "{said}"
    );
    assert!(!client.publish(&good.listed(&service, "two", 1_700_000_000, &[])).0, "one is enough");
    assert!(client.publish(&bad.listed(&service, "one", 1_700_000_000, &[])).0, "nobody is banned any more");
    assert_eq!(limitation(&server)["grasp_storage"]["max_repositories_per_key"], 1);
}

#[test]
fn wrong_settings_change_nothing() {
    let server = start("relay_max_subscriptions = 2\n");
    let mut client = server.connect();
    for (wrong, word) in [
        ("relay_max_subscriptions = 0\nrelay_filter_limit = 5\n", "relay_max_subscriptions"),
        ("relay_filter_limit = 5\nbind_adress = 'x'\n", "did you mean `bind_address`"),
        ("relay_filter_limit = 5\nthis is no TOML", "not valid TOML"),
    ] {
        rewrite(&server, wrong);
        let socket = server.admin_socket();
        let said = server.run(&["reload", "--admin-socket", socket.to_str().expect("text")]).badly(1);
        assert!(said.contains("stay as they were") && said.contains(word), "{said}");
        assert_ne!(limitation(&server)["max_limit"], 5);
        // The signal says the same, in the log.
        let before = server.log().matches("stay as they were").count();
        hang_up(&server);
        eventually("it is logged", || (server.log().matches("stay as they were").count() > before).then_some(()));
    }
    assert!(subscribes(&mut client, "one") && subscribes(&mut client, "two") && !subscribes(&mut client, "three"));
}

#[test]
fn the_signal_does_the_same_and_the_environment_is_stronger() {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let server = Server::start_with_log(&folder, &[("RELAY_FILTER_LIMIT", "11"), ("LOG_LEVEL", "info")]);
    fs::write(folder.path().join(".env"), "NGIT_RELAY_MAX_SUBSCRIPTIONS=5\nNGIT_RELAY_FILTER_LIMIT=12\n")
        .expect("written");
    hang_up(&server);
    eventually("it holds", || (limitation(&server)["max_subscriptions"] == 5).then_some(()));
    assert_eq!(limitation(&server)["max_limit"], 11);
    eventually("it is logged", || {
        let log = server.log();
        (log.contains("a setting has changed") && log.contains("RELAY_MAX_SUBSCRIPTIONS")).then_some(())
    });
    let said = server.run(&["reload"]).well();
    let fixed = "These settings are environment variables and need a restart to change: RELAY_FILTER_LIMIT, LOG_LEVEL.";
    assert_eq!(said, format!("No setting has changed.\n{fixed}\n"));
}

#[test]
fn a_server_that_nobody_can_command_hears_the_signal() {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let mut server = Server::start_with_log(&folder, &[("ADMIN_SOCKET", "off")]);
    rewrite(&server, "relay_max_subscriptions = 5\n");
    hang_up(&server);
    eventually("it holds", || (limitation(&server)["max_subscriptions"] == 5).then_some(()));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_file_that_is_shipped_is_right_and_can_be_changed() {
    let shipped = include_str!("../../../../deploy/config/graspd.toml");
    let server = start(shipped);
    // Everything that stands behind a mark.
    let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with(' ');
    let all: Vec<&str> =
        shipped.lines().map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line)).collect();
    rewrite(&server, &all.join("\n"));
    let done = server.run(&["reload", "--json"]).object();
    assert_eq!(done["changed"].as_array().map(Vec::len), Some(7), "{done}");
    assert_eq!(done["restart"], json!(["DOMAIN", "TRUSTED_PROXY_CIDRS"]), "{done}");
}
