//! Pseudo-random numbers from a seed.

/// A small generator (splitmix64). A seed always gives the same numbers, so that a simulation can be repeated.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns `millis` plus or minus up to a fifth, so that jobs that wait for the same host do not all return at
    /// once.
    pub(crate) fn jitter(&mut self, millis: u64) -> u64 {
        let fifth = millis / 5;
        millis - fifth + self.next_u64() % (2 * fifth + 1)
    }

    /// Returns a number below `millis`, or zero.
    pub(crate) fn below(&mut self, millis: u64) -> u64 {
        self.next_u64() % millis.max(1)
    }

    /// Returns `millis` plus up to a fifth, for times that a server has stated.
    pub(crate) fn at_least(&mut self, millis: u64) -> u64 {
        millis + self.next_u64() % (millis / 5 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_at_most_a_fifth() {
        let mut rng = Rng::new(7);
        let drawn: Vec<u64> = (0..1_000).map(|_| rng.jitter(1_000)).collect();
        assert!(drawn.iter().all(|millis| (800..=1_200).contains(millis)));
        assert!(drawn.iter().any(|millis| *millis < 850) && drawn.iter().any(|millis| *millis > 1_150));
        assert!((0..1_000).all(|_| (1_000..=1_200).contains(&rng.at_least(1_000))));
        assert_eq!((rng.jitter(0), rng.at_least(0)), (0, 0));
    }
}
