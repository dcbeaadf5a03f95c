//! Receiving a push, with the real git on the other side.

mod bombs;
mod pack;
mod parser;
mod report;
mod support;
