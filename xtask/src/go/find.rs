//! Finding Go: in PATH, where its own packages put it, or by way of Debian's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{host, run};

/// From this version on, go fetches the toolchain that a module asks for.
const FETCHES_TOOLCHAINS: (u32, u32) = (1, 21);
/// The toolchain that the servers' module asks for.
const WANTED: &str = "1.26.8";

/// A go command that can build the servers.
pub(super) struct Go {
    pub(super) program: PathBuf,
    pub(super) version: String,
}

/// The go command, installed first where apt-get can.
pub(super) fn find() -> Result<Go> {
    if let Some(go) = installed() {
        return usable(go);
    }
    host::install("building programs in Go", &["golang-go"]).with_context(advice)?;
    usable(installed().with_context(advice)?)
}

fn advice() -> String {
    format!(
        "Go is missing: unpack Go {WANTED} or newer from https://go.dev/dl into /usr/local/go, or \
         put Go {}.{} or newer into PATH (it fetches {WANTED} itself), then run this \
         again",
        FETCHES_TOOLCHAINS.0, FETCHES_TOOLCHAINS.1
    )
}

fn installed() -> Option<PathBuf> {
    // Go's own archive unpacks there, and many shells' PATH does not know it.
    let own = PathBuf::from("/usr/local/go/bin/go");
    host::find("go").or_else(|| own.is_file().then_some(own))
}

fn usable(program: PathBuf) -> Result<Go> {
    let line = run::first_line(
        Command::new(&program)
            .env("GOTOOLCHAIN", "local")
            .arg("version"),
    )
    .with_context(|| format!("{} does not say its version", program.display()))?;
    match parse(&line) {
        Some(version) if version >= FETCHES_TOOLCHAINS => Ok(Go {
            program,
            version: line,
        }),
        Some(_) => toolchain(&program, &line),
        None => bail!("`{} version` says {line:?}", program.display()),
    }
}

/// "go version go1.26.8 linux/amd64" -> (1, 26)
fn parse(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split(' ').nth(2)?.strip_prefix("go")?.split('.');
    let major = numbers.next()?.parse().ok()?;
    // A release candidate is "1.26rc1".
    let minor = numbers.next()?;
    let end = minor
        .find(|sign: char| !sign.is_ascii_digit())
        .unwrap_or(minor.len());
    Some((major, minor[..end].parse().ok()?))
}

/// An older go cannot switch toolchains, but it can fetch one: they are modules too.
fn toolchain(old: &Path, version: &str) -> Result<Go> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let module = format!("golang.org/toolchain@v0.0.1-go{WANTED}.linux-{machine}");
    eprintln!("{version} is too old: fetching Go {WANTED} with it");
    let answer = run::output(
        Command::new(old)
            .current_dir("/")
            .args(["mod", "download", "-json", &module]),
    )
    .with_context(advice)?;
    let answer: serde_json::Value = serde_json::from_slice(&answer)?;
    let folder = PathBuf::from(answer["Dir"].as_str().with_context(advice)?);
    // Modules are stored without the right to execute.
    run::run(
        Command::new("chmod")
            .args(["-R", "u+x"])
            .arg(folder.join("bin"))
            .arg(folder.join("pkg/tool")),
    )?;
    Ok(Go {
        program: folder.join("bin/go"),
        version: format!("go{WANTED}"),
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(parse("go version go1.27rc1 linux/arm64"), Some((1, 27)));
        assert_eq!(parse("go version devel +abc linux/amd64"), None);
    }
}
