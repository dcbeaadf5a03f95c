//! Scripts, and how they are played with and without accidents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::io::{EventSource, Todo};
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::admission::push::PushRejection;
use grasp_core::limits;
use grasp_core::nostr::{Decision, EventId, Rejection, SignedEvent};
use grasp_core::repo::RepoPath;
use grasp_sim::test_server::{Crashed, House, View, Wish};

/// What somebody does.
#[derive(Clone)]
pub(crate) enum Act {
    /// Offers an event.
    Submit(Arc<SignedEvent>),
    /// Pushes.
    Push(Wish),
    /// Waits so many seconds.
    Wait(u64),
    /// Has other lists, as the operator.
    Rule(ModerationLists),
}

/// What happens before the accident may, and then.
pub(crate) struct Script {
    pub(crate) before: Vec<Act>,
    pub(crate) acts: Vec<Act>,
}

/// What can be seen in the end, and what would still be done.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct End {
    served: BTreeSet<EventId>,
    held: BTreeSet<EventId>,
    views: BTreeMap<RepoPath, View>,
    heads: BTreeMap<RepoPath, Option<String>>,
    notes: BTreeSet<Todo>,
    uploads: BTreeSet<(RepoPath, EventId, String)>,
}

impl End {
    pub(crate) fn of(house: &mut House) -> Self {
        let (served, held) = house.sets();
        let uploads = house.staged().into_iter().map(|upload| (upload.repo_path, upload.event, upload.tip)).collect();
        let heads = house.git().folders().map(|(repo_path, folder)| (repo_path.clone(), folder.head.clone())).collect();
        Self { served, held, views: house.views(), heads, notes: house.notes(), uploads }
    }
}

/// A house in which commits depend on each other: `b` needs `a`, `c` needs `b`; the other objects need nothing.
pub(crate) fn house() -> House {
    let mut house = House::default();
    for (oid, needs) in [('b', 'a'), ('c', 'b')] {
        let [oid, needs] = [oid, needs].map(grasp_sim::fixtures::oid);
        house.git().need(&oid, &[&needs]);
    }
    house
}

/// Does something; after an accident everything is started again, and whoever had no answer asks again.
fn perform(house: &mut House, act: &Act, again: &dyn Fn(&mut House)) {
    let begun = house.now().wall;
    loop {
        let result = match act {
            Act::Submit(event) => {
                house.try_submit(event, EventSource::Client(vec![event.pubkey])).map(|verdict| match verdict {
                    Decision::Reject(Rejection::StoreFailed) => false,
                    Decision::Reject(refusal) => panic!("{refusal}"),
                    _ => true,
                })
            }
            Act::Push(wish) => house.try_push(wish).map(|result| match result {
                Err(PushRejection::Failed(_)) => false,
                Err(refusal) => panic!("{refusal}"),
                Ok(()) => true,
            }),
            Act::Rule(lists) => house.try_rule(lists.clone()),
            Act::Wait(secs) => house.try_advance(begun.plus_secs(*secs).secs_since(house.now().wall)).map(|()| true),
        };
        match result {
            Ok(true) => return,
            Ok(false) => {}
            Err(Crashed { answered }) => {
                again(house);
                if answered {
                    return;
                }
            }
        }
    }
}

impl Script {
    fn begin(&self) -> House {
        let mut house = house();
        for act in &self.before {
            perform(&mut house, act, &|_| panic!("no end was planned"));
        }
        house
    }

    fn play(&self, house: &mut House, again: &dyn Fn(&mut House)) -> End {
        for act in &self.acts {
            perform(house, act, again);
        }
        house.be_kind();
        // However short the time was that something had left, it has got a little more by a new start.
        let waits = self.acts.iter().any(|act| matches!(act, Act::Wait(_)));
        house.advance(if waits { limits::PURGATORY_STARTUP_GRACE_SECS } else { 0 });
        End::of(house)
    }

    /// Every accident leads to the same end. Gives it, and how many accidents there were.
    #[track_caller]
    pub(crate) fn survives(&self) -> (House, usize) {
        let mut calm = self.begin();
        let (steps_before, commits_before) = calm.counts();
        let expected = self.play(&mut calm, &|_| panic!("no end was planned"));
        let (steps, commits) = (calm.counts().0 - steps_before, calm.counts().1 - commits_before);
        let mut accidents = 0;
        for step in 0..steps {
            // The new start may end early, too.
            for early in [None, Some(0), Some(1), Some(2), Some(4), Some(6), Some(9), Some(13)] {
                let _naming = Naming(format!("at step {step} of {steps}, and again after {early:?}"));
                let mut house = self.begin();
                house.crash_in(step);
                let end = self.play(&mut house, &|house| {
                    if let Some(early) = early {
                        house.crash_in(early);
                        if house.boot().is_ok() {
                            house.be_kind();
                            return;
                        }
                    }
                    house.boot().expect("no end is planned");
                });
                assert_eq!(end, expected, "(left: with a crash)");
                accidents += 1;
            }
        }
        for commit in 0..commits {
            let _naming = Naming(format!("at commit {commit} of {commits}"));
            let mut house = self.begin();
            house.fail_commit_in(commit);
            let end = self.play(&mut house, &|_| panic!("no end was planned"));
            assert_eq!(end, expected, "(left: with a failed commit)");
            accidents += 1;
        }
        (calm, accidents)
    }
}

/// Says where it was if it fails.
pub(crate) struct Naming(pub(crate) String);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed {}", self.0);
        }
    }
}
