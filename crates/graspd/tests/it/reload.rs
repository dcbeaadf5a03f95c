//! Settings that change at run time: `graspd reload` and SIGHUP.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Server, eventually};

/// Starts a server whose settings are in a file.
fn start(settings: &str) -> Server {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    fs::write(folder.path().join("graspd.toml"), settings).expect("cannot write");
    Server::start_with_log(&folder, &[("POLICY", "open")])
}

fn write_settings(server: &Server, settings: &str) {
    fs::write(server.folder().path().join("graspd.toml"), settings).expect("cannot write");
}

fn send_sighup(server: &Server) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("cannot run kill").success());
}

fn limitation(server: &Server) -> Value {
    let response = server.get("/", "Accept: application/nostr+json\r\n");
    let document: Value =
        serde_json::from_str(response.split_once("\r\n\r\n").expect("no body").1).expect("invalid JSON");
    document["limitation"].clone()
}

/// Returns the limit of a budget on the status page.
fn budget_limit(server: &Server, name: &str) -> u64 {
    let response = server.get("/status.json", "");
    let status: Value =
        serde_json::from_str(response.split_once("\r\n\r\n").expect("no body").1).expect("invalid JSON");
    status["budgets"][name]["limit"].as_u64().expect("not a number")
}

/// Returns whether a new subscription is accepted.
fn can_subscribe(client: &mut Client, name: &str) -> bool {
    client.send(&json!(["REQ", name, {"kinds": [1]}]));
    loop {
        let response = client.receive();
        match response[0].as_str() {
            Some("EOSE") if response[1] == name => return true,
            Some("CLOSED") if response[1] == name => return false,
            _ => {}
        }
    }
}

#[test]
fn changed_limits_apply_to_open_connections() {
    let server = start("relay_max_subscriptions = 1\nrelay_filter_limit = 2\n");
    let mut client = server.connect();
    let author = Author::new(1);
    for at in 0..5 {
        assert!(client.publish(&author.sign(1, 1_700_000_000 + at, &[], "note")).0);
    }
    assert!(can_subscribe(&mut client, "one") && !can_subscribe(&mut client, "two"));
    assert_eq!(limitation(&server)["max_subscriptions"], 1);

    write_settings(&server, "relay_max_subscriptions = 3\nrelay_filter_limit = 4\nnetwork_events_per_minute = 7\n");
    let done = server.run(&["reload", "--json"]).json_object();
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .expect("not a list")
            .iter()
            .map(|one| one["name"].as_str().expect("no name").to_owned())
            .collect()
    };
    assert_eq!(names(&done["changed"]), ["RELAY_MAX_SUBSCRIPTIONS", "RELAY_FILTER_LIMIT", "NETWORK_EVENTS_PER_MINUTE"]);
    assert_eq!(done["changed"][0], json!({"name": "RELAY_MAX_SUBSCRIPTIONS", "from": "1", "to": "3"}));
    assert_eq!((&done["restart"], &done["warnings"]), (&json!([]), &json!([])));
    assert!(
        can_subscribe(&mut client, "two") && can_subscribe(&mut client, "three") && !can_subscribe(&mut client, "four")
    );
    assert_eq!(server.connect().query(&[json!({"kinds": [1]})]).len(), 4);
    let limitation = limitation(&server);
    assert_eq!((&limitation["max_subscriptions"], &limitation["max_limit"]), (&json!(3), &json!(4)));
    assert_eq!(limitation["max_events_per_minute_per_network"], 7);
    assert_eq!(server.run(&["reload"]).expect_success(), "No setting has changed.\n");
    // Existing subscriptions stay open when the limit shrinks.
    write_settings(&server, "relay_max_subscriptions = 1\nrelay_filter_limit = 4\nnetwork_events_per_minute = 7\n");
    let printed = server.run(&["reload"]).expect_success();
    assert_eq!(printed, "RELAY_MAX_SUBSCRIPTIONS: 3 -> 1\n");
    assert!(!can_subscribe(&mut client, "four"));
    client.send(&json!(["CLOSE", "three"]));
    client.send(&json!(["CLOSE", "two"]));
    client.send(&json!(["CLOSE", "one"]));
    assert!(can_subscribe(&mut client, "five"));
}

#[test]
fn changed_service_limits_apply_at_once() {
    let server = start("");
    let mut client = server.connect();
    let long = Author::new(1).sign(1, 1_700_000_000, &[], &"x".repeat(3_000));
    let settings = "max_connections = 900\nrelay_max_event_size_bytes = 2000\ndisk_budget_bytes = 1000000000\n\
                    git_max_push_bytes = 5000000\ngit_max_unsigned_push_bytes = 4000000\nrelay_name = 'New'\n";
    write_settings(&server, settings);
    let done = server.run(&["reload", "--json"]).json_object();
    assert_eq!((done["changed"].as_array().map(Vec::len), &done["restart"]), (Some(6), &json!([])), "{done}");
    let (accepted, reason) = client.publish(&long);
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
    let limitation = limitation(&server);
    assert_eq!((&limitation["max_connections"], &limitation["max_event_bytes"]), (&json!(900), &json!(2_000)));
    assert_eq!(limitation["grasp_storage"]["disk_budget_bytes"], 1_000_000_000);
    assert_eq!(limitation["grasp_storage"]["max_push_bytes"], 5_000_000);
    assert!(server.get("/", "").contains("<title>New"), "{}", server.get("/", ""));
    eventually("the health monitor has taken a snapshot", || {
        (budget_limit(&server, "disk_bytes") == 1_000_000_000).then_some(())
    });
    assert_eq!(budget_limit(&server, "connections"), 900);
    // There is one slot besides this client's; earlier connections may still be closing.
    write_settings(&server, &settings.replace("max_connections = 900", "max_connections = 2"));
    assert_eq!(server.run(&["reload"]).expect_success(), "MAX_CONNECTIONS: 900 -> 2\n");
    let mut second = None;
    eventually("a connection slot is free", || {
        second = server.try_connect();
        second.is_some().then_some(())
    });
    assert!(server.try_connect().is_none(), "the connection limit is enforced");
    write_settings(&server, &settings.replace("max_connections = 900", "max_connections = 3"));
    assert_eq!(server.run(&["reload"]).expect_success(), "MAX_CONNECTIONS: 2 -> 3\n");
    eventually("another connection slot is free", || server.try_connect());
    drop(second);
    assert!(!client.publish(&long).0);
}

#[test]
fn changed_log_level_applies_at_once() {
    let server = start("log_level = 'warn'\n");
    server.run(&["status"]).expect_success();
    assert!(!server.log().contains("DEBUG"), "{}", server.log());
    write_settings(&server, "log_level = 'debug'\n");
    assert_eq!(server.run(&["reload"]).expect_success(), "LOG_LEVEL: warn -> debug\n");
    server.run(&["status"]).expect_success();
    eventually("the command is logged", || server.log().contains("admin request").then_some(()));
    write_settings(&server, "log_level = 'info,admin=debug'\n");
    server.run(&["reload"]).expect_success();
    write_settings(&server, "log_level = 'off'\n");
    server.run(&["reload"]).expect_success();
    let before = server.log();
    server.run(&["status"]).expect_success();
    assert_eq!(server.log(), before);
}

#[test]
fn settings_that_need_a_restart_are_listed_every_time() {
    let server = start("");
    write_settings(&server, "git_serve_processes = 7\nstrict_maintainers = true\nrelay_max_subscriptions = 9\n");
    for changed in ["RELAY_MAX_SUBSCRIPTIONS: 500 -> 9\n", ""] {
        let printed = server.run(&["reload"]).expect_success();
        assert_eq!(
            printed,
            format!("{changed}These settings need a restart: STRICT_MAINTAINERS, GIT_SERVE_PROCESSES.\n")
        );
    }
    assert_eq!(budget_limit(&server, "fetch"), 4, "the value in use is shown");
    // Secrets are not shown.
    let key = "1".repeat(64);
    write_settings(
        &server,
        &format!("relay_owner_nsec = '{key}'\nrelay_max_subscriptions = 9\nmetrics_token = 'hush'"),
    );
    let done = server.run(&["reload", "--json"]).json_object();
    assert_eq!(done["restart"], json!(["RELAY_OWNER_NSEC", "METRICS_TOKEN"]));
    assert!(!server.log().contains(&key) && !done.to_string().contains("hush"));
}

#[test]
fn changed_lists_and_quotas_apply_at_once() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    fs::write(folder.path().join("bans.txt"), "# empty\n").expect("cannot write");
    fs::write(folder.path().join("graspd.toml"), "repository_blacklist = '@bans.txt'\n").expect("cannot write");
    let server = Server::start_with_log(&folder, &[("DOMAIN", "grasp.test")]);
    let service = grasp_core::repo::ServiceAddress::new("grasp.test", "").expect("invalid host name");
    let mut client = server.connect();
    let (good, bad) = (Author::new(1), Author::new(2));
    assert!(client.publish(&bad.announcement(&service, "one", 1_700_000_000, &[])).0);
    fs::write(folder.path().join("bans.txt"), format!("{}\n", bad.key().npub())).expect("cannot write");
    let done = server.run(&["reload", "--json"]).json_object();
    assert_eq!((&done["lists_changed"], &done["banned"], &done["changed"]), (&json!(true), &json!(1), &json!([])));
    let (accepted, reason) = client.publish(&bad.announcement(&service, "two", 1_700_000_000, &[]));
    assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
    // The ban of an author, and that of the announcement itself, remove repositories, too.
    let (author, event) = (Author::new(3), Author::new(4));
    let mut ban = |by: &Author, text: &dyn Fn(&grasp_core::nostr::SignedEvent) -> String| {
        let announcement = by.announcement(&service, "one", 1_700_000_000, &[]);
        assert!(client.publish(&announcement).0);
        let lists = format!("repository_blacklist = '@bans.txt'\nevent_blacklist = ['{}']\n", text(&announcement));
        write_settings(&server, &lists);
        let done = server.run(&["reload", "--json"]).json_object();
        assert_eq!((&done["lists_changed"], &done["banned"]), (&json!(true), &json!(1)), "{done}");
    };
    ban(&author, &|announcement| announcement.pubkey.npub());
    ban(&event, &|announcement| announcement.id.to_string());
    // An invalid line changes nothing.
    fs::write(folder.path().join("bans.txt"), "npub1invalid\n").expect("cannot write");
    assert!(server.run(&["reload"]).expect_failure(1).contains("line 1"));
    assert!(!client.publish(&bad.announcement(&service, "two", 1_700_000_000, &[])).0);
    assert!(client.publish(&good.announcement(&service, "one", 1_700_000_000, &[])).0);

    write_settings(&server, "quota_repositories_per_key = 1\n");
    let printed = server.run(&["reload"]).expect_success();
    assert!(
        printed.contains("QUOTA_REPOSITORIES_PER_KEY: ") && printed.contains("The moderation lists have changed"),
        "{printed}"
    );
    assert!(!client.publish(&good.announcement(&service, "two", 1_700_000_000, &[])).0, "the quota is one repository");
    assert!(client.publish(&bad.announcement(&service, "one", 1_700_000_000, &[])).0, "the ban list is empty");
    assert_eq!(limitation(&server)["grasp_storage"]["max_repositories_per_key"], 1);
}

#[test]
fn invalid_settings_change_nothing() {
    let server = start("relay_max_subscriptions = 2\n");
    let mut client = server.connect();
    for (wrong, word) in [
        ("relay_max_subscriptions = 0\nrelay_filter_limit = 5\n", "relay_max_subscriptions"),
        ("relay_filter_limit = 5\nbind_adress = 'x'\n", "did you mean `bind_address`"),
        ("relay_filter_limit = 5\nthis is no TOML", "not valid TOML"),
    ] {
        write_settings(&server, wrong);
        let socket = server.admin_socket();
        let printed = server.run(&["reload", "--admin-socket", socket.to_str().expect("not text")]).expect_failure(1);
        assert!(printed.contains("settings are unchanged") && printed.contains(word), "{printed}");
        assert_ne!(limitation(&server)["max_limit"], 5);
        // After the signal, the error is in the log.
        let before = server.log().matches("settings unchanged").count();
        send_sighup(&server);
        eventually("the result is logged", || {
            (server.log().matches("settings unchanged").count() > before).then_some(())
        });
    }
    assert!(
        can_subscribe(&mut client, "one") && can_subscribe(&mut client, "two") && !can_subscribe(&mut client, "three")
    );
}

#[test]
fn sighup_reloads_and_the_environment_takes_precedence() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let server = Server::start_with_log(&folder, &[("RELAY_FILTER_LIMIT", "11"), ("LOG_LEVEL", "info")]);
    fs::write(folder.path().join(".env"), "NGIT_RELAY_MAX_SUBSCRIPTIONS=5\nNGIT_RELAY_FILTER_LIMIT=12\n")
        .expect("cannot write");
    send_sighup(&server);
    eventually("the setting applies", || (limitation(&server)["max_subscriptions"] == 5).then_some(()));
    assert_eq!(limitation(&server)["max_limit"], 11);
    eventually("the result is logged", || {
        let log = server.log();
        (log.contains("setting changed") && log.contains("RELAY_MAX_SUBSCRIPTIONS")).then_some(())
    });
    let printed = server.run(&["reload"]).expect_success();
    let fixed = "These settings are environment variables and need a restart to change: RELAY_FILTER_LIMIT, LOG_LEVEL.";
    assert_eq!(printed, format!("No setting has changed.\n{fixed}\n"));
}

#[test]
fn sighup_works_without_an_admin_socket() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let mut server = Server::start_with_log(&folder, &[("ADMIN_SOCKET", "off")]);
    write_settings(&server, "relay_max_subscriptions = 5\n");
    send_sighup(&server);
    eventually("the setting applies", || (limitation(&server)["max_subscriptions"] == 5).then_some(()));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn shipped_settings_file_is_valid_and_reloadable() {
    let shipped = include_str!("../../../../deploy/config/graspd.toml");
    let server = start(shipped);
    // All settings that are commented out.
    let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with(' ');
    let all: Vec<&str> =
        shipped.lines().map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line)).collect();
    write_settings(&server, &all.join("\n"));
    let done = server.run(&["reload", "--json"]).json_object();
    assert_eq!(done["changed"].as_array().map(Vec::len), Some(7), "{done}");
    assert_eq!(done["restart"], json!(["DOMAIN"]), "{done}");
}
