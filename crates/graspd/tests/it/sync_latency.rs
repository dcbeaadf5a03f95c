//! How soon a server serves what was pushed to and published on another one.

use std::sync::Arc;
use std::time::Instant;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;

use crate::support::peers::{Project, SyncServer, now};

/// Starts two servers, pushes ten repositories that list both to the first one, one after the other, together with
/// issues and comments, and waits until the second one serves everything. Returns the second one.
fn push_ten_repositories(batch_window_millis: &str) -> SyncServer {
    let settings = [("SYNC_BATCH_WINDOW_MS", batch_window_millis), ("LOG_LEVEL", "debug")];
    let (mut a, mut b) = (SyncServer::start(&settings), SyncServer::start(&settings));
    let hosts = [a.address, b.address];
    let first = Project::new(1, "first", &hosts, &[]);
    a.host(&first);
    b.publish(&first.announcement);
    b.eventually_served(&[&first.announcement, &first.state]);
    b.eventually_state(&a.relay_url(), 3.0);

    let author = Author::new(9);
    let projects: Vec<Project> = (0..10).map(|n| Project::new(2 + n, &format!("r{n}"), &hosts, &[])).collect();
    let mut all: Vec<Arc<SignedEvent>> = Vec::new();
    let begin = Instant::now();
    for project in &projects {
        a.host(project);
        all.extend([project.announcement.clone(), project.state.clone()]);
        for issue in project.issues(&author, now(), 2) {
            let comment = author.comment(now(), &issue);
            for event in [issue, comment] {
                a.publish(&event);
                all.push(event);
            }
        }
    }
    let pushed = Instant::now();
    b.eventually_served(&all.iter().collect::<Vec<_>>());
    let (pushing, waiting) = (pushed - begin, pushed.elapsed());
    eprintln!("ten repositories were pushed in {pushing:?}; everything was served {waiting:?} later");
    b
}

/// The batch window is longer than the deadline of the test, but it ends when no further changes follow.
#[test]
fn pushes_to_one_server_are_served_by_the_other_before_the_batch_window_ends() {
    let b = push_ten_repositories("60000");
    for bad in ["ERROR", "batch failed", "rate limited", "fetch failed"] {
        assert!(!b.log().contains(bad), "{bad}");
    }
}

#[test]
#[ignore = "a measurement with the default delays"]
fn time_until_pushes_to_one_server_are_served_by_the_other() {
    let b = push_ten_repositories("5000");
    for line in b.log().lines().filter(|line| line.contains("fetch started") || line.contains("fetch finished")) {
        eprintln!("{line}");
    }
}
