//! Programs that a test writes into its world. A separate process writes them. If this process had the file
//! open for writing, a child forked at that moment would inherit the descriptor, and the kernel would refuse
//! to run the file (ETXTBSY).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::netns::feed;

pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--preserve=mode", "--"]).arg(from).arg(to);
    feed(copy, "").map(drop)
}

/// Writes an executable shell script.
pub fn write_script(to: &Path, text: &str) -> Result<()> {
    let written = to.with_extension("text");
    fs::write(&written, text).with_context(|| format!("write {}", written.display()))?;
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755))?;
    copy_program(&written, to)
}
