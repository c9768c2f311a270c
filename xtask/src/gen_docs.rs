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
    let readme = chart::with_table(&read("README.md")?, &read("values.yaml")?)?;
    page("deploy/chart/README.md", readme.as_bytes(), args)?;
    // Tests of the agent compare its pages with the checked-in ones. With the variable they write them first.
    let mut pages = run::cargo();
    pages.args(["test", "--quiet", "--package", "pathproof", "--lib"]);
    pages.arg("the_page_in_docs_is_current");
    match args.check {
        true => pages.env_remove("PATHPROOF_BLESS"),
        false => pages.env("PATHPROOF_BLESS", "1"),
    };
    run::run(&mut pages)
}

/// Writes a page, or compares it with the existing one.
fn page(name: &str, wanted: &[u8], args: &Args) -> Result<()> {
    let path = run::root().join(name);
    if args.check {
        if fs::read(&path).ok().as_deref() != Some(wanted) {
            bail!("{name} is out of date; run: cargo xtask gen-docs");
        }
    } else {
        fs::write(&path, wanted).with_context(|| format!("cannot write {name}"))?;
        println!("wrote {name}");
    }
    Ok(())
}
