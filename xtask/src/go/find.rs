//! Finds Go: in PATH, in /usr/local/go, or by installing Debian's package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::download;
use crate::{host, run};

/// Toolchain that the servers' module requires.
const WANTED: &str = "1.26.8";
const ADVICE: &str = "Go is missing: unpack Go 1.26.8 or newer from https://go.dev/dl into /usr/local/go, or \
     put Go 1.21 or newer into PATH (it fetches 1.26.8 itself), then run this again";

/// The go command that can build the servers, installed first if apt-get can do that.
pub(super) fn find() -> Result<PathBuf> {
    if installed().is_none() {
        host::install("building programs in Go", &["golang-go"]).context(ADVICE)?;
    }
    let go = installed().context(ADVICE)?;
    // From 1.21 on, go fetches the toolchain that a module requires. Only such a go reports the setting
    // GOTOOLCHAIN.
    let mut ask = Command::new(&go);
    ask.env("GOTOOLCHAIN", "local").args(["env", "GOTOOLCHAIN"]);
    let setting =
        run::first_line(&mut ask).with_context(|| format!("{} does not answer", go.display()))?;
    match setting.is_empty() {
        true => toolchain(&go),
        false => Ok(go),
    }
}

fn installed() -> Option<PathBuf> {
    // Go's archive is usually unpacked there, and the PATH of many shells lacks it.
    let own = PathBuf::from("/usr/local/go/bin/go");
    host::find("go").or_else(|| own.is_file().then_some(own))
}

/// An older go cannot switch toolchains, but it can fetch one, because toolchains are modules.
fn toolchain(old: &Path) -> Result<PathBuf> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    eprintln!("{} is too old: fetching Go {WANTED} with it", old.display());
    let module = format!("golang.org/toolchain@v0.0.1-go{WANTED}.linux-{machine}");
    let folder = download(old, &module).context(ADVICE)?;
    // Modules are stored without the permission to execute.
    run::run(
        Command::new("chmod")
            .args(["-R", "u+x"])
            .arg(folder.join("bin"))
            .arg(folder.join("pkg/tool")),
    )?;
    Ok(folder.join("bin/go"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_toolchain() {
        assert_eq!(ADVICE.matches(WANTED).count(), 2);
    }
}
