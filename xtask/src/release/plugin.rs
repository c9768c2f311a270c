//! `kubectl pathproof` for macOS and Windows, as an archive for each: linked on Linux by zig, which has the system
//! libraries of both. None of them runs here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{image, run, tools};

/// A system without agents.
pub(super) struct System {
    /// As kubectl and krew say it: OS and architecture.
    pub(super) name: &'static str,
    target: &'static str,
    pub(super) program: &'static str,
}

pub(super) const SYSTEMS: [System; 3] = [
    System {
        name: "darwin-amd64",
        target: "x86_64-apple-darwin",
        program: "kubectl-pathproof",
    },
    System {
        name: "darwin-arm64",
        target: "aarch64-apple-darwin",
        program: "kubectl-pathproof",
    },
    System {
        name: "windows-amd64",
        target: "x86_64-pc-windows-gnu",
        program: "kubectl-pathproof.exe",
    },
];

/// Targets of all systems, in rustc's words.
pub(crate) fn targets() -> impl Iterator<Item = &'static str> {
    SYSTEMS.iter().map(|system| system.target)
}

/// Writes an archive for each system, and its SBOM beside it.
pub(super) fn write(files: &Path) -> Result<()> {
    for system in &SYSTEMS {
        let program = build(system)?;
        super::archive(
            &program,
            system.program,
            &image::licences(),
            system.name,
            files,
        )?;
        for sbom in image::sboms_of_plugin(system.target, system.name)? {
            super::copy(&sbom, files)?;
        }
    }
    Ok(())
}

fn build(system: &System) -> Result<PathBuf> {
    image::prepare_target(system.target, "kubectl pathproof")?;
    let (zigbuild, zig) = tools::zigbuild()?;
    let flags = image::without_paths(&run::root())?;
    let mut command = Command::new(zigbuild);
    command
        .current_dir(run::root())
        .args("zigbuild --package pathproof-cli --bin kubectl-pathproof".split(' '))
        .args(["--locked", "--profile", "dist", "--target", system.target])
        .env("CARGO_ZIGBUILD_ZIG_PATH", zig)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    eprintln!("+ {}", run::shown(&command));
    run::built(&mut command, "kubectl-pathproof")
}
