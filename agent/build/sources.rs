//! Source files of the eBPF object, and their hash.
//!
//! Two programs include this file, so that they compute the same hash. The agent's build script refuses an
//! object that is older than its sources; `cargo xtask build-ebpf` writes the provenance. This module must
//! not depend on how the object is built.

use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest, Sha256};

/// The checked-in object, relative to the repository.
pub(crate) const OBJECT: &str = "agent/ebpf/pathproof.bpf.o";
/// Record of the hashes and tools of the object's build, relative to the repository.
pub(crate) const PROVENANCE: &str = "agent/ebpf/provenance.json";
/// The command that brings object and provenance up to date.
pub(crate) const REBUILD: &str = "cargo xtask build-ebpf";
/// Message if the sources have changed since the object was built.
pub(crate) const STALE: &str = "the eBPF object is older than its sources";
/// Folders whose files go into the object.
pub(crate) const FOLDERS: [&str; 2] = ["crates/ebpf", "crates/wire"];
/// Beginning of the names of packages whose version and checksum in Cargo.lock are part of the hash: the
/// kernel side of aya.
const LOCKED: &str = "aya-ebpf";

/// The files of the eBPF side, relative to `root`, sorted: `Cargo.toml` and `src/**` of each
/// folder. Files named `tests.rs` are left out: they are compiled for the host only.
pub(crate) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        found.push(Path::new(folder).join("Cargo.toml"));
        walk(root, &Path::new(folder).join("src"), &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs")
            && path.file_name().is_some_and(|n| n != "tests.rs")
        {
            found.push(path);
        }
    }
    Ok(())
}

/// SHA-256 over paths, lengths and contents of [`files`], and over the aya entries of Cargo.lock.
pub(crate) fn hash(root: &Path) -> io::Result<String> {
    let mut sha = Sha256::new();
    for path in files(root)? {
        let content = fs::read(root.join(&path))?;
        sha.update(path.to_string_lossy().as_bytes());
        sha.update([0]);
        sha.update((content.len() as u64).to_le_bytes());
        sha.update(&content);
    }
    for entry in locked(&fs::read_to_string(root.join("Cargo.lock"))?) {
        sha.update(entry.as_bytes());
        sha.update([0]);
    }
    Ok(hex(&sha.finalize()))
}

/// The `[[package]]` entries of Cargo.lock for [`LOCKED`]. Their dependency lists are removed, because they
/// contain versions of packages that are not part of the object.
fn locked(lock: &str) -> Vec<String> {
    let mut entries: Vec<String> = lock
        .split("[[package]]")
        .filter(|entry| {
            let name = entry.lines().find_map(|line| line.strip_prefix("name = "));
            name.is_some_and(|n| n.trim_matches('"').starts_with(LOCKED))
        })
        .map(|entry| {
            entry
                .split("dependencies = [")
                .next()
                .unwrap_or(entry)
                .trim()
                .to_owned()
        })
        .collect();
    entries.sort();
    entries
}

/// SHA-256 of bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
