//! What listens: sockets, HTTP routes, websocket sessions.

pub(crate) mod client;
pub(crate) mod git;
pub(crate) mod health;
pub(crate) mod listen;
pub(crate) mod networks;
pub(crate) mod nip11;
pub(crate) mod pace;
pub(crate) mod pages;
pub(crate) mod places;
pub(crate) mod reconcile;
pub(crate) mod reply;
pub(crate) mod routes;
pub(crate) mod session;
pub(crate) mod side;
pub(crate) mod sightings;
pub(crate) mod socket;
pub(crate) mod status;
pub(crate) mod subscriptions;
