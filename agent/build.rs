//! Passes the checked-in eBPF object to the agent. Optimised builds, which are shipped, fail if the object
//! is older than its sources. Debug builds only warn, so that edited sources can be tested on the host
//! without a compiler for BPF.
//!
//! A newcomer needs only stable Rust: nothing is compiled for BPF here
//! (docs/internal/design/building.md#checked-in-object).
//! The agent embeds the object with `aya::include_bytes_aligned!(env!("PATHPROOF_BPF_OBJECT"))`;
//! `PATHPROOF_BPF_SHA256` and `PATHPROOF_BPF_RUSTC` identify it in `pathproof version`.

#[path = "build/sources.rs"]
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
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
    // A packaged crate contains the object but not its sources, so there is nothing to compare.
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
    println!("cargo::rustc-env=PATHPROOF_REVISION={}", revision());
    println!("cargo::rustc-env=PATHPROOF_BPF_OBJECT={}", object.display());
    println!("cargo::rustc-env=PATHPROOF_BPF_SHA256={sha256}");
    println!(
        "cargo::rustc-env=PATHPROOF_BPF_RUSTC={}",
        recorded(&text, "rustc")?
    );
    Ok(())
}

/// Returns the commit of the sources, which the build of an image names.
fn revision() -> String {
    println!("cargo::rerun-if-env-changed=PATHPROOF_REVISION");
    let given = std::env::var("PATHPROOF_REVISION").ok();
    let given = given.filter(|given| !given.is_empty());
    given.unwrap_or_else(|| "unknown".to_owned())
}

/// Watches everything whose change can make the object outdated.
fn watch(root: &Path, object: &Path, provenance: &Path) {
    let mut paths: Vec<PathBuf> = ["build.rs", "build/sources.rs"].map(PathBuf::from).into();
    paths.extend([object, provenance].map(Path::to_owned));
    if root.join("crates/ebpf").is_dir() {
        paths.push(root.join("Cargo.lock"));
        let files = |folder: &str| ["Cargo.toml", "src"].map(|path| root.join(folder).join(path));
        paths.extend(FOLDERS.into_iter().flat_map(files));
    }
    for path in paths {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Returns a string field of the provenance. `cargo xtask build-ebpf` writes one field per line.
fn recorded<'a>(provenance: &'a str, field: &str) -> Result<&'a str, String> {
    let key = format!("\"{field}\":");
    provenance
        .lines()
        .find_map(|line| line.trim().strip_prefix(key.as_str()))
        .map(|value| value.trim().trim_end_matches(',').trim_matches('"'))
        .ok_or_else(|| format!("{PROVENANCE} has no field {field}; run: {REBUILD}"))
}
