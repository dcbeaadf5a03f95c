//! Numbers that look like chance and come from a seed.

/// The generator.
#[derive(Clone, Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// So much, give or take a fifth: many wait for the same host, and should not all come back in one breath.
    pub(super) fn about(&mut self, millis: u64) -> u64 {
        let fifth = millis / 5;
        millis - fifth + self.next() % (2 * fifth + 1)
    }

    /// Less than so much, or nothing.
    pub(super) fn below(&mut self, millis: u64) -> u64 {
        self.next() % millis.max(1)
    }

    /// So much, or up to a fifth more: for whoever has named a time.
    pub(super) fn at_least(&mut self, millis: u64) -> u64 {
        millis + self.next() % (millis / 5 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_at_most() {
        let mut chance = Chance(7);
        let drawn: Vec<u64> = (0..1_000).map(|_| chance.about(1_000)).collect();
        assert!(drawn.iter().all(|millis| (800..=1_200).contains(millis)));
        assert!(drawn.iter().any(|millis| *millis < 850) && drawn.iter().any(|millis| *millis > 1_150));
        assert!((0..1_000).all(|_| (1_000..=1_200).contains(&chance.at_least(1_000))));
        assert_eq!((chance.about(0), chance.at_least(0)), (0, 0));
    }
}
