//! The nostr relay: websocket sessions of clients, queries, live events and negentropy (NIP-77).
//!
//! | module | contents | runs on |
//! |---|---|---|
//! | `upgrade` | websocket handshake | the task of the HTTP connection |
//! | `session` | reads messages of one client, writes replies | one task of the async runtime per connection |
//! | `subscriptions`, `negentropy` | REQ, COUNT and NEG-OPEN of one session | the session's task |
//! | `frame_reader` | reads websocket messages | the session's task |
//! | `outbox` | messages from the threads below to a session | – |
//! | `query_pool` | reads the store for REQ, COUNT and negentropy, in slices | a fixed pool of threads |
//! | `broadcast` | index of open subscriptions; sends them new events after each commit | one thread |
//! | `negentropy_cache` | item sets, shared by sessions that ask for the same filter | one thread |
//! | `budgets` | memory that clients share, with a share for each network | – |
//! | `nip11` | relay information document | the task of the HTTP connection |
//!
//! The router in `server` calls `upgrade` and `nip11`. A session submits events to the [writer](crate::writer) and gets
//! the replies through its outbox; the writer reports commits through
//! [`CommitListener`](crate::writer::CommitListener).
//!
//! May use `writer`, `http`, `metrics`, `config`, `clock` and `random`. It reads the store and never writes to it.

pub(crate) mod broadcast;
pub(crate) mod budgets;
#[cfg(test)]
mod echo_server;
pub(crate) mod frame_reader;
pub(crate) mod negentropy;
pub(crate) mod negentropy_cache;
pub(crate) mod nip11;
pub(crate) mod outbox;
pub(crate) mod query_pool;
pub(crate) mod session;
pub(crate) mod subscriptions;
pub(crate) mod upgrade;
