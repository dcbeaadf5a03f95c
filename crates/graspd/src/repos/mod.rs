//! Repositories: the cache of their refs, the workers that run git jobs, and the maintenance of pools.
//!
//! | module | contents | runs on |
//! |---|---|---|
//! | `ref_cache` | hosted repositories, their refs and disk usage | the calling thread |
//! | `workers` | git jobs of the writer; removal of files | a pool of threads; one thread |
//! | `ref_files` | writes the refs of repositories to their folders | one thread |
//! | `repo_rows` | access of git work to the rows of repositories | the calling thread |
//! | `maintenance` | repacking and pruning of pools | one thread |
//!
//! The writer sends jobs and publishes refs. The git handlers, web pages, fetch and admin read the ref cache. May
//! use no other folder of graspd; results go back through the functions that it is created with.

pub(crate) mod maintenance;
pub(crate) mod ref_cache;
pub(crate) mod ref_files;
pub(crate) mod repair;
pub(crate) mod repo_rows;
pub(crate) mod workers;
