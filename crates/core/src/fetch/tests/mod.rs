//! Tables for the hunt. The first file has the cases of 002 under its own names.

mod looks;
mod manners;
mod rig;
mod rounds;
mod seed;
