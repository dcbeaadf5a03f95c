//! Tests of relay connections against scripted relays on loopback.

mod backpressure;
mod closing;
mod dialling;
mod messages;
mod setup;
