//! The program of the image: linked statically with glibc, for either architecture, with no path
//! of this machine in it (docs/adr/0013-image.md).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{host, run};

/// Architectures of the image, by the names that images have for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit ARM
    Arm64,
}

impl Arch {
    /// This machine's.
    pub(crate) fn here() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Arch::Amd64),
            "aarch64" => Ok(Arch::Arm64),
            other => bail!("there is no image for {other}; give --arch amd64 or --arch arm64"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    /// Name in the output of readelf.
    pub(super) fn machine(self) -> &'static str {
        match self {
            Arch::Amd64 => "X86-64",
            Arch::Arm64 => "AArch64",
        }
    }

    /// Name of the target in rustc.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The C compiler that links for it, here.
    pub(crate) fn compiler(self) -> &'static str {
        match self {
            here if Arch::here().is_ok_and(|machine| machine == here) => "cc",
            Arch::Amd64 => "x86_64-linux-gnu-gcc",
            Arch::Arm64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// Linker for cargo: the compiler, or a script that makes it link position-independent where
    /// rustc would not.
    fn linker(self) -> PathBuf {
        match self {
            Arch::Amd64 => self.compiler().into(),
            Arch::Arm64 => run::root().join("xtask/src/image/static-pie.sh"),
        }
    }

    /// Debian's packages with compiler and static C library.
    fn packages(self) -> &'static [&'static str] {
        match self {
            here if Arch::here().is_ok_and(|machine| machine == here) => &["gcc", "libc6-dev"],
            Arch::Amd64 => &["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
            Arch::Arm64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        }
    }

    /// The linker setting of cargo for it.
    pub(crate) fn linker_variable(self) -> String {
        let target = self.target().to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_LINKER")
    }
}

/// Installs what building for an architecture takes and this machine lacks.
pub(crate) fn prepare(arch: Arch) -> Result<()> {
    let purpose = format!("the image for {}", arch.name());
    if !has_static_library(arch) {
        host::install(&purpose, arch.packages())?;
    }
    if !has_static_library(arch) {
        bail!(
            "{purpose} needs the static C library libc.a, and {} has none",
            arch.compiler()
        );
    }
    let target = arch.target();
    if !has_std(target)? {
        eprintln!("{purpose} needs Rust's library for {target}: asking rustup for it");
        run::run(Command::new("rustup").args(["target", "add", target])).with_context(|| {
            format!("{purpose} needs Rust's library for {target}; run: rustup target add {target}")
        })?;
    }
    Ok(())
}

/// Builds the program from the sources in `root`. `target_folder` is where, if not where cargo
/// builds anyway.
pub(super) fn build(arch: Arch, root: &Path, target_folder: Option<&Path>) -> Result<PathBuf> {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    for (from, to) in remapped(root)? {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let mut command = run::cargo();
    command
        .current_dir(root)
        .args(["build", "--package", "pathproof", "--bin", "pathproof"])
        .args(["--locked", "--profile", "dist", "--target", arch.target()])
        // Not RUSTFLAGS: paths may have blanks. These outrank what the user has set.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env(arch.linker_variable(), arch.linker())
        .env("STATIC_PIE_COMPILER", arch.compiler());
    if let Some(folder) = target_folder {
        command.arg("--target-dir").arg(folder);
    }
    eprintln!("+ {}", run::shown(&command));
    run::built(&mut command, "pathproof")
}

/// Folders of this machine, and what the program calls them.
fn remapped(root: &Path) -> Result<Vec<(PathBuf, &'static str)>> {
    let mut pairs = vec![(root.to_owned(), "/pathproof")];
    let home = cargo_home()?;
    let registries = home.join("registry/src");
    pairs.push((registries.clone(), "/registry"));
    // One folder for each registry or mirror of it; the crates are the same.
    let folders = std::fs::read_dir(&registries).into_iter().flatten();
    let mut folders: Vec<PathBuf> = folders.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    // The last one that fits is taken.
    pairs.extend(folders.into_iter().map(|folder| (folder, "/registry")));
    Ok(pairs)
}

fn cargo_home() -> Result<PathBuf> {
    let said = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".cargo"));
    said.or_else(home)
        .context("neither CARGO_HOME nor HOME is set")
}

fn has_std(target: &str) -> Result<bool> {
    let folder = rustc(&["--print", "target-libdir", "--target", target])?;
    Ok(Path::new(&folder).is_dir())
}

fn has_static_library(arch: Arch) -> bool {
    // The compiler answers with the bare name if it has none.
    run::first_line(Command::new(arch.compiler()).arg("-print-file-name=libc.a"))
        .is_some_and(|file| Path::new(&file).is_absolute())
}

/// Output of rustc for these arguments.
pub(super) fn rustc(arguments: &[&str]) -> Result<String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.current_dir(run::root()).args(arguments);
    Ok(String::from_utf8(run::output(&mut rustc)?)?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_told_the_linker_of_the_architecture() {
        let name = Arch::Arm64.linker_variable();
        assert_eq!(name, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }
}
