//! Tests of the public interface: fuzzing of the parsers, and negentropy against a second implementation.

mod fuzz;
mod negentropy;
