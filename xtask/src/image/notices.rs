//! Licences in the image and the archives: pathproof's, and those of the crates that are linked into the
//! program and its eBPF object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::program::Arch;
use crate::release::plugin;
use crate::run;

/// Licences of pathproof itself.
const OWN: [&str; 3] = ["LICENSE-APACHE", "LICENSE-GPL2", "LICENSE-MIT"];
/// Licences of the crates, and of glibc.
const OTHERS: &str = "THIRD-PARTY-NOTICES";
/// The packages in the image. The program includes the eBPF object as a file, so cargo lists no dependency.
const PROGRAMS: [&str; 2] = ["pathproof", "pathproof-ebpf"];
/// Beginnings, in capitals, of the names that files with licences have.
const NAMES: [&str; 6] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];
/// Licence of glibc, which is linked statically; on Debian a part of base-files.
const LGPL: &str = "/usr/share/common-licenses/LGPL-2.1";

/// Writes the files into a folder, with the same bytes for each architecture.
pub(super) fn write(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for name in OWN {
        let file = run::root().join(name);
        fs::copy(&file, folder.join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    let text = notices(&graph()?)? + &glibc()?;
    fs::write(folder.join(OTHERS), text).context("write the notices")
}

/// All packages and their dependencies on every system of a release, by cargo.
fn graph() -> Result<Value> {
    let mut metadata = run::cargo();
    metadata.args(["metadata", "--format-version=1", "--locked"]);
    let image = [Arch::Amd64, Arch::Arm64].map(Arch::target);
    let elsewhere = plugin::targets().map(str::to_owned);
    for target in image.into_iter().chain(elsewhere) {
        metadata.arg(format!("--filter-platform={target}"));
    }
    Ok(serde_json::from_slice(&run::output(&mut metadata)?)?)
}

fn glibc() -> Result<String> {
    let text = fs::read_to_string(LGPL).with_context(|| format!("read {LGPL}, of Debian"))?;
    Ok(format!(
        "{}\nThe GNU C Library, https://sourceware.org/glibc, LGPL-2.1-or-later:\n\n{text}",
        "=".repeat(80)
    ))
}

/// The notices of all crates from a registry that the programs link.
fn notices(graph: &Value) -> Result<String> {
    let linked = linked(graph)?;
    let mut lines =
        String::from("pathproof contains these crates, and Rust's standard library:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in list(&graph["packages"]) {
        // Members of the workspace have no source.
        if package["source"].is_null() || !linked.contains(word(&package["id"])) {
            continue;
        }
        let name = format!("{} {}", word(&package["name"]), word(&package["version"]));
        let licence = word(&package["license"]);
        ensure!(!licence.is_empty(), "{name} names no licence");
        writeln!(lines, "{name}: {licence}")?;
        for text in files(package)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        let rule = "=".repeat(80);
        write!(
            lines,
            "\n{rule}\n{}:\n\n{}\n",
            names.join(", "),
            text.trim()
        )?;
    }
    Ok(lines)
}

/// Texts of the files with a licence beside the package's manifest, without duplicates.
fn files(package: &Value) -> Result<BTreeSet<String>> {
    let manifest = PathBuf::from(word(&package["manifest_path"]));
    let folder = manifest.parent().context("a manifest is in a folder")?;
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut texts = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_one = NAMES.iter().any(|begin| name.starts_with(begin));
        if is_one && entry.path().is_file() {
            let text = fs::read(entry.path())?;
            texts.insert(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

/// Ids of all packages that the programs reach by normal dependencies: neither build scripts nor tests.
fn linked(graph: &Value) -> Result<BTreeSet<&str>> {
    let nodes = list(&graph["resolve"]["nodes"]);
    let nodes: BTreeMap<&str, &Value> =
        nodes.iter().map(|node| (word(&node["id"]), node)).collect();
    let packages = list(&graph["packages"]).iter();
    let is_program = |package: &&Value| {
        package["source"].is_null() && PROGRAMS.contains(&word(&package["name"]))
    };
    let mut open: Vec<&str> = packages
        .filter(is_program)
        .map(|package| word(&package["id"]))
        .collect();
    ensure!(
        open.len() == PROGRAMS.len(),
        "found {open:?} of {PROGRAMS:?}"
    );
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !reached.insert(id) {
            continue;
        }
        let node = nodes.get(id).copied();
        let node = node.with_context(|| format!("no node {id}"))?;
        let needed = list(&node["deps"]).iter().filter(|dep| is_normal(dep));
        open.extend(needed.map(|dep| word(&dep["pkg"])));
    }
    Ok(reached)
}

fn is_normal(dependency: &Value) -> bool {
    let mut kinds = list(&dependency["dep_kinds"]).iter();
    kinds.any(|kind| kind["kind"].is_null())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A crate that is linked, one that only a build script needs, and what the first one needs.
    #[test]
    fn notices_are_of_what_is_linked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("LICENSE-MIT"), "mine\r\nalone\n").unwrap();
        fs::write(folder.path().join("License.md"), "mine\nalone\n").unwrap();
        fs::write(folder.path().join("README.md"), "no licence").unwrap();
        let manifest = folder.path().join("Cargo.toml");
        let package = |name: &str, source: Value| {
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT",
                "source": source, "manifest_path": manifest })
        };
        let dep = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let node = |name: &str, deps: Value| json!({ "id": name, "deps": deps });
        let graph = json!({
            "packages": [
                package("pathproof", Value::Null), package("pathproof-ebpf", Value::Null),
                package("linked", "registry".into()), package("deeper", "registry".into()),
                package("builder", "registry".into()), package("stranger", "registry".into()),
            ],
            "resolve": { "nodes": [
                node("pathproof", json!([dep("linked", Value::Null), dep("builder", "build".into())])),
                node("pathproof-ebpf", json!([])),
                node("linked", json!([dep("deeper", Value::Null), dep("linked", "dev".into())])),
                node("deeper", json!([])), node("builder", json!([])), node("stranger", json!([])),
            ] },
        });
        let text = notices(&graph).unwrap();
        assert!(text.contains("linked 1.0.0: MIT\n"), "{text}");
        assert!(
            text.contains("\nlinked 1.0.0, deeper 1.0.0:\n\nmine\nalone\n"),
            "{text}"
        );
        for absent in ["builder", "stranger", "no licence", "pathproof 1.0.0"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        let mut nameless = graph.clone();
        nameless["packages"][3]["license"] = Value::Null;
        let error = notices(&nameless).unwrap_err().to_string();
        assert!(error.contains("deeper 1.0.0 names no licence"), "{error}");
    }

    #[test]
    fn the_notices_here_name_what_the_program_links() {
        let text = notices(&graph().unwrap()).unwrap();
        for linked in ["\naya ", "\naya-ebpf ", "\nrustls "] {
            assert!(text.contains(linked), "no {linked:?}");
        }
        for own in ["\npathproof", "\ntempfile ", "\nlibfuzzer-sys "] {
            assert!(!text.contains(own), "{own:?}");
        }
    }
}
