//! Tests of the fetch machine. `seed` contains the basic cases of rounds, backoff, throttling and fairness.

mod basics;
mod host_limits;
mod mirror_checks;
mod rounds;
mod test_machine;
