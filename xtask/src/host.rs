//! The machine that runs a task: who we are on it, which programs it has, and how to get more.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// Whether this process may load programs and make namespaces.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The full path of a program in PATH or in a system folder that a plain user's PATH may lack.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Installs packages with apt-get where `present` says that something is missing.
///
/// `purpose` finishes the sentence "... needs PACKAGES".
pub(crate) fn install(purpose: &str, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let Some(apt) = find("apt-get") else {
        bail!("{purpose} needs {list}, and there is no apt-get here; install them by hand");
    };
    if !is_root() && find("sudo").is_none() {
        bail!("{purpose} needs {list}; run as root: apt-get install {list}");
    }
    eprintln!("{purpose} needs {list}: installing with apt-get");
    let arguments = ["install", "--yes", "--quiet", "--no-install-recommends"];
    if run::run(as_root(&apt).args(arguments).args(packages)).is_ok() {
        return Ok(());
    }
    // A fresh machine has no package lists, or stale ones.
    run::run(as_root(&apt).args(["update", "--quiet"]))?;
    run::run(as_root(&apt).args(arguments).args(packages))
        .with_context(|| format!("{purpose} needs {list}; install them and try again"))
}

/// A program to be run as root: itself, or through sudo.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("env");
        command.arg("DEBIAN_FRONTEND=noninteractive");
        command
    } else {
        let mut command = Command::new("sudo");
        command.args(["--", "env", "DEBIAN_FRONTEND=noninteractive"]);
        command
    };
    command.arg(program.as_ref());
    command
}

/// What the namespace worlds of tests and demo run: program and its Debian package.
const WORLD: [(&str, &str); 4] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
];

/// Installs the programs of the namespace worlds that this machine lacks.
pub(crate) fn install_world(purpose: &str) -> Result<()> {
    let missing: Vec<&str> = WORLD
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, p)| *p)
        .collect();
    install(purpose, &missing)
}

/// Puts a folder at the front of a command's PATH.
pub(crate) fn prepend_path(command: &mut Command, folder: &Path) -> Result<()> {
    let old = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_path_buf()).chain(env::split_paths(&old));
    command.env(
        "PATH",
        env::join_paths(folders).context("PATH holds a folder with a colon")?,
    );
    Ok(())
}
