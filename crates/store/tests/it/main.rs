//! Tests of the store: the contract that it shares with the simulated store, and behaviour of the on-disk store only.

mod contract;
mod local;
mod rows;
mod vanish;
