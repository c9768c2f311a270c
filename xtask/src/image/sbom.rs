//! The SBOM: what went into the program, as CycloneDX 1.6 JSON.
//!
//! Crates of the program and of the eBPF object in it, as `cargo tree` resolves them for the
//! target: no proc-macros, build scripts or tests, and no crate of another platform. Beside them
//! what cargo does not know: Rust's library, glibc and gcc's runtime. cargo-cyclonedx would put
//! paths of this machine into it and files beside the manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::blobs::sha256;
use super::facts::{Facts, NAME};
use super::program::{Arch, glibc, rustc};
use crate::run;

/// The compiled eBPF object, which the program embeds.
const OBJECT: &str = "agent/ebpf/pathproof.bpf.o";
/// What that is built for, and with which crates.
const KERNEL_TARGET: &str = "bpfel-unknown-none";

/// A crate in the resolved tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    license: String,
    repository: String,
}

/// Crates of a program, and which uses which, by their place in the list. The first is the root.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    crates: Vec<Crate>,
    uses: BTreeSet<(usize, usize)>,
}

/// The document, and how many components it lists.
pub(super) fn document(facts: &Facts, arch: Arch, program: &[u8]) -> Result<(Vec<u8>, usize)> {
    let agent = tree("pathproof", arch.target())?;
    let kernel_side = tree("agent-ebpf", KERNEL_TARGET)?;
    let object = fs::read(run::root().join(OBJECT)).with_context(|| format!("reading {OBJECT}"))?;
    let checksums = checksums(&fs::read_to_string(run::root().join("Cargo.lock"))?)?;

    let runtime = runtime(arch)?;
    let object_reference = "pathproof.bpf.o";
    let mut components = runtime.clone();
    components.push(json!({
        "type": "application",
        "bom-ref": object_reference,
        "name": object_reference,
        "version": facts.version,
        "description": "eBPF programs that the agent embeds and loads",
        "hashes": [{ "alg": "SHA-256", "content": sha256(&object) }],
        "licenses": [expression(&kernel_side.crates[0].license)],
    }));
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tree, root) in [(&agent, NAME), (&kernel_side, object_reference)] {
        let reference = |at: usize| match at {
            0 => root.to_owned(),
            at => reference(&tree.crates[at]),
        };
        components.extend(
            tree.crates[1..]
                .iter()
                .map(|one| component(one, &checksums)),
        );
        for at in 0..tree.crates.len() {
            uses.entry(reference(at)).or_default();
        }
        for (from, to) in &tree.uses {
            uses.entry(reference(*from))
                .or_default()
                .insert(reference(*to));
        }
    }
    let of_program = uses.entry(NAME.to_owned()).or_default();
    of_program.insert(object_reference.to_owned());
    of_program.extend(
        runtime
            .iter()
            .filter_map(|one| one["bom-ref"].as_str())
            .map(str::to_owned),
    );

    components.sort_by_key(|one| one["bom-ref"].to_string());
    components.dedup_by_key(|one| one["bom-ref"].to_string());
    let count = components.len();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": facts.created.to_string(),
            "tools": { "components": [
                { "type": "application", "name": "cargo xtask image", "version": facts.version },
            ]},
            "component": {
                "type": "application",
                "bom-ref": NAME,
                "name": NAME,
                "version": facts.version,
                "description": facts.description,
                "hashes": [{ "alg": "SHA-256", "content": sha256(program) }],
                "licenses": [expression(&agent.crates[0].license)],
                "properties": properties(facts, arch),
            },
        },
        "components": components,
        "dependencies": uses.iter().map(|(from, to)| json!({ "ref": from, "dependsOn": to }))
            .collect::<Vec<_>>(),
    });
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok((bytes, count))
}

fn properties(facts: &Facts, arch: Arch) -> Vec<Value> {
    let platform = json!({ "name": "platform", "value": format!("linux/{}", arch.name()) });
    let revision = facts.revision.as_ref();
    let revision = revision.map(|hash| json!({ "name": "revision", "value": hash }));
    [Some(platform), revision].into_iter().flatten().collect()
}

fn component(of: &Crate, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(of),
        "name": of.name,
        "version": of.version,
        "scope": "required",
        "licenses": [expression(&of.license)],
    });
    if !of.repository.is_empty() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": of.repository }]);
    }
    // Crates of this repository are in no registry: neither address nor checksum.
    if let Some(checksum) = checksums.get(&(of.name.clone(), of.version.clone())) {
        component["purl"] = json!(reference(of));
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// A package URL, where a `+` stands for itself only encoded.
fn reference(of: &Crate) -> String {
    format!("pkg:cargo/{}@{}", of.name, of.version.replace('+', "%2B"))
}

/// An SPDX expression; crates of old write `/` for OR.
fn expression(license: &str) -> Value {
    let license = license.split('/').map(str::trim).collect::<Vec<_>>();
    json!({ "expression": license.join(" OR ") })
}

/// What is linked in besides crates.
fn runtime(arch: Arch) -> Result<Vec<Value>> {
    let one = |name: &str, version: &str, license: &str| {
        json!({
            "type": "library",
            "bom-ref": format!("{name}@{version}"),
            "name": name,
            "version": version,
            "scope": "required",
            "licenses": [expression(license)],
        })
    };
    let rust = rustc(&["-V"])?;
    let rust = rust
        .split_whitespace()
        .nth(1)
        .context("rustc -V names no version")?;
    let (major, minor) = glibc(arch)?;
    let gcc = run::first_line(Command::new(arch.compiler()).arg("-dumpfullversion"))
        .context("the C compiler does not tell its version")?;
    Ok(vec![
        one("rust-std", rust, "MIT OR Apache-2.0"),
        one("glibc", &format!("{major}.{minor}"), "LGPL-2.1-or-later"),
        one("libgcc", &gcc, "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ])
}

/// Checksums of crates by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    #[derive(serde::Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(serde::Deserialize)]
    struct Package {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).context("reading Cargo.lock")?;
    let packages = lock.package.into_iter();
    Ok(packages
        .filter_map(|one| Some(((one.name, one.version), one.checksum?)))
        .collect())
}

/// The crates that go into a package's program for a target.
fn tree(package: &str, target: &str) -> Result<Tree> {
    let mut command = run::cargo();
    command
        .args(["tree", "--locked", "--package", package, "--target", target])
        .args(["--edges", "normal,no-proc-macro", "--prefix", "depth"])
        .args(["--format", "|{p}|{l}|{r}|"]);
    parse(&String::from_utf8(run::output(&mut command)?)?)
}

/// Reads lines such as `2|aya v0.14.0|MIT|https://example.org|`: depth, package, licence,
/// repository, and `(*)` where what is below was listed before.
fn parse(text: &str) -> Result<Tree> {
    let mut tree = Tree::default();
    // The crate at each depth above the line.
    let mut above: Vec<usize> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let strange = || format!("`cargo tree` printed a line of a form that is not known: {line}");
        let [depth, package, license, repository, _] = line.split('|').collect::<Vec<_>>()[..]
        else {
            anyhow::bail!(strange());
        };
        let depth: usize = depth.parse().with_context(strange)?;
        let mut words = package.split_whitespace();
        let (name, version) = words.next().zip(words.next()).with_context(strange)?;
        let one = Crate {
            name: name.to_owned(),
            version: version.trim_start_matches('v').to_owned(),
            license: license.to_owned(),
            repository: repository.to_owned(),
        };
        let known = tree.crates.iter().position(|known| *known == one);
        let at = known.unwrap_or(tree.crates.len());
        if known.is_none() {
            tree.crates.push(one);
        }
        above.truncate(depth);
        if let Some(user) = above.last() {
            tree.uses.insert((*user, at));
        }
        above.push(at);
    }
    anyhow::ensure!(!tree.crates.is_empty(), "`cargo tree` listed nothing");
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::super::facts::example;
    use super::*;

    #[test]
    fn the_tree_is_read_with_what_uses_what() {
        let text = "0|root v0.1.0 (/a place/root)|MIT|| \n1|a v1.0.0+x|MIT/Apache-2.0|https://a|\n\
                    2|b v2.0.0|ISC||\n1|b v2.0.0|ISC|| (*)\n";
        let tree = parse(text).unwrap();
        let names: Vec<_> = tree.crates.iter().map(reference).collect();
        assert_eq!(
            names,
            [
                "pkg:cargo/root@0.1.0",
                "pkg:cargo/a@1.0.0%2Bx",
                "pkg:cargo/b@2.0.0"
            ]
        );
        assert_eq!(tree.uses, BTreeSet::from([(0, 1), (1, 2), (0, 2)]));
        for strange in ["", "x|a v1|MIT||", "0|a|MIT||", "0|a v1"] {
            assert!(parse(strange).is_err(), "{strange:?}");
        }
    }

    #[test]
    fn licences_are_spdx_expressions() {
        assert_eq!(
            expression("MIT/Apache-2.0")["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(expression("ISC")["expression"], "ISC");
    }

    #[test]
    fn only_what_goes_into_the_program_is_listed() {
        let (bytes, count) = document(&example(), Arch::Amd64, b"program").unwrap();
        assert_eq!(
            document(&example(), Arch::Amd64, b"program").unwrap().0,
            bytes
        );
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let components = document["components"].as_array().unwrap();
        assert_eq!(components.len(), count);
        let find = |name: &str| components.iter().find(|one| one["name"] == name);
        for there in [
            "tokio",
            "aya",
            "aya-ebpf",
            "agent-common",
            "glibc",
            "rust-std",
            "ring",
        ] {
            assert!(find(there).is_some(), "{there} is missing");
        }
        // Proc-macros, build and test tools, the tasks' own, another system's.
        for not in [
            "syn",
            "serde_derive",
            "proptest",
            "cc",
            "toml",
            "oci-spec",
            "windows-sys",
        ] {
            assert!(find(not).is_none(), "{not} is listed");
        }
        let tokio = find("tokio").unwrap();
        assert_eq!(tokio["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(find("agent-common").unwrap().get("purl").is_none());
        let known = |name: &Value| name == NAME || components.iter().any(|c| c["bom-ref"] == *name);
        for edge in document["dependencies"].as_array().unwrap() {
            assert!(known(&edge["ref"]), "{edge}");
            assert!(
                edge["dependsOn"].as_array().unwrap().iter().all(known),
                "{edge}"
            );
        }
        assert!(
            !String::from_utf8(bytes)
                .unwrap()
                .contains(run::root().to_str().unwrap())
        );
    }
}
