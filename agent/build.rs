//! Passes the checked-in eBPF object to the agent. Optimised builds, which are shipped, fail if it
//! is older than its sources. Others only warn, so that edited sources compile and can be tested on
//! the host without a compiler for BPF.
//!
//! A newcomer needs only stable Rust: nothing is compiled for BPF here
//! (docs/internal/design/building.md#checked-in-object).
//! The agent embeds the object with `aya::include_bytes_aligned!(env!("PATHPROOF_BPF_OBJECT"))`;
//! `PATHPROOF_BPF_SHA256` and `PATHPROOF_BPF_RUSTC` identify it in `pathproof version`.

#[path = "build/sources.rs"]
mod sources;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use sources::{FOLDERS, OBJECT, PROVENANCE, REBUILD, STALE};

fn main() -> ExitCode {
    match prepare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn prepare() -> Result<(), String> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?;
    let root = Path::new(&manifest)
        .parent()
        .ok_or("the agent's folder has no parent")?;
    let object = Path::new(&manifest).join("ebpf/pathproof.bpf.o");
    let provenance = Path::new(&manifest).join("ebpf/provenance.json");
    watch(root, &object, &provenance);

    let bytes =
        fs::read(&object).map_err(|e| format!("{OBJECT} cannot be read ({e}); run: {REBUILD}"))?;
    let text = fs::read_to_string(&provenance)
        .map_err(|e| format!("{PROVENANCE} cannot be read ({e}); run: {REBUILD}"))?;

    let sha256 = sources::sha256(&bytes);
    if recorded(&text, "object_sha256")? != sha256 {
        return Err(format!(
            "{OBJECT} does not match {PROVENANCE}; run: {REBUILD}"
        ));
    }
    // A packaged crate contains the object but not its sources.
    if root.join("crates/ebpf").is_dir() {
        let now = sources::hash(root)
            .map_err(|e| format!("the sources of the eBPF object cannot be read: {e}"))?;
        if recorded(&text, "sources_sha256")? != now {
            if std::env::var("PROFILE").as_deref() != Ok("debug") {
                return Err(format!("{STALE}; run: {REBUILD}"));
            }
            println!("cargo::warning={STALE}; before a test on a real kernel run: {REBUILD}");
        }
    }
    println!("cargo::rustc-env=PATHPROOF_BPF_OBJECT={}", object.display());
    println!("cargo::rustc-env=PATHPROOF_BPF_SHA256={sha256}");
    println!(
        "cargo::rustc-env=PATHPROOF_BPF_RUSTC={}",
        recorded(&text, "rustc")?
    );
    Ok(())
}

/// Watches everything whose change can make the object outdated.
fn watch(root: &Path, object: &Path, provenance: &Path) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/sources.rs");
    println!("cargo::rerun-if-changed={}", object.display());
    println!("cargo::rerun-if-changed={}", provenance.display());
    if root.join("crates/ebpf").is_dir() {
        println!(
            "cargo::rerun-if-changed={}",
            root.join("Cargo.lock").display()
        );
        for folder in FOLDERS {
            println!(
                "cargo::rerun-if-changed={}",
                root.join(folder).join("Cargo.toml").display()
            );
            println!(
                "cargo::rerun-if-changed={}",
                root.join(folder).join("src").display()
            );
        }
    }
}

/// A string field of the provenance, which `cargo xtask build-ebpf` writes one to a line.
fn recorded<'a>(provenance: &'a str, field: &str) -> Result<&'a str, String> {
    let key = format!("\"{field}\":");
    provenance
        .lines()
        .find_map(|line| line.trim().strip_prefix(key.as_str()))
        .map(|value| value.trim().trim_end_matches(',').trim_matches('"'))
        .ok_or_else(|| format!("{PROVENANCE} has no field {field}; run: {REBUILD}"))
}
