//! Everything at one moment, for copies, and whether a copy is whole.
//!
//! | file | what |
//! |---|---|
//! | `links` | links to all git data, made while nothing is taken away |
//! | `seal` | how it is known that the bytes of a file are right |
//! | `sound` | whether objects are there with everything that they need |
//!
//! # A copy of a running server
//!
//! What is added comes to git first and then to the store; what is removed leaves the store first. So whoever holds back
//! removals, then takes the store's moment, and then links what git has, has at least all git data that this moment of the
//! store speaks of. Refs may be newer than that: a copy that becomes a server is brought into line with its store when it
//! starts. Links take milliseconds where copies take minutes, and a pack that has been linked may go from its pool.
//!
//! Every file that is linked is replaced and never written again; so a link stays as it was.

mod checksum;
mod hard_links;
mod verify;

pub use checksum::{Seal, Sealer};
pub use hard_links::{Links, Stillness, make_folders};
pub use verify::Checker;
