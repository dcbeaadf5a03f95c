//! Deterministic pseudo-random numbers, identical on every machine.

use grasp_core::random::Rng;

/// The generator of the state machines, with functions for measurements.
#[derive(Debug, Clone)]
pub struct Random(Rng);

impl Random {
    /// Creates stream number `stream` of `seed`. Streams of one seed are independent, so that work can be split and
    /// done in any order.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Rng::new(Rng::new(seed).next_u64() ^ stream.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, which must not be zero. The bias of the modulo is negligible here.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns one of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Returns the next 32 bytes, enough for a secret key.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes
    }

    /// Returns `length` lower-case hex digits, for example a commit id.
    pub fn hex(&mut self, length: usize) -> String {
        (0..length).map(|_| char::from(*self.pick(b"0123456789abcdef"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_distinct() {
        let word = |seed, stream| Random::new(seed, stream).next_u64();
        assert_eq!(word(1, 2), word(1, 2));
        assert_ne!(word(1, 2), word(1, 3));
        assert_ne!(word(1, 2), word(2, 2));
    }
}
