//! Checks the workflows of GitHub with actionlint. tidy/workflows.rs has this repository's rules about them.

use std::process::Command;

use anyhow::Result;

use crate::go::Module;
use crate::run;
use crate::tally::{Counted, Tally};

pub(crate) const ACTIONLINT: Module = Module {
    name: "actionlint",
    path: "github.com/rhysd/actionlint",
    version: "v1.7.12",
    programs: &["cmd/actionlint"],
    takes: "15 s",
    ..Module::EMPTY
};

/// Skipped if actionlint cannot be built: without Go, or without a module proxy.
pub(crate) fn for_ci() -> Result<Counted> {
    let folder = match ACTIONLINT.ready() {
        Ok(folder) => folder,
        Err(error) => {
            let why = format!("actionlint cannot be built ({error:#})");
            return Ok(Counted::skip("workflows", &why));
        }
    };
    run::run(
        Command::new(folder.join("actionlint"))
            .current_dir(run::root())
            // The result must not depend on other linters of this machine.
            .args(["-shellcheck=", "-pyflakes="]),
    )?;
    Ok(Tally::PASSED.into())
}
