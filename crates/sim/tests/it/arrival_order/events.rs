//! Events alone; git has its objects from the beginning.

use super::*;

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
    let strict = AdmissionPolicy { strict_maintainers: true, ..rules() };
    Script { rules: strict, ..Script::new("a", events) }.ends(&[], &["o's", "m's", "state"]);
}
