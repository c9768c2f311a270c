//! `cargo xtask setup-ebpf`: installs what building the eBPF object takes. Does nothing twice.
//!
//! Two ways to a compiler with its library sources (design.md, section 10): rustup's nightly with
//! rust-src, else Debian's packages. Only those who change agent-ebpf or agent-common need it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::ebpf::LLVM;
use crate::ebpf::provenance::Provenance;
use crate::ebpf::toolchain::{self, Toolchain, Way};
use crate::tools::BPF_LINKER;
use crate::{host, run};

pub(crate) fn run() -> Result<()> {
    let wanted = Provenance::read()
        .ok()
        .map(|p| (p.way, p.rustc, p.toolchain));
    let compiler = compiler(wanted.as_ref())?;
    println!("compiler: {} ({})", compiler.version, compiler.way);
    if let Some((way, version, _)) = wanted.filter(|(_, version, _)| *version != compiler.version) {
        eprintln!(
            "note: the checked-in object was built by {version} ({way}), which cannot be installed \
             here: `cargo xtask build-ebpf --check` will fail"
        );
    }
    llvm()?;
    println!("LLVM:     {LLVM}");
    println!("linker:   {}", BPF_LINKER.ready()?.display());
    println!("ready; build the object with: cargo xtask build-ebpf");
    Ok(())
}

/// The compiler that made the checked-in object if it can be had, else the first that can.
fn compiler(wanted: Option<&(Way, String, String)>) -> Result<Toolchain> {
    if let Some((way, version, name)) = wanted {
        if let Ok(found) = toolchain::find(*way, Some(version)) {
            return Ok(found);
        }
        match way {
            Way::Rustup => {
                let _ = add_rust_src("nightly");
                if let Ok(found) = toolchain::find(*way, Some(version)) {
                    return Ok(found);
                }
                eprintln!(
                    "the checked-in object was built by {version}: installing {name} with \
                     rustup"
                );
                let install = ["toolchain", "install", name, "--profile", "minimal"];
                let _ = run::run(rustup().args(install)).and_then(|()| add_rust_src(name));
            }
            Way::Debian => {
                let _ = install_debian();
            }
        }
        if let Ok(found) = toolchain::find(*way, Some(version)) {
            return Ok(found);
        }
    }
    if let Ok(found) = toolchain::find(Way::Rustup, None) {
        return Ok(found);
    }
    let rustup = add_rust_src("nightly").and_then(|()| toolchain::find(Way::Rustup, None));
    match rustup {
        Ok(found) => Ok(found),
        Err(error) => {
            eprintln!("rustup's nightly cannot be used ({error:#}): trying Debian's packages");
            if let Ok(found) = toolchain::find(Way::Debian, None) {
                return Ok(found);
            }
            install_debian()?;
            toolchain::find(Way::Debian, None)
                .context("neither rustup's nightly nor Debian's compiler can be used")
        }
    }
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

/// LLVM's libraries for the linker, and llvm-objcopy.
fn llvm() -> Result<()> {
    let has_libraries = Path::new(LLVM).join("include/llvm-c/Core.h").exists();
    // clang-22 brings the static parts that llvm-sys asks llvm-config for.
    if BPF_LINKER.find().is_none() && !has_libraries {
        host::install("the eBPF linker", &["llvm-22-dev", "clang-22"])?;
    }
    if crate::ebpf::objcopy().is_err() {
        host::install("stripping the eBPF object", &["llvm-22"])?;
    }
    Ok(())
}
