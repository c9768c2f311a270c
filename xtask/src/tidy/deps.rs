//! Allowed dependencies: between modules of the agent, between its modules and libraries, and
//! between crates (docs/internal/architecture.md).

use super::Violation;
use super::code;
use super::manifests;
use super::tree::Tree;

/// Modules of the agent and the modules that each may name. A module may always name itself.
///
/// cluster, datapath, sentinel and http meet only in app, through values of agent-core.
const MODULES: [(&str, &str); 25] = [
    ("causes", ""),
    ("input", ""),
    ("args", "config"),
    ("config", "http lifecycle metrics"),
    ("confine", "cluster config datapath hardening"),
    ("clock", ""),
    ("files", "clock"),
    ("lifecycle", ""),
    ("hardening", "causes"),
    ("metrics", ""),
    ("cluster", "files input"),
    ("netlink", ""),
    ("datapath", "causes netlink"),
    ("netfilter", "netlink"),
    ("port", "config datapath http lifecycle"),
    ("state", "files"),
    ("sentinel", "config netfilter netlink"),
    ("publish", "causes clock metrics"),
    ("rotate", "clock cluster config lifecycle"),
    ("echo", "args"),
    ("kube_proxy_compat", "args config input netfilter netlink"),
    ("http", "lifecycle metrics"),
    (
        "cli",
        "args causes config http input lifecycle metrics state",
    ),
    ("app", ALL),
    ("main", ALL),
];
const ALL: &str = "*";

/// Modules of agent-core, the lowest first. Each may name those before it, so there are no cycles.
const CORE: &str = "
    text time brake cause names owners limits trace cluster evidence conntrack drops peers topology
    freshness view expect health_ports plan programming coverage eligibility drain probes ledger verdict
    explain answer switches damping condition event effect record node replay report fleet sim";

/// Names that the core must not use: it is deterministic, and `now` is an argument. Its dependency
/// tree excludes libraries.
const NOT_IN_CORE: &str = "std::fs TcpStream TcpListener UdpSocket Instant SystemTime";

/// Libraries that only these modules of the agent may use.
const HOMES: [(&str, &str); 4] = [
    ("k8s_openapi", "cluster publish rotate"),
    ("kube", "cluster publish rotate"),
    ("aya", "datapath"),
    ("aya_log", "datapath"),
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
const AGENT_CORE: &str = "agent-core/src/";
const TABLES: &str = "xtask/src/tidy/deps.rs";

/// Modules of the core name only lower modules; tests may name any.
pub(super) fn core(tree: &Tree, violations: &mut Vec<Violation>) {
    for (path, text) in tree.ending(".rs") {
        let Some((room, depth)) = module_of(AGENT_CORE, path) else {
            continue;
        };
        if !has(CORE, room) {
            let message = format!("room {room} is not in the table of {TABLES}");
            violations.push(Violation::new(path, 0, message));
        }
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            continue;
        }
        let code = code::only(text);
        for name in NOT_IN_CORE.split(' ') {
            for line in code::lines_with(&code, name) {
                let message = format!("agent-core is pure and must not name {name}");
                violations.push(Violation::new(path, line, message));
            }
        }
        let end = code.find("mod tests {").unwrap_or(code.len());
        let above = CORE.split_whitespace().skip_while(|name| *name != room);
        let above: Vec<&str> = above.skip(1).collect();
        for (line, used) in uses(&code[..end], depth) {
            if above.contains(&used.as_str()) {
                let message = format!("{room} lies below {used} and must not name it");
                violations.push(Violation::new(path, line, message));
            }
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
const CRATES: [(&str, &str); 7] = [
    ("agent-common", ""),
    // Its integration tests enable one of its features.
    ("agent-core", "agent-common agent-core"),
    ("agent-ebpf", "agent-common"),
    ("agent", "agent-common agent-core"),
    ("fuzz", "agent-common agent-core pathproof"),
    ("tests", "agent-common agent-core pathproof"),
    ("xtask", ""),
];
const OURS: &str = "agent-common agent-core agent-ebpf pathproof node-tests pathproof-fuzz xtask";
/// All libraries that the kernel side may link.
const KERNEL_SIDE: &str = "agent-common aya-ebpf aya-log-ebpf";

pub(super) fn crates(tree: &Tree, violations: &mut Vec<Violation>) {
    for (folder, allowed) in CRATES {
        let path = format!("{folder}/Cargo.toml");
        for entry in manifests::dependencies(tree.text(&path).unwrap_or_default()) {
            let (name, line) = (entry.dependency(), entry.line);
            let message = if has(OURS, name) && !has(allowed, name) {
                format!("{folder} must not use {name}")
            } else if folder == "agent-ebpf" && !has(KERNEL_SIDE, name) {
                format!("the kernel side may use {KERNEL_SIDE}, not {name}")
            } else if folder == "agent-common" && !entry.table.contains("dev-") && name != "aya" {
                format!("agent-common may use aya alone (feature user), not {name}")
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
            ("use crate::{\n    causes,\n    http::{Router},\n};", 1),
            "use crate::{causes::{chain, view}};",
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
            check(modules, &[("agent/src/main.rs", "use pathproof::app;")]),
            [""; 0]
        );
        assert_eq!(check(modules, &[("agent/src/misc.rs", "")]).len(), 1);
    }

    #[test]
    fn the_core_is_pure_and_has_no_cycles() {
        for name in NOT_IN_CORE.split(' ') {
            let fault = format!("//! x\nuse {name}::thing;\n");
            let twin = format!("//! not {name}\nuse my_{}_x::y;\n", name.replace(':', "_"));
            fault_and_twin(core, "agent-core/src/ledger.rs", (&fault, 2), &twin);
        }
        fault_and_twin(
            core,
            "agent-core/src/ledger/service.rs",
            ("use crate::{\n    time::Mono,\n    verdict::State,\n};", 1),
            "use super::super::limits::Limits; mod tests { use crate::verdict::State; }",
        );
        assert_eq!(check(core, &[("agent-core/src/misc.rs", "")]).len(), 1);
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
            ("agent-ebpf/Cargo.toml", "serde", "aya-ebpf"),
            ("agent/Cargo.toml", "agent-ebpf", "aya"),
            ("xtask/Cargo.toml", "pathproof", "clap"),
            ("tests/Cargo.toml", "xtask", "pathproof"),
            ("agent-common/Cargo.toml", "serde", "aya"),
        ] {
            let manifest = |name| format!("[dependencies]\n{name} = {{ workspace = true }}\n");
            fault_and_twin(crates, path, (&manifest(fault), 2), &manifest(twin));
        }
        let dev = "[dev-dependencies]\nproptest = { workspace = true }\n";
        assert_eq!(check(crates, &[("agent-common/Cargo.toml", dev)]), [""; 0]);
    }
}
