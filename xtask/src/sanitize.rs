//! The agent with AddressSanitizer, for `cargo xtask test --sanitize`: an access out of bounds or
//! after free, in unsafe code of the agent or a library, ends the agent and the test.
//!
//! The stable compiler contains the runtime; only the flag needs RUSTC_BOOTSTRAP.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{ebpf, image, run};

/// Tests of the agent's memory use, which is several times higher with the sanitizer.
pub(crate) const LEFT_OUT: &[&str] = &[
    "agent_http_abuse::requests_that_are_too_large",
    "agent_http_abuse::strangers_fit_into_the_memory",
];

pub(crate) fn prepare(test: &mut Command) {
    // The agent takes twice the processor time.
    test.env("PATHPROOF_TEST_PATIENCE", "3")
        // The leak detector traces the process, which the agent's filter of system calls forbids.
        .env("ASAN_OPTIONS", "detect_leaks=0");
}

pub(crate) fn agent() -> Result<PathBuf> {
    ebpf::insist_on_sources()?;
    let host = image::rustc(&["--print", "host-tuple"])?;
    let mut build = run::cargo();
    build
        .args(["build", "--package", "pathproof", "--bin", "pathproof"])
        // An explicit target keeps the flag away from build scripts and macros.
        .args(["--target", &host])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", run::root().join("target/sanitize"));
    run::built(&mut build, "pathproof")
}
