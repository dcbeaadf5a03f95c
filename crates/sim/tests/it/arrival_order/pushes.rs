//! Permutations of events and of the pushes that bring their objects.

use super::*;

#[test]
fn pushes_of_one_author() {
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("s1", main_state(&owner(), 101, 'a')),
        ("s2", main_state(&owner(), 102, 'b')),
    ];
    let pushes = vec![("push a", main_to(&owner(), 'a', "")), ("push b", main_to(&owner(), 'b', "a"))];
    PermutationScript::new("", events.clone()).with_pushes(pushes.clone()).expect_outcome(&["announcement", "s2"], &[]);
    PermutationScript::new("", events)
        .with_pushes(pushes[..1].to_vec())
        .expect_outcome(&["announcement", "s1"], &["s2"]);
}

#[test]
fn pushes_of_the_same_second() {
    let (low, high) =
        tied_versions(|word| owner().state("tool", 101, &[("refs/heads/main", &oid('a')), ("word", word)]));
    let (first, second) =
        tied_versions(|word| owner().announcement_with(&service(), "tool", 100, owned_tags(&[&["name", word]])));
    let events = vec![("first", first), ("second", second), ("low", low), ("high", high)];
    let script = PermutationScript::new("", events).with_pushes(vec![("push", main_to(&owner(), 'a', ""))]);
    script.expect_outcome(&["first", "low"], &[]);
}

/// Each maintainer pushes to its own repository; each state names objects of the other.
#[test]
fn pushes_of_two_maintainers() {
    let newer = maintainer().state("tool", 102, &[("refs/heads/main", &oid('b')), ("refs/heads/old", &oid('a'))]);
    let events = vec![
        ("o's", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m's", maintainer().announcement(&service(), "tool", 100, &[&owner()])),
        ("older", main_state(&owner(), 101, 'a')),
        ("newer", newer),
    ];
    let to_m = main_to(&maintainer(), 'b', "a").set("refs/heads/old", &oid('a'));
    let pushes = vec![("push to o's", main_to(&owner(), 'a', "")), ("push to m's", to_m)];
    PermutationScript::new("", events).with_pushes(pushes).expect_outcome(&["o's", "m's", "older", "newer"], &[]);
}

/// X names O as a maintainer, but not the reverse. A push to either repository reaches both, because O signed the state
/// (docs/protocol.md#after-a-push).
#[test]
fn push_reaches_the_followed_and_the_following_repository() {
    for to in [owner(), outsider()] {
        let events = vec![
            ("o's", owner().announcement(&service(), "tool", 100, &[])),
            ("x's", outsider().announcement(&service(), "tool", 100, &[&owner()])),
            ("state", main_state(&owner(), 101, 'b')),
        ];
        PermutationScript::new("", events)
            .with_pushes(vec![("push", main_to(&to, 'b', "a"))])
            .expect_outcome(&["o's", "x's", "state"], &[]);
    }
}

#[test]
fn pull_requests_and_their_pushes() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let push = ClientPush::new(tool(&owner())).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
    let mut events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("state", main_state(&owner(), 101, 'a')),
        ("pull", pull.clone()),
    ];
    let pushes = vec![("push", main_to(&owner(), 'a', "")), ("push of the pull", push)];
    let script = PermutationScript::new("", events.clone()).with_pushes(pushes.clone());
    script.expect_outcome(&["announcement", "state", "pull"], &[]);
    events.push(("deletion", outsider().delete(300, &[&pull])));
    PermutationScript::new("", events).with_pushes(pushes).expect_outcome(&["announcement", "state", "deletion"], &[]);
}

/// A pull request whose commit arrives with a merged branch is released (docs/protocol.md#after-a-push).
#[test]
fn pull_request_is_released_if_its_commit_arrives_with_a_branch() {
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("state", main_state(&owner(), 101, 'c')),
        ("pull", outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'))),
        ("one that is not merged", outsider().pull_request(201, &[&owner().repo("tool")], &oid('d'))),
    ];
    let script = PermutationScript::new("", events).with_pushes(vec![("push", main_to(&owner(), 'c', "ab"))]);
    script.expect_outcome(&["announcement", "state", "pull"], &["one that is not merged"]);
}

/// The pull request names O's repository and is pushed to M's, whose objects O's repository reads.
#[test]
fn pull_request_pushed_to_another_maintainer() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let events = vec![
        ("o's", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m's", maintainer().announcement(&service(), "tool", 100, &[&owner()])),
        ("state", main_state(&owner(), 101, 'a')),
        ("pull", pull.clone()),
    ];
    let pushes = vec![
        ("push", main_to(&owner(), 'a', "")),
        ("push of the pull", ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ];
    PermutationScript::new("", events).with_pushes(pushes).expect_outcome(&["o's", "m's", "state", "pull"], &[]);
}

/// A pull request to a repository that is not hosted is accepted if its `clone` names the signer's own `/prs/` path
/// here (docs/protocol.md#contributor-pull-requests).
#[test]
fn pull_request_submissions() {
    let repo_path = RepoPath::PullRequests(outsider().repo_id("tool"));
    let clone = format!("https://code.example/{}", repo_path.path());
    let tags = owned_tags(&[&["a", &nested_maintainer().repo("tool")], &["c", &oid('b')], &["clone", &clone]]);
    let pull = outsider().sign_owned(kinds::PULL_REQUEST, 200, tags, "");
    let push = ClientPush::new(repo_path).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
    let mut events = vec![("pull", pull.clone()), ("comment", owner().comment(201, &pull))];
    PermutationScript::new("", events.clone())
        .with_pushes(vec![("push", push.clone())])
        .expect_outcome(&["pull", "comment"], &[]);
    events.push(("deletion", outsider().delete(300, &[&pull])));
    let script = PermutationScript::new("", events).with_pushes(vec![("push", push)]);
    // The comment stays served, but has no link any more.
    script.expect_outcome(&["deletion"], &[]);
}

/// A push of a deleted state is rejected (docs/protocol.md#deletion-requests).
#[test]
fn deletion_of_a_state_and_pushes() {
    let newer = main_state(&owner(), 102, 'b');
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("older", main_state(&maintainer(), 101, 'a')),
        ("newer", newer.clone()),
        ("deletion", owner().delete(300, &[&newer])),
        ("newest without data", main_state(&owner(), 400, 'e')),
    ];
    let script = PermutationScript::new("a", events).with_pushes(vec![("push", main_to(&owner(), 'b', ""))]);
    script.expect_outcome(&["announcement", "older", "deletion"], &["newest without data"]);
}

/// A push to a withdrawn repository is rejected until it is announced here again
/// (docs/protocol.md#de-listing-and-withdrawal).
#[test]
fn withdrawal_and_pushes() {
    let events = vec![
        ("a1", owner().announcement(&service(), "tool", 100, &[])),
        ("elsewhere", owner().announcement_elsewhere("tool", 102, &[])),
        ("state", main_state(&owner(), 103, 'a')),
    ];
    let push = vec![("push", main_to(&owner(), 'a', ""))];
    PermutationScript::new("", events.clone()).with_pushes(push.clone()).expect_outcome(&[], &[]);
    let mut again = events;
    again.push(("a2", owner().announcement(&service(), "tool", 104, &[])));
    again.push(("newer", main_state(&owner(), 105, 'b')));
    let script = PermutationScript::new("", again).with_pushes(vec![("push", main_to(&owner(), 'b', "a"))]);
    script.expect_outcome(&["a2", "newer"], &[]);
}

/// A maintainer that is known only by the maintainer exception may sign the state of a push
/// (docs/protocol.md#maintainer-exception).
#[test]
fn maintainer_exceptions_and_pushes() {
    let events = vec![
        ("host", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 101, &[&nested_maintainer()])),
        ("r state", main_state(&nested_maintainer(), 103, 'a')),
        ("x's", outsider().announcement(&service(), "tool", 102, &[&maintainer()])),
    ];
    let script = PermutationScript::new("", events).with_pushes(vec![("push", main_to(&owner(), 'a', ""))]);
    script.expect_outcome(&["host", "m elsewhere", "r state", "x's"], &[]);
}
