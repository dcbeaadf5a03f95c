//! Machine 3: where to look for missing git data.

pub mod io;
pub mod origin;
