//! What is served in the end does not depend on the order in which events arrived.
//!
//! Each script is a handful of events and pushes, and the objects that git has. Every permutation is played: after each
//! arrival git tells what it has found, and what was refused is offered again until nothing changes, as sync's refused
//! index does, and as people do with their pushes. Then the end is compared across permutations, also with a restart after
//! every step.
//!
//! Events that lose their last link stay until a background sweep judges them (F8). The sweep is not written yet, so
//! the comparison looks at what it would leave: see [`Ending`].

mod events;
mod pushes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::{Decision, SignedEvent, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_sim::fixtures::{m, main_at, o, oid, r, x};
use grasp_sim::signer::{Author, owned, pair};
use grasp_sim::test_server::{House, View, Wish, rules, service};

/// What is offered again after each arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Again {
    /// What was refused: sync's refused index.
    Refused,
    /// What is not here, also if it was here and went, or lost against something: what a relay that has it all would
    /// show us in the next reconciliation.
    Absent,
}

struct Script {
    rules: AdmissionPolicy,
    /// With names, for the report.
    events: Vec<(&'static str, Arc<SignedEvent>)>,
    pushes: Vec<(&'static str, Wish)>,
    /// Digits of the objects that git has from the beginning.
    git: &'static str,
    again: Again,
}

impl Script {
    fn new(git: &'static str, events: Vec<(&'static str, Arc<SignedEvent>)>) -> Self {
        Self { rules: rules(), events, pushes: Vec::new(), git, again: Again::Refused }
    }

    fn with(self, pushes: Vec<(&'static str, Wish)>) -> Self {
        Self { pushes, ..self }
    }

    fn name(&self, nth: usize) -> &'static str {
        self.events.get(nth).map(|(name, _)| *name).unwrap_or_else(|| self.pushes[nth - self.events.len()].0)
    }

    /// Does what has this number. True if somebody will try again.
    fn offer(&self, house: &mut House, nth: usize) -> bool {
        match self.events.get(nth) {
            Some((_, event)) => {
                let verdict = house.submit(event);
                self.again == Again::Absent || matches!(verdict, Decision::Reject(_))
            }
            // Also what was there once and went with its repository is pushed again.
            None => {
                let _ = house.push(&self.pushes[nth - self.events.len()].1);
                true
            }
        }
    }

    /// Every order ends the same, with these served and these held.
    #[track_caller]
    fn ends(&self, served: &[&'static str], held: &[&'static str]) {
        let count = self.events.len() + self.pushes.len();
        assert!(count <= 6, "720 orders are enough");
        let expected = Ending { served: served.iter().copied().collect(), held: held.iter().copied().collect() };
        let mut views: Option<BTreeMap<RepoPath, View>> = None;
        for order in permutations(count) {
            for restarts in [false, true] {
                let (ending, refs) = self.play(&order, restarts);
                let names: Vec<&str> = order.iter().map(|nth| self.name(*nth)).collect();
                assert_eq!(ending, expected, "(left: this order) restarts: {restarts}, order: {names:?}");
                let same = views.get_or_insert_with(|| refs.clone());
                assert_eq!(refs, *same, "(left: this order) restarts: {restarts}, order: {names:?}");
            }
        }
    }

    /// Gives what is served and held, and the refs of everything that has any.
    fn play(&self, order: &[usize], restarts: bool) -> (Ending, BTreeMap<RepoPath, View>) {
        let mut house = House::new(self.rules.clone());
        for (later, earlier) in [('b', 'a'), ('c', 'b')] {
            house.git().need(&oid(later), &[&oid(earlier)]);
        }
        let git: BTreeSet<String> = self.git.chars().map(oid).collect();
        let mut again: Vec<usize> = Vec::new();
        let offer = |house: &mut House, nth: usize| {
            let before = (house.sets(), house.views());
            let comes_again = self.offer(house, nth);
            house.git_has(&git);
            let changed = (house.sets(), house.views()) != before;
            if restarts && changed {
                house.restart();
            }
            (changed, comes_again)
        };
        for nth in order {
            let (mut changed, comes_again) = offer(&mut house, *nth);
            if restarts {
                house.restart();
            }
            if comes_again {
                again.push(*nth);
            }
            for round in 0.. {
                if !changed {
                    break;
                }
                assert!(round < 20, "it never settles");
                changed = false;
                again.retain(|nth| {
                    let (this_changed, comes_again) = offer(&mut house, *nth);
                    changed |= this_changed;
                    comes_again
                });
            }
        }
        let views = house.views().into_iter().filter(|(_, view)| !view.refs.is_empty()).collect();
        (self.ending(&mut house), views)
    }

    /// What the sweep would leave: announcements, states whose author may speak for a hosted repository, requests, and
    /// whatever hangs on those.
    fn ending(&self, house: &mut House) -> Ending {
        let name = |id: EventId| self.events.iter().find(|(_, event)| event.id == id).expect("of the script").0;
        let speaks = |event: &SignedEvent| {
            let identifier = event.tag("d").and_then(Identifier::new).expect("a repository");
            !house.repos_of(&identifier, event.pubkey).is_empty()
        };
        let is_submission = |event: &SignedEvent| {
            let request = PullRequest::from_event(event).expect("a pull request");
            !self.rules.submission_paths(event.pubkey, &request).is_empty()
        };
        let (served, held) = house.sets();
        let event = |id: &EventId| &self.events.iter().find(|(_, event)| event.id == *id).expect("of the script").1;
        let mut rooted: BTreeSet<EventId> = served
            .iter()
            .filter(|id| match event(id).kind {
                kinds::STATE => speaks(event(id)),
                kind if kinds::is_pull_request(kind) => is_submission(event(id)),
                kind => matches!(kind, kinds::ANNOUNCEMENT | kinds::DELETION | kinds::VANISH | kinds::GRASP_LIST),
            })
            .copied()
            .collect();
        // States that nobody may speak by are no links either, so that only other kinds can follow.
        loop {
            let linked: Vec<EventId> = served
                .iter()
                .filter(|id| event(id).kind != kinds::STATE && !rooted.contains(id))
                .filter(|id| rooted.iter().any(|root| links(event(id), event(root)) || links(event(root), event(id))))
                .copied()
                .collect();
            if linked.is_empty() {
                break;
            }
            rooted.extend(linked);
        }
        let held = held.iter().filter(|id| event(id).kind != kinds::STATE || speaks(event(id)));
        Ending { served: rooted.into_iter().map(name).collect(), held: held.map(|id| name(*id)).collect() }
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Ending {
    served: BTreeSet<&'static str>,
    held: BTreeSet<&'static str>,
}

fn links(from: &SignedEvent, to: &SignedEvent) -> bool {
    let id = to.id.to_string();
    from.indexed_tags().any(|(letter, value)| {
        (b"eEq".contains(&letter) && value == id)
            || (b"aAq".contains(&letter) && Coordinate::parse(value).is_some_and(|at| Some(at) == to.coordinate()))
    })
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..count {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=order.len()).map(move |place| {
                    let mut longer = order.clone();
                    longer.insert(place, next);
                    longer
                })
            })
            .collect();
    }
    all
}
