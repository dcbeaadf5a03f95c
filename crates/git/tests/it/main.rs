//! Tests of the public interface of `grasp-git` with the installed git.

mod apply;
mod git_folder;
mod maintenance;
mod receive;
mod refs;
mod repair;
mod serve;
