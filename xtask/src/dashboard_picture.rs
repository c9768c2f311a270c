//! `cargo xtask dashboard-picture`: lets a fleet of five nodes suffer for four minutes, with a real
//! Prometheus looking on, and draws the Grafana dashboard of that time into docs/images.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{ebpf, host, run, setup_cluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Draw the data of an earlier run again
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

/// Pictures and the sections that each shows.
const PICTURES: [(&str, &[&str]); 3] = [
    ("dashboard.svg", &["Fleet", "What happened"]),
    ("dashboard-node.svg", &["Node "]),
    (
        "dashboard-more.svg",
        &["Freshness", "Services", "Sentinel", "observer", "agents"],
    ),
];
const RUN: &str = "the_dashboard_shows_a_fleet_with_faults";

pub(crate) fn run(args: &Args) -> Result<()> {
    let data = match &args.data {
        Some(file) => file.clone(),
        None => make_data()?,
    };
    let program = run::build_program("node-tests", "dashboard-picture", "dev")?;
    for (name, sections) in PICTURES {
        let picture = run::root().join("docs/images").join(name);
        let mut draw = Command::new(&program);
        draw.arg(&data).arg(&picture);
        for section in sections {
            draw.args(["--section", section]);
        }
        run::run(&mut draw)?;
        println!("wrote docs/images/{name}");
    }
    Ok(())
}

fn make_data() -> Result<PathBuf> {
    if !host::is_root() {
        bail!("the nodes are network namespaces: run this as root");
    }
    host::install_world("the nodes of the picture")?;
    let agent = ebpf::agent("dev")?;
    let data = run::root().join("target/dashboard-data.json");
    let mut command = run::cargo();
    command
        .args([
            "test",
            "--quiet",
            "--package",
            "node-tests",
            "--test",
            "node",
            RUN,
        ])
        .env("PATHPROOF_AGENT", agent)
        .env(
            "PATHPROOF_PROMETHEUS",
            setup_cluster::prometheus()?.prometheus,
        )
        .env("PATHPROOF_DASHBOARD_DATA", &data);
    eprintln!("five nodes suffer for four minutes");
    run::run(&mut command)?;
    Ok(data)
}
