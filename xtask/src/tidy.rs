//! `cargo xtask tidy`: the rules of this repository that neither rustc nor clippy checks.
//!
//! Each rule is a function that reads the repository's files and adds findings. Its test has a
//! fault and a similar text that is allowed. A rule must not guess: it accepts ambiguous text.

mod address;
mod code;
mod comments;
mod deps;
mod docs;
mod files;
mod manifests;
mod metrics;
mod tree;
mod workflows;

use anyhow::{Result, bail};
use tree::Tree;
pub(crate) use tree::tracked;

use crate::run;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    /// Line, counted from 1; 0 for the whole file.
    line: usize,
    message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Violation {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

type Check = fn(&Tree, &mut Vec<Violation>);

const CHECKS: [Check; 19] = [
    comments::plain,
    deps::core,
    deps::modules,
    deps::crates,
    files::module_docs,
    files::length,
    files::names,
    files::leftovers,
    files::doc_tests,
    manifests::versions,
    manifests::one_release,
    address::one,
    manifests::licences,
    metrics::unused,
    docs::links,
    docs::tests_named,
    docs::architecture,
    docs::commands_run,
    workflows::safe,
];

pub(crate) fn run() -> Result<()> {
    let tree = Tree::read(&run::root())?;
    let mut violations = Vec::new();
    CHECKS.iter().for_each(|rule| rule(&tree, &mut violations));
    violations.sort();
    violations.dedup();
    for one in &violations {
        match one.line {
            0 => println!("{}: {}", one.path, one.message),
            line => println!("{}:{line}: {}", one.path, one.message),
        }
    }
    if !violations.is_empty() {
        bail!("{} findings", violations.len());
    }
    println!("tidy: {} files, no findings", tree.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one rule over files given as (path, text) and returns its messages.
    pub(super) fn check(rule: Check, files: &[(&str, &str)]) -> Vec<String> {
        let mut violations = Vec::new();
        rule(&Tree::of(files), &mut violations);
        violations
            .into_iter()
            .map(|f| format!("{}:{}: {}", f.path, f.line, f.message))
            .collect()
    }

    /// Checks that the fault is found exactly once, at this line, and that the similar text is accepted.
    #[track_caller]
    pub(super) fn fault_and_twin(
        rule: Check,
        path: &str,
        (fault, line): (&str, usize),
        twin: &str,
    ) {
        let found = check(rule, &[(path, fault)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(&format!("{path}:{line}: ")),
            "{found:?}"
        );
        assert_eq!(check(rule, &[(path, twin)]), Vec::<String>::new());
    }

    #[test]
    fn this_repository_is_read_whole() {
        let tree = Tree::read(&run::root()).unwrap();
        assert!(tree.text("Cargo.toml").is_some());
        assert!(tree.text("xtask/src/tidy.rs").is_some());
        assert!(tree.exists("xtask/src"));
    }
}
