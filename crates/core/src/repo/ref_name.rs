//! Ref names that git would accept.

use crate::limits;

/// Whether git could store a ref of this name: git's own rules (`git check-ref-format`) and a length per component
/// that file systems can hold.
#[must_use]
pub fn is_valid(name: &str) -> bool {
    let bad_character = |c: char| c.is_ascii_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    name.len() <= limits::MAX_REF_BYTES
        && !name.contains(bad_character)
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

/// Whether two names of a sorted list cannot exist beside each other, as `refs/heads/a` and `refs/heads/a/b` cannot:
/// a repository that has both is uncloneable.
#[must_use]
pub fn conflict<'a>(names: impl IntoIterator<Item = &'a str>) -> bool {
    let mut names: Vec<&str> = names.into_iter().collect();
    // With '/' sorted before everything else a folder is followed directly by what is inside it.
    names.sort_unstable_by(|a, b| a.split('/').cmp(b.split('/')));
    names.windows(2).any(|pair| pair[1].strip_prefix(pair[0]).is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f10_names_that_git_refuses() {
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
    fn f10_a_file_and_a_folder_of_one_name() {
        assert!(conflict(["refs/heads/a", "refs/heads/a-b", "refs/heads/a/b"]));
        assert!(conflict(["refs/heads/a/b/c", "refs/heads/a"]));
        assert!(!conflict(["refs/heads/a", "refs/heads/ab", "refs/heads/b/a"]));
        assert!(!conflict([]));
    }
}
