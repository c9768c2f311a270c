//! `cargo xtask build-ebpf`: builds the checked-in object, or checks that its sources produce it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ebpf::provenance::Provenance;
use crate::ebpf::sources::{self, OBJECT, PROVENANCE, REBUILD};
use crate::ebpf::toolchain::{self, Toolchain, Way};
use crate::ebpf::{self, SETUP};
use crate::run;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only check: build elsewhere with the compiler that built the checked-in object, and compare
    /// the bytes
    #[arg(long)]
    check: bool,
    /// Compiler to build with [default: the first one installed]
    #[arg(long, conflicts_with = "check")]
    way: Option<Way>,
    /// Folder for intermediate files
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
}

impl Args {
    /// A separate target folder for each compiler, so that no build replaces the files of the other.
    fn target(&self, way: Way) -> PathBuf {
        let folder = self.target_dir.clone();
        folder
            .unwrap_or_else(|| run::root().join("target/ebpf"))
            .join(way.to_string())
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.check { check(args) } else { build(args) }
}

fn build(args: &Args) -> Result<()> {
    let compiler = match args.way {
        Some(way) => toolchain::find(way, None),
        None => toolchain::find(Way::Rustup, None).or_else(|missing| {
            toolchain::find(Way::Debian, None).with_context(|| format!("{missing:#}"))
        }),
    };
    let compiler = compiler.context("no compiler for eBPF")?;
    let bytes = ebpf::compile(&compiler, &args.target(compiler.way))?;
    let made = describe(&compiler, &bytes)?;
    fs::write(run::root().join(OBJECT), &bytes)
        .with_context(|| format!("cannot write {OBJECT}"))?;
    made.write()?;
    println!(
        "{OBJECT}: {} bytes, sha256 {}",
        bytes.len(),
        made.object_sha256
    );
    Ok(())
}

fn check(args: &Args) -> Result<()> {
    let recorded = Provenance::read()?;
    let checked_in = fs::read(run::root().join(OBJECT))
        .with_context(|| format!("cannot read {OBJECT}; run: {REBUILD}"))?;
    if recorded.object_sha256 != sources::sha256(&checked_in) {
        bail!("{OBJECT} does not match {PROVENANCE}; run: {REBUILD}");
    }
    recorded.insist_on_sources()?;
    let toolchain = compiler_of_record(&recorded)?;
    let target = args.target(toolchain.way);
    let built = ebpf::compile(&toolchain, &target)?;
    if built != checked_in {
        let tools = recorded.tool_changes(&describe(&toolchain, &built)?);
        bail!(difference(&checked_in, &built, &tools, &target));
    }
    println!(
        "{OBJECT} matches its sources ({} bytes, {})",
        built.len(),
        toolchain.version
    );
    ebpf::clippy(&toolchain, &target)
}

/// The compiler that built the checked-in object. Another compiler produces other bytes, so its build
/// proves nothing about the shipped bytes.
fn compiler_of_record(recorded: &Provenance) -> Result<Toolchain> {
    toolchain::find(recorded.way, Some(&recorded.rustc)).with_context(|| {
        format!(
            "{OBJECT} can only be compared with the compiler that built it; if that compiler is no \
             longer available, build the object with the installed one and commit it: {REBUILD}"
        )
    })
}

fn describe(toolchain: &Toolchain, bytes: &[u8]) -> Result<Provenance> {
    let linker = ebpf::linker()?;
    Ok(Provenance {
        object_sha256: sources::sha256(bytes),
        sources_sha256: sources::hash(&run::root()).context("cannot read the eBPF sources")?,
        way: toolchain.way,
        rustc: toolchain.version.clone(),
        toolchain: toolchain::rustup_name(toolchain.way, &toolchain.version),
        linker: run::first_line(Command::new(linker).arg("--version")).unwrap_or_default(),
        llvm: ebpf::llvm_version()?,
    })
}

/// Explains a difference in bytes: its size, the probable cause, and the command to run.
fn difference(checked_in: &[u8], built: &[u8], tools: &[String], target: &Path) -> String {
    let first = checked_in.iter().zip(built).position(|(a, b)| a != b);
    let first = first.unwrap_or(checked_in.len().min(built.len()));
    let cause = if tools.is_empty() {
        format!(
            "the tools match {PROVENANCE}, so the sources, the workspace's Cargo.toml or the flags \
             changed; run: {REBUILD}, and commit the result"
        )
    } else {
        format!(
            "other tools made it ({}); {SETUP}, or run: {REBUILD}",
            tools.join("; ")
        )
    };
    format!(
        "{OBJECT} does not match its sources: {} bytes checked in, {} bytes built, first \
         difference at byte {first} (built: {}): {cause}",
        checked_in.len(),
        built.len(),
        target.join("pathproof.bpf.o").display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the compiler of record is missing, no other installed compiler replaces it.
    #[test]
    fn only_the_compiler_of_record_is_used() {
        let rustc = "rustc 1.0.0 (that nobody has)";
        let recorded = |way| Provenance {
            object_sha256: String::new(),
            sources_sha256: String::new(),
            way,
            rustc: rustc.to_owned(),
            toolchain: String::new(),
            linker: String::new(),
            llvm: String::new(),
        };
        for way in [Way::Rustup, Way::Debian] {
            let error = compiler_of_record(&recorded(way)).expect_err("no such compiler");
            let text = format!("{error:#}");
            assert!(text.contains(REBUILD), "{text}");
            // Without rustup, the error is that rustup is missing.
            let named = text.contains(rustc) && text.contains(SETUP);
            assert!(named || text.contains("rustup is not here"), "{text}");
        }
    }

    #[test]
    fn a_difference_names_place_cause_and_next_step() {
        let text = difference(b"abcd", b"abXd", &[], Path::new("t"));
        assert!(text.contains("first difference at byte 2"), "{text}");
        assert!(text.contains("run: cargo xtask build-ebpf"), "{text}");
        let tools = ["LLVM: 1 recorded, 2 here".to_owned()];
        let text = difference(b"abcd", b"abcde", &tools, Path::new("t"));
        assert!(
            text.contains("byte 4") && text.contains("LLVM: 1 recorded, 2 here"),
            "{text}"
        );
        assert!(text.contains("setup-ebpf"), "{text}");
    }
}
