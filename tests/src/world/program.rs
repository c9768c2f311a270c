//! Programs that a test puts into its world. Another process writes them: a thread that forks while
//! this one has a file open for writing hands it to its child, and the kernel runs no file that
//! somebody may still write (ETXTBSY).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::netns::feed;

/// Copies a program.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--preserve=mode", "--"]).arg(from).arg(to);
    feed(copy, "").map(drop)
}

/// Writes a shell script that can be run as a program.
pub fn write_script(to: &Path, text: &str) -> Result<()> {
    let written = to.with_extension("text");
    fs::write(&written, text).with_context(|| format!("write {}", written.display()))?;
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755))?;
    copy_program(&written, to)
}
