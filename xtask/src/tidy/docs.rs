//! Rules for Markdown: links have a target, commands are run by a test, and
//! docs/internal/architecture.md contains every module.

use super::Violation;
use super::tree::Tree;
use crate::commands::{self, PAGES, Run};

const MAP: &str = "docs/internal/architecture.md";

/// Relative links name an existing file or folder.
pub(super) fn links(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".md") {
        let mut in_fence = false;
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_fence = !in_fence;
            }
            if in_fence {
                continue;
            }
            for target in targets(&without_code(line)) {
                if !leads_somewhere(tree, path, target) {
                    let message = format!("the link to {target} leads nowhere");
                    violations.push(Violation::new(path, number + 1, message));
                }
            }
        }
    }
}

/// Tests that a page names as `path/of/file.rs::name` exist.
pub(super) fn tests_named(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".md") {
        for (number, line) in text.lines().enumerate() {
            for word in line.split('`').skip(1).step_by(2) {
                let missing = no_function(tree, word);
                violations.extend(missing.map(|message| Violation::new(path, number + 1, message)));
            }
        }
    }
}

/// Message about a `path/of/file.rs::name` that does not exist.
fn no_function(tree: &Tree, word: &str) -> Option<String> {
    let (file, name) = word.split_once(".rs::")?;
    let file = format!("{file}.rs");
    let text = tree.text(&file).unwrap_or_default();
    let exists = text.contains(&format!("fn {name}("));
    (!exists).then(|| format!("there is no test {name} in {file}"))
}

/// Each command of the first pages is run by a test, or the list gives the reason why not. The list
/// has no other entries.
pub(super) fn commands_run(tree: &Tree, violations: &mut Vec<Violation>) {
    const SOURCE: &str = "xtask/src/commands.txt";
    let mut used: Vec<&str> = Vec::new();
    for page in PAGES {
        for (line, command) in commands::of_page(tree.text(page).unwrap_or_default()) {
            match commands::known(&command) {
                Some((_, Run::Newcomer)) if page != "README.md" => {}
                Some((begin, _)) => used.push(begin),
                None => {
                    let message = format!("{SOURCE} does not say what runs `{command}`");
                    violations.push(Violation::new(page, line, message));
                }
            }
        }
    }
    for (begin, run) in commands::list().filter(|_| tree.exists(SOURCE)) {
        if !used.contains(&begin) {
            let message = format!("no page shows `{begin}`, or README does not");
            violations.push(Violation::new(SOURCE, 0, message));
        }
        if let Run::By(function) = run {
            let missing = no_function(tree, function);
            violations.extend(missing.map(|message| Violation::new(SOURCE, 0, message)));
        }
    }
}

/// A line without the parts in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Targets of `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("](") {
        let rest = &line[at + 2..];
        let end = rest.find([')', ' ']).unwrap_or(rest.len());
        found.push(rest[..end].trim_matches(['<', '>']));
    }
    if line.starts_with('[')
        && let Some((_, rest)) = line.split_once("]: ")
    {
        found.extend(rest.split_whitespace().next());
    }
    found
}

fn leads_somewhere(tree: &Tree, from: &str, target: &str) -> bool {
    let outside = target.contains("://") || target.starts_with("mailto:");
    let file = target.split('#').next().unwrap_or_default();
    if outside || file.is_empty() {
        return true;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            name => parts.push(name),
        }
    }
    tree.exists(&parts.join("/"))
}

/// The code map names each crate, and each module of the agent.
pub(super) fn architecture(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(map) = tree.text(MAP) else {
        violations.push(Violation::new(MAP, 0, "the code map is missing"));
        return;
    };
    for (path, _) in tree.ending(".rs") {
        let of_crate = |path: &'_ str| {
            path.strip_prefix("crates/")?
                .strip_suffix("/src/lib.rs")
                .map(str::to_owned)
        };
        let module = path.strip_prefix("agent/src/").map(str::to_owned);
        let Some(module) = module.or_else(|| of_crate(path)) else {
            continue;
        };
        let name = module.trim_end_matches(".rs");
        let own = ["lib", "main"].contains(&name);
        if !own && !module.contains('/') && !map.contains(&format!("`{name}`")) {
            let message = format!("{MAP} does not name this module (as `{name}`)");
            violations.push(Violation::new(path, 0, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, fault_and_twin};
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        fault_and_twin(
            links,
            "docs/a.md",
            ("x\nsee [b](b.md)", 2),
            "see [a](a.md#part), [c](https://c), `[b](b.md)`, [up](../docs), [here](#x)\n\
             ```\n[b](b.md)\n```\n",
        );
        fault_and_twin(links, "a.md", ("[b]: docs/b.md", 1), "[b]: ./a.md");
        fault_and_twin(links, "a.md", ("[b](../a.md)", 1), "[a](a.md \"title\")");
        let files = [
            ("docs/a.md", "[r](../README.md) ![p](p.svg)"),
            ("README.md", ""),
        ];
        assert_eq!(check(links, &files).len(), 1);
    }

    #[test]
    fn tests_that_are_named_exist() {
        let named = |name: &str| {
            let page = format!("| x | `tests/a.rs::{name}` and `core::fmt` |");
            check(
                tests_named,
                &[
                    ("docs/a.md", &page),
                    ("tests/a.rs", "fn holds() {}\nfn more() {}"),
                ],
            )
            .len()
        };
        assert_eq!(["holds", "gone", "hold"].map(named), [0, 1, 1]);
        let page = [("docs/a.md", "`tests/b.rs::holds`")];
        assert_eq!(check(tests_named, &page).len(), 1);
    }

    #[test]
    fn commands_are_on_the_list() {
        let fault = ("x\n```console\n$ cargo xtask tset\n```\n", 3);
        let twin = "```console\n$ cargo xtask test\nsaid\n```\n`cargo xtask tset`\n";
        fault_and_twin(commands_run, "docs/quickstart.md", fault, twin);
        // Missing here are README, which must show the command, and the files with the functions that
        // run the other commands.
        let tree = [("xtask/src/commands.txt", ""), ("docs/install.md", twin)];
        let found = check(commands_run, &tree).join("\n");
        assert!(
            found.contains("no page shows `cargo xtask test`"),
            "{found}"
        );
        assert!(
            found.contains("there is no test run in xtask/src/image.rs"),
            "{found}"
        );
    }

    #[test]
    fn the_map_names_every_module() {
        let files = |map| {
            [
                (MAP, map),
                ("agent/src/lib.rs", ""),
                ("agent/src/cluster.rs", ""),
                ("agent/src/cluster/api.rs", ""),
                ("crates/witness/src/lib.rs", ""),
            ]
        };
        for (map, missing) in [
            ("`cluster` and `witness`", 0),
            ("`cluster`", 1),
            ("`my_cluster`, witness", 2),
        ] {
            let found = check(architecture, &files(map));
            assert_eq!(found.len(), missing, "{map}: {found:?}");
        }
        assert_eq!(check(architecture, &[("agent/src/x.rs", "")]).len(), 1);
    }
}
