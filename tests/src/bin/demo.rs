//! The demo: see `node_tests::demo`. Started by `cargo xtask demo`, which builds the agent first.

use std::process::ExitCode;

fn main() -> ExitCode {
    node_tests::demo::main()
}
