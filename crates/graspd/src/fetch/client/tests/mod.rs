//! Fetches from real git servers and from strange ones, on loopback.

mod larder;
mod real;
mod server;
mod stage;
mod strange;
