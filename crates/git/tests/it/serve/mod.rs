//! Fetches by the installed git, through a minimal HTTP server.

mod clients;
mod fuzz;
mod git_comparison;
mod http;
mod repository;
