//! Rules for .github/workflows that actionlint lacks: permissions, pins, credentials, timeouts.

use super::Violation;
use super::tree::Tree;

const FOLDER: &str = ".github/workflows/";

/// A workflow has permissions only in jobs, runs only code pinned by a hash, and has a timeout.
pub(super) fn safe(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending("").filter(|(path, _)| path.starts_with(FOLDER)) {
        if !text.lines().any(|line| line == "permissions: {}") {
            let message = "write `permissions: {}` at the top, and rights at each job";
            violations.push(Violation::new(path, 0, message));
        }
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let after = &lines[at + 1..];
            if let Some(message) = fault(line, after) {
                violations.push(Violation::new(path, at + 1, message));
            }
        }
    }
}

fn fault(line: &str, after: &[&str]) -> Option<&'static str> {
    let line = line.trim_start().trim_start_matches("- ");
    let soon = |wanted: &str| after.iter().take(4).any(|line| line.trim() == wanted);
    if line.starts_with("pull_request_target") {
        return Some("pull_request_target gives rights to code of others; use pull_request");
    }
    if line.starts_with("runs-on:") && !after.iter().take(4).any(|l| l.contains("timeout-minutes:"))
    {
        return Some("the job needs timeout-minutes, right below");
    }
    let action = line.strip_prefix("uses: ")?;
    if !action.starts_with("./") && !is_pinned(action) {
        return Some("pin the action: `OWNER/NAME@HASH # vVERSION`, with the commit's whole hash");
    }
    if action.starts_with("actions/checkout@") && !soon("persist-credentials: false") {
        return Some("the checkout needs `persist-credentials: false`, right below");
    }
    None
}

/// Whether it is "owner/name@HASH # v1.2.3".
fn is_pinned(action: &str) -> bool {
    let Some((_, reference)) = action.split_once('@') else {
        return false;
    };
    let Some((hash, version)) = reference.split_once(" # v") else {
        return false;
    };
    hash.len() == 40
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        && version.starts_with(|sign: char| sign.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, fault_and_twin};
    use super::*;

    const GOOD: &str = "on: pull_request\npermissions: {}\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    \
        timeout-minutes: 5\n    steps:\n      - uses: actions/checkout@0123456789012345678901234567890123456789 \
        # v1.2.3\n        with:\n          persist-credentials: false\n      - uses: ./.github/x\n";

    #[test]
    fn workflows_are_safe() {
        for (from, to, line) in [
            ("permissions: {}", "permissions: read-all", 0),
            ("on: pull_request\n", "on:\n  pull_request_target:\n", 2),
            ("timeout-minutes: 5", "name: x", 5),
            (
                "0123456789012345678901234567890123456789 # v1.2.3",
                "v1.2.3",
                8,
            ),
            (" # v1.2.3", "", 8),
            ("persist-credentials: false", "fetch-depth: 0", 8),
        ] {
            let fault = GOOD.replacen(from, to, 1);
            fault_and_twin(safe, ".github/workflows/a.yml", (&fault, line), GOOD);
        }
        assert_eq!(check(safe, &[("deploy/base/a.yml", "uses: a@v1")]), [""; 0]);
    }
}
