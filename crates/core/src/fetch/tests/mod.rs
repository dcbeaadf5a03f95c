//! Tests of the fetch machine. `seed` contains the basic cases of rounds, backoff, throttling and fairness.

mod looks;
mod manners;
mod rig;
mod rounds;
mod seed;
