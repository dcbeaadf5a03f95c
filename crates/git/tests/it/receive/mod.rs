//! Receiving a push, with the real git on the other side.

mod answer;
mod bombs;
mod pack;
mod parser;
mod support;
