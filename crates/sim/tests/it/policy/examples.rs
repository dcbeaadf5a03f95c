//! The worked examples of docs/protocol.md: ties, linkage, deletion.

use super::common::*;

/// Of two versions of the same second the one with the lower id wins (docs/protocol.md#replacement-and-ties).
#[test]
fn ties_are_won_by_the_lower_id() {
    let (mut server, announcement, _) = hosting_server(default_policy(), &[&maintainer()]);
    let mut states: Vec<_> = "bcd".chars().map(|digit| main_state(&owner(), 500, digit)).collect();
    states.sort_by_key(|state| state.id);
    let [s_b, s_a, s_c] = [&states[0], &states[1], &states[2]];
    expect_reply(&mut server, s_a, HELD);
    add_git_data(&mut server, s_a, &owner());
    expect_events(&server, &[&announcement, s_a], &[]);
    expect_reply(&mut server, s_c, LOST_TIE);
    expect_reply(&mut server, s_b, HELD);
    expect_events(&server, &[&announcement, s_a], &[s_b]);
    add_git_data(&mut server, s_b, &owner());
    expect_events(&server, &[&announcement, s_b], &[]);
    expect_reply(&mut server, s_a, LOST_TIE);
}

/// An event is accepted if it references a served event, or a served event references it
/// (docs/protocol.md#related-events).
#[test]
fn events_are_accepted_once_they_are_linked() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let waiting = owner().announcement(&service(), "held", 100, &[]);
    expect_reply(&mut server, &waiting, HELD);
    let n1 = outsider().note(90, &[], "N1");
    let article = maintainer().sign(30_023, 91, &[&["d", "an:article"]], "");
    let tags: &[&[&str]] = &[
        &["a", &owner().repo("tool")],
        &["q", &n1.id.to_string()],
        &["q", &maintainer().coordinate(30_023, "an:article")],
    ];
    let issue = nested_maintainer().sign(kinds::ISSUE, 200, tags, "I");
    let comment = outsider().comment(201, &issue);
    let reaction = maintainer().sign(7, 202, &[&["e", &comment.id.to_string()]], "+");
    for (event, expected) in [
        (&n1, UNRELATED),
        (&article, UNRELATED),
        (&comment, UNRELATED),
        (&issue, SERVED),
        (&n1, SERVED),
        (&reaction, UNRELATED),
        (&comment, SERVED),
        (&reaction, SERVED),
        (&outsider().issue(203, &Author::new(9).repo("other")), UNRELATED),
        (&article, SERVED),
        (&outsider().issue(203, &owner().repo("held")), UNRELATED),
        (&outsider().note(203, &[&["r", "https://code.example/x"]], ""), UNRELATED),
    ] {
        expect_reply(&mut server, event, expected);
    }
    expect_events(&server, &[&announcement, &state, &n1, &issue, &comment, &reaction, &article], &[&waiting]);
}

/// A deletion by coordinate removes the author's served and held versions up to its `created_at`
/// (docs/protocol.md#deletion-requests).
#[test]
fn deletion_by_coordinate_removes_versions_up_to_its_time() {
    let (mut server, announcement, os) = hosting_server(default_policy(), &[&maintainer()]);
    let [at_90, at_95, at_101] =
        [(190, 'b'), (195, 'c'), (201, 'd')].map(|(at, digit)| main_state(&maintainer(), at, digit));
    expect_reply(&mut server, &at_90, HELD);
    add_git_data(&mut server, &at_90, &owner());
    expect_reply(&mut server, &at_95, HELD);
    expect_reply(&mut server, &at_101, HELD);
    expect_events(&server, &[&announcement, &os, &at_90], &[&at_95, &at_101]);
    let deletion = maintainer().deletion(200, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&announcement, &os, &deletion], &[&at_101]);
    expect_reply(&mut server, &maintainer().delete(202, &[&os]), FOREIGN_TARGET);
    expect_reply(&mut server, &at_90, DELETED);
    expect_events(&server, &[&announcement, &os, &deletion], &[&at_101]);
}
