//! Pools are kept in good order while everything else goes on, and real git reads them.

mod crash;
mod fold;
mod pool;
mod prune;
mod races;
#[allow(dead_code, reason = "shared with the tests of the keeper")]
#[path = "../keeper/world.rs"]
mod world;
