//! Allowed dependencies: between modules of the agent, between its modules and libraries, and
//! between crates (docs/internal/architecture.md).

use super::tree::Tree;
use super::{Violation, code, manifests};

/// Modules of the agent and the modules that each may name. A module may always name itself.
///
/// cluster, datapath, sentinel and http meet only in app, through values of the crates that decide.
const MODULES: [(&str, &str); 20] = [
    ("config", "datapath http lifecycle metrics"),
    ("confine", "cluster config datapath files hardening"),
    ("clock", ""),
    ("files", "clock"),
    ("lifecycle", "files"),
    ("hardening", ""),
    ("metrics", ""),
    ("cluster", "files lifecycle"),
    ("netlink", ""),
    ("probe", ""),
    ("datapath", "netlink probe"),
    ("netfilter", "netlink"),
    ("port", "config datapath http lifecycle"),
    ("state", "files"),
    ("sentinel", "config netfilter netlink probe"),
    ("publish", "clock metrics"),
    ("rotate", "clock cluster config http lifecycle metrics"),
    ("echo", "lifecycle"),
    ("http", "clock lifecycle metrics"),
    ("app", ALL),
];
const ALL: &str = "*";

/// Modules of the crates that decide, the lowest first. Each may name those before it, so there are no
/// cycles. A crate without a list has one main module, which is its root.
const ORDERS: [(&str, &str); 3] = [
    (
        "facts",
        "text time cause names cluster directory owners limits trace switches fleet_report \
         node_context freshness view testing",
    ),
    (
        "witness",
        "evidence conntrack drops peers topology coverage probes ledger testing",
    ),
    (
        "judge",
        "eligibility health_ports drain brake verdict explain answer damping",
    ),
];
/// Crates that decide: no I/O and no clock.
const PURE: &str = "facts plan witness judge node report rotator sim";

/// Names that the core must not use: it is deterministic, and `now` is an argument. CI's step `core` checks
/// that its dependency tree has no library with I/O.
const NOT_IN_CORE: &str = "std::fs TcpStream TcpListener UdpSocket Instant SystemTime";

/// Libraries that only these modules of the agent may use.
const HOMES: [(&str, &str); 3] = [
    ("k8s_openapi", "cluster publish rotate"),
    ("kube", "cluster publish rotate"),
    ("aya", "datapath"),
];

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

/// Module of a crate that a file belongs to, and the depth of the file in it.
fn module_of<'a>(source: &str, path: &'a str) -> Option<(&'a str, usize)> {
    let inside = path.strip_prefix(source)?.strip_suffix(".rs")?;
    let top = inside.split('/').next()?;
    (inside != "lib").then_some((top, inside.matches('/').count() + 1))
}

const AGENT: &str = "agent/src/";
const TABLES: &str = "xtask/src/tidy/deps.rs";

/// Crates that decide do no I/O, and their modules name only lower modules; tests may name any.
pub(super) fn core(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let inside = path.strip_prefix("crates/").unwrap_or_default();
        let Some((folder, file)) = inside.split_once("/src/") else {
            continue;
        };
        let is_test =
            path.contains("/tests/") || path.ends_with("/tests.rs") || file == "testing.rs";
        if !has(PURE, folder) || is_test {
            continue;
        }
        let code = code::only(text);
        for name in NOT_IN_CORE.split(' ') {
            for line in code::lines_with(&code, name) {
                let message = format!("{folder} is pure and must not name {name}");
                violations.push(Violation::new(path, line, message));
            }
        }
        let order = ORDERS.iter().find(|(name, _)| *name == folder);
        if let (Some((_, order)), Some((module, depth))) = (order, module_of("", file)) {
            order_of_modules(path, &code, (order, module, depth), violations);
        }
    }
}

/// A module names no module above it.
fn order_of_modules(
    path: &str,
    code: &str,
    (order, module, depth): (&str, &str, usize),
    violations: &mut Vec<Violation>,
) {
    if !has(order, module) {
        let message = format!("module {module} is not in the table of {TABLES}");
        violations.push(Violation::new(path, 0, message));
    }
    let end = code.find("mod tests {").unwrap_or(code.len());
    let above = order.split_whitespace().skip_while(|name| *name != module);
    let above: Vec<&str> = above.skip(1).collect();
    for (line, used) in uses(&code[..end], depth) {
        if above.contains(&used.as_str()) {
            let message = format!("{module} lies below {used} and must not name it");
            violations.push(Violation::new(path, line, message));
        }
    }
}

/// Modules of the agent name only allowed modules and libraries.
pub(super) fn modules(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let Some((module, depth)) = module_of(AGENT, path) else {
            continue;
        };
        let code = code::only(text);
        for (library, homes) in HOMES.iter().filter(|(_, homes)| !has(homes, module)) {
            for line in code::lines_with(&code, &format!("{library}::")) {
                let message = format!("{library} stays in {homes}");
                violations.push(Violation::new(path, line, message));
            }
        }
        let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
            let message = format!("module {module} is not in the table of {TABLES}");
            violations.push(Violation::new(path, 0, message));
            continue;
        };
        for (line, used) in uses(&code, depth) {
            let known = MODULES.iter().any(|(name, _)| *name == used);
            if known && used != module && *allowed != ALL && !has(allowed, &used) {
                let message = format!("{module} may not name {used}, only: {allowed}");
                violations.push(Violation::new(path, line, message));
            }
        }
    }
}

/// Top-level modules that code names by `crate::`, `pathproof::` or enough `super::`.
fn uses(code: &str, depth: usize) -> Vec<(usize, String)> {
    let supers = "super::".repeat(depth);
    let mut found = Vec::new();
    for prefix in ["crate::", "pathproof::", supers.as_str()] {
        for (at, _) in code.match_indices(prefix) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue; // the tail of a longer path
            }
            for name in heads(&code[at + prefix.len()..]) {
                found.push((code::line_of(code, at), name));
            }
        }
    }
    found
}

/// First names of a path or of a group in braces: `a::b` gives a; `{a::{b, c}, d}` gives a and d.
fn heads(rest: &str) -> Vec<String> {
    let not_in_name = |sign: char| !sign.is_alphanumeric() && sign != '_';
    let head = |part: &str| {
        part.trim_start()
            .split(not_in_name)
            .next()
            .map(str::to_owned)
    };
    let Some(group) = rest.strip_prefix('{') else {
        return head(rest).into_iter().collect();
    };
    let deeper = |sign: char| i32::from(sign == '{') - i32::from(sign == '}');
    let mut depth = 1;
    let end = group.find(|sign| {
        depth += deeper(sign);
        depth == 0
    });
    let mut depth = 0;
    let parts = group[..end.unwrap_or(group.len())].split(|sign| {
        depth += deeper(sign);
        depth == 0 && sign == ','
    });
    parts
        .filter_map(head)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Crates of the workspace, and those that each may use.
const CRATES: [(&str, &str); 19] = [
    ("crates/wire", ""),
    ("crates/ebpf", "pathproof-wire"),
    ("crates/facts", "pathproof-wire"),
    ("crates/plan", "pathproof-wire pathproof-facts"),
    ("crates/witness", "pathproof-wire pathproof-facts"),
    (
        "crates/judge",
        "pathproof-wire pathproof-facts pathproof-witness",
    ),
    (
        "crates/node",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge",
    ),
    (
        "crates/report",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node",
    ),
    (
        "crates/rotator",
        "pathproof-wire pathproof-facts pathproof-judge pathproof-report",
    ),
    (
        "crates/samples",
        "pathproof-wire pathproof-facts pathproof-witness pathproof-judge pathproof-report",
    ),
    (
        "crates/sim",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator",
    ),
    (
        "crates/shared",
        "pathproof-facts pathproof-judge pathproof-report pathproof-rotator",
    ),
    (
        "crates/cli",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator pathproof-shared pathproof-samples",
    ),
    (
        "agent",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator pathproof-shared pathproof-samples",
    ),
    // The agent's library is called pathproof, the program beside the commands pathproof-program.
    ("crates/kube_proxy_compat", "pathproof-shared pathproof"),
    (
        "crates/program",
        "pathproof-wire pathproof-facts pathproof-shared pathproof-cli pathproof pathproof-kube-proxy-compat pathproof-samples",
    ),
    (
        "fuzz",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator pathproof-cli pathproof pathproof-kube-proxy-compat",
    ),
    (
        "tests",
        "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator pathproof-shared pathproof pathproof-kube-proxy-compat pathproof-program pathproof-sim",
    ),
    ("xtask", ""),
];
const OURS: &str = "pathproof-wire pathproof-facts pathproof-plan pathproof-witness pathproof-judge pathproof-node pathproof-report pathproof-rotator pathproof-ebpf pathproof-samples pathproof-sim pathproof-shared pathproof-cli pathproof pathproof-kube-proxy-compat pathproof-program node-tests pathproof-fuzz xtask";
/// Libraries that build only for Linux. The command line has to build for every system that kubectl runs on.
const OF_LINUX: &str = "aya caps inotify landlock libc netlink-sys nix rtnetlink seccompiler";
/// All libraries that the kernel side may link.
const KERNEL_SIDE: &str = "pathproof-wire aya-ebpf";

pub(super) fn crates(tree: &Tree, violations: &mut Vec<Violation>) {
    for (folder, allowed) in CRATES {
        let path = format!("{folder}/Cargo.toml");
        for entry in manifests::dependencies(tree.text(&path).unwrap_or_default()) {
            let (name, line) = (entry.dependency(), entry.line);
            let message = if has(OURS, name) && !has(allowed, name) {
                format!("{folder} must not use {name}")
            } else if name == "pathproof-samples" && !entry.table.contains("dev-") {
                format!("{name} is for tests: it must not be linked")
            } else if ["crates/cli", "crates/shared"].contains(&folder) && has(OF_LINUX, name) {
                format!("{folder} builds for every system: it must not use {name}")
            } else if folder == "crates/ebpf" && !has(KERNEL_SIDE, name) {
                format!("the kernel side may use {KERNEL_SIDE}, not {name}")
            } else if folder == "crates/wire"
                && !entry.table.contains("dev-")
                && !["aya", "serde"].contains(&name)
            {
                format!("pathproof-wire may use aya and serde alone (features), not {name}")
            } else {
                continue;
            };
            violations.push(Violation::new(&path, line, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, fault_and_twin};
    use super::*;

    #[test]
    fn modules_name_only_what_they_may() {
        fault_and_twin(
            modules,
            "agent/src/http/serve.rs",
            ("//! x\nuse crate::cluster::Watch;\n", 2),
            "//! crate::cluster\nuse crate::{lifecycle::ready, metrics};\nuse super::super::metrics;\n",
        );
        fault_and_twin(
            modules,
            "agent/src/datapath.rs",
            ("use crate::{\n    netlink,\n    http::{Router},\n};", 1),
            "use crate::{netlink::{chain, view}};",
        );
        fault_and_twin(
            modules,
            "agent/src/cluster/yaml.rs",
            ("fn f() { crate::app::stop() }", 1),
            "fn f() { \"crate::app\"; my_crate::app::stop() }",
        );
        assert_eq!(
            check(
                modules,
                &[("agent/src/app.rs", "use crate::{cluster, http};")]
            ),
            [""; 0]
        );
        assert_eq!(
            check(
                modules,
                &[("crates/program/src/main.rs", "use pathproof::app;")]
            ),
            [""; 0]
        );
        assert_eq!(check(modules, &[("agent/src/misc.rs", "")]).len(), 1);
    }

    #[test]
    fn the_core_is_pure_and_has_no_cycles() {
        for name in NOT_IN_CORE.split(' ') {
            let fault = format!("//! x\nuse {name}::thing;\n");
            let twin = format!("//! not {name}\nuse my_{}_x::y;\n", name.replace(':', "_"));
            fault_and_twin(core, "crates/witness/src/ledger.rs", (&fault, 2), &twin);
        }
        fault_and_twin(
            core,
            "crates/witness/src/ledger/service.rs",
            ("use crate::{\n    peers,\n    testing::traces,\n};", 1),
            "use super::super::peers; mod tests { use crate::testing::traces; }",
        );
        assert_eq!(check(core, &[("crates/witness/src/misc.rs", "")]).len(), 1);
    }

    #[test]
    fn libraries_stay_at_home() {
        let path = "agent/src/http/admin.rs";
        fault_and_twin(
            modules,
            path,
            ("use aya::Ebpf;", 1),
            "use crate::metrics::aya_says;",
        );
        let fault = ("use k8s_openapi::api::core::v1::Node;", 1);
        fault_and_twin(modules, "agent/src/app.rs", fault, "// k8s_openapi::api");
        let home = [("agent/src/datapath/load.rs", "use aya::Ebpf;")];
        assert_eq!(check(modules, &home), [""; 0]);
    }

    #[test]
    fn crates_depend_on_what_they_may() {
        for (path, fault, twin) in [
            ("crates/ebpf/Cargo.toml", "serde", "aya-ebpf"),
            ("agent/Cargo.toml", "pathproof-ebpf", "aya"),
            ("xtask/Cargo.toml", "pathproof", "clap"),
            ("tests/Cargo.toml", "xtask", "pathproof"),
            ("crates/cli/Cargo.toml", "pathproof", "pathproof-report"),
            ("agent/Cargo.toml", "pathproof-cli", "pathproof-shared"),
            ("crates/shared/Cargo.toml", "nix", "serde"),
            ("crates/wire/Cargo.toml", "tokio", "serde"),
        ] {
            let manifest = |name| format!("[dependencies]\n{name} = {{ workspace = true }}\n");
            fault_and_twin(crates, path, (&manifest(fault), 2), &manifest(twin));
        }
        for (path, name) in [
            ("crates/wire/Cargo.toml", "proptest"),
            ("agent/Cargo.toml", "pathproof-samples"),
        ] {
            let manifest = |table| format!("[{table}]\n{name} = {{ workspace = true }}\n");
            let fault = manifest("dependencies");
            fault_and_twin(crates, path, (&fault, 2), &manifest("dev-dependencies"));
        }
    }
}
