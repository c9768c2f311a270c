//! `cargo xtask image --check`: the same sources elsewhere give the same program.

use std::fs;

use anyhow::{Result, bail};

use super::blobs::sha256;
use super::{Written, program};
use crate::run;
use crate::tidy::tracked;

/// Builds once more, in a copy of the sources with a target folder of its own, and compares.
pub(super) fn twice(written: &[Written], profile: &str) -> Result<()> {
    let root = run::root();
    let elsewhere = root.join("target/image/check");
    let sources = elsewhere.join("sources");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    for path in tracked(&root)? {
        let to = sources.join(&path);
        fs::create_dir_all(to.parent().unwrap_or(&sources))?;
        fs::copy(root.join(&path), to)?;
    }
    println!("\nbuilding a second time, in {}", elsewhere.display());
    let target = elsewhere.join("target");
    for one in written {
        let file = program::build(one.arch, profile, &sources, Some(&target))?;
        let again = fs::read(&file)?;
        if again != one.program {
            bail!(
                "linux/{}: the second build gave other bytes, {} and {}; compare {} with diffoscope",
                one.arch.name(),
                sha256(&one.program),
                sha256(&again),
                file.display()
            );
        }
        println!(
            "linux/{}: the same bytes, {}",
            one.arch.name(),
            sha256(&again)
        );
    }
    fs::remove_dir_all(&elsewhere)?;
    Ok(())
}
