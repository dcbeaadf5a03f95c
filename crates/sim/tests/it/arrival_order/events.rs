//! Permutations of events; git has the objects from the start.

use super::*;

#[test]
fn first_publication() {
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let issue = outsider().issue(200, &owner().repo("tool"));
    let note = nested_maintainer().note(90, &[], "named by the comment");
    let comment =
        nested_maintainer().sign(1111, 201, &[&["E", &issue.id.to_string()], &["q", &note.id.to_string()]], "");
    let pull = outsider().pull_request(202, &[&owner().repo("tool")], &oid('b'));
    let events = vec![
        ("announcement", announcement),
        ("state", main_state(&owner(), 101, 'a')),
        ("issue", issue),
        ("note", note),
        ("comment", comment),
        ("pull", pull),
    ];
    PermutationScript::new("ab", events.clone())
        .expect_outcome(&["announcement", "state", "issue", "note", "comment", "pull"], &[]);
    PermutationScript::new("b", events[..4].to_vec()).expect_outcome(&[], &["announcement", "state"]);
}

#[test]
fn states_replace_each_other() {
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("s1", main_state(&owner(), 101, 'a')),
        ("s2", main_state(&owner(), 102, 'b')),
        ("s3 without data", main_state(&owner(), 103, 'c')),
        ("m1", main_state(&maintainer(), 101, 'b')),
    ];
    PermutationScript::new("ab", events.clone()).expect_outcome(&["announcement", "s2", "m1"], &["s3 without data"]);
    PermutationScript::new("a", events).expect_outcome(&["announcement", "s1"], &["s2", "s3 without data", "m1"]);
}

/// Of two versions of the same second the one with the lower id wins (docs/protocol.md#replacement-and-ties).
#[test]
fn ties_are_won_by_the_lower_id() {
    let (state_low, state_high) =
        tied_versions(|word| owner().state("tool", 101, &[("refs/heads/main", &oid('a')), ("word", word)]));
    let (low, high) =
        tied_versions(|word| owner().announcement_with(&service(), "tool", 100, owned_tags(&[&["name", word]])));
    let (list_low, list_high) = tied_versions(|word| owner().sign(kinds::GRASP_LIST, 100, &[&["g", word]], ""));
    let events = vec![
        ("low", low),
        ("high", high),
        ("state low", state_low),
        ("state high", state_high),
        ("list low", list_low),
        ("list high", list_high),
    ];
    PermutationScript::new("a", events.clone()).expect_outcome(&["low", "state low", "list low"], &[]);
    // Without data both states are held side by side, but only one announcement.
    PermutationScript::new("", events[..4].to_vec()).expect_outcome(&[], &["low", "state low", "state high"]);
}

/// An announcement that does not name this service is served if a served announcement leads to its author, whenever it
/// arrives (docs/protocol.md#maintainer-exception).
#[test]
fn maintainer_exceptions_are_served_with_the_repository() {
    let exception = maintainer().announcement_elsewhere("tool", 101, &[&nested_maintainer()]);
    let note = outsider().note(200, &[&["e", &exception.id.to_string()]], "");
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("state", main_state(&nested_maintainer(), 103, 'a')),
        ("exception", exception),
        ("nested exception", nested_maintainer().announcement_elsewhere("tool", 102, &[])),
        ("note", note),
    ];
    PermutationScript::new("a", events.clone())
        .expect_outcome(&["announcement", "state", "exception", "nested exception", "note"], &[]);
    PermutationScript::new("", events).expect_outcome(&[], &["announcement", "state", "exception", "nested exception"]);
    // M's newer announcement ends the hosting of M's own repository, held or served.
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("state", main_state(&owner(), 101, 'a')),
        ("own", maintainer().announcement(&service(), "tool", 100, &[])),
        ("exception", maintainer().announcement_elsewhere("tool", 101, &[])),
        ("newer exception", maintainer().announcement_elsewhere("tool", 102, &[])),
    ];
    PermutationScript::new("a", events.clone()).expect_outcome(&["announcement", "state", "newer exception"], &[]);
    PermutationScript::new("", events).expect_outcome(&[], &["announcement", "state", "newer exception"]);
}

#[test]
fn announcements_replace_each_other() {
    let events = vec![
        ("a1", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("a2", owner().announcement(&service(), "tool", 101, &[])),
        ("a3", owner().announcement(&service(), "tool", 102, &[&nested_maintainer()])),
        ("m state", main_state(&maintainer(), 150, 'b')),
        ("r state", main_state(&nested_maintainer(), 151, 'a')),
    ];
    PermutationScript::new("a", events.clone()).expect_outcome(&["a3", "r state"], &[]);
    PermutationScript::new("ab", events.clone()).expect_outcome(&["a3", "r state"], &[]);
    PermutationScript::new("", events).expect_outcome(&[], &["a3", "r state"]);
}

/// A deletion by coordinate removes versions up to its time, also those that arrive later
/// (docs/protocol.md#deletion-requests).
#[test]
fn deletion_by_coordinate() {
    let at = owner().coordinate(kinds::STATE, "tool");
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("s1", main_state(&owner(), 101, 'a')),
        ("s2", main_state(&owner(), 102, 'b')),
        ("deletion", owner().deletion(102, &[&["a", &at]])),
        ("s3", main_state(&owner(), 103, 'c')),
    ];
    PermutationScript::new("abc", events.clone()).expect_outcome(&["announcement", "s3", "deletion"], &[]);
    PermutationScript::new("", events).expect_outcome(&["deletion"], &["announcement", "s3"]);
    // Without a later state, whether the announcement is served depends on whether data had arrived before the
    // deletion, which is history and not arrival order. So the announcement is deleted in this script.
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("exception", maintainer().announcement_elsewhere("tool", 101, &[])),
        ("state", main_state(&owner(), 101, 'a')),
        ("deletion", owner().deletion(102, &[&["a", &owner().repo("tool")], &["a", &at]])),
        ("issue", outsider().issue(200, &owner().repo("tool"))),
    ];
    PermutationScript::new("a", events).expect_outcome(&["deletion"], &[]);
}

/// A deletion by id removes its targets, also those that arrive later (docs/protocol.md#deletion-requests).
#[test]
fn deletion_by_id() {
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    let issue = outsider().issue(200, &owner().repo("tool"));
    let pull = outsider().pull_request(201, &[&owner().repo("tool")], &oid('b'));
    let deletion = outsider().delete(202, &[&issue, &pull]);
    let events = vec![
        ("announcement", announcement),
        ("state", main_state(&owner(), 101, 'a')),
        ("issue", issue.clone()),
        ("pull", pull),
        ("deletion", deletion.clone()),
        ("deletion of the deletion", outsider().delete(203, &[&deletion])),
    ];
    PermutationScript::new("ab", events)
        .expect_outcome(&["announcement", "state", "deletion", "deletion of the deletion"], &[]);
}

/// Requests of authors that have nothing here yet: they are served when the author has something, also if that is
/// something else (docs/protocol.md#requests-before-their-targets).
#[test]
fn requests_of_unknown_authors() {
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("state", main_state(&owner(), 101, 'a')),
        ("x issue", outsider().issue(200, &owner().repo("tool"))),
        ("x deletion", outsider().deletion(201, &[&["e", &"ab".repeat(32)]])),
        ("r issue", nested_maintainer().issue(140, &owner().repo("tool"))),
        ("r vanish", nested_maintainer().vanish(150, &["ALL_RELAYS"])),
    ];
    PermutationScript::new("a", events.clone())
        .expect_outcome(&["announcement", "state", "x issue", "x deletion", "r vanish"], &[]);
    let mut listed = events[..1].to_vec();
    listed.push(("m deletion", maintainer().deletion(201, &[&["e", &"ab".repeat(32)]])));
    listed.push(("with m", owner().announcement(&service(), "tool", 102, &[&maintainer()])));
    PermutationScript::new("", listed).expect_outcome(&["m deletion"], &["with m"]);
}

/// Deleting one version by id does not delete the others. Whether an older one is still stored depends on what was
/// kept, so this converges only with relays that still have it.
#[test]
fn deletion_of_one_version() {
    let s2 = main_state(&owner(), 102, 'b');
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[])),
        ("s1", main_state(&owner(), 101, 'a')),
        ("s2", s2.clone()),
        ("deletion", owner().delete(200, &[&s2])),
    ];
    let script = PermutationScript { resubmit: Resubmit::Absent, ..PermutationScript::new("ab", events) };
    script.expect_outcome(&["announcement", "s1", "deletion"], &[]);
}

/// Deletion targets by other authors are ignored (docs/protocol.md#deletion-requests).
#[test]
fn foreign_deletion_target_is_ignored() {
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    let (own, foreign) = (maintainer().issue(200, &owner().repo("tool")), outsider().issue(201, &owner().repo("tool")));
    let both = maintainer().delete(202, &[&own, &foreign]);
    let events = vec![
        ("announcement", announcement),
        ("state", main_state(&owner(), 101, 'a')),
        ("m state", main_state(&maintainer(), 101, 'a')),
        ("own", own),
        ("foreign", foreign),
        ("deletion", both),
    ];
    PermutationScript::new("a", events)
        .expect_outcome(&["announcement", "state", "m state", "foreign", "deletion"], &[]);
}

/// A request to vanish removes everything by its author up to its time, and keeps it out
/// (docs/protocol.md#requests-to-vanish).
#[test]
fn vanish_request() {
    let events = vec![
        ("announcement", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("state", main_state(&owner(), 101, 'a')),
        ("exception", maintainer().announcement_elsewhere("tool", 102, &[&nested_maintainer()])),
        ("m state", main_state(&maintainer(), 103, 'a')),
        ("vanish", maintainer().vanish(150, &["ALL_RELAYS"])),
        ("m later", main_state(&maintainer(), 151, 'a')),
    ];
    PermutationScript::new("a", events).expect_outcome(&["announcement", "state", "vanish", "m later"], &[]);
}

/// A newer announcement that does not name this service evicts the held one
/// (docs/protocol.md#de-listing-and-withdrawal).
#[test]
fn withdrawal() {
    let events = vec![
        ("a1", owner().announcement(&service(), "tool", 100, &[])),
        ("a2", owner().announcement(&service(), "tool", 101, &[])),
        ("elsewhere", owner().announcement_elsewhere("tool", 102, &[])),
        ("state", main_state(&owner(), 103, 'a')),
    ];
    for git in ["", "a"] {
        PermutationScript::new(git, events.clone()).expect_outcome(&[], &[]);
    }
}

/// A repository that was withdrawn can be announced here again.
#[test]
fn withdrawal_and_return() {
    let mut events = vec![
        ("a1", owner().announcement(&service(), "tool", 100, &[])),
        ("elsewhere", owner().announcement_elsewhere("tool", 101, &[])),
        ("a2", owner().announcement(&service(), "tool", 102, &[])),
    ];
    PermutationScript::new("", events.clone()).expect_outcome(&[], &["a2"]);
    events.push(("state", main_state(&owner(), 103, 'b')));
    PermutationScript::new("", events).expect_outcome(&[], &["a2", "state"]);
}

/// A repository that was withdrawn can be announced here again and is served if its git data is present.
#[test]
fn withdrawal_and_return_with_data() {
    let events = vec![
        ("a1", owner().announcement(&service(), "tool", 100, &[])),
        ("elsewhere", owner().announcement_elsewhere("tool", 101, &[])),
        ("a2", owner().announcement(&service(), "tool", 102, &[])),
        ("state", main_state(&owner(), 103, 'a')),
    ];
    PermutationScript::new("a", events).expect_outcome(&["a2", "state"], &[]);
}

/// A state releases the announcements of all repositories that it is authoritative for (docs/protocol.md#release).
#[test]
fn one_state_releases_two_repositories() {
    let events = vec![
        ("o's", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m's", maintainer().announcement(&service(), "tool", 101, &[])),
        ("state", main_state(&maintainer(), 102, 'a')),
    ];
    PermutationScript::new("a", events).expect_outcome(&["o's", "m's", "state"], &[]);
}

/// The maintainer exception applies recursively (docs/protocol.md#maintainer-exception).
#[test]
fn maintainer_exceptions() {
    let events = vec![
        ("host", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 101, &[&nested_maintainer()])),
        ("r elsewhere", nested_maintainer().announcement_elsewhere("tool", 102, &[])),
        ("r before", nested_maintainer().announcement_elsewhere("tool", 90, &[&outsider()])),
        ("r state", main_state(&nested_maintainer(), 103, 'a')),
    ];
    PermutationScript::new("", events.clone()).expect_outcome(&[], &["host", "m elsewhere", "r elsewhere", "r state"]);
    PermutationScript::new("a", events).expect_outcome(&["host", "m elsewhere", "r elsewhere", "r state"], &[]);
}

/// Announcements accepted by the maintainer exception are removed with the announcement that names their authors
/// (docs/design/admission.md#maintainer-exception-announcements).
#[test]
fn maintainer_exceptions_end_with_their_host() {
    let events = vec![
        ("host", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 101, &[&nested_maintainer()])),
        ("r elsewhere", nested_maintainer().announcement_elsewhere("tool", 102, &[])),
        ("host without m", owner().announcement(&service(), "tool", 103, &[])),
    ];
    PermutationScript::new("", events.clone()).expect_outcome(&[], &["host without m"]);
    let mut withdrawn = events.clone();
    withdrawn[3] = ("host elsewhere", owner().announcement_elsewhere("tool", 103, &[&maintainer()]));
    PermutationScript::new("", withdrawn).expect_outcome(&[], &[]);
    let mut deleted = events;
    deleted[3] = ("deletion", owner().deletion(103, &[&["a", &owner().repo("tool")]]));
    PermutationScript::new("", deleted).expect_outcome(&["deletion"], &[]);
}

/// An exception that was removed with its host, and could return with a new host, was not rejected. Only a relay that
/// still has it submits it again.
#[test]
fn maintainer_exceptions_return() {
    let events = vec![
        ("with m", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("without m", owner().announcement(&service(), "tool", 101, &[])),
        ("with m again", owner().announcement(&service(), "tool", 102, &[&maintainer()])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 90, &[])),
        ("state", main_state(&owner(), 103, 'a')),
    ];
    let script = PermutationScript { resubmit: Resubmit::Absent, ..PermutationScript::new("a", events) };
    script.expect_outcome(&["with m again", "m elsewhere", "state"], &[]);
}

/// R's exception depended on M's repository here before O's announcement arrived, and was removed with it, as in
/// `maintainer_exceptions_return`.
#[test]
fn delisting_keeps_nested_maintainer_exceptions() {
    let events = vec![
        ("host", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m here", maintainer().announcement(&service(), "tool", 101, &[&nested_maintainer()])),
        ("r elsewhere", nested_maintainer().announcement_elsewhere("tool", 102, &[])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 103, &[&nested_maintainer()])),
    ];
    let script = PermutationScript { resubmit: Resubmit::Absent, ..PermutationScript::new("", events) };
    script.expect_outcome(&[], &["host", "m elsewhere", "r elsewhere"]);
}

/// A withdrawal is remembered after the announcement that caused it is removed
/// (docs/design/admission.md#order-independent-results).
#[test]
fn withdrawal_outlives_its_maintainer_exception() {
    let events = vec![
        ("host", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m here", maintainer().announcement(&service(), "tool", 101, &[])),
        ("m elsewhere", maintainer().announcement_elsewhere("tool", 102, &[])),
        ("host without m", owner().announcement(&service(), "tool", 103, &[])),
    ];
    PermutationScript::new("", events).expect_outcome(&[], &["host without m"]);
}

/// The strict setting requires that a maintainer lists a member back (docs/protocol.md#reciprocal-rule).
#[test]
fn reciprocal_maintainers() {
    let events = vec![
        ("o's", owner().announcement(&service(), "tool", 100, &[&maintainer()])),
        ("m's", maintainer().announcement(&service(), "tool", 101, &[&owner()])),
        ("state", main_state(&maintainer(), 102, 'b')),
        ("r state", main_state(&nested_maintainer(), 103, 'a')),
    ];
    let strict = AdmissionPolicy { strict_maintainers: true, ..default_policy() };
    PermutationScript { policy: strict, ..PermutationScript::new("a", events) }
        .expect_outcome(&[], &["o's", "m's", "state"]);
}
