//! `cargo xtask setup-ebpf`: installs the tools for building the eBPF object, unless they are installed.
//!
//! There are two sources of a compiler with its library sources: rustup's nightly with rust-src, else
//! Debian's packages (docs/internal/design/building.md#checked-in-object). Only changes of pathproof-ebpf
//! or pathproof-wire need it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::ebpf::provenance::Provenance;
use crate::ebpf::toolchain::{self, Toolchain, Way};
use crate::ebpf::{self, LLVM};
use crate::tools::BPF_LINKER;
use crate::{host, run};

pub(crate) fn run() -> Result<()> {
    let wanted = Provenance::read().ok();
    let compiler = compiler(wanted.as_ref())?;
    println!("compiler: {} ({})", compiler.version, compiler.way);
    if let Some(Provenance { rustc, way, .. }) = wanted.filter(|one| one.rustc != compiler.version)
    {
        eprintln!(
            "note: the checked-in object was built by {rustc} ({way}), which cannot be installed \
             here: `cargo xtask build-ebpf --check` will fail"
        );
    }
    llvm()?;
    println!("LLVM:     {LLVM}");
    println!("linker:   {}", BPF_LINKER.ready()?.display());
    println!("ready; build the object with: cargo xtask build-ebpf");
    Ok(())
}

/// The compiler that built the checked-in object if it is available, else the first available one.
fn compiler(wanted: Option<&Provenance>) -> Result<Toolchain> {
    if let Some(made) = wanted
        && let Ok(found) = of_record(made)
    {
        return Ok(found);
    }
    found_or(Way::Rustup, || add_rust_src("nightly")).or_else(|error| {
        eprintln!("rustup's nightly cannot be used ({error:#}): trying Debian's packages");
        found_or(Way::Debian, install_debian)
            .context("neither rustup's nightly nor Debian's compiler can be used")
    })
}

fn found_or(way: Way, install: impl FnOnce() -> Result<()>) -> Result<Toolchain> {
    toolchain::find(way, None).or_else(|_| install().and_then(|()| toolchain::find(way, None)))
}

/// The compiler that built the checked-in object, installed first if possible.
fn of_record(made: &Provenance) -> Result<Toolchain> {
    let find = || toolchain::find(made.way, Some(&made.rustc));
    let (version, name) = (&made.rustc, &made.toolchain);
    let install = || match made.way {
        Way::Rustup => {
            eprintln!(
                "the checked-in object was built by {version}: installing {name} with rustup"
            );
            let install = ["toolchain", "install", name, "--profile", "minimal"];
            run::run(rustup().args(install).args(["--component", "rust-src"]))
        }
        Way::Debian => install_debian(),
    };
    find().or_else(|_| install().and_then(|()| find()))
}

fn install_debian() -> Result<()> {
    let packages = ["rustc-web", "rust-web-src", "cargo-web"];
    host::install("the Debian compiler", &packages)
}

fn add_rust_src(toolchain: &str) -> Result<()> {
    run::run(rustup().args(["component", "add", "rust-src", "--toolchain", toolchain]))
}

fn rustup() -> Command {
    Command::new("rustup")
}

/// Installs LLVM's libraries for the linker, and llvm-objcopy.
fn llvm() -> Result<()> {
    let has_libraries = Path::new(LLVM).join("include/llvm-c/Core.h").exists();
    // clang-22 contains the static parts that llvm-sys requests from llvm-config.
    if BPF_LINKER.find().is_none() && !has_libraries {
        host::install("the eBPF linker", &["llvm-22-dev", "clang-22"])?;
    }
    match ebpf::objcopy() {
        Ok(_) => Ok(()),
        Err(_) => host::install("stripping the eBPF object", &["llvm-22"]),
    }
}
