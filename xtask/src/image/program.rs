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

    pub(super) fn oci(self) -> oci_spec::image::Arch {
        match self {
            Arch::Amd64 => oci_spec::image::Arch::Amd64,
            Arch::Arm64 => oci_spec::image::Arch::ARM64,
        }
    }

    /// What rustc calls it.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The C compiler that links for it, here.
    pub(super) fn compiler(self) -> &'static str {
        match self {
            here if Arch::here().is_ok_and(|machine| machine == here) => "cc",
            Arch::Amd64 => "x86_64-linux-gnu-gcc",
            Arch::Arm64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// What cargo calls to link: the compiler, or what makes it link position-independent where
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
    fn linker_variable(self) -> String {
        let target = self.target().to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{target}_LINKER")
    }
}

/// The first glibc that reads packed relocations. A program with an older one would crash at start.
const PACKED_SINCE: (u32, u32) = (2, 36);

/// Installs what building for an architecture takes and this machine lacks.
pub(super) fn prepare(arch: Arch) -> Result<()> {
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
    lld()?;
    Ok(())
}

/// Builds the program from the sources in `root`. `target_folder` is where, if not where cargo
/// builds anyway.
pub(super) fn build(
    arch: Arch,
    profile: &str,
    root: &Path,
    target_folder: Option<&Path>,
) -> Result<PathBuf> {
    let mut command = run::cargo();
    command
        .current_dir(root)
        .args(["build", "--package", "pathproof", "--bin", "pathproof"])
        .args(["--locked", "--profile", profile, "--target", arch.target()])
        // Not RUSTFLAGS: paths may have blanks. These outrank what the user has set.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(profile, root, glibc(arch)?)?.join("\u{1f}"),
        )
        .env(arch.linker_variable(), arch.linker())
        .env("STATIC_PIE_COMPILER", arch.compiler())
        // Where gcc looks for the linker that -fuse-ld names.
        .env("COMPILER_PATH", lld()?);
    if let Some(folder) = target_folder {
        command.arg("--target-dir").arg(folder);
    }
    eprintln!("+ {}", run::shown(&command));
    run::built(&mut command, "pathproof")
}

/// What rustc is told beyond the profile.
fn flags(profile: &str, root: &Path, glibc: (u32, u32)) -> Result<Vec<String>> {
    let mut flags: Vec<String> = [
        "-Ctarget-feature=+crt-static",
        "-Cstrip=symbols",
        "-Clink-arg=-fuse-ld=lld",
        // The same code once.
        "-Clink-arg=-Wl,--icf=all",
    ]
    .map(str::to_owned)
    .to_vec();
    if profile == "dist" {
        // It ends in a panic: nobody unwinds.
        flags.push("-Cforce-unwind-tables=no".to_owned());
    }
    if glibc >= PACKED_SINCE {
        flags.push("-Clink-arg=-Wl,--pack-dyn-relocs=relr".to_owned());
    }
    for (from, to) in remapped(root)? {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    Ok(flags)
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

/// The folder with the `ld.lld` that rustup's Rust brings.
fn lld() -> Result<PathBuf> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let version = rustc(&["-vV"])?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV names no host")?;
    let folder = Path::new(&sysroot)
        .join("lib/rustlib")
        .join(host)
        .join("bin/gcc-ld");
    if !folder.join("ld.lld").is_file() {
        bail!(
            "the image's program is linked with the lld that rustup's Rust brings, and {} has \
             none; install Rust from https://rustup.rs",
            folder.display()
        );
    }
    Ok(folder)
}

/// The C library's version, from its own header.
pub(super) fn glibc(arch: Arch) -> Result<(u32, u32)> {
    let mut preprocess = Command::new(arch.compiler());
    preprocess.args(["-E", "-dM", "-include", "features.h", "-xc", "/dev/null"]);
    let macros = String::from_utf8(run::output(&mut preprocess)?)?;
    let number = |name: &str| {
        let line = format!("#define {name} ");
        let value = macros.lines().find_map(|l| l.strip_prefix(&line))?;
        value.trim().parse().ok()
    };
    let version = number("__GLIBC__").zip(number("__GLIBC_MINOR__"));
    version.with_context(|| format!("the C library of {} is not glibc", arch.compiler()))
}

fn has_std(target: &str) -> Result<bool> {
    let folder = rustc(&["--print", "target-libdir", "--target", target])?;
    Ok(Path::new(&folder).is_dir())
}

fn has_static_library(arch: Arch) -> bool {
    // Where it has none, the compiler answers with the bare name.
    run::first_line(Command::new(arch.compiler()).arg("-print-file-name=libc.a"))
        .is_some_and(|file| Path::new(&file).is_absolute())
}

/// What rustc answers to a question.
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
    fn only_a_program_that_ends_in_a_panic_goes_without_unwind_tables() {
        let without = "-Cforce-unwind-tables=no".to_owned();
        let root = Path::new("/a place");
        let flags = |profile| flags(profile, root, PACKED_SINCE).unwrap();
        assert!(flags("dist").contains(&without));
        assert!(!flags("dev").contains(&without));
    }

    #[test]
    fn an_older_c_library_gets_relocations_that_it_can_read() {
        let packed = |glibc| {
            let flags = flags("dist", Path::new("/a"), glibc).unwrap();
            flags.iter().any(|flag| flag.contains("relr"))
        };
        assert!(packed((2, 36)) && packed((3, 0)));
        assert!(!packed((2, 35)));
    }

    #[test]
    fn the_sources_have_a_name_that_is_no_place_of_this_machine() {
        let flags = flags("dist", Path::new("/a place"), PACKED_SINCE).unwrap();
        let remap = "--remap-path-prefix=/a place=/pathproof".to_owned();
        assert!(flags.contains(&remap), "{flags:?}");
    }

    #[test]
    fn cargo_is_told_the_linker_of_the_architecture() {
        let name = Arch::Arm64.linker_variable();
        assert_eq!(name, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }
}
