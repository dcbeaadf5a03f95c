//! Pools are kept in good order while everything else goes on, and real git reads them.

mod crash;
mod pool;
mod prune;
mod races;
mod repack;
