//! The heaviest among names that strangers choose, counted in little memory (the "space-saving" method): when there is no
//! room for a new name it takes the place and the count of the lightest, so that no heavy one is ever missed.

use std::collections::HashMap;

/// Names that are counted: more than are ever shown, so that the shown ones are right.
const PLACES: usize = 1_000;

/// Counts by name.
#[derive(Debug, Default)]
pub(crate) struct Top {
    counts: HashMap<String, u64>,
}

impl Top {
    /// Adds to a name's count.
    pub(crate) fn add(&mut self, name: String, amount: u64) {
        if let Some(count) = self.counts.get_mut(&name) {
            *count = count.saturating_add(amount);
            return;
        }
        let mut base = 0;
        if self.counts.len() >= PLACES
            && let Some((lightest, count)) = self.counts.iter().min_by_key(|(_, count)| **count)
        {
            let lightest = lightest.clone();
            base = *count;
            self.counts.remove(&lightest);
        }
        self.counts.insert(name, base.saturating_add(amount));
    }

    /// The heaviest, heaviest first.
    pub(crate) fn first(&self, most: usize) -> Vec<(String, u64)> {
        let mut all: Vec<(&String, &u64)> = self.counts.iter().collect();
        all.sort_unstable_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        all.into_iter().take(most).map(|(name, count)| (name.clone(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heavy_stay_whatever_comes() {
        let mut top = Top::default();
        top.add("heavy".to_owned(), 1_000_000);
        for nth in 0..10 * PLACES {
            top.add(format!("light {nth}"), 1);
        }
        top.add("heavy".to_owned(), 1);
        assert_eq!(top.counts.len(), PLACES);
        assert_eq!(top.first(1), [("heavy".to_owned(), 1_000_001)]);
        assert_eq!(top.first(3).len(), 3);
    }
}
