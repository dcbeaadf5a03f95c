//! HTTP server: accepts connections, applies the connection limits and passes each request to a
//! [`RequestHandler`](server::RequestHandler).
//!
//! Everything runs as tasks of the tokio runtime: one accept loop, one task per connection, and one task that counts
//! the connections and published events of each client network. `server` starts the listener and implements the request
//! handler; `git`, `relay`, `web`, `admin` and `fetch` use the response bodies, the limits and the fair semaphore.
//!
//! - [`server`]: accept loop, connection tasks, graceful shutdown.
//! - [`stall_timeout`]: timeouts of connections that make no progress.
//! - [`connection_limit`], [`network_limits`]: limits of all connections and of each client network.
//! - [`shared_budget`]: memory that all clients share, with a share for each client network.
//! - [`fair_semaphore`]: limits concurrent work fairly among client networks.
//! - [`network_queue`]: queue of work in which client networks take turns.
//! - [`forwarded`]: the client address behind trusted proxies, and untrusted proxies.
//! - [`body`], [`response`]: responses.
//!
//! May use `config` and `clock`. Routes are defined in `server`.

pub(crate) mod body;
pub(crate) mod connection_limit;
pub(crate) mod fair_semaphore;
pub(crate) mod forwarded;
pub(crate) mod network_limits;
pub(crate) mod network_queue;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod shared_budget;
pub(crate) mod stall_timeout;
