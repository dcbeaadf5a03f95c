//! The keeper carries out orders on real repositories, and real git reads them.

mod alternates;
mod crash;
mod objects;
mod update;
