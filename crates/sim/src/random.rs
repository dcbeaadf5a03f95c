//! Pseudo-random numbers from a seed.

use grasp_core::random;

/// The generator of the state machines, with functions for simulations.
#[derive(Clone, Debug)]
pub struct Rng(random::Rng);

impl Rng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(random::Rng::new(seed))
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        // The bias of the remainder does not matter: all ranges in the simulator are small.
        (self.next_u64() % end as u64) as usize
    }

    /// Returns `true` with a probability of one in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the items, or `None` if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.below(items.len())) }
    }
}
