//! The real git against what we serve, through a web server that is just large enough for it.

mod clients;
mod fuzz;
mod git_comparison;
mod http;
mod repository;
