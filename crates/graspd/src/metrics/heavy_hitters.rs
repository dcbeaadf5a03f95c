//! The names with the greatest sums, among any number of names, in bounded memory (the "space-saving" algorithm).
//!
//! If there is no space for a new name, it replaces the name with the smallest sum and inherits that sum. So a sum may
//! be too large, but a name with a large sum is never missed.

use std::collections::HashMap;

/// Maximum number of names: more than are ever exported, so that the sums of the exported ones are exact.
const MAX_NAMES: usize = 1_000;

/// Sums by name.
#[derive(Debug, Default)]
pub(super) struct HeavyHitters {
    sums: HashMap<String, u64>,
}

impl HeavyHitters {
    /// Adds an amount to the sum of a name.
    pub(super) fn add(&mut self, name: String, amount: u64) {
        if let Some(sum) = self.sums.get_mut(&name) {
            *sum = sum.saturating_add(amount);
            return;
        }
        let mut inherited = 0;
        if self.sums.len() >= MAX_NAMES
            && let Some((smallest, sum)) = self.sums.iter().min_by_key(|(_, sum)| **sum)
        {
            let smallest = smallest.clone();
            inherited = *sum;
            self.sums.remove(&smallest);
        }
        self.sums.insert(name, inherited.saturating_add(amount));
    }

    /// Returns the names with the greatest sums, the greatest first.
    pub(super) fn top(&self, max_names: usize) -> Vec<(String, u64)> {
        let mut all: Vec<(&String, &u64)> = self.sums.iter().collect();
        all.sort_unstable_by(|left, right| right.1.cmp(left.1).then(left.0.cmp(right.0)));
        all.into_iter().take(max_names).map(|(name, sum)| (name.clone(), *sum)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_sums_are_never_evicted() {
        let mut hitters = HeavyHitters::default();
        hitters.add("heavy".to_owned(), 1_000_000);
        for nth in 0..10 * MAX_NAMES {
            hitters.add(format!("light {nth}"), 1);
        }
        hitters.add("heavy".to_owned(), 1);
        assert_eq!(hitters.sums.len(), MAX_NAMES);
        assert_eq!(hitters.top(1), [("heavy".to_owned(), 1_000_001)]);
        assert_eq!(hitters.top(3).len(), 3);
    }
}
