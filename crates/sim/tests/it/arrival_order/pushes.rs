//! Events and the pushes that bring their objects.

use super::*;

fn tool(owner: &Author) -> RepoPath {
    RepoPath::Announced(owner.repo_id("tool"))
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
    let repo_path = RepoPath::PullRequests(x().repo_id("tool"));
    let clone = format!("https://code.example/{}", repo_path.path());
    let tags = owned(&[&["a", &r().repo("tool")], &["c", &oid('b')], &["clone", &clone]]);
    let pull = x().sign_owned(kinds::PULL_REQUEST, 200, tags, "");
    let push = Wish::new(repo_path).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
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
