//! Contents of Debian's packages, unpacked below target. They are not installed, because that would start
//! services or change the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::image::Arch;
use crate::{host, run};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
    /// Path in the package.
    pub(crate) path: &'static str,
    /// Where the program is available without Debian, for the error message.
    pub(crate) origin: &'static str,
}

impl Program {
    /// Path of the program on this machine, or in the package, which is unpacked first.
    pub(crate) fn ready(&self) -> Result<PathBuf> {
        self.ready_in(&run::root().join("target/tools/debian"))
    }

    pub(crate) fn ready_in(&self, folder: &Path) -> Result<PathBuf> {
        let (package, path, origin) = (self.package, self.path, self.origin);
        let name = path.rsplit('/').next().unwrap_or(path);
        let own = folder.join(name);
        if own.is_file() {
            return Ok(own);
        }
        if let Some(installed) = host::find(name) {
            return Ok(installed);
        }
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
        Apt::here().fetch(package, scratch.path(), &root)?;
        fs::rename(root.join(path), &own)
            .with_context(|| format!("no {path} in Debian's {package}"))?;
        Ok(own)
    }
}

/// Debian's packages of one architecture.
///
/// Packages of another architecture than this machine's have separate lists and a separate cache in
/// target/kernels, so that this machine's apt and dpkg stay unchanged.
#[derive(Debug)]
pub(crate) struct Apt {
    options: Vec<String>,
    /// Folder of fetched packages; `None` for this machine's apt, which has its own.
    archives: Option<PathBuf>,
}

impl Apt {
    /// The packages of this machine's architecture.
    pub(crate) fn here() -> Self {
        Self {
            options: Vec::new(),
            archives: None,
        }
    }

    pub(crate) fn of(arch: Arch) -> Result<Self> {
        if Arch::here().is_ok_and(|here| here == arch) {
            return Ok(Self::here());
        }
        let folder = run::root().join(format!("target/kernels/apt-{}", arch.name()));
        let (state, cache) = (folder.join("state"), folder.join("cache"));
        let archives = cache.join("archives");
        for folder in [state.join("lists/partial"), archives.join("partial")] {
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
        // Nothing is installed there, so that all dependencies of a package are fetched.
        let status = state.join("status");
        fs::write(&status, "")?;
        let name = arch.name();
        let options = [
            format!("APT::Architecture={name}"),
            format!("APT::Architectures={name}"),
            format!("Dir::State={}", state.display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", cache.display()),
            // apt's download user may not write here.
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Self {
            options: options.into(),
            archives: Some(archives),
        })
    }

    /// A command of apt on these packages: `apt-get` or `apt-cache`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    fn update_lists(&self) -> Result<()> {
        if self.options.is_empty() {
            return host::update_lists();
        }
        run::run(self.command("apt-get").args(["update", "--quiet"]))
    }

    /// Runs `act`, and once more with updated lists if it fails: a fresh machine has none, or stale ones.
    pub(crate) fn with_lists<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        act().or_else(|_| self.update_lists().and_then(|()| act()))
    }

    /// Fetches a package into the folder `scratch` and unpacks it into `root`; returns its version.
    pub(crate) fn fetch(&self, package: &str, scratch: &Path, root: &Path) -> Result<String> {
        self.with_lists(|| {
            let mut download = self.command("apt-get");
            download.current_dir(scratch);
            run::run(download.args(["download", "--quiet", package]))
        })?;
        let file = archives_in(scratch)?.pop();
        let file = file.context("apt-get download left no package")?;
        let mut ask = Command::new("dpkg-deb");
        let version = run::output(ask.arg("--field").arg(&file).arg("Version"))?;
        extract(&file, root)?;
        fs::remove_file(&file)?;
        Ok(String::from_utf8_lossy(&version).trim().to_owned())
    }

    /// Fetches packages of another architecture with all dependencies, and unpacks them into `root`.
    pub(crate) fn fetch_whole(&self, packages: &[&str], root: &Path) -> Result<()> {
        let archives = self.archives.as_ref();
        let archives = archives.context("packages of this machine are installed")?;
        self.with_lists(|| {
            let mut download = self.command("apt-get");
            download.args(["install", "--download-only", "--yes", "--quiet"]);
            run::run(download.arg("--no-install-recommends").args(packages))
        })?;
        for file in archives_in(archives)? {
            extract(&file, root)?;
            fs::remove_file(&file)?;
        }
        Ok(())
    }
}

fn extract(package: &Path, root: &Path) -> Result<()> {
    let mut extract = Command::new("dpkg-deb");
    run::run_quietly(extract.arg("--extract").arg(package).arg(root))
}

fn archives_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files
        .filter(|path| path.extension().is_some_and(|kind| kind == "deb"))
        .collect())
}
