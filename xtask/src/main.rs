//! pathproof's tasks: `cargo xtask TASK`.
//!
//! Each task has one variant and one file, and the doc comment is the help text. CI runs only
//! `cargo xtask ci`, and at night `cargo xtask nightly`, so that all findings can be reproduced locally.

mod bench;
mod build_ebpf;
mod ci;
mod commands;
mod debian;
mod demo;
mod ebpf;
mod excused;
mod fuzz;
mod gen_docs;
mod gen_schemas;
mod go;
mod host;
mod image;
mod kernels;
mod miri;
mod mutants;
mod newcomer;
mod release;
mod run;
mod sanitize;
mod setup_cluster;
mod setup_ebpf;
mod sim;
mod storm;
mod tally;
mod test;
mod tidy;
mod tools;
mod workflows;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// pathproof's tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the agent on real packets: a node, pods and clients as network namespaces (needs root)
    Demo(demo::Args),
    /// Run all tests; without root, tests that need it are skipped and listed
    Test(test::Args),
    /// Break a node at random moments, and compare its answers with what clients experienced (needs
    /// root)
    Storm(run::Rest),
    /// Play hours of simulated nodes with random events, and fail at a false 503 or a missed fault
    Sim(sim::Args),
    /// Play cases of the simulator with a real kube-proxy in network namespaces too, and fail if the
    /// verdicts differ (needs root)
    Compare(run::Rest),
    /// Run a benchmark, such as the cost per packet
    Bench(bench::Args),
    /// Fuzz the parsers of untrusted input (libFuzzer; needs g++)
    Fuzz(fuzz::Args),
    /// Look for undefined behaviour in the tests of pathproof-wire and the core (Miri; needs
    /// nightly)
    Miri(miri::Args),
    /// Change the code that decides an answer, one place at a time, and fail if no test notices
    /// (cargo-mutants)
    Mutants(mutants::Args),
    /// Build the API server and kube-proxy for the cluster tests, once (needs Go)
    SetupCluster(setup_cluster::Args),
    /// Install the compiler and linker for the eBPF object
    SetupEbpf,
    /// Build agent/ebpf/pathproof.bpf.o, or check that it matches its sources
    BuildEbpf(build_ebpf::Args),
    /// Build the container image with buildah: a loadable archive and its SBOM
    Image(image::Args),
    /// Build all files of a release without publishing them (needs Go for helm)
    Release(release::Args),
    /// Clone HEAD and run README's commands there, each timed; builds everything from nothing
    Newcomer(newcomer::Args),
    /// Check the rules of this repository: dependencies, module docs, links, metrics
    Tidy,
    /// Write docs/metrics.md, docs/configuration.md and the chart's table of values
    GenDocs(gen_docs::Args),
    /// Extract the JSON schemas for checking the chart's objects (needs Go)
    GenSchemas,
    /// Run all steps of CI, which guard each landing
    Ci(ci::Args),
    /// Run what CI leaves out: machines, a real node, long storms, fuzzing, Miri, the image twice (a
    /// working day; needs root)
    Nightly(ci::Args),
    /// Run one step of CI in a separate process, or only build its tools; started by `ci`
    #[command(hide = true)]
    Step {
        name: String,
        #[arg(long)]
        tools: bool,
    },
}

fn main() -> ExitCode {
    match run_task(Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn task(line: &str) -> Result<()> {
    run_task(parsed(line)?)
}

fn parsed(line: &str) -> Result<Task> {
    let words = std::iter::once("xtask").chain(line.split(' '));
    Ok(Args::try_parse_from(words)?.task)
}

fn run_task(task: Task) -> Result<()> {
    match task {
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Storm(args) => storm::run(&args),
        Task::Sim(args) => sim::run(&args),
        Task::Compare(args) => storm::compare(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Miri(args) => miri::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::SetupCluster(args) => setup_cluster::run(&args),
        Task::SetupEbpf => setup_ebpf::run(),
        Task::BuildEbpf(args) => build_ebpf::run(&args),
        Task::Image(args) => image::run(&args),
        Task::Release(args) => release::run(&args),
        Task::Newcomer(args) => newcomer::run(&args),
        Task::Tidy => tidy::run(),
        Task::GenDocs(args) => gen_docs::run(&args),
        Task::GenSchemas => gen_schemas::run(),
        Task::Ci(args) => ci::run(ci::CI, &args),
        Task::Nightly(args) => ci::run(ci::NIGHTLY, &args),
        Task::Step { name, tools } => ci::play(&name, tools),
    }
}
