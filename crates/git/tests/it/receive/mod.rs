//! Receiving of pushes and packs of the installed git, and of invalid ones.

mod bombs;
mod pack;
mod parser;
mod report;
mod support;
