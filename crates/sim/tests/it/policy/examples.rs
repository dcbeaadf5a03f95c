//! Section 15: the worked examples.

use super::common::*;

#[test]
fn section_15_6_ties() {
    let (mut house, announcement, _) = hosting(rules(), &[&m()]);
    let mut states: Vec<_> = "bcd".chars().map(|digit| main_at(&o(), 500, digit)).collect();
    states.sort_by_key(|state| state.id);
    let [s_b, s_a, s_c] = [&states[0], &states[1], &states[2]];
    says(&mut house, s_a, HELD);
    pushed(&mut house, s_a, &o());
    stands(&house, &[&announcement, s_a], &[]);
    says(&mut house, s_c, OLD);
    says(&mut house, s_b, HELD);
    stands(&house, &[&announcement, s_a], &[s_b]);
    pushed(&mut house, s_b, &o());
    stands(&house, &[&announcement, s_b], &[]);
    says(&mut house, s_a, OLD);
}

#[test]
fn section_15_7_linkage() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let waiting = o().listed(&service(), "held", 100, &[]);
    says(&mut house, &waiting, HELD);
    let n1 = x().note(90, &[], "N1");
    let article = m().sign(30_023, 91, &[&["d", "an:article"]], "");
    let tags: &[&[&str]] =
        &[&["a", &o().repo("tool")], &["q", &n1.id.to_string()], &["q", &m().coordinate(30_023, "an:article")]];
    let issue = r().sign(kinds::ISSUE, 200, tags, "I");
    let comment = x().comment(201, &issue);
    let reaction = m().sign(7, 202, &[&["e", &comment.id.to_string()]], "+");
    for (event, expected) in [
        (&n1, UNRELATED),
        (&article, UNRELATED),
        (&comment, UNRELATED),
        (&issue, SERVED),
        (&n1, SERVED),
        (&reaction, UNRELATED),
        (&comment, SERVED),
        (&reaction, SERVED),
        (&x().issue(203, &Author::new(9).repo("other")), UNRELATED),
        (&article, SERVED),
        (&x().issue(203, &o().repo("held")), UNRELATED),
        (&x().note(203, &[&["r", "https://code.example/x"]], ""), UNRELATED),
    ] {
        says(&mut house, event, expected);
    }
    stands(&house, &[&announcement, &state, &n1, &issue, &comment, &reaction, &article], &[&waiting]);
}

#[test]
fn section_15_8_deletion() {
    let (mut house, announcement, os) = hosting(rules(), &[&m()]);
    let [at_90, at_95, at_101] = [(190, 'b'), (195, 'c'), (201, 'd')].map(|(at, digit)| main_at(&m(), at, digit));
    says(&mut house, &at_90, HELD);
    pushed(&mut house, &at_90, &o());
    says(&mut house, &at_95, HELD);
    says(&mut house, &at_101, HELD);
    stands(&house, &[&announcement, &os, &at_90], &[&at_95, &at_101]);
    let deletion = m().deletion(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&announcement, &os, &deletion], &[&at_101]);
    says(&mut house, &m().delete(202, &[&os]), FOREIGN);
    says(&mut house, &at_90, DELETED);
    stands(&house, &[&announcement, &os, &deletion], &[&at_101]);
}
