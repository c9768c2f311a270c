//! The demo: see `node_tests::demo`. `cargo xtask demo` builds the agent first and then runs this.

use std::process::ExitCode;

fn main() -> ExitCode {
    node_tests::demo::main()
}
