//! The lists of mutations fit the source. `.ci/soak` runs the mutations.

use grasp_sim::mutations;

#[test]
fn old_texts_of_mutations_occur_exactly_once() {
    let applied = mutations::apply(&mutations::all(), &mutations::workspace().join("crates/core/src"));
    assert_eq!(applied.err(), None, "adapt crates/sim/mutations/*.toml to the changed source");
}
