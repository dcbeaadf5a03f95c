//! The socket, against relays on loopback that do as they are told.

mod crowd;
mod dials;
mod ends;
mod stage;
mod talk;
