//! Programs that tasks install for themselves with cargo or pip, into target/tools, at fixed versions.
//!
//! They lie in target/ so that nothing of the user's own is changed and a clone stays one folder.

use std::fs;
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
    /// SHA-256 of its wheels, one for each platform, if the Python Package Index has the program under its name:
    /// pip, if it is there, fetches in a second what cargo builds in minutes.
    pub(crate) wheels: &'static [&'static str],
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
    wheels: &[],
};

/// Spelling.
pub(crate) const TYPOS: Tool = Tool {
    package: "typos-cli",
    program: "typos",
    version: "1.52.0",
    arguments: &[],
    env: QUICK_BUILD,
    wheels: &[
        "418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6",
        "5e870133c7e9cace94183e4d638697004a1473e79abcd01b8f75e362049a9b5c",
        "89dab63cc338b374ba3ba7e14cfdcc6dec2e4dca67309a85f84cc00f0cd3d54e",
        "1a3483975defbaa5782521546ca19597c006ec09bd24266e466c93b13653ec64",
        "257324274303a459fef79978cae942568419d2e8b18519e5f66b93a7e2df2ba1",
        "791d8778c4cb07f7a3f759ac65db09f6285aa480598bff42cfca2a32b0953200",
    ],
};

/// Bills of materials.
pub(crate) const CARGO_CYCLONEDX: Tool = Tool {
    package: "cargo-cyclonedx",
    program: "cargo-cyclonedx",
    version: "0.5.9",
    arguments: &[],
    env: QUICK_BUILD,
    wheels: &[],
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
    wheels: &[],
};

impl Tool {
    /// Path of the tool at its version on this machine: target/tools or PATH.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let own = folder().join("bin").join(self.program);
        let fetched = self.wheel().join("bin").join(self.program);
        [Some(own), Some(fetched), crate::host::find(self.program)]
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
        if !self.wheels.is_empty()
            && self.fetch().is_ok()
            && let Some(path) = self.find()
        {
            return Ok(path);
        }
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

    /// Has pip install the wheel for this platform, and none that is not listed.
    fn fetch(&self) -> Result<()> {
        let wheel = self.wheel();
        fs::create_dir_all(&wheel).with_context(|| format!("make {}", wheel.display()))?;
        let list = wheel.join("requirements.txt");
        let hashes = self
            .wheels
            .iter()
            .map(|hash| format!(" --hash=sha256:{hash}"));
        let line = format!(
            "{}=={}{}",
            self.program,
            self.version,
            hashes.collect::<String>()
        );
        fs::write(&list, line).with_context(|| format!("write {}", list.display()))?;
        run::run(
            Command::new("python3")
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ])
                .args(["--no-deps", "--only-binary", ":all:", "--require-hashes"])
                .arg("--requirement")
                .arg(&list)
                .args(["--upgrade", "--root-user-action", "ignore", "--target"])
                .arg(wheel),
        )
    }

    fn wheel(&self) -> PathBuf {
        folder().join("wheels").join(self.program)
    }
}

fn folder() -> PathBuf {
    run::root().join("target/tools")
}
