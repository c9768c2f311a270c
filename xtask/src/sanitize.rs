//! `cargo xtask sanitize`: the agent with AddressSanitizer, in the namespace world: what its own
//! unsafe code and its libraries' read or write out of bounds, or after it was freed, ends it, and
//! the test with it.
//!
//! The runtime is in the stable compiler's own library; only the flag asks for RUSTC_BOOTSTRAP.

use anyhow::{Result, bail};

use crate::{ebpf, host, image, run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only tests whose name contains this
    filter: Option<String>,
}

/// Tests of how much memory the agent takes, which is several times more here.
const LEFT_OUT: [&str; 2] = [
    "agent_http_abuse::requests_that_are_too_large",
    "agent_http_abuse::strangers_fit_into_the_memory",
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if !host::is_root() {
        bail!("the namespace tests need root: sudo -E env \"PATH=$PATH\" cargo xtask sanitize");
    }
    ebpf::insist_on_sources()?;
    host::install_world("the namespace tests")?;
    let agent = agent()?;
    let mut test = run::cargo();
    test.args(["test", "--package", "node-tests", "--test", "node"])
        .args(["--no-fail-fast"])
        .args(args.filter.as_deref())
        .arg("--")
        .args(LEFT_OUT.iter().flat_map(|test| ["--skip", test]))
        .env("PATHPROOF_AGENT", agent)
        // Twice the processor time: fewer at once, and more patience.
        .env("RUST_TEST_THREADS", "2")
        .env("PATHPROOF_TEST_PATIENCE", "3")
        // Leaks are looked for by a tracer, which the agent's own filter of system calls refuses.
        .env("ASAN_OPTIONS", "detect_leaks=0");
    run::run(&mut test)
}

fn agent() -> Result<std::path::PathBuf> {
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
