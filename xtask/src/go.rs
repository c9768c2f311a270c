//! Programs that are built from Go modules into target/tools; xtask/go has a module for each, which
//! pins every version.
//!
//! Nothing outside the clone changes but Go's own caches.

mod find;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run;

/// A module of xtask/go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    /// Its folder there and in target/tools.
    pub(crate) name: &'static str,
    /// The module whose programs are built, as go.mod names it.
    pub(crate) path: &'static str,
    /// Its release, as go.mod pins it.
    pub(crate) version: &'static str,
    /// Sets variables at link time: the version that a program says it has.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Packages below `path`, or "." for itself; the last part is the program's name.
    pub(crate) programs: &'static [&'static str],
    /// Some of it is written in C.
    pub(crate) needs_c: bool,
    /// Expected time of the first build, for people: "5 min".
    pub(crate) takes: &'static str,
    /// Packages that a build from nothing compiles, about: for the progress alone.
    pub(crate) compiles: usize,
}

/// The folder of a module's sources, in Go's cache.
pub(crate) fn module(path: &str, version: &str) -> Result<PathBuf> {
    let go = find::find()?;
    let elsewhere = tempfile::tempdir()?;
    let mut command = Command::new(&go.program);
    command
        .current_dir(elsewhere.path())
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .args(["mod", "download", "-json"])
        .arg(format!("{path}@{version}"));
    let answer: serde_json::Value = serde_json::from_slice(&run::output(&mut command)?)?;
    let folder = answer["Dir"].as_str();
    let folder = folder.with_context(|| format!("go names no folder of {path} {version}"))?;
    Ok(PathBuf::from(folder))
}

impl Module {
    /// The folder of the programs, of which missing ones are built first.
    pub(crate) fn ready(&self) -> Result<PathBuf> {
        let _alone = run::alone(self.name)?;
        let folder = self.folder();
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let missing: Vec<&str> = self
            .programs
            .iter()
            .copied()
            .filter(|package| !folder.join(self.program(package)).is_file())
            .collect();
        if !missing.is_empty() {
            self.build(&missing)?;
        }
        Ok(folder)
    }

    /// Folder of the programs, whether they are there or not.
    pub(crate) fn folder(&self) -> PathBuf {
        run::root()
            .join("target/tools")
            .join(self.name)
            .join(self.version)
    }

    /// Copies folders of the module to where its programs are: pairs of there and here.
    pub(crate) fn bring(&self, folders: &[(&str, &str)]) -> Result<()> {
        let missing = |(_, here): &&(&str, &str)| !self.folder().join(here).is_dir();
        let missing: Vec<_> = folders.iter().filter(missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let module = module(self.path, self.version)?;
        for (there, here) in missing {
            let to = self.folder().join(here);
            fs::create_dir_all(to.parent().context("a folder in a folder")?)?;
            // Modules are stored without the right to write. Half a copy must not pass for a whole one.
            let part = to.with_extension("part");
            if part.exists() {
                fs::remove_dir_all(&part)?;
            }
            run::run(
                Command::new("cp")
                    .args(["-r", "--no-preserve=mode"])
                    .arg(module.join(there))
                    .arg(&part),
            )?;
            fs::rename(part, to)?;
        }
        Ok(())
    }

    fn source(&self) -> PathBuf {
        run::root().join("xtask/go").join(self.name)
    }

    fn build(&self, packages: &[&str]) -> Result<()> {
        let go = find::find()?;
        let names: Vec<&str> = packages
            .iter()
            .map(|package| self.program(package))
            .collect();
        eprintln!(
            "building {} {} with {} into target/tools: once, about {} on 2 processors",
            names.join(", "),
            self.version,
            go.version,
            self.takes
        );
        let mut command = Command::new(&go.program);
        command
            .current_dir(self.source())
            .env("CGO_ENABLED", if self.needs_c { "1" } else { "0" })
            .env("GOTOOLCHAIN", "auto")
            // A workspace file or flags of the user's must not change what is built.
            .env("GOWORK", "off")
            .env("GOFLAGS", "")
            .args(["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags"])
            .arg(self.link_flags())
            .arg("-o")
            // With the separator it is a folder, also for one program.
            .arg(self.folder().join(""))
            .args(packages.iter().map(|package| self.package(package)))
            .stderr(Stdio::piped());
        self.follow(&mut command)
    }

    fn package(&self, package: &str) -> String {
        match package {
            "." => self.path.to_owned(),
            package => format!("{}/{package}", self.path),
        }
    }

    /// The program that a package is built to.
    fn program<'a>(&'a self, package: &'a str) -> &'a str {
        let path = if package == "." { self.path } else { package };
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Small, and of the version that others are told.
    fn link_flags(&self) -> String {
        self.variables
            .iter()
            .fold("-s -w".to_owned(), |flags, (name, value)| {
                flags + &format!(" -X {name}={value}")
            })
    }

    /// `go build -v` names each package that it compiles, and `go: downloading` each module.
    fn follow(&self, command: &mut Command) -> Result<()> {
        eprintln!("+ {}", run::shown(command));
        let mut child = command.spawn().context("cannot start go")?;
        let stderr = child
            .stderr
            .take()
            .context("a piped child has no standard error")?;
        let (mut compiled, mut downloaded, mut told) = (0, 0, Instant::now());
        let mut complaints = Vec::new();
        for line in BufReader::new(stderr).lines() {
            let line = line.context("reading what go says")?;
            if line.starts_with("go: downloading ") {
                downloaded += 1;
            } else if line.contains(' ') {
                complaints.push(line);
            } else {
                compiled += 1;
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!(
                    "  {downloaded} modules downloaded, {compiled} of about {} packages compiled",
                    self.compiles
                );
            }
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("go build failed ({status}):\n{}", complaints.join("\n"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup_cluster::modules;
    use crate::workflows::ACTIONLINT;

    #[test]
    fn modules_pin_the_releases_that_are_built() {
        for module in modules().chain([ACTIONLINT]) {
            let file = module.source().join("go.mod");
            let text = fs::read_to_string(&file).unwrap();
            let pin = format!("{} {}", module.path, module.version);
            assert!(text.contains(&pin), "{} has no {pin}", file.display());
            for package in module.programs {
                let tool = format!("{}\n", module.package(package));
                assert!(text.contains(&tool), "{} has no {tool}", file.display());
            }
        }
    }
}
