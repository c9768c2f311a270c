//! Rules for single Rust files: module docs, length, names, leftovers.

use super::tree::Tree;
use super::{Violation, code};

/// Maximum lines of a file without a reason.
const LONGEST: usize = 500;

/// Every file begins with its purpose. The name `tests.rs` is clear by itself.
pub(super) fn module_docs(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        if !path.ends_with("/tests.rs") && !text.starts_with("//! ") {
            let message = "begin with a module doc: //! purpose of this file";
            violations.push(Violation::new(path, 1, message));
        }
    }
}

/// A longer file gives the reason in its module doc, in a sentence that begins with `Length:`.
pub(super) fn length(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let lines = text.lines().count();
        let mut doc = text.lines().take_while(|line| line.starts_with("//!"));
        let why = doc.find_map(|line| Some(line.split_once("Length: ")?.1));
        let reason = why.is_some_and(|why| !why.is_empty());
        if lines > LONGEST && !reason {
            let message = format!(
                "{lines} lines, {LONGEST} is the limit; split it, or say why in the module doc \
                 (`Length: ...`)"
            );
            violations.push(Violation::new(path, 0, message));
        }
    }
}

/// A module with submodules is `name.rs` next to the folder `name`, not `name/mod.rs`.
pub(super) fn names(tree: &Tree, violations: &mut Vec<Violation>) {
    for path in tree
        .paths()
        .filter(|path| path.rsplit('/').next() == Some("mod.rs"))
    {
        let message = "move it to NAME.rs beside the folder NAME";
        violations.push(Violation::new(path, 0, message));
    }
}

/// Nothing unfinished, and no test that never runs.
pub(super) fn leftovers(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let code = code::only(text);
        for left in ["todo!(", "unimplemented!(", "#[ignore"] {
            for line in code::lines_with(&code, left) {
                let message =
                    "finish it, or leave it out; a test must run, or report that it is skipped";
                violations.push(Violation::new(path, line, message));
            }
        }
    }
}

/// No task runs documentation tests, so doc comments must not contain any.
pub(super) fn doc_tests(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let mut inside = false;
        for (at, line) in text.lines().map(str::trim_start).enumerate() {
            let doc = line.strip_prefix("//!").or(line.strip_prefix("///"));
            let Some(language) = doc.and_then(|doc| doc.trim().strip_prefix("```")) else {
                continue;
            };
            inside = !inside;
            if inside && (language.is_empty() || language.starts_with("rust")) {
                let message =
                    "nothing runs this block: write a test, or name its language (```text)";
                violations.push(Violation::new(path, at + 1, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, fault_and_twin};
    use super::*;

    #[test]
    fn files_say_what_they_are() {
        let twin = "//! What it is.\nfn f() {}";
        fault_and_twin(module_docs, "a/src/x.rs", ("// x\nfn f() {}", 1), twin);
        let named = [("a.md", "text"), ("a/src/x/tests.rs", "use super::*;")];
        assert_eq!(check(module_docs, &named), [""; 0]);
    }

    #[test]
    fn long_files_say_why() {
        let long = "//! x\n".to_owned() + &"fn f() {}\n".repeat(LONGEST);
        let excused = long.replacen("//! x", "//! x\n//! Length: one table.", 1);
        fault_and_twin(length, "x.rs", (&long, 0), &excused);
        let silent = long.replacen("//! x", "//! x\n//! Length: ", 1);
        fault_and_twin(length, "x.rs", (&silent, 0), "//! x\n");
    }

    #[test]
    fn no_file_is_called_mod() {
        assert_eq!(check(names, &[("a/b/mod.rs", "")]).len(), 1);
        assert_eq!(
            check(names, &[("a/b.rs", ""), ("a/b/my_mod.rs", "")]),
            [""; 0]
        );
    }

    #[test]
    fn no_test_hides_in_documentation() {
        let twin = "//! ```text\n//! a -> b\n//! ```\nfn f() {}";
        let fault = twin.replace("text", "");
        fault_and_twin(doc_tests, "x.rs", (&fault, 1), twin);
        let fault = format!("{twin}\n    /// ```rust,ignore\n    /// f()\n    /// ```\n");
        fault_and_twin(doc_tests, "x.rs", (&fault, 5), twin);
    }

    #[test]
    fn nothing_is_left_behind() {
        for left in [
            "todo!()",
            "unimplemented!(\"x\")",
            "#[ignore]",
            "#[ignore = \"slow\"]",
        ] {
            let fault = format!("fn f() {{\n    {left}\n}}");
            let twin = format!(
                "// {left}\nfn f() {{ my_todo(\"{}\") }}",
                left.replace('"', "")
            );
            fault_and_twin(leftovers, "x.rs", (&fault, 2), &twin);
        }
    }
}
