//! The keeper carries out orders on real repositories, and real git reads them.

mod align;
mod crash;
mod lenders;
mod objects;
