//! Single programs out of Debian's packages, unpacked into target/tools: installing the package
//! would start a service, or change the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{host, run};

/// A program of a package.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
    /// Path in the package.
    pub(crate) path: &'static str,
    /// Another source of it.
    pub(crate) origin: &'static str,
}

impl Program {
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// Path of this machine's program, or of the package's, unpacked into `folder`.
    pub(crate) fn ready(&self, folder: &Path) -> Result<PathBuf> {
        let own = folder.join(self.name());
        if own.is_file() {
            return Ok(own);
        }
        if let Some(installed) = host::find(self.name()) {
            return Ok(installed);
        }
        self.unpack(folder, &own)?;
        Ok(own)
    }

    fn unpack(&self, folder: &Path, own: &Path) -> Result<()> {
        let Self {
            package, origin, ..
        } = self;
        let name = self.name();
        if host::find("apt-get").is_none() || host::find("dpkg-deb").is_none() {
            bail!(
                "{name} is missing, and there is no apt-get here: put it into PATH ({origin}) and \
                 try again"
            );
        }
        eprintln!("{name} is missing: unpacking Debian's {package} into target/tools");
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let scratch = tempfile::tempdir_in(folder)?;
        let root = scratch.path().join("root");
        fetch(package, scratch.path(), &root)?;
        fs::rename(root.join(self.path), own)
            .with_context(|| format!("no {} in Debian's {package}", self.path))
    }
}

/// Fetches a package by way of `scratch` and unpacks it into `root`; gives its version.
pub(crate) fn fetch(package: &str, scratch: &Path, root: &Path) -> Result<String> {
    let download = || {
        run::run(
            Command::new("apt-get")
                .current_dir(scratch)
                .args(["download", "--quiet", package]),
        )
    };
    if download().is_err() {
        // A fresh machine has no package lists, or stale ones.
        host::update_lists()?;
        download()?;
    }
    let file = fs::read_dir(scratch)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|kind| kind == "deb"))
        .context("apt-get download left no package")?;
    let version = run::output(
        Command::new("dpkg-deb")
            .arg("--field")
            .arg(&file)
            .arg("Version"),
    )?;
    run::run(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&file)
            .arg(root),
    )?;
    fs::remove_file(&file)?;
    Ok(String::from_utf8_lossy(&version).trim().to_owned())
}
