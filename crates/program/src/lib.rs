//! The command line of the program `pathproof`. Its commands are those of the crates below.

pub mod args;
