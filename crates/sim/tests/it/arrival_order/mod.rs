//! The result does not depend on the order in which events arrive.
//!
//! Each script is a handful of events and pushes, and the objects that git has. Every permutation is run: after each
//! arrival git gets its objects, and what was rejected is submitted again until nothing changes, as sync does with
//! its rejected-events index and clients do with their pushes. Then the results are compared across permutations,
//! also with a restart after every step.
//!
//! Events that lose their last link stay served, because a deletion does not cascade
//! (docs/design/admission.md#deletion-and-vanishing). The comparison leaves them out: see [`Outcome`].

mod events;
mod pushes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::{Decision, SignedEvent, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_sim::fixtures::{main_state, main_to, maintainer, nested_maintainer, oid, outsider, owner, tool};
use grasp_sim::signer::{owned_tags, tied_versions};
use grasp_sim::test_server::{ClientPush, TestServer, default_policy, service};

/// What is submitted again after each arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resubmit {
    /// Rejected events, as in sync's rejected-events index.
    Rejected,
    /// All events that are not stored, also those that were removed or superseded: what a relay that has all of them
    /// would return in the next reconciliation.
    Absent,
}

struct PermutationScript {
    policy: AdmissionPolicy,
    /// With names, for failure messages.
    events: Vec<(&'static str, Arc<SignedEvent>)>,
    pushes: Vec<(&'static str, ClientPush)>,
    /// Digits of the objects that git has from the start.
    git: &'static str,
    resubmit: Resubmit,
}

impl PermutationScript {
    fn new(git: &'static str, events: Vec<(&'static str, Arc<SignedEvent>)>) -> Self {
        Self { policy: default_policy(), events, pushes: Vec::new(), git, resubmit: Resubmit::Rejected }
    }

    fn with_pushes(self, pushes: Vec<(&'static str, ClientPush)>) -> Self {
        Self { pushes, ..self }
    }

    fn name(&self, nth: usize) -> &'static str {
        self.events.get(nth).map(|(name, _)| *name).unwrap_or_else(|| self.pushes[nth - self.events.len()].0)
    }

    /// Submits or pushes the item with this number. Returns true if it is tried again later.
    fn offer(&self, server: &mut TestServer, nth: usize) -> bool {
        match self.events.get(nth) {
            Some((_, event)) => {
                let decision = server.submit(event);
                self.resubmit == Resubmit::Absent || matches!(decision, Decision::Reject(_))
            }
            // A ref that was removed with its repository is pushed again, too.
            None => {
                let _ = server.push(&self.pushes[nth - self.events.len()].1);
                true
            }
        }
    }

    /// Checks that every order ends with these events served and these held, and with the same refs.
    #[track_caller]
    fn expect_outcome(&self, served: &[&'static str], held: &[&'static str]) {
        let count = self.events.len() + self.pushes.len();
        assert!(count <= 6, "720 orders are enough");
        let expected = Outcome { served: served.iter().copied().collect(), held: held.iter().copied().collect() };
        let mut visible_refs: Option<BTreeMap<RepoPath, BTreeMap<String, String>>> = None;
        for order in permutations(count) {
            for restarts in [false, true] {
                let (outcome, refs) = self.run(&order, restarts);
                let names: Vec<&str> = order.iter().map(|nth| self.name(*nth)).collect();
                assert_eq!(outcome, expected, "(left: this order) restarts: {restarts}, order: {names:?}");
                let same = visible_refs.get_or_insert_with(|| refs.clone());
                assert_eq!(refs, *same, "(left: this order) restarts: {restarts}, order: {names:?}");
            }
        }
    }

    /// Runs one order. Returns the served and held events, and the refs of all repositories that have any.
    fn run(&self, order: &[usize], restarts: bool) -> (Outcome, BTreeMap<RepoPath, BTreeMap<String, String>>) {
        let mut server = TestServer::new(self.policy.clone());
        for (later, earlier) in [('b', 'a'), ('c', 'b')] {
            server.git().add_dependencies(&oid(later), &[&oid(earlier)]);
        }
        let git: BTreeSet<String> = self.git.chars().map(oid).collect();
        let mut resubmit: Vec<usize> = Vec::new();
        let offer = |server: &mut TestServer, nth: usize| {
            let before = (server.event_ids(), server.visible_refs());
            let is_repeated = self.offer(server, nth);
            server.add_objects_everywhere(&git);
            let changed = (server.event_ids(), server.visible_refs()) != before;
            if restarts && changed {
                server.restart();
            }
            (changed, is_repeated)
        };
        for nth in order {
            let (mut changed, is_repeated) = offer(&mut server, *nth);
            if restarts {
                server.restart();
            }
            if is_repeated {
                resubmit.push(*nth);
            }
            for round in 0.. {
                if !changed {
                    break;
                }
                assert!(round < 20, "no fixed point after 20 rounds");
                changed = false;
                resubmit.retain(|nth| {
                    let (this_changed, is_repeated) = offer(&mut server, *nth);
                    changed |= this_changed;
                    is_repeated
                });
            }
        }
        // HEAD depends on the order: a state without HEAD leaves it unchanged.
        let repo_paths = server.visible_refs().into_keys();
        let visible_refs = repo_paths.map(|repo_path| (repo_path.clone(), server.refs(&repo_path)));
        let visible_refs = visible_refs.filter(|(_, refs)| !refs.is_empty()).collect();
        (self.outcome(&mut server), visible_refs)
    }

    /// Returns the events that still have a reason to be served: announcements, states whose author maintains a
    /// hosted repository, requests, and all events linked to those.
    fn outcome(&self, server: &mut TestServer) -> Outcome {
        let name = |id: EventId| self.events.iter().find(|(_, event)| event.id == id).expect("event of the script").0;
        let is_maintained = |event: &SignedEvent| {
            let identifier = event.tag("d").and_then(Identifier::new).expect("valid identifier");
            !server.repos_maintained_by(&identifier, event.pubkey).is_empty()
        };
        let is_submission = |event: &SignedEvent| {
            let request = PullRequest::from_event(event).expect("valid pull request");
            !self.policy.submission_paths(event.pubkey, &request).is_empty()
        };
        let (served, held) = server.event_ids();
        let event =
            |id: &EventId| &self.events.iter().find(|(_, event)| event.id == *id).expect("event of the script").1;
        let mut rooted: BTreeSet<EventId> = served
            .iter()
            .filter(|id| match event(id).kind {
                kinds::STATE => is_maintained(event(id)),
                kind if kinds::is_pull_request(kind) => is_submission(event(id)),
                kind => matches!(kind, kinds::ANNOUNCEMENT | kinds::DELETION | kinds::VANISH | kinds::GRASP_LIST),
            })
            .copied()
            .collect();
        // States without a maintained repository are not links either, so only other kinds can follow.
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
        let held = held.iter().filter(|id| event(id).kind != kinds::STATE || is_maintained(event(id)));
        Outcome { served: rooted.into_iter().map(name).collect(), held: held.map(|id| name(*id)).collect() }
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Outcome {
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
