//! `cargo xtask bench`: builds and runs the measuring programs of package node-tests.

use anyhow::Result;

use crate::{host, run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Nanoseconds per packet over an empty TCX program (needs root)
    Packet(Rest),
    /// Memory and time to the first verdict with 10,000 Services and 100,000 endpoints (needs root)
    Scale(Rest),
    /// Time from fault to 503 and from repair to 200, idle and busy (needs root)
    Detect(Rest),
    /// Processor time of the agent on an idle node, all paths probed (needs root)
    Idle(Rest),
}

#[derive(Debug, clap::Args)]
struct Rest {
    /// Arguments of the measuring program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (program, arguments) = match &args.what {
        What::Packet(rest) => ("bench-packet", &rest.arguments),
        What::Scale(rest) => ("bench-scale", &rest.arguments),
        What::Detect(rest) => ("bench-detect", &rest.arguments),
        What::Idle(rest) => ("bench-idle", &rest.arguments),
    };
    host::install_world("the benchmark")?;
    let agent = run::build_program("pathproof", "pathproof", true)?;
    let bench = run::build_program("node-tests", program, true)?;
    let mut command = host::as_root_with(bench, &[("PATHPROOF_AGENT", agent.as_os_str())])?;
    run::run_through_interrupts(command.args(arguments))
}
