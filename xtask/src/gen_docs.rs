//! `cargo xtask gen-docs`: the pages that the agent writes about itself, so that they cannot lie.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare with the pages that are there; change nothing
    #[arg(long)]
    pub(crate) check: bool,
}

/// Page and the argument of `pathproof docs` that prints it.
const PAGES: [(&str, &str); 2] = [
    ("docs/metrics.md", "metrics"),
    ("docs/configuration.md", "configuration"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let agent = run::build_program("pathproof", "pathproof", "dev")?;
    for (page, name) in PAGES {
        let wanted = run::output(std::process::Command::new(&agent).args(["docs", name]))?;
        let path = run::root().join(page);
        if args.check {
            if fs::read(&path).ok().as_ref() != Some(&wanted) {
                bail!("{page} is not what the agent says; run: cargo xtask gen-docs");
            }
        } else {
            fs::write(&path, wanted).with_context(|| format!("cannot write {page}"))?;
            println!("wrote {page}");
        }
    }
    Ok(())
}
