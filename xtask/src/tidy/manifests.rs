//! Rules for Cargo.toml: one table of versions, one release, and licences that fit the side of the
//! kernel boundary.

use super::Violation;
use super::tree::Tree;

/// A line `name = value` of a manifest.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// Table of the entry, with its brackets.
    pub(super) table: &'a str,
    pub(super) line: usize,
    name: &'a str,
    value: &'a str,
}

impl<'a> Entry<'a> {
    /// Name of the dependency: from `name` or `name.workspace` in `[dependencies]`, or from the
    /// long form `[dependencies.name]`.
    pub(super) fn dependency(&self) -> &'a str {
        let long = self.table.split_once("dependencies.");
        long.map_or_else(
            || self.name.trim_end_matches(".workspace"),
            |(_, name)| name.trim_end_matches(']'),
        )
    }
}

fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut table = "";
    text.lines().zip(1..).filter_map(move |(text, line)| {
        if text.starts_with('[') {
            table = text.trim();
        }
        let (name, value) = text.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        (!name.starts_with(['#', '['])).then_some(Entry {
            table,
            line,
            name,
            value,
        })
    })
}

pub(super) fn dependencies(text: &str) -> impl Iterator<Item = Entry<'_>> {
    entries(text).filter(|entry| entry.table.contains("dependencies"))
}

/// Manifests of members. A manifest with a table `[workspace]` is a root and not a member.
fn members(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let is_member = |text: &str| !text.lines().any(|line| line == "[workspace]");
    let manifests = tree.ending("/Cargo.toml");
    manifests.filter(move |(_, text)| is_member(text))
}

/// Only the workspace's table contains versions.
pub(super) fn versions(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in members(tree) {
        for entry in dependencies(text) {
            let short = entry.name.ends_with(".workspace") && entry.value == "true";
            if !short && !entry.value.contains("workspace = true") {
                let name = entry.dependency();
                let message =
                    format!("{name}: write `workspace = true`; versions belong in Cargo.toml");
                violations.push(Violation::new(path, entry.line, message));
            }
        }
        for name in ["version", "edition", "rust-version", "publish"] {
            if field(text, "[package]", &format!("{name}.workspace")).is_none() {
                let message = format!("[package] needs `{name}.workspace = true`");
                violations.push(Violation::new(path, 0, message));
            }
        }
    }
}

/// Text before pathproof's version in docs, tests and manifests that name a release.
const RELEASE_MARKS: [&str; 4] = ["pathproof:", "newTag: \"", "VERSION=", "appVersion: \""];

/// Cargo.toml defines the release; every other place must name the same one.
pub(super) fn one_release(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(release) = tree.text("Cargo.toml").and_then(release) else {
        return;
    };
    // The changelog names older releases, and fuzz inputs are arbitrary bytes.
    let elsewhere = |path: &str| path == "CHANGELOG.md" || path.starts_with("fuzz/");
    for (path, text) in tree.ending("").filter(|(path, _)| !elsewhere(path)) {
        let chart = path.ends_with("/Chart.yaml");
        for (number, line) in text.lines().enumerate() {
            let of_chart = line.strip_prefix("version: ").filter(|_| chart);
            let marked = RELEASE_MARKS.iter();
            let marked = marked.flat_map(|mark| line.split(mark).skip(1));
            for said in of_chart
                .into_iter()
                .chain(marked)
                .filter_map(leading_version)
            {
                if said != release {
                    let message =
                        format!("says {said}, and the version in Cargo.toml is {release}");
                    violations.push(Violation::new(path, number + 1, message));
                }
            }
        }
    }
}

fn release(root: &str) -> Option<&str> {
    let value = field(root, "[workspace.package]", "version")?;
    Some(value.trim_matches('"'))
}

/// "0.1.0-rc.1" from "0.1.0-rc.1 --file": three numbers with their suffix.
fn leading_version(text: &str) -> Option<&str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    let end = text.find(|c| !inside(c)).unwrap_or(text.len());
    let version = text[..end].trim_end_matches('.');
    let numbers: Vec<&str> = version.split(['-', '+']).next()?.split('.').collect();
    let is_number = |n: &&str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    (numbers.len() == 3 && numbers.iter().all(is_number)).then_some(version)
}

/// Licence of a crate, by folder; other crates inherit the workspace's.
const LICENCES: [(&str, &str); 2] = [
    // Loaded into the kernel: GPL, or MIT like aya's kernel side.
    ("crates/ebpf/Cargo.toml", "\"GPL-2.0-only OR MIT\""),
    // Linked by both sides.
    (
        "crates/wire/Cargo.toml",
        "\"GPL-2.0-only OR MIT OR Apache-2.0\"",
    ),
];

/// Every crate states its description and the right licence.
pub(super) fn licences(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in members(tree) {
        let own = LICENCES.iter().find(|(own, _)| *own == path);
        let (name, wanted) = own.map_or(("license.workspace", "true"), |(_, licence)| {
            ("license", *licence)
        });
        if field(text, "[package]", name) != Some(wanted) {
            let message = format!("[package] needs `{name} = {wanted}`");
            violations.push(Violation::new(path, 0, message));
        }
        if field(text, "[package]", "description").is_none() {
            violations.push(Violation::new(path, 0, "[package] needs a description"));
        }
    }
    if tree.exists("Cargo.toml") {
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-GPL2"] {
            if !tree.exists(file) {
                violations.push(Violation::new(file, 0, "the licence's text is missing"));
            }
        }
    }
}

fn field<'a>(text: &'a str, table: &str, name: &str) -> Option<&'a str> {
    let mut entries = entries(text);
    let found = entries.find(|entry| entry.table == table && entry.name == name);
    found.map(|entry| entry.value)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, fault_and_twin};
    use super::*;

    const PACKAGE: &str = "[package]\nname = \"x\"\ndescription = \"y\"\nversion.workspace = true\n\
                           edition.workspace = true\nrust-version.workspace = true\npublish.workspace = true\n";

    #[test]
    fn versions_are_in_one_table() {
        for (fault, twin) in [
            (
                "[dependencies]\nclap = \"4\"",
                "[dependencies]\nclap = { workspace = true }",
            ),
            (
                "[dev-dependencies]\nx = { version = \"1\" }",
                "[dev-dependencies]\nx.workspace = true",
            ),
            (
                "[build-dependencies]\nx = { path = \"y\" }",
                "[lints]\nx = \"1\"",
            ),
        ] {
            let (fault, twin) = (format!("{PACKAGE}{fault}"), format!("{PACKAGE}{twin}"));
            fault_and_twin(versions, "agent/Cargo.toml", (&fault, 9), &twin);
        }
        let fault = PACKAGE.replace("edition.workspace = true", "edition = \"2021\"");
        fault_and_twin(versions, "agent/Cargo.toml", (&fault, 0), PACKAGE);
        let table = "[workspace.dependencies]\nclap = \"4\"";
        assert_eq!(check(versions, &[("Cargo.toml", table)]), [""; 0]);
    }

    #[test]
    fn a_release_is_named_after_cargo_toml() {
        let root = "[workspace.package]\nversion = \"1.2.3-rc.1\"\n";
        // Each with the release, with another one, and with text that is not a release.
        for (path, text) in [
            ("deploy/base/agent.yaml", "image: pathproof:@"),
            ("docs/install.md", "Below it is `REGISTRY/pathproof:@`."),
            ("deploy/base/kustomization.yaml", "# {newTag: \"@\"}]"),
            ("deploy/image/Dockerfile", "#   --build-arg VERSION=@ \\"),
            ("deploy/chart/Chart.yaml", "version: @"),
            ("deploy/chart/Chart.yaml", "appVersion: \"@\""),
        ] {
            for (version, violations) in [("1.2.3-rc.1", 0), ("1.2.3", 1), ("0.1.0", 1), ("1", 0)] {
                let text = text.replace('@', version);
                let found = check(one_release, &[("Cargo.toml", root), (path, &text)]);
                assert_eq!(found.len(), violations, "{text}: {found:?}");
            }
        }
        let others = [
            ("Cargo.toml", root),
            ("CHANGELOG.md", &format!("pathproof:{}", "0.1.0")),
            ("deploy/x/crd.yaml", "version: 0.0.1"),
            ("docs/a.md", "pathproof: 10.0.0.1"),
        ];
        assert_eq!(check(one_release, &others), [""; 0]);
    }

    #[test]
    fn licences_fit_the_side_of_the_boundary() {
        let with = |line: &str| format!("{PACKAGE}{line}\n");
        let (dual, ours) = (
            "license = \"GPL-2.0-only OR MIT\"",
            "license.workspace = true",
        );
        fault_and_twin(
            licences,
            "crates/ebpf/Cargo.toml",
            (&with(ours), 0),
            &with(dual),
        );
        fault_and_twin(licences, "agent/Cargo.toml", (&with(dual), 0), &with(ours));
        let bare = with(ours).replace("description = \"y\"\n", "");
        fault_and_twin(licences, "agent/Cargo.toml", (&bare, 0), &with(ours));
        assert_eq!(check(licences, &[("Cargo.toml", "")]).len(), 3);
    }
}
