//! `cargo xtask demo`: builds the agent and the demo, and runs the demo as root.
//!
//! The world and its timeline are the program `demo` of package node-tests, and so are its options;
//! this file only gets it built and started on a fresh machine.

use std::fs;

use anyhow::{Context, Result};

use crate::tally::{Counted, Tally};
use crate::{ebpf, host, image, run, setup_cluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options of the demo, such as --keep; for a list run `cargo xtask demo -- --help`
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if on_cluster(&args.options) {
        host::insist_on_cgroup_v1("cargo xtask demo shows the same faults without Kubernetes")?;
    }
    host::install_world("the demo")?;
    eprintln!("building the agent and the demo (some minutes the first time)");
    let agent = match needs_agent(&args.options) {
        false => None,
        true if on_cluster(&args.options) => Some(("--image", image::archive()?)),
        true => {
            let program = ebpf::agent("release")?;
            Some(("--agent", program))
        }
    };
    let demo = run::build_program("node-tests", "demo", "release")?;
    if on_cluster(&args.options) {
        // The demo finds it beside itself, and the servers in target/tools.
        run::build_program("node-tests", "pod", "release")?;
        setup_cluster::real_node()?;
        setup_cluster::prometheus()?;
    }
    if !host::is_root() {
        eprintln!(
            "the demo creates network namespaces and loads eBPF programs: running it with \
                   sudo"
        );
    }
    let mut command = host::as_root(demo)?;
    if let Some((option, file)) = agent {
        command.arg(option).arg(file);
    }
    run::run_through_interrupts(command.args(&args.options))
}

/// A minute, with the agent that the tests use.
pub(crate) fn for_ci() -> Result<Counted> {
    if let Some(why) = host::no_world() {
        return Ok(Counted::skip("demo", why));
    }
    host::install_world("the demo")?;
    let agent = ebpf::agent("dev")?;
    let demo = run::build_program("node-tests", "demo", "dev")?;
    let record = run::root().join("target/ci/demo.txt");
    fs::create_dir_all(record.parent().context("a folder in a folder")?)?;
    let mut command = host::as_root(demo)?;
    command
        .arg("--agent")
        .arg(agent)
        .arg("--record")
        .arg(&record);
    let played = run::run_through_interrupts(&mut command);
    played.with_context(|| missed(&fs::read_to_string(&record).unwrap_or_default()))?;
    Ok(Tally::PASSED.into())
}

/// Rows of the demo's last table that are not as expected: what it printed may be out of sight.
fn missed(timeline: &str) -> String {
    let table = timeline.rsplit("What was expected").next();
    let rows = table.unwrap_or_default().lines().map(str::trim);
    let missed: Vec<&str> = rows.filter(|row| row.starts_with('✘')).collect();
    format!(
        "the demo did not show what was expected: {}",
        missed.join("; ")
    )
}

/// Whether it plays on a real node.
fn on_cluster(options: &[String]) -> bool {
    options.iter().any(|option| option == "--cluster")
}

/// Removing a world needs none, and neither does a question.
fn needs_agent(options: &[String]) -> bool {
    let without = ["--remove", "--help", "-h"];
    !options
        .iter()
        .any(|option| without.contains(&option.as_str()))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// Options that reach the demo, from the words typed behind `cargo xtask demo`.
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
            ["--keep", "--svg"].as_slice(),
            &["--record", "a file.cast", "--keep"],
            &["--remove"],
        ] {
            assert_eq!(told(typed), typed);
        }
        assert_eq!(told(&["--", "--help"]), ["--help"]);
    }

    #[test]
    fn what_was_missed_is_named() {
        let timeline = "   ✘ broken\n What was expected, and what came\n\n   heading\n\
                         ✔ flushed   503   1.0 s\n ✘ tainted   503   -   200 ms  seen: 200\n";
        let row = "✘ tainted   503   -   200 ms  seen: 200";
        assert_eq!(missed(timeline), format!("the demo missed: {row}"));
        assert_eq!(missed(""), "the demo missed: ");
    }

    #[test]
    fn only_a_performance_needs_an_agent() {
        let options = |typed: &[&str]| typed.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(needs_agent(&options(&["--keep"])));
        assert!(!needs_agent(&options(&["--remove"])));
    }
}
