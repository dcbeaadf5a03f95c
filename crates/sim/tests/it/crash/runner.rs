//! Scripts that run with and without injected faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::io::{EventSource, Todo};
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::admission::push::PushRejection;
use grasp_core::limits;
use grasp_core::nostr::{Decision, EventId, Rejection, SignedEvent};
use grasp_core::repo::{Refs, RepoPath};
use grasp_sim::failure_context::FailureContext;
use grasp_sim::test_server::{ClientPush, Crashed, TestServer};

/// One action of a client or of the operator.
#[derive(Clone)]
pub(crate) enum Action {
    /// Submits an event.
    Submit(Arc<SignedEvent>),
    /// Pushes.
    Push(ClientPush),
    /// Waits this many seconds.
    Wait(u64),
    /// Sets the operator's lists.
    SetLists(ModerationLists),
}

/// Actions before and after the point from which faults are injected.
pub(crate) struct CrashScript {
    pub(crate) setup: Vec<Action>,
    pub(crate) actions: Vec<Action>,
}

/// State of the server at the end, including work that is still to be done.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct FinalState {
    served: BTreeSet<EventId>,
    held: BTreeSet<EventId>,
    visible_refs: BTreeMap<RepoPath, Arc<Refs>>,
    todos: BTreeSet<Todo>,
    uploads: BTreeSet<(RepoPath, EventId, String)>,
}

impl FinalState {
    pub(crate) fn new(server: &mut TestServer) -> Self {
        let (served, held) = server.event_ids();
        let uploads =
            server.pending_uploads().into_iter().map(|upload| (upload.repo_path, upload.event, upload.tip)).collect();
        Self { served, held, visible_refs: server.visible_refs(), todos: server.todos(), uploads }
    }
}

/// Returns a server in which commits depend on each other: `b` needs `a`, `c` needs `b`; the other objects need none.
pub(crate) fn server() -> TestServer {
    let mut server = TestServer::default();
    for (oid, needs) in [('b', 'a'), ('c', 'b')] {
        let [oid, needs] = [oid, needs].map(grasp_sim::fixtures::oid);
        server.git().add_dependencies(&oid, &[&needs]);
    }
    server
}

/// Performs an action; after a crash the server is restarted, and an action without a reply is repeated.
fn perform(server: &mut TestServer, action: &Action, again: &dyn Fn(&mut TestServer)) {
    let begun = server.now().wall;
    loop {
        let result = match action {
            Action::Submit(event) => {
                server.try_submit(event, EventSource::Client(vec![event.pubkey])).map(|decision| match decision {
                    Decision::Reject(Rejection::StoreFailed) => false,
                    Decision::Reject(rejection) => panic!("{rejection}"),
                    _ => true,
                })
            }
            Action::Push(client_push) => server.try_push(client_push).map(|result| match result {
                Err(PushRejection::Failed(_)) => false,
                Err(rejection) => panic!("{rejection}"),
                Ok(()) => true,
            }),
            Action::SetLists(lists) => server.try_set_lists(lists.clone()),
            Action::Wait(secs) => {
                server.try_advance(begun.plus_secs(*secs).secs_since(server.now().wall)).map(|()| true)
            }
        };
        match result {
            Ok(true) => return,
            Ok(false) => {}
            Err(Crashed { answered }) => {
                again(server);
                if answered {
                    return;
                }
            }
        }
    }
}

impl CrashScript {
    fn start(&self) -> TestServer {
        let mut server = server();
        for action in &self.setup {
            perform(&mut server, action, &|_| panic!("no crash is injected"));
        }
        server
    }

    fn run(&self, server: &mut TestServer, again: &dyn Fn(&mut TestServer)) -> FinalState {
        for action in &self.actions {
            perform(server, action, again);
        }
        server.clear_fault();
        // A restart extends deadlines that are close by the startup grace period.
        let waits = self.actions.iter().any(|action| matches!(action, Action::Wait(_)));
        server.advance(if waits { limits::PURGATORY_STARTUP_GRACE_SECS } else { 0 });
        FinalState::new(server)
    }

    /// Checks that every fault leads to the same final state. Returns the server without faults, and the number of
    /// faults.
    #[track_caller]
    pub(crate) fn assert_crash_safe(&self) -> (TestServer, usize) {
        let mut fault_free = self.start();
        let (steps_before, commits_before) = fault_free.step_and_commit_counts();
        let expected = self.run(&mut fault_free, &|_| panic!("no crash is injected"));
        let (steps, commits) = (
            fault_free.step_and_commit_counts().0 - steps_before,
            fault_free.step_and_commit_counts().1 - commits_before,
        );
        let mut faults = 0;
        for step in 0..steps {
            // The restart may crash early, too.
            for early in [None, Some(0), Some(1), Some(2), Some(4), Some(6), Some(9), Some(13)] {
                let _context = FailureContext(format!("at step {step} of {steps}, and again after {early:?}"));
                let mut server = self.start();
                server.crash_after_steps(step);
                let end = self.run(&mut server, &|server| {
                    if let Some(early) = early {
                        server.crash_after_steps(early);
                        if server.boot().is_ok() {
                            server.clear_fault();
                            return;
                        }
                    }
                    server.boot().expect("no crash is injected");
                });
                assert_eq!(end, expected, "(left: with a crash)");
                faults += 1;
            }
        }
        for commit in 0..commits {
            let _context = FailureContext(format!("at commit {commit} of {commits}"));
            let mut server = self.start();
            server.fail_commit_after(commit);
            let end = self.run(&mut server, &|_| panic!("no crash is injected"));
            assert_eq!(end, expected, "(left: with a failed commit)");
            faults += 1;
        }
        (fault_free, faults)
    }
}
