//! Sets of events.

/// Maximum number of events.
pub(super) const CAPACITY: usize = 2_560;

const WORDS: usize = CAPACITY / 64;

/// A set of events, by their number in the corpus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventSet([u64; WORDS]);

impl Default for EventSet {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl FromIterator<u16> for EventSet {
    fn from_iter<I: IntoIterator<Item = u16>>(indexes: I) -> Self {
        let mut bits = Self::default();
        for index in indexes {
            bits.insert(index);
        }
        bits
    }
}

impl EventSet {
    /// Returns all numbers from `from` up to but excluding `to`.
    pub fn range(from: usize, to: usize) -> Self {
        let below = |end: usize, word: usize| match end.saturating_sub(word * 64) {
            0 => 0,
            bits if bits >= 64 => u64::MAX,
            bits => (1 << bits) - 1,
        };
        Self(std::array::from_fn(|word| below(to, word) & !below(from, word)))
    }

    /// Adds a number. Returns `false` if it was present.
    pub fn insert(&mut self, index: u16) -> bool {
        let (word, bit) = (usize::from(index) / 64, 1 << (index % 64));
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }

    /// Removes a number. Returns `false` if it was absent.
    pub fn remove(&mut self, index: u16) -> bool {
        let (word, bit) = (usize::from(index) / 64, 1 << (index % 64));
        let there = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        there
    }

    /// Returns whether a number is present.
    pub fn contains(&self, index: u16) -> bool {
        self.0[usize::from(index) / 64] & (1 << (index % 64)) != 0
    }

    /// Returns the intersection with another set.
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Returns the difference to another set.
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Adds all numbers of another set.
    pub fn extend(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().enumerate().flat_map(|(word_index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    (word_index * 64) as u16 + bit as u16
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations_work() {
        let mut bits = EventSet::range(62, 67);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [62, 63, 64, 65, 66]);
        assert!(bits.remove(64) && !bits.remove(64) && bits.insert(2_047) && !bits.insert(62));
        assert_eq!((bits.len(), bits.contains(65), bits.contains(64)), (5, true, false));
        assert_eq!(bits.without(&EventSet::range(0, 66)).iter().collect::<Vec<_>>(), [66, 2_047]);
        assert_eq!(bits.and(&EventSet::range(0, 64)).len(), 2);
        assert!(
            EventSet::default().is_empty()
                && EventSet::range(5, 5).is_empty()
                && EventSet::range(0, CAPACITY).len() == CAPACITY
        );
    }
}
