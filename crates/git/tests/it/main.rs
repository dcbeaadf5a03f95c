//! Tests of the public interface with the real git.

mod keeper;
mod maintain;
mod receive;
mod refs;
mod serve;
mod world;
