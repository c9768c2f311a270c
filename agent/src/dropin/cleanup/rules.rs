//! Which rules and chains are kube-proxy's, and what removes them: text of iptables-save to text for
//! iptables-restore, in one transaction for each table.
//!
//! Chains that kubelet makes (KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, ...) are not among
//! them, nor are those of others, whatever they are called. Of kube-proxy's jumps exactly those that
//! it writes itself are.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What kube-proxy 1.36 has in a table.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// From which chain, to which, with which comment, for new connections only or all.
    jumps: &'static [(&'static str, &'static str, &'static str, bool)],
    chains: &'static [&'static str],
    prefixes: &'static [&'static str],
}

const PORTALS: &str = "kubernetes service portals";
const EXTERNAL: &str = "kubernetes externally-visible service portals";
const FIREWALL: &str = "kubernetes load balancer firewall";

/// `iptablesJumpChains` of `pkg/proxy/iptables/proxier.go`, and the chains of `cleanup.go`.
pub(super) const TABLES: &[Table] = &[
    Table {
        name: "nat",
        jumps: &[
            ("OUTPUT", "KUBE-SERVICES", PORTALS, false),
            ("PREROUTING", "KUBE-SERVICES", PORTALS, false),
            (
                "POSTROUTING",
                "KUBE-POSTROUTING",
                "kubernetes postrouting rules",
                false,
            ),
        ],
        chains: &[
            "KUBE-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-POSTROUTING",
            "KUBE-MARK-MASQ",
            "KUBE-PROXY-CANARY",
        ],
        prefixes: &[
            "KUBE-SVC-",
            "KUBE-SVL-",
            "KUBE-SEP-",
            "KUBE-FW-",
            "KUBE-EXT-",
        ],
    },
    Table {
        name: "filter",
        jumps: &[
            ("INPUT", "KUBE-EXTERNAL-SERVICES", EXTERNAL, true),
            ("FORWARD", "KUBE-EXTERNAL-SERVICES", EXTERNAL, true),
            (
                "INPUT",
                "KUBE-NODEPORTS",
                "kubernetes health check service ports",
                false,
            ),
            ("FORWARD", "KUBE-SERVICES", PORTALS, true),
            ("OUTPUT", "KUBE-SERVICES", PORTALS, true),
            (
                "FORWARD",
                "KUBE-FORWARD",
                "kubernetes forwarding rules",
                false,
            ),
            ("INPUT", "KUBE-PROXY-FIREWALL", FIREWALL, true),
            ("OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL, true),
            ("FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL, true),
        ],
        chains: &[
            "KUBE-SERVICES",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-FORWARD",
            "KUBE-NODEPORTS",
            "KUBE-PROXY-FIREWALL",
            "KUBE-PROXY-CANARY",
        ],
        prefixes: &[],
    },
    Table {
        name: "mangle",
        jumps: &[],
        chains: &["KUBE-PROXY-CANARY"],
        prefixes: &[],
    },
];

/// Chains that kube-proxy always makes, by their tables.
pub(super) const SIGNS: [(&str, &str); 3] = [
    ("nat", "KUBE-SERVICES"),
    ("filter", "KUBE-FORWARD"),
    ("mangle", "KUBE-PROXY-CANARY"),
];

/// Whether a table is among what -save printed: one with rules that iptables does not know is left
/// out, but for a remark.
pub(super) fn shows(table: &Table, saved: &str) -> bool {
    saved
        .lines()
        .any(|line| line.strip_prefix('*') == Some(table.name))
}

/// What is to be done to a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// For iptables-restore --noflush. Nothing where there is nothing to do.
    pub(super) script: Option<String>,
    /// Rules of built-in chains that go.
    pub(super) jumps: usize,
    /// Chains that go.
    pub(super) chains: usize,
    /// A rule of somebody else's that leads to one of these chains, which cannot go so long.
    pub(super) held: Option<String>,
}

impl Table {
    fn owns(&self, chain: &str) -> bool {
        self.chains.contains(&chain) || self.prefixes.iter().any(|start| chain.starts_with(start))
    }

    /// The rules after `-A `, as iptables-save prints them.
    fn jumps(&self) -> BTreeSet<String> {
        let rule = |(from, to, comment, new): &(_, _, _, bool)| {
            let matched = if *new {
                "-m conntrack --ctstate NEW "
            } else {
                ""
            };
            format!("{from} {matched}-m comment --comment \"{comment}\" -j {to}")
        };
        self.jumps.iter().map(rule).collect()
    }
}

/// Of what iptables-save printed of the table.
pub(super) fn plan(table: &Table, saved: &str) -> Plan {
    let chain_of = |line: &str| {
        let name = line.strip_prefix(':')?.split(' ').next()?;
        Some(name.to_owned())
    };
    let present = saved.lines().filter_map(chain_of);
    let chains: Vec<String> = present.filter(|name| table.owns(name)).collect();
    let ours = table.jumps();
    let rules = || saved.lines().filter_map(|line| line.strip_prefix("-A "));
    let jumps: Vec<&str> = rules().filter(|rule| ours.contains(*rule)).collect();
    let held = rules().find(|rule| {
        let from = rule.split(' ').next().unwrap_or_default();
        !table.owns(from) && !ours.contains(*rule) && target(rule).is_some_and(|to| table.owns(to))
    });
    let mut plan = Plan {
        script: None,
        jumps: jumps.len(),
        chains: chains.len(),
        held: held.map(|rule| format!("-A {rule}")),
    };
    if chains.is_empty() && jumps.is_empty() {
        return plan;
    }
    let mut script = format!("*{}\n", table.name);
    // Writing to a String cannot fail, here and below. Naming a chain empties it.
    for chain in &chains {
        let _ = writeln!(script, ":{chain} - [0:0]");
    }
    for rule in jumps {
        let _ = writeln!(script, "-D {rule}");
    }
    for chain in &chains {
        let _ = writeln!(script, "-X {chain}");
    }
    script.push_str("COMMIT\n");
    plan.script = Some(script);
    plan
}

/// Where a rule leads. The last of such words is: a comment may hold them too.
fn target(rule: &str) -> Option<&str> {
    let mut words = rule.rsplit(' ');
    // Options of the target follow it, and chains have none.
    let to = words.next()?;
    matches!(words.next()?, "-j" | "-g").then_some(to)
}

#[cfg(test)]
mod tests;
