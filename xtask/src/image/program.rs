//! The program of the image, linked statically with glibc for either architecture, without paths of
//! this machine (docs/internal/design/shell.md#image).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

use crate::{host, run};

/// Architectures of the image, by their names in images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit ARM
    Arm64,
}

impl Arch {
    /// Architecture of this machine.
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

    pub(crate) fn is_here(self) -> bool {
        Arch::here().is_ok_and(|here| here == self)
    }

    /// Name of the processor in Rust, GNU and QEMU.
    pub(crate) fn processor(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64",
            Arch::Arm64 => "aarch64",
        }
    }

    /// Name of the target in rustc.
    pub(crate) fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.processor())
    }

    /// Name of the target in Debian: of library folders, and as a prefix of tools.
    pub(crate) fn triplet(self) -> String {
        format!("{}-linux-gnu", self.processor())
    }

    /// C compiler on this machine that links for the target.
    pub(crate) fn compiler(self) -> String {
        match self.is_here() {
            true => "cc".to_owned(),
            false => format!("{}-gcc", self.triplet()),
        }
    }

    /// Linker for cargo: the compiler, or a script that makes it link position-independently where
    /// rustc would not.
    fn linker(self) -> PathBuf {
        match self {
            Arch::Amd64 => self.compiler().into(),
            Arch::Arm64 => run::root().join("xtask/src/image/static-pie.sh"),
        }
    }

    /// Debian's packages with the compiler and the static C library.
    fn packages(self) -> [String; 2] {
        let gcc = format!("gcc-{}", self.triplet().replace('_', "-"));
        let libc = format!("libc6-dev-{}-cross", self.name());
        match self.is_here() {
            true => ["gcc", "libc6-dev"].map(str::to_owned),
            false => [gcc, libc],
        }
    }

    /// Name of cargo's linker variable for the target.
    pub(crate) fn linker_variable(self) -> String {
        let target = self.target().to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_LINKER")
    }
}

/// Installs what this machine lacks for building for an architecture.
pub(crate) fn prepare(arch: Arch) -> Result<()> {
    let purpose = format!("the image for {}", arch.name());
    // If the file is missing, the compiler prints the bare name.
    let has_libc = || {
        let ask = run::first_line(Command::new(arch.compiler()).arg("-print-file-name=libc.a"));
        ask.is_some_and(|file| Path::new(&file).is_absolute())
    };
    if !has_libc() {
        host::install(&purpose, &arch.packages().each_ref().map(String::as_str))?;
        let compiler = arch.compiler();
        ensure!(
            has_libc(),
            "{purpose} needs libc.a, and {compiler} has none"
        );
    }
    prepare_target(&arch.target(), &purpose)
}

/// Asks rustup for the standard library of a target if it is missing.
pub(crate) fn prepare_target(target: &str, purpose: &str) -> Result<()> {
    let std = rustc(&["--print", "target-libdir", "--target", target])?;
    if !Path::new(&std).is_dir() {
        eprintln!("{purpose} needs Rust's library for {target}: asking rustup for it");
        run::run(Command::new("rustup").args(["target", "add", target]))?;
    }
    Ok(())
}

/// Flags for `CARGO_ENCODED_RUSTFLAGS`, which may contain blanks where RUSTFLAGS may not, and which override the
/// user's: sources in `root` and from registries get names without folders of this machine.
pub(crate) fn without_paths(root: &Path) -> Result<Vec<String>> {
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    // rustc uses the last match.
    let registries = run::registries()?.into_iter();
    let registries = registries.map(|registry| remap(&registry, "/registry"));
    Ok([remap(root, "/pathproof")]
        .into_iter()
        .chain(registries)
        .collect())
}

/// Builds the program from the sources in `root`, in `target_folder` or in cargo's default folder.
pub(super) fn build(arch: Arch, root: &Path, target_folder: Option<&Path>) -> Result<PathBuf> {
    let mut flags = without_paths(root)?;
    flags.push("-Ctarget-feature=+crt-static".to_owned());
    let mut command = run::cargo();
    command
        .current_dir(root)
        .args(["build", "--package", "pathproof", "--bin", "pathproof"])
        .args(["--locked", "--profile", "dist", "--target", &arch.target()])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env(arch.linker_variable(), arch.linker())
        // A copy of the sources has no commit, and its program has to have the same bytes.
        .env("PATHPROOF_REVISION", super::revision(12))
        .env("STATIC_PIE_COMPILER", arch.compiler());
    if let Some(folder) = target_folder {
        command.arg("--target-dir").arg(folder);
    }
    let version = rustc(&["-V"])?;
    if is_faulty(&version) {
        eprintln!(
            "warning: {version} compiles some code wrongly (rust-lang/rust#158206, #159035 or \
             #161441): for a release use 1.98.1 or newer"
        );
    }
    eprintln!("+ {}", run::shown(&command));
    run::built(&mut command, "pathproof")
}

/// Whether this version of rustc, such as `rustc 1.95.0 (...)`, has one of three faults, which were mended in
/// 1.96.1, in 1.97.1, and for 1.98.0 in 1.98.1.
fn is_faulty(version: &str) -> bool {
    let numbers = version.split(' ').nth(1).unwrap_or_default();
    let numbers: Vec<u32> = numbers.split('.').flat_map(str::parse).collect();
    numbers.as_slice() < &[1, 97, 1] || numbers == [1, 98, 0]
}

/// Output of rustc for these arguments.
pub(crate) fn rustc(arguments: &[&str]) -> Result<String> {
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
    fn a_compiler_with_a_fault_is_recognised() {
        let of = |version| is_faulty(&format!("rustc {version} (59807616e 2026-04-14)"));
        assert_eq!(["1.95.0", "1.96.1", "1.97.0", "1.98.0"].map(of), [true; 4]);
        assert_eq!(["1.97.1", "1.98.1", "1.99.1"].map(of), [false; 3]);
    }

    #[test]
    fn cargo_gets_the_linker_of_the_architecture() {
        let name = Arch::Arm64.linker_variable();
        assert_eq!(name, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }
}
