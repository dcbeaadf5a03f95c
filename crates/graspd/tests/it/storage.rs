//! The disk budget and quotas: clear refusals before the disk is full, and work that goes on when there is room again.

use serde_json::{Value, json};

use crate::support::Server;
use crate::support::git::{MAIN, Maintainer, THEN, Work, noise};
use crate::support::test_server::{End, Stage};

/// How many bytes a pack of so much noise has, roughly: hex digits have four bits.
const PACKED: usize = 2;

const MIB: usize = 1 << 20;

fn status(server: &Server) -> Value {
    let answer = server.get("/status.json", "");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

/// Waits until the server knows what it has, and gives what is used of the budget.
fn measured(stage: &Stage) -> u64 {
    crate::support::eventually("the folders have been looked at", || {
        let status = status(&stage.server);
        status["budgets"]["disk_bytes"]["used"].as_u64().filter(|used| *used > 0)
    })
}

/// A repository with so many bytes of git data.
fn large(stage: &mut Stage, who: &Maintainer, d: &str, bytes: usize) -> Work {
    let work = Work::new();
    let tip = work.commit("noise", &noise(bytes * PACKED));
    stage.found(who, d, &[], &work, &[(MAIN, &tip)]);
    work
}

#[test]
fn past_the_soft_mark_no_new_repository_comes_and_past_the_hard_one_nothing_that_grows() {
    let settings = [("DISK_BUDGET_BYTES", "33554432"), ("DISK_SOFT_PERCENT", "30"), ("LOG_LEVEL", "error")];
    let mut stage = Stage::with(&settings);
    let [o, m, ..] = stage.cast();
    measured(&stage);
    let work = large(&mut stage, &o, "tool", 14 * MIB);
    let other = m.announce("other", THEN, &[]);
    let mut nth = 0;
    crate::support::eventually("the soft mark is noticed", || {
        // One that was taken before that would be known.
        nth += 1;
        let (accepted, text) = stage.client.publish(&m.announce(&format!("new-{nth}"), THEN, &[]));
        (!accepted).then(|| assert!(text.starts_with("error: the disk of this service is nearly full"), "{text}"))
    });
    // What is here goes on.
    let tip = work.commit("small", "a line");
    stage.advance(&o, &o, "tool", THEN + 10, &work, &[(MAIN, &tip)]);
    // What would pass the hard mark ends there, and gives back what it took.
    let huge = work.commit("huge", &noise(30 * MIB * PACKED));
    stage.hold(&o.state("tool", THEN + 20, &[(MAIN, &huge)]));
    for _ in 0..2 {
        work.push(&stage.url(&o, "tool"), &[&format!("{huge}:{MAIN}")]).refused(&["E-DISK-FULL"]);
    }
    stage.expect_refs(&o, "tool", &[(MAIN, &tip)]);
    let small = Work::clone(&stage.url(&o, "tool"));
    let next = small.commit("next", "another line");
    stage.advance(&o, &o, "tool", THEN + 30, &small, &[(MAIN, &next)]);

    // The same data with a smaller budget: a start is no way around it.
    let settings = [("DISK_BUDGET_BYTES", "10485760"), ("DISK_SOFT_PERCENT", "90"), ("LOG_LEVEL", "error")];
    let mut stage = stage.again_with(End::Asked, &settings);
    stage.refuse(&o.author.issue(THEN + 40, &o.repo("tool")), "error: the disk is full");
    // Without the note of the last process it is known after a walk.
    std::fs::remove_file(stage.server.folder().path().join("data/relay/disk-use")).expect("it was there");
    let mut stage = stage.again_with(End::Killed, &settings);
    let mut at = THEN + 50;
    crate::support::eventually("the hard mark is noticed", || {
        at += 1;
        let issue = o.author.issue(at, &o.repo("tool"));
        let (accepted, text) = stage.client.publish(&issue);
        (!accepted).then(|| assert!(text.starts_with("error: the disk is full"), "{text}"))
    });
    let more = small.commit("more", "and another");
    stage.refuse(&o.state("tool", THEN + 900, &[(MAIN, &more)]), "error: the disk is full");
    small.push(&stage.url(&o, "tool"), &[&format!("{more}:{MAIN}")]).refused(&["E-DISK-FULL"]);
    stage.expect_refs(&o, "tool", &[(MAIN, &next)]);
    // Whatever makes room is welcome, and then there is room.
    let gone = o.delete_all(THEN + 1_000, 30_617, "tool");
    stage.publish(&gone);
    crate::support::eventually("there is room again", || stage.client.publish(&other).0.then_some(()));
    let work = Work::new();
    let tip = work.commit("a", "b");
    stage.advance(&m, &m, "other", THEN + 1, &work, &[(MAIN, &tip)]);
}

#[test]
fn quotas_are_kept_and_told() {
    let settings = [
        ("QUOTA_REPOSITORIES_PER_KEY", "2"),
        ("QUOTA_BYTES_PER_REPOSITORY", "3000000"),
        ("QUOTA_BYTES_PER_KEY", "4000000"),
    ];
    let mut stage = Stage::with(&settings);
    let [o, m, ..] = stage.cast();
    let told = stage.server.get("/", "Accept: application/nostr+json\r\n");
    let (_, told) = told.split_once("\r\n\r\n").expect("a body");
    let told: Value = serde_json::from_str(told).expect("JSON");
    let storage = &told["limitation"]["grasp_storage"];
    assert_eq!(storage["max_repositories_per_key"], json!(2));
    assert_eq!(
        (&storage["max_bytes_per_repository"], &storage["max_bytes_per_key"]),
        (&json!(3_000_000), &json!(4_000_000))
    );
    assert_eq!(storage.get("disk_budget_bytes"), None, "there is none");

    let work = large(&mut stage, &o, "first", 2_000_000);
    let tip = work.oid("HEAD");
    let more = work.commit("more", &noise(1_500_000 * PACKED));
    stage.hold(&o.state("first", THEN + 10, &[(MAIN, &more)]));
    let refused = work.push(&stage.url(&o, "first"), &[&format!("{more}:{MAIN}")]);
    refused.refused(&["E-QUOTA-REPOSITORY", "3000000"]);
    stage.expect_refs(&o, "first", &[(MAIN, &tip)]);
    let second = Work::new();
    let large_tip = second.commit("noise", &noise(2_500_000 * PACKED));
    stage.hold(&o.announce("second", THEN, &[]));
    stage.hold(&o.state("second", THEN, &[(MAIN, &large_tip)]));
    second.push(&stage.url(&o, "second"), &[&format!("{large_tip}:{MAIN}")]).refused(&["E-QUOTA-KEY", "4000000"]);
    stage.refuse(
        &o.announce("third", THEN, &[]),
        "restricted: repository quota reached, this key has 2 repositories here",
    );
    // Others have their own, and refs can move without any bytes left.
    large(&mut stage, &m, "theirs", 2_500_000);
    let same = [(MAIN, tip.as_str()), ("refs/heads/same", tip.as_str())];
    stage.publish(&o.state("first", THEN + 20, &same));
    stage.eventually_refs(&o, "first", &same);
}
