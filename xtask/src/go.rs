//! Programs that are built from Go modules into target/tools. xtask/go has a module for each, which
//! pins every version.
//!
//! Nothing outside the clone changes except Go's caches.

mod find;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// A module of xtask/go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    /// Folder in xtask/go and in target/tools.
    pub(crate) name: &'static str,
    /// Path of the module whose programs are built, as in go.mod.
    pub(crate) path: &'static str,
    /// Version of the release, as pinned in go.mod.
    pub(crate) version: &'static str,
    /// Variable of the version, set at link time; empty for none.
    pub(crate) version_variable: &'static str,
    /// Other variables that are set at link time.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Packages below `path`, or "." for `path` itself; the last part is the program's name.
    pub(crate) programs: &'static [&'static str],
    /// Whether some of it is written in C.
    pub(crate) needs_c: bool,
    /// Expected time of the first build, such as "5 min".
    pub(crate) takes: &'static str,
}

/// Folder of a module's sources in Go's cache.
pub(crate) fn module(path: &str, version: &str) -> Result<PathBuf> {
    download(&find::find()?, &format!("{path}@{version}"))
}

fn download(go: &Path, module: &str) -> Result<PathBuf> {
    let mut command = Command::new(go);
    command.args(["mod", "download", "-json", module]);
    // Exclude the user's modules.
    command
        .current_dir("/")
        .env("GOWORK", "off")
        .env("GOFLAGS", "");
    let answer: serde_json::Value = serde_json::from_slice(&run::output(&mut command)?)?;
    let folder = answer["Dir"].as_str().map(PathBuf::from);
    folder.with_context(|| format!("go names no folder of {module}"))
}

impl Module {
    /// Defaults for fields that a module does not need.
    pub(crate) const EMPTY: Self = Self {
        name: "",
        path: "",
        version: "",
        version_variable: "",
        variables: &[],
        programs: &[],
        needs_c: false,
        takes: "",
    };

    /// Folder of the programs; missing ones are built first.
    pub(crate) fn ready(&self) -> Result<PathBuf> {
        let _alone = run::alone(self.name)?;
        let folder = self.folder();
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let mut missing = self.programs.to_vec();
        missing.retain(|package| !folder.join(self.program(package)).is_file());
        if !missing.is_empty() {
            self.build(&missing)?;
        }
        Ok(folder)
    }

    fn folder(&self) -> PathBuf {
        let tools = run::root().join("target/tools");
        tools.join(self.name).join(self.version)
    }

    /// Copies folders of the module, given as pairs (source, destination), next to its programs.
    pub(crate) fn bring(&self, folders: &[(&str, &str)]) -> Result<()> {
        let _alone = run::alone(self.name)?;
        for (there, here) in folders {
            let to = self.folder().join(here);
            if to.is_dir() {
                continue;
            }
            fs::create_dir_all(to.parent().context("a folder in a folder")?)?;
            // A partial copy must not pass for a complete one.
            let part = to.with_extension("part");
            if part.exists() {
                fs::remove_dir_all(&part)?;
            }
            // Modules are stored without the permission to write.
            let mut copy = Command::new("cp");
            copy.args(["-r", "--no-preserve=mode"]);
            copy.arg(module(self.path, self.version)?.join(there));
            run::run(copy.arg(&part))?;
            fs::rename(part, to)?;
        }
        Ok(())
    }

    pub(crate) fn source(&self) -> PathBuf {
        run::root().join("xtask/go").join(self.name)
    }

    fn build(&self, packages: &[&str]) -> Result<()> {
        let names: Vec<&str> = packages.iter().map(|one| self.program(one)).collect();
        eprintln!(
            "building {} {} into target/tools: once, about {} on 2 processors",
            names.join(", "),
            self.version,
            self.takes
        );
        run::run(
            Command::new(find::find()?)
                .current_dir(self.source())
                .env("CGO_ENABLED", if self.needs_c { "1" } else { "0" })
                .env("GOTOOLCHAIN", "auto")
                // The user's workspace file or flags must not affect the build.
                .env("GOWORK", "off")
                .env("GOFLAGS", "")
                .args(["build", "-trimpath", "-buildvcs=false"])
                // Without inlining the build takes four fifths of the time, and no test measures
                // the programs' speed.
                .args(["-gcflags", "all=-l", "-ldflags"])
                .arg(self.link_flags())
                .arg("-o")
                // The trailing separator makes it a folder, also for one program.
                .arg(self.folder().join(""))
                .args(packages.iter().map(|package| self.package(package))),
        )
    }

    pub(crate) fn package(&self, package: &str) -> String {
        match package {
            "." => self.path.to_owned(),
            package => format!("{}/{package}", self.path),
        }
    }

    /// Name of the program that a package is built to.
    fn program<'a>(&'a self, package: &'a str) -> &'a str {
        let path = if package == "." { self.path } else { package };
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Flags for a small program that reports the right version.
    fn link_flags(&self) -> String {
        let version = (self.version_variable, self.version);
        let set = self.variables.iter().chain([&version]);
        set.filter(|(name, _)| !name.is_empty())
            .fold("-s -w".to_owned(), |flags, (name, value)| {
                flags + &format!(" -X {name}={value}")
            })
    }
}
