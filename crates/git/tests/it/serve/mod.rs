//! The real git against what we serve, through a web server that is just large enough for it.

mod bytes;
mod clients;
mod fuzz;
mod http;
mod site;
