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
use std::path::Path;
use std::process::{Command, ExitCode};

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
    println!("cargo::rustc-env=PATHPROOF_REVISION={}", revision(root));
    println!("cargo::rustc-env=PATHPROOF_BPF_OBJECT={}", object.display());
    println!("cargo::rustc-env=PATHPROOF_BPF_SHA256={sha256}");
    println!(
        "cargo::rustc-env=PATHPROOF_BPF_RUSTC={}",
        recorded(&text, "rustc")?
    );
    Ok(())
}

/// Returns the commit of the sources, with a mark if files differ from it. The environment variable has
/// precedence over the git clone. Debug builds do not read the clone, so that a new commit does not cause a
/// rebuild.
fn revision(root: &Path) -> String {
    const VARIABLE: &str = "PATHPROOF_REVISION";
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let git = |arguments: &str| {
        let mut git = Command::new("git");
        git.current_dir(root).env("GIT_OPTIONAL_LOCKS", "0");
        // git refuses a clone that belongs to another user, and CI and images are often built as root.
        git.args(["-c", "safe.directory=*"]);
        let said = git.args(arguments.split(' ')).output().ok()?;
        let text = String::from_utf8(said.stdout).ok()?.trim().to_owned();
        (said.status.success() && !text.is_empty()).then_some(text)
    };
    let of_clone = || {
        // The sources may be an archive unpacked inside another repository, whose commit does not describe
        // them.
        let top = fs::canonicalize(git("rev-parse --show-toplevel")?).ok()?;
        if fs::canonicalize(root).ok()? != top {
            return None;
        }
        // Each commit and checkout appends to this log. The mark depends on the sources, so watch them too.
        let log = git("rev-parse --path-format=absolute --git-path logs/HEAD")?;
        // Watch only paths that exist: if one is missing, Cargo runs the script at each build.
        for path in [&*log, "src", "../crates"] {
            if root.join("agent").join(path).exists() {
                println!("cargo::rerun-if-changed={path}");
            }
        }
        git("describe --always --abbrev=12 --exclude=* --dirty")
    };
    let is_shipped = std::env::var("PROFILE").as_deref() != Ok("debug");
    let given = std::env::var(VARIABLE).ok();
    given
        .filter(|given| !given.is_empty())
        .or_else(|| is_shipped.then(of_clone).flatten())
        .unwrap_or_else(|| "unknown".to_owned())
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

/// Returns a string field of the provenance. `cargo xtask build-ebpf` writes one field per line.
fn recorded<'a>(provenance: &'a str, field: &str) -> Result<&'a str, String> {
    let key = format!("\"{field}\":");
    provenance
        .lines()
        .find_map(|line| line.trim().strip_prefix(key.as_str()))
        .map(|value| value.trim().trim_end_matches(',').trim_matches('"'))
        .ok_or_else(|| format!("{PROVENANCE} has no field {field}; run: {REBUILD}"))
}
