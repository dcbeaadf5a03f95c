//! Validity of git ref names.

use crate::limits;

/// Whether git can store a ref with this name: the rules of `git check-ref-format`, plus a length per component that
/// file systems accept.
#[must_use]
pub fn is_valid(name: &str) -> bool {
    let is_invalid = |ch: char| ch.is_ascii_control() || matches!(ch, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    name.len() <= limits::MAX_REF_NAME_BYTES
        && !name.contains(is_invalid)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.contains('/')
        && name.split('/').all(|component| {
            !component.is_empty()
                && !component.starts_with('.')
                && !component.ends_with(".lock")
                && component.len() <= limits::MAX_REF_COMPONENT_BYTES
        })
}

/// Whether two of the names cannot exist in the same repository, such as `refs/heads/a` and `refs/heads/a/b`. A
/// repository with both could not be cloned.
#[must_use]
pub fn has_conflict<'a>(names: impl IntoIterator<Item = &'a str>) -> bool {
    let mut names: Vec<&str> = names.into_iter().collect();
    // Compared component by component, a name is directly followed by the names below it.
    names.sort_unstable_by(|left, right| left.split('/').cmp(right.split('/')));
    names.windows(2).any(|pair| pair[1].strip_prefix(pair[0]).is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_names_that_git_accepts() {
        for good in [
            "refs/heads/main",
            "refs/tags/v1.0",
            "refs/heads/a/b",
            "refs/heads/é🚀",
            "refs/heads/@",
            "refs/heads/a@b",
            "refs/nostr/00",
        ] {
            assert!(is_valid(good), "{good}");
        }
        let long = format!("refs/heads/{}", "x".repeat(201));
        let longer = format!("refs/heads/{}", "x/".repeat(600) + "x");
        for bad in [
            "HEAD",
            "refs/heads/",
            "refs//heads/a",
            "/refs/heads/a",
            "refs/heads/.a",
            "refs/heads/a..b",
            "refs/heads/a.lock",
            "refs/heads/a.lock/b",
            "refs/heads/a.",
            "refs/heads/a b",
            "refs/heads/a~1",
            "refs/heads/a^",
            "refs/heads/a:b",
            "refs/heads/a?",
            "refs/heads/a*",
            "refs/heads/a[",
            "refs/heads/a\\b",
            "refs/heads/a@{1}",
            "refs/heads/a\u{7f}",
            "refs/heads/a\nb",
            &long,
            &longer,
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn detects_names_that_exclude_each_other() {
        assert!(has_conflict(["refs/heads/a", "refs/heads/a-b", "refs/heads/a/b"]));
        assert!(has_conflict(["refs/heads/a/b/c", "refs/heads/a"]));
        assert!(!has_conflict(["refs/heads/a", "refs/heads/ab", "refs/heads/b/a"]));
        assert!(!has_conflict([]));
    }
}
