//! Finds the compilers that can build the eBPF side.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::SETUP;
use crate::run;

/// Source of a compiler with library sources. Compilers of the two sources give different bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// rustup's nightly with the component rust-src.
    Rustup,
    /// Debian's packages rustc-web, rust-web-src and cargo-web.
    Debian,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Rustup => "rustup",
            Way::Debian => "debian",
        })
    }
}

/// A compiler that has its library sources.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) way: Way,
    /// The folder of the real cargo and rustc, not of rustup's proxies.
    pub(crate) bin: PathBuf,
    pub(crate) sysroot: PathBuf,
    /// Output of `rustc --version`.
    pub(crate) version: String,
}

/// Finds a compiler from one source, of exactly that version if one is given.
pub(crate) fn find(way: Way, version: Option<&str>) -> Result<Toolchain> {
    let sysroots = match way {
        Way::Rustup => nightlies()?,
        Way::Debian => vec![PathBuf::from("/usr")],
    };
    let mut reasons = Vec::new();
    for sysroot in sysroots {
        match inspect(way, &sysroot) {
            Ok(found) if version.is_none_or(|wanted| wanted == found.version) => return Ok(found),
            Ok(found) => reasons.push(format!("there is {}", found.version)),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    let what = version.unwrap_or("a compiler with library sources");
    if reasons.is_empty() {
        reasons.push("none is installed".to_owned());
    }
    let why = reasons.join("; ");
    bail!("{what} ({way}) is not here: {why}; {SETUP}")
}

fn inspect(way: Way, sysroot: &Path) -> Result<Toolchain> {
    let bin = sysroot.join("bin");
    let version = run::first_line(Command::new(bin.join("rustc")).arg("--version"))
        .with_context(|| format!("no compiler in {}", bin.display()))?;
    let sources = sysroot.join("lib/rustlib/src/rust/library/Cargo.lock");
    ensure!(sources.exists(), "{version} has no library sources");
    Ok(Toolchain {
        way,
        bin,
        sysroot: sysroot.to_path_buf(),
        version,
    })
}

/// Sysroots of rustup's nightly toolchains, the plain `nightly` first.
fn nightlies() -> Result<Vec<PathBuf>> {
    let mut command = Command::new("rustup");
    let list = run::output(command.args(["toolchain", "list"]))
        .context("rustup is not here, or does not answer")?;
    let list = String::from_utf8(list)?;
    let names = list.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<&str> = names.filter(|name| name.starts_with("nightly")).collect();
    names.sort_by_key(|name| name.starts_with("nightly-2"));
    Ok(names.into_iter().filter_map(sysroot).collect())
}

fn sysroot(toolchain: &str) -> Option<PathBuf> {
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "rustc", "--print", "sysroot"]);
    command.env_remove("RUSTUP_TOOLCHAIN");
    run::first_line(&mut command).map(PathBuf::from)
}

/// Name by which a compiler is installed: of rustup's toolchain, or of Debian's package. A nightly is named
/// after the day that follows its last commit, whose date is in the version.
pub(crate) fn rustup_name(way: Way, version: &str) -> String {
    let date = version.rsplit(' ').next().unwrap_or_default();
    let date = date.trim_end_matches(')').parse::<Date>();
    match (way, date.and_then(Date::tomorrow)) {
        (Way::Rustup, Ok(day)) => format!("nightly-{day}"),
        (Way::Rustup, Err(_)) => "nightly".to_owned(),
        (Way::Debian, _) => "rustc-web".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nightly_is_named_after_the_day_behind_its_commit() {
        for (version, name) in [
            (
                "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)",
                "nightly-2026-05-20",
            ),
            (
                "rustc 1.97.0-nightly (e50aa6fba 2026-04-30)",
                "nightly-2026-05-01",
            ),
            (
                "rustc 1.97.0-nightly (e50aa6fba 2028-02-28)",
                "nightly-2028-02-29",
            ),
            (
                "rustc 1.97.0-nightly (e50aa6fba 2026-12-31)",
                "nightly-2027-01-01",
            ),
            ("rustc 1.97.0-nightly", "nightly"),
        ] {
            assert_eq!(rustup_name(Way::Rustup, version), name);
        }
    }
}
