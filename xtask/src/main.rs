//! pathproof's tasks: `cargo xtask TASK`.
//!
//! One variant per task, one file per task, and the doc comment is the help text. CI runs
//! `cargo xtask ci` and nothing else, so that whatever CI finds can be found at a desk.

mod ahead;
mod bench;
mod build_ebpf;
mod ci;
mod commands;
mod dashboard_picture;
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
mod newcomer;
mod release;
mod run;
mod sanitize;
mod setup_cluster;
mod setup_ebpf;
mod storm;
mod tally;
mod test;
mod tidy;
mod tools;
mod workflows;

use std::process::ExitCode;

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
    /// Run all tests; what needs root is skipped loudly without it
    Test(test::Args),
    /// Break a node at random moments of a seed, and hold its answers against what clients felt (needs root)
    Storm(run::Rest),
    /// Measure: cost per packet, or memory and start at 10,000 Services
    Bench(bench::Args),
    /// Feed untrusted bytes to what reads them, for as long as you like (libFuzzer; needs g++)
    Fuzz(fuzz::Args),
    /// Interpret the tests of agent-common and of the core: undefined behaviour (Miri; needs nightly)
    Miri(miri::Args),
    /// Run the namespace tests with an agent that watches its memory (AddressSanitizer; needs root)
    Sanitize(sanitize::Args),
    /// Build the API server and kube-proxy that the cluster tests run (needs Go; once)
    SetupCluster(setup_cluster::Args),
    /// Install what building the eBPF object takes
    SetupEbpf,
    /// Build agent/ebpf/pathproof.bpf.o from its sources, or check that it is what they give
    BuildEbpf(build_ebpf::Args),
    /// Build the container image with buildah: an archive to load, and its SBOM
    Image(image::Args),
    /// Make every file of a release, and publish nothing (needs Go for helm)
    Release(release::Args),
    /// Clone HEAD and run README's commands there, each timed; builds everything from nothing
    Newcomer(newcomer::Args),
    /// Check the rules of this repository: dependencies, module docs, links, metrics
    Tidy,
    /// Write docs/metrics.md, docs/configuration.md and the chart's table of values
    GenDocs(gen_docs::Args),
    /// Extract the schemas that the chart's objects are checked against (needs Go)
    GenSchemas,
    /// Draw the Grafana dashboard over a run with faults, into docs/images (needs root)
    DashboardPicture(dashboard_picture::Args),
    /// Run the list that CI runs
    Ci(ci::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Storm(args) => storm::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Miri(args) => miri::run(&args),
        Task::Sanitize(args) => sanitize::run(&args),
        Task::SetupCluster(args) => setup_cluster::run(&args),
        Task::SetupEbpf => setup_ebpf::run(),
        Task::BuildEbpf(args) => build_ebpf::run(&args),
        Task::Image(args) => image::run(&args),
        Task::Release(args) => release::run(&args),
        Task::Newcomer(args) => newcomer::run(&args),
        Task::Tidy => tidy::run(),
        Task::GenDocs(args) => gen_docs::run(&args),
        Task::GenSchemas => gen_schemas::run(),
        Task::DashboardPicture(args) => dashboard_picture::run(&args),
        Task::Ci(args) => ci::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
