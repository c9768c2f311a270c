//! `cargo xtask gen-docs`: generates the agent's reference pages and the chart's table of values
//! from the code, so that they stay correct.

mod chart;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only check that the checked-in pages are current
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = run::root().join("deploy/chart");
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let readme = read("README.md")?;
    let wanted = chart::with_table(&readme, &read("values.yaml")?)?;
    if !args.check {
        fs::write(folder.join("README.md"), wanted)
            .context("cannot write the chart's README.md")?;
    } else if readme != wanted {
        bail!("deploy/chart/README.md is out of date; run: cargo xtask gen-docs");
    }
    // Tests of agent and program compare their pages with the checked-in ones. With the variable they write them first.
    let mut pages = run::cargo();
    pages.args(["test", "--quiet", "--lib", "--package", "pathproof"]);
    pages.args(["--package", "pathproof-agent"]);
    pages.arg("the_page_in_docs_is_current");
    match args.check {
        true => pages.env_remove("PATHPROOF_BLESS"),
        false => pages.env("PATHPROOF_BLESS", "1"),
    };
    run::run(&mut pages)
}
