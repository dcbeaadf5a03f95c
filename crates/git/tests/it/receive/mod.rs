//! Receiving of pushes and packs of the installed git, and of invalid ones.

mod bombs;
mod differential;
mod generated;
mod pack;
mod pack_builder;
mod parser;
mod report;
mod support;
