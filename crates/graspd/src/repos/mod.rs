//! Repositories on disk: the cache of their refs, the workers that apply git jobs, and maintenance of pools.
//!
//! The writer calls it; it calls nothing above. Results go back through the functions that it is created with.

pub(crate) mod maintenance;
pub(crate) mod ref_cache;
pub(crate) mod workers;
