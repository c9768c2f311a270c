//! Removal of kube-proxy's rules and chains: converts the text of iptables-save to text for
//! iptables-restore, in one transaction for each table.
//!
//! Chains that kubelet creates (KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, ...) are excluded, as are
//! chains of other programs, whatever their names. A jump is removed only if it is exactly a rule that
//! kube-proxy writes.

/// Chains and rules of kube-proxy 1.36 in a table.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// A chain that kube-proxy always creates there.
    pub(super) sign: &'static str,
    /// kube-proxy's chains; a star matches the rest of a name.
    chains: &'static str,
    /// kube-proxy's rules in other chains, as iptables-save prints them after `-A `.
    jumps: &'static str,
}

/// `iptablesJumpChains` of `pkg/proxy/iptables/proxier.go`, and the chains of `cleanup.go`.
pub(super) const TABLES: [&Table; 3] = [
    &Table {
        name: "nat",
        sign: "KUBE-SERVICES",
        chains: "KUBE-SERVICES KUBE-NODEPORTS KUBE-POSTROUTING KUBE-MARK-MASQ KUBE-PROXY-CANARY \
                 KUBE-SVC-* KUBE-SVL-* KUBE-SEP-* KUBE-FW-* KUBE-EXT-*",
        jumps: r#"OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
"#,
    },
    &Table {
        name: "filter",
        sign: "KUBE-FORWARD",
        chains: "KUBE-SERVICES KUBE-EXTERNAL-SERVICES KUBE-FORWARD KUBE-NODEPORTS \
                 KUBE-PROXY-FIREWALL KUBE-PROXY-CANARY",
        jumps: r#"INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
"#,
    },
    &Table {
        name: "mangle",
        sign: "KUBE-PROXY-CANARY",
        chains: "KUBE-PROXY-CANARY",
        jumps: "",
    },
];

/// Whether iptables-save printed this table. If the table has rules that it cannot read, it prints a remark
/// instead.
pub(super) fn shows(table: &Table, saved: &str) -> bool {
    saved
        .lines()
        .any(|line| line.strip_prefix('*') == Some(table.name))
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Input for iptables-restore --noflush; `None` if there is nothing to do.
    pub(super) script: Option<String>,
    /// Number of rules to remove from built-in chains.
    pub(super) jumps: usize,
    /// Number of chains to remove.
    pub(super) chains: usize,
    /// A rule of another program that jumps to one of these chains, and so keeps it from being removed.
    pub(super) held: Option<String>,
}

impl Table {
    fn owns(&self, chain: &str) -> bool {
        let mut own = self.chains.split_whitespace();
        own.any(|own| match own.strip_suffix('*') {
            Some(start) => chain.starts_with(start),
            None => chain == own,
        })
    }

    fn is_jump(&self, rule: &str) -> bool {
        self.jumps.lines().any(|jump| jump == rule)
    }
}

/// Plans a table from the output of iptables-save.
pub(super) fn plan(table: &Table, saved: &str) -> Plan {
    let names = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    let chains: Vec<&str> = names.filter(|name| table.owns(name)).collect();
    let rules = || saved.lines().filter_map(|line| line.strip_prefix("-A "));
    let jumps: Vec<&str> = rules().filter(|rule| table.is_jump(rule)).collect();
    let held = rules().find(|rule| {
        let from = rule.split(' ').next().unwrap_or_default();
        let leads_here = target(rule).is_some_and(|to| table.owns(to));
        leads_here && !table.owns(from) && !table.is_jump(rule)
    });
    // In iptables-restore, naming a chain flushes it.
    let emptied = chains.iter().map(|chain| format!(":{chain} - [0:0]\n"));
    let deleted = jumps.iter().map(|rule| format!("-D {rule}\n"));
    let removed = chains.iter().map(|chain| format!("-X {chain}\n"));
    let lines: String = emptied.chain(deleted).chain(removed).collect();
    Plan {
        script: (!lines.is_empty()).then(|| format!("*{}\n{lines}COMMIT\n", table.name)),
        jumps: jumps.len(),
        chains: chains.len(),
        held: held.map(|rule| format!("-A {rule}")),
    }
}

/// Target of a rule. Only the last -j or -g counts, because a comment may contain the same words.
fn target(rule: &str) -> Option<&str> {
    let mut words = rule.rsplit(' ');
    // Options of a target follow it; a jump to a chain has none.
    let to = words.next()?;
    matches!(words.next()?, "-j" | "-g").then_some(to)
}

#[cfg(test)]
mod tests;
