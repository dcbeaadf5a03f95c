//! Who has a label of its own, where strangers choose the names: the most important ones. The others share one.
//!
//! A name that comes late takes a free place at once, so that its first counts are its own; the next ranking decides
//! whether it stays. There are never more places than were given, however many names there are.

use std::collections::BTreeSet;

/// The label of everybody who has none.
pub(crate) const OTHER: &str = "other";

/// Those that have a label of their own.
#[derive(Debug)]
pub(crate) struct Own<K> {
    places: usize,
    names: BTreeSet<K>,
}

impl<K: Ord + Clone> Own<K> {
    /// Nobody yet.
    pub(crate) fn new(places: usize) -> Self {
        Self { places, names: BTreeSet::new() }
    }

    /// Whether a name has a label.
    pub(crate) fn has(&self, name: &K) -> bool {
        self.names.contains(name)
    }

    /// Whether a name has a label, or gets one because there is room.
    pub(crate) fn admit(&mut self, name: &K) -> bool {
        if self.names.len() < self.places && !self.names.contains(name) {
            self.names.insert(name.clone());
        }
        self.names.contains(name)
    }

    /// Gives the places to the first of these, which are all there are. Those that had one and lost it: their series are
    /// to be removed.
    pub(crate) fn rank<'a>(&mut self, best_first: impl Iterator<Item = &'a K>) -> Vec<K>
    where
        K: 'a,
    {
        let names = best_first.take(self.places).cloned().collect();
        let before = std::mem::replace(&mut self.names, names);
        before.into_iter().filter(|name| !self.names.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_places() {
        let mut own = Own::new(2);
        assert!(own.admit(&"a") && own.admit(&"b") && own.admit(&"a"));
        assert!(!own.admit(&"c") && !own.has(&"c"));
        assert_eq!(own.rank(["c", "a", "b"].iter()), ["b"]);
        assert!(own.has(&"c") && own.has(&"a") && !own.admit(&"b"));
    }

    #[test]
    fn who_is_gone_makes_room() {
        let mut own = Own::new(2);
        assert_eq!(own.rank(["a", "b"].iter()), Vec::<&str>::new());
        assert_eq!(own.rank(["b"].iter()), ["a"]);
        assert!(own.admit(&"c"));
    }
}
