//! Sample reports for the tests of all crates.

pub mod sample;
