//! The store against the contract that the simulated store keeps too, and what only a store on disk has.

mod contract;
mod local;
mod rows;
mod vanish;
