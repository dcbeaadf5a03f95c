//! Generated text that resembles issues, comments and patches.

use crate::random::Random;

/// Typical words. Some are not ASCII, to exercise the UTF-8 handling of a relay.
#[rustfmt::skip]
const WORDS: [&str; 48] = [
    "the", "a", "when", "branch", "commit", "rebase", "fails", "after", "merge", "conflict", "with", "relay",
    "signature", "is", "not", "checked", "before", "push", "and", "then", "fetch", "returns", "stale", "refs",
    "because", "cache", "holds", "old", "state", "please", "review", "this", "patch", "it", "fixes", "parser",
    "for", "empty", "input", "naïve", "größer", "→", "test", "covers", "both", "paths", "now", "thanks",
];

/// Returns about `bytes` bytes of text, with line breaks and quotes, so that JSON escapes occur.
pub fn paragraphs(random: &mut Random, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text += *random.pick(&WORDS);
        text += match random.below(24) {
            0 => ".\n\n",
            1 => ", \"so to say\", ",
            2 => ": ",
            _ => " ",
        };
    }
    text
}

/// Returns a line without breaks, for subjects.
pub fn title(random: &mut Random, words: usize) -> String {
    let words: Vec<&str> = (0..words).map(|_| *random.pick(&WORDS)).collect();
    words.join(" ")
}

/// Returns a small patch in the format of `git format-patch`.
pub fn patch(random: &mut Random, commit: &str, subject: &str) -> String {
    let file = format!("src/{}.rs", random.hex(6));
    let (removed, added) = (title(random, 6), title(random, 8));
    format!(
        "From {commit} Mon Sep 17 00:00:00 2001\nFrom: A U Thor <author@example.com>\nSubject: [PATCH] {subject}\n\n---\n \
         {file} | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n\ndiff --git a/{file} b/{file}\n--- a/{file}\n+++ \
         b/{file}\n@@ -1,1 +1,1 @@\n-\t\"{removed}\"\n+\t\"{added}\"\n-- \n2.43.0\n"
    )
}
