//! `cargo xtask demo`: builds the agent and the demo, and runs the demo as root.
//!
//! The program `demo` of package node-tests defines the world, its timeline and the options. This
//! file only builds and starts it on a fresh machine.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::tally::{Counted, Tally};
use crate::{ebpf, host, image, run, setup_cluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options of the demo, such as --cluster; for a list run `cargo xtask demo -- --help`
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let on_cluster = args.options.iter().any(|option| option == "--cluster");
    if on_cluster {
        host::cgroup_version()
            .context("cargo xtask demo shows the same faults without Kubernetes")?;
    }
    host::install_world("the demo")?;
    eprintln!("building the agent and the demo (about five minutes the first time)");
    let demo = build(if on_cluster { "pod" } else { "pathproof" })?;
    let image = on_cluster.then(image::archive).transpose()?;
    if on_cluster {
        // The demo searches for the servers in target/tools.
        setup_cluster::real_node()?;
        setup_cluster::prometheus()?;
    }
    if !host::is_root() {
        eprintln!(
            "the demo creates network namespaces and loads eBPF programs: running it with \
             sudo"
        );
    }
    let variables = image
        .as_ref()
        .map(|image| ("PATHPROOF_IMAGE", image.as_os_str()));
    let mut command = host::as_root_with(demo, variables.as_slice())?;
    run::run_through_interrupts(command.args(&args.options))
}

/// Builds the demo and the program that it expects next to itself, in one build with the profile of
/// the tests. Libraries are then compiled once.
fn build(beside: &str) -> Result<PathBuf> {
    ebpf::insist_on_sources()?;
    let mut command = run::cargo();
    command.args(["build", "-p", "node-tests", "-p", "pathproof"]);
    run::built(command.args(["--bin", beside, "--bin", "demo"]), "demo")
}

/// Runs one minute, with the agent of the tests.
pub(crate) fn for_ci() -> Result<Counted> {
    if let Some(why) = host::no_world() {
        return Ok(Counted::skip("demo", why));
    }
    host::install_world("the demo")?;
    let mut command = host::as_root(build("pathproof")?)?;
    // Failed rows of the table, which the error repeats, because the table may be out of sight.
    let mut missed = Vec::new();
    let line = |line: &str| {
        println!("{line}");
        let row = line.trim();
        if row.starts_with('✘') {
            missed.push(row.to_owned());
        }
    };
    let status = run::through_interrupts(|| run::lines(&mut command, line))?;
    let missed = missed.join("; ");
    ensure!(
        status.success(),
        "the demo did not show what was expected: {missed}"
    );
    Ok(Tally::PASSED.into())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// Options that reach the demo, for the words typed after `cargo xtask demo`.
    fn told(typed: &[&str]) -> Vec<String> {
        let command = Args::augment_args(Command::new("demo").no_binary_name(true));
        let matches = command.try_get_matches_from(typed).expect("understood");
        Args::from_arg_matches(&matches)
            .expect("understood")
            .options
    }

    #[test]
    fn options_reach_the_demo() {
        assert_eq!(told(&[]), [""; 0]);
        for typed in [
            ["--cluster", "--svg"].as_slice(),
            &["--svg", "a file.svg", "--cluster"],
        ] {
            assert_eq!(told(typed), typed);
        }
        assert_eq!(told(&["--", "--help"]), ["--help"]);
    }
}
