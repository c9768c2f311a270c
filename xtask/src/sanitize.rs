//! The agent with AddressSanitizer, for `cargo xtask test --sanitize`: an access out of bounds or after free,
//! in its own unsafe code or a library's, ends the agent and the test.
//!
//! The runtime is in the stable compiler's own library; only the flag asks for RUSTC_BOOTSTRAP.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{ebpf, image, run};

/// Tests of how much memory the agent takes, which is several times more here.
pub(crate) const LEFT_OUT: &[&str] = &[
    "agent_http_abuse::requests_that_are_too_large",
    "agent_http_abuse::strangers_fit_into_the_memory",
];

/// Adapts the tests to that agent.
pub(crate) fn prepare(test: &mut Command) {
    // It takes twice the processor time.
    test.env("PATHPROOF_TEST_PATIENCE", "3")
        // Leaks are looked for by a tracer, which the agent's own filter of system calls refuses.
        .env("ASAN_OPTIONS", "detect_leaks=0");
}

/// Builds the agent.
pub(crate) fn agent() -> Result<PathBuf> {
    ebpf::insist_on_sources()?;
    let host = image::rustc(&["--print", "host-tuple"])?;
    let mut build = run::cargo();
    build
        .args(["build", "--package", "pathproof", "--bin", "pathproof"])
        // A target of its own keeps the flag away from build scripts and macros.
        .args(["--target", &host])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", run::root().join("target/sanitize"));
    run::built(&mut build, "pathproof")
}
