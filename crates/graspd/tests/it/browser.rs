//! The pages in a real browser. It needs Chromium and a script, which `.ci/browser` brings along.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grasp_sim::signer::Author;

use crate::support::peers::{Neighbour, Project, now};

#[test]
#[ignore = "needs a browser: run .ci/browser"]
fn pages_are_live_and_readable() {
    let script = std::env::var("GRASPD_BROWSER_SCRIPT").expect("run .ci/browser");
    let shots = std::env::var("GRASPD_BROWSER_SHOTS").expect("run .ci/browser");
    let mut here = Neighbour::start(&[("RELAY_NAME", "A house with <b>many</b> doors")]);
    let mut there = Neighbour::start(&[]);
    let nobody = "ws://127.0.0.1:9";
    let project = Project::new(1, "common", &[here.place, there.place], &[nobody]);
    here.host(&project);
    there.host(&project);
    // Something that waits, something that is refused.
    let lonely = Project::new(
        2,
        "lonely",
        &[here.place],
        &["ws://a.very.long.name.of.a.relay.that.nobody.runs.example:7777/with/a/path"],
    );
    here.publish(&lonely.announcement);
    here.publish(&lonely.state);
    let author = Author::new(9);
    assert!(!here.client().publish(&author.sign(1, now(), &[], "spam")).0);
    here.eventually_state(&there.relay(), 3.0);

    // Traffic, as long as somebody looks.
    let looking = Arc::new(AtomicBool::new(true));
    let mut client = here.server.connect();
    let traffic = std::thread::spawn({
        let looking = looking.clone();
        let issues = project.issues(&author, now(), 1_000);
        move || {
            for issue in issues {
                if !looking.load(Ordering::Relaxed) {
                    break;
                }
                assert!(client.publish(&issue).0);
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    });
    let origin = format!("http://{}", here.place);
    let repository = format!("/{}", project.owner.repo_id("common").path());
    let seen = Command::new("node").args([&script, &origin, &repository, &shots]).status().expect("node runs");
    looking.store(false, Ordering::Relaxed);
    traffic.join().expect("the traffic ends well");
    assert!(seen.success(), "the browser is not content; see {shots}");
}
