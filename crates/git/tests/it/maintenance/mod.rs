//! Maintenance of pools, also during pushes and fetches. The installed git reads the result.

mod crash;
mod pool;
mod prune;
mod races;
mod repack;
