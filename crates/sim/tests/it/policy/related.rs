//! Section 2.7: everything else.

use super::common::*;

#[test]
fn g1_31_g1_32_every_kind_of_link() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let repo = o().repo("tool");
    let quoted = x().note(90, &[], "named later by the issue");
    let answered = x().sign(1111, 91, &[], "named later by a comment");
    let mentioned = x().note(92, &[], "named later by a note");
    for orphan in [&quoted, &answered, &mentioned] {
        says(&mut house, orphan, UNRELATED);
    }
    let issue = r().sign(kinds::ISSUE, 200, &[&["a", &repo], &["q", &quoted.id.to_string()]], "");
    let comment = r().sign(1111, 201, &[&["A", &repo], &["e", &answered.id.to_string()]], "");
    let note = r().note(202, &[&["q", &repo], &["e", &mentioned.id.to_string()]], "");
    let quoting = r().sign(kinds::ISSUE, 203, &[&["q", &issue.id.to_string()]], "");
    let deep = r().comment(204, &issue);
    let reply = r().note(205, &[&["e", &deep.id.to_string()]], "");
    let events = [&issue, &comment, &note, &quoting, &deep, &reply, &quoted, &answered, &mentioned];
    for event in events {
        says(&mut house, event, SERVED);
        says(&mut house, event, AGAIN);
    }
    let all: Vec<&Arc<SignedEvent>> = [&announcement, &state].into_iter().chain(events).collect();
    stands(&house, &all, &[]);
}

#[test]
fn g1_33_orphans_are_refused() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let unhosted = m().repo("other");
    for orphan in [
        x().issue(200, &unhosted),
        x().note(200, &[], "hello"),
        x().sign(1111, 200, &[&["A", &unhosted], &["q", &unhosted]], ""),
        x().note(200, &[&["e", &"b".repeat(64)]], ""),
        x().note(200, &[&["e", "x", &announcement.id.to_string()]], "only the first value is a link"),
        x().note(200, &[&["p", &o().hex()]], ""),
        x().sign(0, 200, &[], "{}"),
    ] {
        says(&mut house, &orphan, UNRELATED);
    }
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn g1_34_c1_what_waits_is_no_link() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    let issue = x().issue(200, &o().repo("tool"));
    let note = x().note(200, &[&["e", &announcement.id.to_string()]], "");
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    for event in [&issue, &note, &pull] {
        says(&mut house, event, UNRELATED);
    }
    stands(&house, &[], &[&announcement, &state]);
    pushed(&mut house, &state, &o());
    says(&mut house, &issue, SERVED);
    says(&mut house, &note, SERVED);
    says(&mut house, &pull, COMMIT);
    stands(&house, &[&announcement, &state, &issue, &note], &[&pull]);
}

#[test]
fn g1_35_the_state_of_a_hosted_repository_is_a_link() {
    let (mut house, ..) = hosting(rules(), &[]);
    says(&mut house, &x().note(200, &[&["a", &o().coordinate(kinds::STATE, "tool")]], ""), SERVED);
    says(&mut house, &x().note(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]], ""), UNRELATED);
}

#[test]
fn section_2_7_kinds_with_rules_of_their_own() {
    let mut house = House::default();
    let list = x().sign(kinds::GRASP_LIST, 100, &[&["g", "wss://code.example"]], "");
    says(&mut house, &list, SERVED);
    let newer = x().sign(kinds::GRASP_LIST, 101, &[], "");
    says(&mut house, &newer, SERVED);
    says(&mut house, &list, OLD);
    stands(&house, &[&newer], &[]);
    for credential in [kinds::AUTH, kinds::HTTP_AUTH] {
        says(
            &mut house,
            &x().sign(credential, 100, &[], ""),
            "false invalid: authentication events cannot be published",
        );
    }
    let (mut house, ..) = hosting(rules(), &[]);
    let unlinked = x().sign(kinds::PULL_REQUEST, 200, &[&["a", &o().repo("tool")]], "");
    for bad in [
        unlinked,
        x().pull_request(200, &[&o().repo("tool")], ""),
        x().pull_request(200, &[&o().repo("tool")], "not hex"),
        x().pull_request(200, &[&o().repo("tool")], &"a".repeat(65)),
    ] {
        says(&mut house, &bad, "false invalid: a pull request must name its commit in a c tag");
    }
    says(&mut house, &x().pull_request(200, &[&m().repo("tool")], &oid('b')), UNRELATED);
    says(&mut house, &x().pull_request(200, &[&m().repo("tool"), &o().repo("tool")], &"b".repeat(64)), COMMIT);
}

#[test]
fn c2_ephemeral_kinds_are_passed_on_and_forgotten() {
    let mut house = House::default();
    let event = x().sign(20_001, 100, &[], "typing");
    assert_eq!(house.submit(&event), Decision::Broadcast);
    assert_eq!(Decision::Broadcast.ok_reply(), (true, String::new()));
    stands(&house, &[], &[]);
    assert_eq!(house.passed(), std::slice::from_ref(&event));
    assert_eq!(house.submit(&event), Decision::Broadcast, "it was not remembered");
}
