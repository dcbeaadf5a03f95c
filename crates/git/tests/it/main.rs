//! Tests of the public interface with the real git.

mod apply;
mod git_folder;
mod maintenance;
mod receive;
mod refs;
mod serve;
