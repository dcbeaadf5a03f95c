//! What is served in the end does not depend on the order in which events arrived.
//!
//! Each script is a handful of events and pushes, and the objects that git has. Every permutation is played: after each
//! arrival git tells what it has found, and what was refused is offered again until nothing changes, as sync's refused
//! index does, and as people do with their pushes. Then the end is compared across permutations, also with a restart after
//! every step.
//!
//! Events that lose their last link stay until a background sweep judges them (F8). The sweep is not written yet, so
//! the comparison looks at what it would leave: see [`Ending`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::{Signed, Verdict, kinds};
use grasp_core::registrar::policy::Rules;
use grasp_core::repo::pr::PullRequest;
use grasp_core::repo::{Identifier, Site};
use grasp_sim::author::{Author, owned, pair};
use grasp_sim::cast::{m, main_at, o, oid, r, x};
use grasp_sim::house::{House, View, Wish, rules, service};

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
    rules: Rules,
    /// With names, for the report.
    events: Vec<(&'static str, Arc<Signed>)>,
    pushes: Vec<(&'static str, Wish)>,
    /// Digits of the objects that git has from the beginning.
    git: &'static str,
    again: Again,
}

impl Script {
    fn new(git: &'static str, events: Vec<(&'static str, Arc<Signed>)>) -> Self {
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
                self.again == Again::Absent || matches!(verdict, Verdict::Refuse(_))
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
        let mut views: Option<BTreeMap<Site, View>> = None;
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
    fn play(&self, order: &[usize], restarts: bool) -> (Ending, BTreeMap<Site, View>) {
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
        let speaks = |event: &Signed| {
            let identifier = event.tag("d").and_then(Identifier::new).expect("a repository");
            !house.repos_of(&identifier, event.pubkey).is_empty()
        };
        let is_submission = |event: &Signed| {
            let request = PullRequest::read(event).expect("a pull request");
            !self.rules.submissions_of(event.pubkey, &request).is_empty()
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

fn links(from: &Signed, to: &Signed) -> bool {
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

#[test]
fn first_publication() {
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let issue = x().issue(200, &o().repo("tool"));
    let note = r().note(90, &[], "named by the comment");
    let comment = r().sign(1111, 201, &[&["E", &issue.id.to_string()], &["q", &note.id.to_string()]], "");
    let pull = x().pull_request(202, &[&o().repo("tool")], &oid('b'));
    let events = vec![
        ("announcement", announcement),
        ("state", main_at(&o(), 101, 'a')),
        ("issue", issue),
        ("note", note),
        ("comment", comment),
        ("pull", pull),
    ];
    Script::new("ab", events.clone()).ends(&["announcement", "state", "issue", "note", "comment", "pull"], &[]);
    Script::new("b", events[..4].to_vec()).ends(&[], &["announcement", "state"]);
}

#[test]
fn states_replace_each_other() {
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[&m()])),
        ("s1", main_at(&o(), 101, 'a')),
        ("s2", main_at(&o(), 102, 'b')),
        ("s3, whose data never comes", main_at(&o(), 103, 'c')),
        ("m1", main_at(&m(), 101, 'b')),
    ];
    Script::new("ab", events.clone()).ends(&["announcement", "s2", "m1"], &["s3, whose data never comes"]);
    Script::new("a", events).ends(&["announcement", "s1"], &["s2", "s3, whose data never comes", "m1"]);
}

#[test]
fn section_15_6_ties() {
    let (state_low, state_high) =
        pair(|word| o().state("tool", 101, &[("refs/heads/main", &oid('a')), ("word", word)]));
    let (low, high) = pair(|word| o().listed_with(&service(), "tool", 100, owned(&[&["name", word]])));
    let (list_low, list_high) = pair(|word| o().sign(kinds::GRASP_LIST, 100, &[&["g", word]], ""));
    let events = vec![
        ("low", low),
        ("high", high),
        ("state low", state_low),
        ("state high", state_high),
        ("list low", list_low),
        ("list high", list_high),
    ];
    Script::new("a", events.clone()).ends(&["low", "state low", "list low"], &[]);
    // Without data both states wait side by side, but one announcement only.
    Script::new("", events[..4].to_vec()).ends(&[], &["low", "state low", "state high"]);
}

#[test]
fn announcements_replace_each_other() {
    let events = vec![
        ("a1", o().listed(&service(), "tool", 100, &[&m()])),
        ("a2", o().listed(&service(), "tool", 101, &[])),
        ("a3", o().listed(&service(), "tool", 102, &[&r()])),
        ("m state", main_at(&m(), 150, 'b')),
        ("r state", main_at(&r(), 151, 'a')),
    ];
    Script::new("a", events.clone()).ends(&["a3", "r state"], &[]);
    Script::new("ab", events.clone()).ends(&["a3", "r state"], &[]);
    Script::new("", events).ends(&[], &["a3", "r state"]);
}

#[test]
fn d_05_deletion_by_coordinate() {
    let at = o().coordinate(kinds::STATE, "tool");
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[])),
        ("s1", main_at(&o(), 101, 'a')),
        ("s2", main_at(&o(), 102, 'b')),
        ("deletion", o().deletion(102, &[&["a", &at]])),
        ("s3", main_at(&o(), 103, 'c')),
    ];
    Script::new("abc", events.clone()).ends(&["announcement", "s3", "deletion"], &[]);
    Script::new("", events).ends(&["deletion"], &["announcement", "s3"]);
    // Without a later state the announcement has nothing to be served by: it depends on whether data had come before
    // the deletion did, which is history and not order. So the announcement is deleted in this one.
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[&m()])),
        ("exception", m().unlisted("tool", 101, &[])),
        ("state", main_at(&o(), 101, 'a')),
        ("deletion", o().deletion(102, &[&["a", &o().repo("tool")], &["a", &at]])),
        ("issue", x().issue(200, &o().repo("tool"))),
    ];
    Script::new("a", events).ends(&["deletion"], &[]);
}

#[test]
fn d_05_deletion_by_id() {
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    let issue = x().issue(200, &o().repo("tool"));
    let pull = x().pull_request(201, &[&o().repo("tool")], &oid('b'));
    let deletion = x().delete(202, &[&issue, &pull]);
    let events = vec![
        ("announcement", announcement),
        ("state", main_at(&o(), 101, 'a')),
        ("issue", issue.clone()),
        ("pull", pull),
        ("deletion", deletion.clone()),
        ("deletion of the deletion", x().delete(203, &[&deletion])),
    ];
    Script::new("ab", events).ends(&["announcement", "state", "deletion", "deletion of the deletion"], &[]);
}

/// Deleting one version by id does not delete the others. Whether an older one is still here depends on what was kept,
/// so this converges only with relays that still have it.
#[test]
fn d_01_deletion_of_one_version() {
    let s2 = main_at(&o(), 102, 'b');
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[])),
        ("s1", main_at(&o(), 101, 'a')),
        ("s2", s2.clone()),
        ("deletion", o().delete(200, &[&s2])),
    ];
    let script = Script { again: Again::Absent, ..Script::new("ab", events) };
    script.ends(&["announcement", "s1", "deletion"], &[]);
}

#[test]
fn d_03_a_foreign_target_does_nothing_in_every_order() {
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    let (own, foreign) = (m().issue(200, &o().repo("tool")), x().issue(201, &o().repo("tool")));
    let both = m().delete(202, &[&own, &foreign]);
    let events = vec![
        ("announcement", announcement),
        ("state", main_at(&o(), 101, 'a')),
        ("m state", main_at(&m(), 101, 'a')),
        ("own", own),
        ("foreign", foreign),
        ("deletion", both),
    ];
    Script::new("a", events).ends(&["announcement", "state", "m state", "foreign", "deletion"], &[]);
}

#[test]
fn d_07_vanishing() {
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[&m()])),
        ("state", main_at(&o(), 101, 'a')),
        ("exception", m().unlisted("tool", 102, &[&r()])),
        ("m state", main_at(&m(), 103, 'a')),
        ("vanish", m().vanish(150, &["ALL_RELAYS"])),
        ("m later", main_at(&m(), 151, 'a')),
    ];
    Script::new("a", events).ends(&["announcement", "state", "vanish", "m later"], &[]);
}

#[test]
fn g1_14_withdrawal() {
    let events = vec![
        ("a1", o().listed(&service(), "tool", 100, &[])),
        ("a2", o().listed(&service(), "tool", 101, &[])),
        ("elsewhere", o().unlisted("tool", 102, &[])),
        ("state", main_at(&o(), 103, 'a')),
    ];
    for git in ["", "a"] {
        Script::new(git, events.clone()).ends(&[], &[]);
    }
}

#[test]
fn g1_14_withdrawal_and_return() {
    let mut events = vec![
        ("a1", o().listed(&service(), "tool", 100, &[])),
        ("elsewhere", o().unlisted("tool", 101, &[])),
        ("a2", o().listed(&service(), "tool", 102, &[])),
    ];
    Script::new("", events.clone()).ends(&[], &["a2"]);
    events.push(("state", main_at(&o(), 103, 'b')));
    Script::new("", events).ends(&[], &["a2", "state"]);
}

#[test]
fn g1_14_withdrawal_and_return_with_data() {
    let events = vec![
        ("a1", o().listed(&service(), "tool", 100, &[])),
        ("elsewhere", o().unlisted("tool", 101, &[])),
        ("a2", o().listed(&service(), "tool", 102, &[])),
        ("state", main_at(&o(), 103, 'a')),
    ];
    Script::new("a", events).ends(&["a2", "state"], &[]);
}

#[test]
fn g1_15_two_repositories_of_one_state() {
    let events = vec![
        ("o's", o().listed(&service(), "tool", 100, &[&m()])),
        ("m's", m().listed(&service(), "tool", 101, &[])),
        ("state", main_at(&m(), 102, 'a')),
    ];
    Script::new("a", events).ends(&["o's", "m's", "state"], &[]);
}

#[test]
fn g1_08_exceptions() {
    let events = vec![
        ("anchor", o().listed(&service(), "tool", 100, &[&m()])),
        ("m elsewhere", m().unlisted("tool", 101, &[&r()])),
        ("r elsewhere", r().unlisted("tool", 102, &[])),
        ("r before", r().unlisted("tool", 90, &[&x()])),
        ("r state", main_at(&r(), 103, 'a')),
    ];
    Script::new("", events.clone()).ends(&["m elsewhere", "r elsewhere"], &["anchor", "r state"]);
    Script::new("a", events).ends(&["anchor", "m elsewhere", "r elsewhere", "r state"], &[]);
}

#[test]
fn f7_exceptions_go_with_their_anchor() {
    let events = vec![
        ("anchor", o().listed(&service(), "tool", 100, &[&m()])),
        ("m elsewhere", m().unlisted("tool", 101, &[&r()])),
        ("r elsewhere", r().unlisted("tool", 102, &[])),
        ("anchor without m", o().listed(&service(), "tool", 103, &[])),
    ];
    Script::new("", events.clone()).ends(&[], &["anchor without m"]);
    let mut withdrawn = events.clone();
    withdrawn[3] = ("anchor elsewhere", o().unlisted("tool", 103, &[&m()]));
    Script::new("", withdrawn).ends(&[], &[]);
    let mut deleted = events;
    deleted[3] = ("deletion", o().deletion(103, &[&["a", &o().repo("tool")]]));
    Script::new("", deleted).ends(&["deletion"], &[]);
}

/// An exception that went with its anchor and could come back with a new one was not refused, so that only a relay that
/// still has it brings it back.
#[test]
fn f7_exceptions_come_back() {
    let events = vec![
        ("with m", o().listed(&service(), "tool", 100, &[&m()])),
        ("without m", o().listed(&service(), "tool", 101, &[])),
        ("with m again", o().listed(&service(), "tool", 102, &[&m()])),
        ("m elsewhere", m().unlisted("tool", 90, &[])),
        ("state", main_at(&o(), 103, 'a')),
    ];
    let script = Script { again: Again::Absent, ..Script::new("a", events) };
    script.ends(&["with m again", "m elsewhere", "state"], &[]);
}

/// R was anchored by M's repository here before O's announcement came, and went with it: see above.
#[test]
fn g1_10_delisting_keeps_the_chain() {
    let events = vec![
        ("anchor", o().listed(&service(), "tool", 100, &[&m()])),
        ("m here", m().listed(&service(), "tool", 101, &[&r()])),
        ("r elsewhere", r().unlisted("tool", 102, &[])),
        ("m elsewhere", m().unlisted("tool", 103, &[&r()])),
    ];
    let script = Script { again: Again::Absent, ..Script::new("", events) };
    script.ends(&["m elsewhere", "r elsewhere"], &["anchor"]);
}

#[test]
fn f5_f7_a_withdrawal_outlives_its_exception() {
    let events = vec![
        ("anchor", o().listed(&service(), "tool", 100, &[&m()])),
        ("m here", m().listed(&service(), "tool", 101, &[])),
        ("m elsewhere", m().unlisted("tool", 102, &[])),
        ("anchor without m", o().listed(&service(), "tool", 103, &[])),
    ];
    Script::new("", events).ends(&[], &["anchor without m"]);
}

#[test]
fn g1_29_reciprocal_maintainers() {
    let events = vec![
        ("o's", o().listed(&service(), "tool", 100, &[&m()])),
        ("m's", m().listed(&service(), "tool", 101, &[&o()])),
        ("state", main_at(&m(), 102, 'b')),
        ("r state", main_at(&r(), 103, 'a')),
    ];
    let strict = Rules { strict_maintainers: true, ..rules() };
    Script { rules: strict, ..Script::new("a", events) }.ends(&[], &["o's", "m's", "state"]);
}

fn tool(owner: &Author) -> Site {
    Site::Announced(owner.repo_id("tool"))
}

/// A push of `main`; `brings` are the digits of what else comes.
fn main_to(owner: &Author, digit: char, brings: &str) -> Wish {
    let brings: Vec<String> = brings.chars().map(oid).collect();
    let brings: Vec<&str> = brings.iter().map(String::as_str).collect();
    Wish::new(tool(owner)).set("refs/heads/main", &oid(digit)).bring(&brings)
}

#[test]
fn pushes_of_one_author() {
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[])),
        ("s1", main_at(&o(), 101, 'a')),
        ("s2", main_at(&o(), 102, 'b')),
    ];
    let pushes = vec![("push a", main_to(&o(), 'a', "")), ("push b", main_to(&o(), 'b', "a"))];
    Script::new("", events.clone()).with(pushes.clone()).ends(&["announcement", "s2"], &[]);
    Script::new("", events).with(pushes[..1].to_vec()).ends(&["announcement", "s1"], &["s2"]);
}

#[test]
fn pushes_of_the_same_second() {
    let (low, high) = pair(|word| o().state("tool", 101, &[("refs/heads/main", &oid('a')), ("word", word)]));
    let (first, second) = pair(|word| o().listed_with(&service(), "tool", 100, owned(&[&["name", word]])));
    let events = vec![("first", first), ("second", second), ("low", low), ("high", high)];
    let script = Script::new("", events).with(vec![("push", main_to(&o(), 'a', ""))]);
    script.ends(&["first", "low"], &[]);
}

/// Each maintainer has a repository and pushes to its own; each names what the other's state needs.
#[test]
fn pushes_of_two_maintainers() {
    let newer = m().state("tool", 102, &[("refs/heads/main", &oid('b')), ("refs/heads/old", &oid('a'))]);
    let events = vec![
        ("o's", o().listed(&service(), "tool", 100, &[&m()])),
        ("m's", m().listed(&service(), "tool", 100, &[&o()])),
        ("older", main_at(&o(), 101, 'a')),
        ("newer", newer),
    ];
    let to_m = main_to(&m(), 'b', "a").set("refs/heads/old", &oid('a'));
    let pushes = vec![("push to o's", main_to(&o(), 'a', "")), ("push to m's", to_m)];
    Script::new("", events).with(pushes).ends(&["o's", "m's", "older", "newer"], &[]);
}

/// X names O; nobody names X. What is pushed to either is at both, because O signed it.
#[test]
fn g1_61_a_follower_and_the_one_it_follows() {
    for to in [o(), x()] {
        let events = vec![
            ("o's", o().listed(&service(), "tool", 100, &[])),
            ("x's", x().listed(&service(), "tool", 100, &[&o()])),
            ("state", main_at(&o(), 101, 'b')),
        ];
        Script::new("", events).with(vec![("push", main_to(&to, 'b', "a"))]).ends(&["o's", "x's", "state"], &[]);
    }
}

#[test]
fn pull_requests_and_their_pushes() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let push = Wish::new(tool(&o())).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
    let mut events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[])),
        ("state", main_at(&o(), 101, 'a')),
        ("pull", pull.clone()),
    ];
    let pushes = vec![("push", main_to(&o(), 'a', "")), ("push of the pull", push)];
    let script = Script::new("", events.clone()).with(pushes.clone());
    script.ends(&["announcement", "state", "pull"], &[]);
    events.push(("deletion", x().delete(300, &[&pull])));
    Script::new("", events).with(pushes).ends(&["announcement", "state", "deletion"], &[]);
}

/// A maintainer merges: the commit of a pull request comes with the branch.
#[test]
fn section_2_13_a_pull_request_whose_commit_comes_otherwise() {
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[])),
        ("state", main_at(&o(), 101, 'c')),
        ("pull", x().pull_request(200, &[&o().repo("tool")], &oid('b'))),
        ("one that is not merged", x().pull_request(201, &[&o().repo("tool")], &oid('d'))),
    ];
    let script = Script::new("", events).with(vec![("push", main_to(&o(), 'c', "ab"))]);
    script.ends(&["announcement", "state", "pull"], &["one that is not merged"]);
}

/// It names O's repository and is pushed to M's, whose objects O's reads.
#[test]
fn a_pull_request_pushed_to_another_maintainer() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let events = vec![
        ("o's", o().listed(&service(), "tool", 100, &[&m()])),
        ("m's", m().listed(&service(), "tool", 100, &[&o()])),
        ("state", main_at(&o(), 101, 'a')),
        ("pull", pull.clone()),
    ];
    let pushes = vec![
        ("push", main_to(&o(), 'a', "")),
        ("push of the pull", Wish::new(tool(&m())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ];
    Script::new("", events).with(pushes).ends(&["o's", "m's", "state", "pull"], &[]);
}

/// At `/prs/` nothing has to be there before.
#[test]
fn g6_04_submissions() {
    let site = Site::Submitted(x().repo_id("tool"));
    let clone = format!("https://code.example/{}", site.path());
    let tags = owned(&[&["a", &r().repo("tool")], &["c", &oid('b')], &["clone", &clone]]);
    let pull = x().sign_owned(kinds::PULL_REQUEST, 200, tags, "");
    let push = Wish::new(site).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
    let mut events = vec![("pull", pull.clone()), ("comment", o().comment(201, &pull))];
    Script::new("", events.clone()).with(vec![("push", push.clone())]).ends(&["pull", "comment"], &[]);
    events.push(("deletion", x().delete(300, &[&pull])));
    let script = Script::new("", events).with(vec![("push", push)]);
    // The comment stays until it is swept.
    script.ends(&["deletion"], &[]);
}

#[test]
fn d_05_deletion_of_a_state_and_pushes() {
    let newer = main_at(&o(), 102, 'b');
    let events = vec![
        ("announcement", o().listed(&service(), "tool", 100, &[&m()])),
        ("older", main_at(&m(), 101, 'a')),
        ("newer", newer.clone()),
        ("deletion", o().delete(300, &[&newer])),
        ("newest, whose data never comes", main_at(&o(), 400, 'e')),
    ];
    let script = Script::new("a", events).with(vec![("push", main_to(&o(), 'b', ""))]);
    script.ends(&["announcement", "older", "deletion"], &["newest, whose data never comes"]);
}

#[test]
fn g1_14_withdrawal_and_pushes() {
    let events = vec![
        ("a1", o().listed(&service(), "tool", 100, &[])),
        ("elsewhere", o().unlisted("tool", 102, &[])),
        ("state", main_at(&o(), 103, 'a')),
    ];
    let push = vec![("push", main_to(&o(), 'a', ""))];
    Script::new("", events.clone()).with(push.clone()).ends(&[], &[]);
    let mut again = events;
    again.push(("a2", o().listed(&service(), "tool", 104, &[])));
    again.push(("newer", main_at(&o(), 105, 'b')));
    let script = Script::new("", again).with(vec![("push", main_to(&o(), 'b', "a"))]);
    script.ends(&["a2", "newer"], &[]);
}

#[test]
fn g1_08_exceptions_and_pushes() {
    let events = vec![
        ("anchor", o().listed(&service(), "tool", 100, &[&m()])),
        ("m elsewhere", m().unlisted("tool", 101, &[&r()])),
        ("r state", main_at(&r(), 103, 'a')),
        ("x's", x().listed(&service(), "tool", 102, &[&m()])),
    ];
    let script = Script::new("", events).with(vec![("push", main_to(&o(), 'a', ""))]);
    script.ends(&["anchor", "m elsewhere", "r state", "x's"], &[]);
}
