//! Git jobs on repositories on disk, which the installed git then reads.

mod alternates;
mod crash;
mod objects;
mod update;
