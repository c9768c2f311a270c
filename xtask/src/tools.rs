//! Programs that tasks install for themselves with cargo, into target/tools, at fixed versions.
//!
//! They lie in target/ so that nothing of the user's own is changed and a clone stays one folder.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// A program from the package registry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// Name of the package.
    pub(crate) package: &'static str,
    /// Name of the program it installs.
    pub(crate) program: &'static str,
    /// The version that is installed; another one in PATH is not used.
    pub(crate) version: &'static str,
    /// Further arguments of `cargo install`, which installs with the lock file that the package brings.
    pub(crate) arguments: &'static [&'static str],
    /// Environment of its build.
    pub(crate) env: &'static [(&'static str, &'static str)],
}

/// A tool that runs for a second need not be optimised for long: a third of the time to install.
pub(crate) const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Licences, sources and duplicate versions of dependencies.
pub(crate) const CARGO_DENY: Tool = Tool {
    package: "cargo-deny",
    program: "cargo-deny",
    version: "0.20.2",
    arguments: &[],
    env: QUICK_BUILD,
};

/// Spelling.
pub(crate) const TYPOS: Tool = Tool {
    package: "typos-cli",
    program: "typos",
    version: "1.52.0",
    arguments: &[],
    env: QUICK_BUILD,
};

/// Bills of materials.
pub(crate) const CARGO_CYCLONEDX: Tool = Tool {
    package: "cargo-cyclonedx",
    program: "cargo-cyclonedx",
    version: "0.5.9",
    arguments: &[],
    env: QUICK_BUILD,
};

/// The linker of eBPF objects, linked with Debian's LLVM 22: its default features want LLVM 23.
pub(crate) const BPF_LINKER: Tool = Tool {
    package: "bpf-linker",
    program: "bpf-linker",
    version: "0.13.0",
    arguments: &["--no-default-features", "--features", "llvm-22"],
    env: &[
        ("LLVM_PREFIX", "/usr/lib/llvm-22"),
        ("LLVM_SYS_221_PREFIX", "/usr/lib/llvm-22"),
        ("RUSTFLAGS", "-L/usr/lib/llvm-22/lib"),
    ],
};

impl Tool {
    /// Path of the tool at its version on this machine: target/tools or PATH.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let own = folder().join("bin").join(self.program);
        [Some(own), crate::host::find(self.program)]
            .into_iter()
            .flatten()
            .find(|file| {
                let mut ask = Command::new(file);
                // Cargo calls it so too: some know no option without the name of the subcommand.
                ask.args(self.program.strip_prefix("cargo-"));
                let line = run::first_line(ask.arg("--version")).unwrap_or_default();
                line.split_whitespace().any(|word| word == self.version)
            })
    }

    /// The tool's path, installed first if it is missing.
    pub(crate) fn ready(&self) -> Result<PathBuf> {
        if let Some(path) = self.find() {
            return Ok(path);
        }
        let Tool {
            package, version, ..
        } = self;
        eprintln!("installing {package} {version} into target/tools");
        run::run(
            run::cargo()
                .args(["install", "--quiet", "--locked", package])
                .args(["--version", version])
                .args(self.arguments)
                .arg("--root")
                .arg(folder())
                .arg("--target-dir")
                .arg(folder().join("build"))
                .envs(self.env.iter().copied()),
        )?;
        self.find()
            .with_context(|| format!("{package} {version} was installed but does not run"))
    }
}

fn folder() -> PathBuf {
    run::root().join("target/tools")
}
