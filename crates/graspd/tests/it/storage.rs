//! The disk budget and quotas: events and pushes are rejected with a reason before the disk is full, and accepted again
//! when there is space.

use serde_json::{Value, json};

use crate::support::Server;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text};
use crate::support::test_server::{StopSignal, TestServer};

/// Bytes of text per byte of pack, roughly: a hex digit compresses to four bits.
const TEXT_PER_PACK_BYTE: usize = 2;

const MIB: usize = 1 << 20;

fn status(server: &Server) -> Value {
    let response = server.get("/status.json", "");
    let (_, body) = response.split_once("\r\n\r\n").expect("response has a body");
    serde_json::from_str(body).expect("valid JSON")
}

/// Waits until the server has measured its disk usage; returns the used bytes.
fn wait_for_disk_usage(server: &TestServer) -> u64 {
    crate::support::eventually("the disk usage is measured", || {
        let status = status(&server.process);
        status["budgets"]["disk_bytes"]["used"].as_u64().filter(|used| *used > 0)
    })
}

/// Creates a repository with this many bytes of git data.
fn create_large_repo(server: &mut TestServer, who: &Maintainer, d: &str, bytes: usize) -> WorkTree {
    let work = WorkTree::new();
    let tip = work.commit("noise", &incompressible_text(bytes * TEXT_PER_PACK_BYTE));
    server.create_repo(who, d, &[], &work, &[(MAIN, &tip)]);
    work
}

#[test]
fn disk_budget_rejects_new_repositories_first_and_then_all_new_data() {
    let settings = [("DISK_BUDGET_BYTES", "33554432"), ("DISK_SOFT_PERCENT", "30"), ("LOG_LEVEL", "error")];
    let mut server = TestServer::with_settings(&settings);
    let [o, m, ..] = server.maintainers();
    wait_for_disk_usage(&server);
    let work = create_large_repo(&mut server, &o, "tool", 14 * MIB);
    let other = m.announce("other", BASE_TIME, &[]);
    let mut nth = 0;
    crate::support::eventually("the soft limit is noticed", || {
        // A new identifier each time, because an announcement that was accepted before would be known.
        nth += 1;
        let (accepted, text) = server.client.publish(&m.announce(&format!("new-{nth}"), BASE_TIME, &[]));
        (!accepted).then(|| assert!(text.starts_with("error: the disk of this service is nearly full"), "{text}"))
    });
    // A scan during the push may have counted its pack twice until the next scan.
    crate::support::eventually("the pack is counted once", || {
        (wait_for_disk_usage(&server) < 28 * MIB as u64).then_some(())
    });
    // Existing repositories still accept pushes.
    let tip = work.commit("small", "a line");
    server.push_state(&o, &o, "tool", BASE_TIME + 10, &work, &[(MAIN, &tip)]);
    // A push that would exceed the budget is rejected, and its space is freed.
    let huge = work.commit("huge", &incompressible_text(30 * MIB * TEXT_PER_PACK_BYTE));
    server.publish_held(&o.state("tool", BASE_TIME + 20, &[(MAIN, &huge)]));
    for _ in 0..2 {
        work.push(&server.url(&o, "tool"), &[&format!("{huge}:{MAIN}")]).expect_failure(&["E-DISK-FULL"]);
    }
    server.expect_refs(&o, "tool", &[(MAIN, &tip)]);
    let small = WorkTree::clone(&server.url(&o, "tool"));
    let next = small.commit("next", "another line");
    server.push_state(&o, &o, "tool", BASE_TIME + 30, &small, &[(MAIN, &next)]);

    // The same data with a smaller budget: the limit holds from the start.
    let settings = [("DISK_BUDGET_BYTES", "10485760"), ("DISK_SOFT_PERCENT", "90"), ("LOG_LEVEL", "error")];
    let mut server = server.restart_with(StopSignal::Term, &settings);
    server.publish_rejected(&o.author.issue(BASE_TIME + 40, &o.repo("tool")), "error: the disk is full");
    // Without the saved total of the last process the limit holds as soon as the folders are measured.
    std::fs::remove_file(server.process.folder().path().join("data/relay/disk-use")).expect("cannot remove the file");
    let mut server = server.restart_with(StopSignal::Kill, &settings);
    let mut at = BASE_TIME + 50;
    crate::support::eventually("the hard limit is noticed", || {
        at += 1;
        let issue = o.author.issue(at, &o.repo("tool"));
        let (accepted, text) = server.client.publish(&issue);
        (!accepted).then(|| assert!(text.starts_with("error: the disk is full"), "{text}"))
    });
    let more = small.commit("more", "and another");
    server.publish_rejected(&o.state("tool", BASE_TIME + 900, &[(MAIN, &more)]), "error: the disk is full");
    small.push(&server.url(&o, "tool"), &[&format!("{more}:{MAIN}")]).expect_failure(&["E-DISK-FULL"]);
    server.expect_refs(&o, "tool", &[(MAIN, &next)]);
    // Deletions are accepted, and free space.
    let gone = o.delete_coordinate(BASE_TIME + 1_000, 30_617, "tool");
    server.publish(&gone);
    crate::support::eventually("a new repository is accepted again", || server.client.publish(&other).0.then_some(()));
    let work = WorkTree::new();
    let tip = work.commit("a", "b");
    server.push_state(&m, &m, "other", BASE_TIME + 1, &work, &[(MAIN, &tip)]);
}

#[test]
fn quotas_are_enforced_and_published() {
    let settings = [
        ("QUOTA_REPOSITORIES_PER_KEY", "2"),
        ("QUOTA_BYTES_PER_REPOSITORY", "3000000"),
        ("QUOTA_BYTES_PER_KEY", "4000000"),
    ];
    let mut server = TestServer::with_settings(&settings);
    let [o, m, ..] = server.maintainers();
    let response = server.process.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = response.split_once("\r\n\r\n").expect("response has a body");
    let nip11: Value = serde_json::from_str(body).expect("valid JSON");
    let storage = &nip11["limitation"]["grasp_storage"];
    assert_eq!(storage["max_repositories_per_key"], json!(2));
    assert_eq!(
        (&storage["max_bytes_per_repository"], &storage["max_bytes_per_key"]),
        (&json!(3_000_000), &json!(4_000_000))
    );
    assert_eq!(storage.get("disk_budget_bytes"), None, "no disk budget is set");

    let work = create_large_repo(&mut server, &o, "first", 2_000_000);
    let tip = work.oid("HEAD");
    let more = work.commit("more", &incompressible_text(1_500_000 * TEXT_PER_PACK_BYTE));
    server.publish_held(&o.state("first", BASE_TIME + 10, &[(MAIN, &more)]));
    let output = work.push(&server.url(&o, "first"), &[&format!("{more}:{MAIN}")]);
    output.expect_failure(&["E-QUOTA-REPOSITORY", "3000000"]);
    server.expect_refs(&o, "first", &[(MAIN, &tip)]);
    let second = WorkTree::new();
    let large_tip = second.commit("noise", &incompressible_text(2_500_000 * TEXT_PER_PACK_BYTE));
    server.publish_held(&o.announce("second", BASE_TIME, &[]));
    server.publish_held(&o.state("second", BASE_TIME, &[(MAIN, &large_tip)]));
    second
        .push(&server.url(&o, "second"), &[&format!("{large_tip}:{MAIN}")])
        .expect_failure(&["E-QUOTA-KEY", "4000000"]);
    server.publish_rejected(
        &o.announce("third", BASE_TIME, &[]),
        "restricted: repository quota reached, this key has 2 repositories here",
    );
    // Other keys have their own quota, and refs can be changed even if the quota is used up.
    create_large_repo(&mut server, &m, "theirs", 2_500_000);
    let same = [(MAIN, tip.as_str()), ("refs/heads/same", tip.as_str())];
    server.publish(&o.state("first", BASE_TIME + 20, &same));
    server.eventually_refs(&o, "first", &same);
}
