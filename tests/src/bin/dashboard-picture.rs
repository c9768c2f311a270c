//! Draws the dashboard: see `node_tests::dashboard::picture`. Started by `cargo xtask
//! dashboard-picture`, which makes the data first.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::dashboard::Dashboard;
use node_tests::dashboard::picture::{Data, draw};

/// Draws the Grafana dashboard with the data of a run
#[derive(Debug, Parser)]
struct Args {
    /// File of the test with Prometheus's answers
    data: PathBuf,
    /// Where the picture goes (SVG)
    picture: PathBuf,
    /// Only sections whose title contains this; may be given several times
    #[arg(long, value_name = "TITLE")]
    section: Vec<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let text = fs::read_to_string(&args.data).context("read the data")?;
    let data = Data::from_json(&text).context("these are no data of a run")?;
    let picture = draw(&Dashboard::read()?, &data, &args.section);
    fs::write(&args.picture, picture).with_context(|| format!("write {}", args.picture.display()))
}
