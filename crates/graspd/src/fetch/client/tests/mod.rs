//! Tests of the git client against real git servers and scripted ones, on loopback.

mod git_http_backend;
mod local_objects;
mod misbehaving_servers;
mod server;
mod setup;
