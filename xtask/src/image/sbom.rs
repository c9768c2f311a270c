//! SBOMs for the image, by cargo-cyclonedx: one of the program, and one of its eBPF object.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::program::{Arch, rustc};
use super::{VERSION, copy_sources, created, folder};
use crate::run;
use crate::tools::CARGO_CYCLONEDX;

/// Writes the SBOMs and returns their paths.
pub(super) fn write(arch: Arch) -> Result<Vec<PathBuf>> {
    // cargo-cyclonedx writes next to the manifests.
    let sources = tempfile::tempdir()?;
    copy_sources(sources.path())?;
    run::run(
        Command::new(CARGO_CYCLONEDX.ready()?)
            .current_dir(sources.path())
            .args(["cyclonedx", "--quiet", "--no-build-deps"])
            .args(["--format", "json", "--spec-version", "1.5"])
            .args(["--target", &arch.target(), "--override-filename", "sbom"])
            .env("SOURCE_DATE_EPOCH", created()),
    )?;
    let place = sources.path().to_str().context("a path in UTF-8")?;
    let of_program = format!("linux-{}", arch.name());
    [
        ("crates/program", of_program.as_str()),
        ("crates/ebpf", "ebpf"),
    ]
    .map(|(member, name)| {
        let text = fs::read_to_string(sources.path().join(member).join("sbom.json"))?;
        let mut document: Value = serde_json::from_str(&text.replace(place, ""))?;
        if member == "crates/program" {
            let components = document["components"].as_array_mut();
            components.context("no components")?.extend(runtime()?);
        }
        let file = folder().join(format!("pathproof-{VERSION}-{name}.cdx.json"));
        fs::write(&file, serde_json::to_vec_pretty(&document)?)?;
        Ok(file)
    })
    .into_iter()
    .collect()
}

/// Linked libraries that cargo does not list.
fn runtime() -> Result<Vec<Value>> {
    let glibc = run::first_line(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let glibc = glibc.context("getconf names no version of glibc")?;
    let both = [(rustc(&["-V"])?, "rust-std"), (glibc, "glibc")];
    let component = |(line, name): &(String, &str)| {
        let version = line.split_whitespace().nth(1);
        json!({ "type": "library", "bom-ref": name, "name": name, "version": version })
    };
    Ok(both.iter().map(component).collect())
}
