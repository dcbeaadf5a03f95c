//! Bound on the number of label values that come from outside, such as relay URLs: the most important names have a
//! label value of their own, all others share [`OTHER`].
//!
//! A new name takes a free place at once, so that its first counts are its own. The next ranking decides whether it
//! keeps the place. There are never more names than places, however many names occur.

use std::collections::BTreeSet;

/// Label value of the names without a label value of their own.
pub(super) const OTHER: &str = "other";

/// The names that have a label value of their own.
#[derive(Debug)]
pub(super) struct LabelLimit<K> {
    max_names: usize,
    names: BTreeSet<K>,
}

impl<K: Ord + Clone> LabelLimit<K> {
    pub(super) fn new(max_names: usize) -> Self {
        Self { max_names, names: BTreeSet::new() }
    }

    /// Returns whether a name has a label value of its own.
    pub(super) fn contains(&self, name: &K) -> bool {
        self.names.contains(name)
    }

    /// Adds a name if there is a free place. Returns whether it has a label value of its own now.
    pub(super) fn admit(&mut self, name: &K) -> bool {
        if self.names.len() < self.max_names && !self.names.contains(name) {
            self.names.insert(name.clone());
        }
        self.names.contains(name)
    }

    /// Replaces the names by the first of `names`, which are all existing names, the most important first. Returns the
    /// names that have lost their place; the caller must remove their series.
    pub(super) fn rank<'a>(&mut self, names: impl Iterator<Item = &'a K>) -> Vec<K>
    where
        K: 'a,
    {
        let ranked = names.take(self.max_names).cloned().collect();
        let before = std::mem::replace(&mut self.names, ranked);
        before.into_iter().filter(|name| !self.names.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_names_is_bounded() {
        let mut limit = LabelLimit::new(2);
        assert!(limit.admit(&"a") && limit.admit(&"b") && limit.admit(&"a"));
        assert!(!limit.admit(&"c") && !limit.contains(&"c"));
        assert_eq!(limit.rank(["c", "a", "b"].iter()), ["b"]);
        assert!(limit.contains(&"c") && limit.contains(&"a") && !limit.admit(&"b"));
    }

    #[test]
    fn names_that_no_longer_exist_free_their_place() {
        let mut limit = LabelLimit::new(2);
        assert_eq!(limit.rank(["a", "b"].iter()), Vec::<&str>::new());
        assert_eq!(limit.rank(["b"].iter()), ["a"]);
        assert!(limit.admit(&"c"));
    }
}
