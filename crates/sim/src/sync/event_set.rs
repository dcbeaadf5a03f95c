//! A set of numbers of events.

/// How many events there are at most.
pub const MOST: usize = 2_048;

const WORDS: usize = MOST / 64;

/// A set of events, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits([u64; WORDS]);

impl Default for Bits {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl FromIterator<u16> for Bits {
    fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
        let mut bits = Self::default();
        for n in numbers {
            bits.insert(n);
        }
        bits
    }
}

impl Bits {
    /// All numbers from the first up to, but not with, the last.
    #[must_use]
    pub fn range(from: usize, to: usize) -> Self {
        let below = |end: usize, word: usize| match end.saturating_sub(word * 64) {
            0 => 0,
            bits if bits >= 64 => u64::MAX,
            bits => (1 << bits) - 1,
        };
        Self(std::array::from_fn(|word| below(to, word) & !below(from, word)))
    }

    /// Adds a number. False if it was there.
    pub fn insert(&mut self, n: u16) -> bool {
        let (word, bit) = (usize::from(n) / 64, 1 << (n % 64));
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }

    /// Takes a number away. False if it was not there.
    pub fn remove(&mut self, n: u16) -> bool {
        let (word, bit) = (usize::from(n) / 64, 1 << (n % 64));
        let there = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        there
    }

    /// Whether a number is there.
    #[must_use]
    pub fn contains(&self, n: u16) -> bool {
        self.0[usize::from(n) / 64] & (1 << (n % 64)) != 0
    }

    /// What is in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// What is here and not there.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().enumerate().flat_map(|(nth, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    (nth * 64) as u16 + bit as u16
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_set() {
        let mut bits = Bits::range(62, 67);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [62, 63, 64, 65, 66]);
        assert!(bits.remove(64) && !bits.remove(64) && bits.insert(2_047) && !bits.insert(62));
        assert_eq!((bits.len(), bits.contains(65), bits.contains(64)), (5, true, false));
        assert_eq!(bits.without(&Bits::range(0, 66)).iter().collect::<Vec<_>>(), [66, 2_047]);
        assert_eq!(bits.and(&Bits::range(0, 64)).len(), 2);
        assert!(Bits::default().is_empty() && Bits::range(5, 5).is_empty() && Bits::range(0, MOST).len() == MOST);
    }
}
