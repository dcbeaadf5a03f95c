//! Tests the pages in a real browser. `.ci/browser` installs Chromium and provides the script.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grasp_sim::signer::Author;

use crate::support::peers::{Project, SyncServer, now};

#[test]
#[ignore = "needs a browser: run .ci/browser"]
fn pages_are_live_and_readable() {
    let script = std::env::var("GRASPD_BROWSER_SCRIPT").expect("run .ci/browser");
    let shots = std::env::var("GRASPD_BROWSER_SHOTS").expect("run .ci/browser");
    let mut here = SyncServer::start(&[("RELAY_NAME", "A relay with <b>HTML</b> in its name")]);
    let mut there = SyncServer::start(&[]);
    let unreachable = "ws://127.0.0.1:9";
    let project = Project::new(1, "common", &[here.address, there.address], &[unreachable]);
    here.host(&project);
    there.host(&project);
    // A repository that waits for git data, and a rejected event.
    let waiting = Project::new(
        2,
        "waiting",
        &[here.address],
        &["ws://a.very.long.name.of.a.relay.that.does.not.exist.example:7777/with/a/path"],
    );
    here.publish(&waiting.announcement);
    here.publish(&waiting.state);
    let author = Author::new(9);
    assert!(!here.client().publish(&author.sign(1, now(), &[], "spam")).0);
    here.eventually_state(&there.relay_url(), 3.0);

    // Publish events as long as the browser runs.
    let is_running = Arc::new(AtomicBool::new(true));
    let mut client = here.process.connect();
    let traffic = std::thread::spawn({
        let is_running = is_running.clone();
        let issues = project.issues(&author, now(), 1_000);
        move || {
            for issue in issues {
                if !is_running.load(Ordering::Relaxed) {
                    break;
                }
                assert!(client.publish(&issue).0);
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    });
    let origin = format!("http://{}", here.address);
    let repository = format!("/{}", project.owner.repo_id("common").path());
    let status = Command::new("node").args([&script, &origin, &repository, &shots]).status().expect("cannot run node");
    is_running.store(false, Ordering::Relaxed);
    traffic.join().expect("publishing failed");
    assert!(status.success(), "the browser test failed; see {shots}");
}
