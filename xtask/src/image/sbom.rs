//! SBOMs by cargo-cyclonedx: of the image's program, of its eBPF object, and of `kubectl pathproof` elsewhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::program::{Arch, rustc};
use super::{VERSION, copy_sources, created, folder};
use crate::run;
use crate::tools::CARGO_CYCLONEDX;

/// SBOMs of the image's program and of its eBPF object.
pub(super) fn of_image(arch: Arch) -> Result<Vec<PathBuf>> {
    let program = format!("linux-{}", arch.name());
    let members = [("crates/program", &*program), ("crates/ebpf", "ebpf")];
    write(&arch.target(), &members, runtime()?)
}

/// SBOM of `kubectl pathproof` for a system without agents.
pub(crate) fn of_plugin(target: &str, name: &str) -> Result<Vec<PathBuf>> {
    write(target, &[("crates/cli", name)], vec![rust_std()?])
}

/// Writes the SBOMs of members of the workspace under these names. The first one has the `runtime`, which cargo
/// does not list.
fn write(target: &str, members: &[(&str, &str)], mut runtime: Vec<Value>) -> Result<Vec<PathBuf>> {
    // cargo-cyclonedx writes next to the manifests.
    let sources = tempfile::tempdir()?;
    copy_sources(sources.path())?;
    run::run(
        Command::new(CARGO_CYCLONEDX.ready()?)
            .current_dir(sources.path())
            .args(["cyclonedx", "--quiet", "--no-build-deps"])
            .args(["--format", "json", "--spec-version", "1.5"])
            .args(["--target", target, "--override-filename", "sbom"])
            .env("SOURCE_DATE_EPOCH", created()),
    )?;
    let place = sources.path().to_str().context("a path in UTF-8")?;
    let written = members.iter().map(|(member, name)| {
        let text = fs::read_to_string(sources.path().join(member).join("sbom.json"))?;
        let mut document: Value = serde_json::from_str(&text.replace(place, ""))?;
        let components = document["components"].as_array_mut();
        components.context("no components")?.append(&mut runtime);
        let file = folder().join(format!("pathproof-{VERSION}-{name}.cdx.json"));
        fs::create_dir_all(folder())?;
        fs::write(&file, serde_json::to_vec_pretty(&document)?)?;
        Ok(file)
    });
    written.collect()
}

/// Linked libraries of the image's program.
fn runtime() -> Result<Vec<Value>> {
    let glibc = run::first_line(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let glibc = glibc.context("getconf names no version of glibc")?;
    Ok(vec![rust_std()?, library("glibc", &glibc)])
}

fn rust_std() -> Result<Value> {
    Ok(library("rust-std", &rustc(&["-V"])?))
}

/// `line` has the version as its second word.
fn library(name: &str, line: &str) -> Value {
    let version = line.split_whitespace().nth(1);
    json!({ "type": "library", "bom-ref": name, "name": name, "version": version })
}
