//! Events, filters and messages of the nostr protocol, and what the rest of the house needs to know about them.

pub mod auth;
pub mod event;
pub mod filter;
pub mod hex;
pub mod json;
pub mod keys;
pub mod kinds;
pub mod message;
pub mod negentropy;
pub mod rejection;
pub mod relay_message;
pub mod signed_event;

pub use event::{Event, EventId, Stamp, supersedes};
pub use filter::Filter;
pub use keys::PublicKey;
pub use rejection::{Refusal, Verdict};
pub use signed_event::{Signed, Verifier};
