//! Types and parsers of the nostr protocol.
//!
//! - [`event`], [`signed_event`]: events before and after verification; [`kinds`]: event kinds.
//! - [`filter`]: filters of REQ, COUNT and NEG-OPEN.
//! - [`message`]: parses messages of clients, writes messages of a relay. [`relay_message`]: the opposite direction,
//!   for sync.
//! - [`negentropy`]: responder of NIP-77. The initiator is part of sync.
//! - [`nip11`]: the information document of a remote relay.
//! - [`auth`]: checks of NIP-42 authentication events.
//! - [`rejection`]: decisions about events, and the texts that clients receive for them.
//! - [`keys`], [`hex`], [`json`]: encodings.
//!
//! Pure functions without IO. The relay sessions, the writer, sync and the store call them.

pub mod auth;
pub mod event;
pub mod filter;
pub mod hex;
pub mod json;
pub mod keys;
pub mod kinds;
pub mod message;
pub mod negentropy;
pub mod nip11;
pub mod rejection;
pub mod relay_message;
pub mod signed_event;

pub use event::{Event, EventId, EventVersion, supersedes};
pub use filter::Filter;
pub use keys::PublicKey;
pub use rejection::{Decision, Rejection};
pub use signed_event::{SignedEvent, Verifier};
