//! `cargo xtask bench`: builds and runs the benchmarks of package node-tests, and the examples of the
//! simulator.

use std::ffi::OsStr;

use anyhow::Result;

use crate::run::Rest;
use crate::{host, image, run, setup_cluster};

const AGENT: &str = "PATHPROOF_AGENT";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Benchmark to run. All but `fleet` and `judgement` need root
    ///
    /// - packet: nanoseconds per packet over an empty TCX program
    /// - scale: memory and time to the first verdict with 10,000 Services
    /// - scale --cluster: memory and times in a real cluster of that size, under changes
    /// - detect: time from fault to 503 and from repair to 200, idle and busy
    /// - detect --kube-proxy: both health servers side by side in a real cluster
    /// - boot: time from the first working connection after boot to 200
    /// - http: response time of /healthz beside 10,000 connections, 400 clients that send many
    ///   requests at once, and busy processors
    /// - load: connections and throughput with and without the agent, and a SYN flood
    /// - soak: growth of memory, open files, map entries and log over an hour of churn
    /// - idle: CPU time of the agent on an idle node while it probes all paths
    /// - rotator: memory of a rotator that counts 5,000 nodes at a real API server, and what
    ///   rotations cost that server
    /// - dashboard: query time of panels and rules with the series of 2,000 nodes
    /// - fleet: simulation of the fleet brake, for docs/fleet-brake.md
    /// - judgement: simulation of every use with every fault and innocent world, for
    ///   docs/internal/judgement.md; the number of seeds may follow
    #[arg(verbatim_doc_comment, hide_possible_values = true, value_parser = [
        "packet", "scale", "detect", "boot", "http", "load", "soak", "idle",
        "rotator", "dashboard", "fleet", "judgement",
    ])]
    name: String,
    #[command(flatten)]
    rest: Rest,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let rest: Vec<&str> = args.rest.arguments.iter().map(String::as_str).collect();
    match (args.name.as_str(), &rest[..]) {
        ("fleet", _) => {
            let picture = run::root().join("docs/images/fleet-brake.svg");
            simulate("fleet", [picture.as_os_str()])
        }
        ("judgement", rest) => simulate("judgement", rest.iter().map(OsStr::new)),
        ("detect", ["--kube-proxy"]) => cluster_tests(&["faults::", "calm::"]),
        ("soak", rest) => measure("storm", &["--soak", "--minutes=60", "--seed=1"], rest),
        ("scale", ["--cluster", rest @ ..]) => measure("bench", &["cluster"], rest),
        (name, rest) => measure("bench", &[name], rest),
    }
}

/// Runs an example of the simulator. It measures nothing: the same seeds give the same tables everywhere.
pub(crate) fn simulate<'a>(
    example: &str,
    words: impl IntoIterator<Item = &'a OsStr>,
) -> Result<()> {
    let mut command = run::cargo();
    command.args(["run", "--quiet", "--release", "--package", "pathproof-sim"]);
    command.args(["--example", example, "--"]).args(words);
    run::run(&mut command)
}

/// Runs a program of package node-tests with the shipped agent.
fn measure(program: &str, words: &[&str], rest: &[&str]) -> Result<()> {
    host::install_world("the benchmark")?;
    match words {
        ["cluster" | "boot" | "rotator"] => drop(setup_cluster::ready()?),
        ["dashboard"] => setup_cluster::prometheus()?,
        _ => {}
    }
    // `packet` loads the eBPF programs itself, and the build of the agent takes minutes.
    let needs_agent = words != ["packet"];
    let agent = needs_agent.then(image::program).transpose()?;
    let program = run::build_program("node-tests", program, "release")?;
    let variable = agent.as_ref().map(|agent| (AGENT, agent.as_os_str()));
    let mut command = host::as_root_with(program, variable.as_slice())?;
    run::run_through_interrupts(command.args(words).args(rest))
}

/// Runs cluster tests that print tables, with the shipped agent and one after another.
fn cluster_tests(tests: &[&str]) -> Result<()> {
    host::install_world("the benchmark")?;
    let agent = image::program()?;
    setup_cluster::ready()?;
    let test = run::build_test("node-tests", "cluster", "release")?;
    let mut command = host::as_root_with(test, &[(AGENT, agent.as_os_str())])?;
    run::run(
        command
            .args(["--nocapture", "--test-threads=1"])
            .args(tests),
    )
}
