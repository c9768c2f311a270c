//! Next steps by cause, the same as in docs/operations.md, which has a heading for each.

use pathproof_facts::cause::{Cause, ProbeCause, State, Why};
use pathproof_wire::service::Family;
use serde::Serialize;

use super::is_explained;
use crate::verdict::{LaneState, Verdict};

/// Page with the full description.
const PAGE: &str = "docs/operations.md";

/// Next steps for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The cause, or the reason for Unknown.
    #[serde(rename = "of")]
    pub subject: String,
    /// Commands to run on the node, whose output shows the cause.
    pub commands: Vec<String>,
    /// Signs that confirm the cause, and the repair.
    pub advice: String,
    pub page: String,
}

/// Next steps for a verdict; causes that accuse the node come first.
pub fn next(verdict: &Verdict) -> Vec<Remedy> {
    let mut found: Vec<(Cause, Family)> = Vec::new();
    let mut states = vec![LaneState::Failing];
    if matches!(verdict.state, State::Unknown | State::Starting) {
        states.push(LaneState::NeverWorked);
    }
    for state in states {
        for family in &verdict.families {
            let lanes = family.lanes.iter().filter(|lane| lane.state == state);
            let told = lanes.filter(|lane| !is_explained(lane, &family.lanes));
            found.extend(told.filter_map(|lane| Some((looked_into(lane.cause?), family.family))));
        }
    }
    let services = verdict.services.iter();
    found.extend(services.map(|service| (service.cause, service.family)));
    let families = verdict.families.iter();
    found.extend(families.filter_map(|family| Some((family.cause?, family.family))));
    let mut causes: Vec<(Cause, Vec<Family>)> = Vec::new();
    for (cause, family) in found {
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, families)) if families.contains(&family) => {}
            Some((_, families)) => families.push(family),
            None => causes.push((cause, vec![family])),
        }
    }
    let causes = causes.iter();
    let of_causes = causes.map(|(cause, families)| of_cause(*cause, families));
    let of_why = verdict.why.map(of_why);
    of_why.into_iter().chain(of_causes).collect()
}

const RULES: &[&str] = &[
    "iptables -t nat -L KUBE-SERVICES -n | head",
    "nft list chain ip kube-proxy services",
];
const FILTERS: &[&str] = &["iptables -L FORWARD -nv", "nft list ruleset | grep -n drop"];

/// Commands for IPv4, and the advice.
fn entry(cause: Cause) -> (&'static [&'static str], &'static str) {
    match cause {
        Cause::Leaked => (
            RULES,
            "If the rules are missing or empty, restart kube-proxy (or the Cilium agent) on the \
             node: at start it writes all rules. Then find what removed them: a second proxy, or a \
             firewall reload.",
        ),
        Cause::Refused => (
            RULES,
            "Without a rule the node handles the connection as its own, and no process listens on \
             that port. If the rules are missing, restart kube-proxy. If only node ports are \
             refused, check kube-proxy's nodePortAddresses and rules before NAT (raw table, \
             notrack).",
        ),
        Cause::Misrouted => (
            &["kubectl get endpointslices", "ip route get ENDPOINT"],
            "If the reason names routes, the rules are right: compare the interface of the route \
             with the one that leads to pods, and restart the CNI plugin's agent on the node, which \
             writes the routes. Otherwise compare the endpoints with the rules: a rule was edited or \
             comes from another cluster, or two programs write the same chains. Restart the proxy.",
        ),
        Cause::Stale => (
            &["fuser /run/xtables.lock"],
            "The proxy lags or hangs. Check its log, its connection to the API server, and whether \
             another process holds the xtables lock. Restart the proxy if it does not catch up. If \
             Cilium translates sockets, compare `cilium-dbg service list` with the endpoints; \
             clients that dial pods by their own addresses look the same.",
        ),
        Cause::ForwardingOff => (
            &["sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding"],
            "Turn it on with `sysctl -w net.ipv4.ip_forward=1`. Then find the file in \
             /etc/sysctl.d that turned it off.",
        ),
        Cause::ProgramMissing => (
            &[
                "bpftool net show",
                "kubectl -n kube-system logs -l k8s-app=cilium --tail=50",
            ],
            "Restart Cilium's agent on the node: it attaches its programs again. Then find what \
             detached the program: a script that deletes tc filters or links, or a network \
             manager.",
        ),
        Cause::NoRoute => (
            &["ip rule", "ip route get POD from CLIENT iif INTERFACE"],
            "Remove the policy rule or the route (unreachable, blackhole, prohibit) that keeps \
             packets from the pods or their answers from the clients. Then find what added it.",
        ),
        Cause::ReversePath => (
            &[
                "sysctl -a --pattern 'ipv4.conf.*rp_filter'",
                "ip route get CLIENT",
            ],
            "The route back to the clients is by another interface than they come in by. Set \
             rp_filter to 2 (loose) on that interface and on `all`, or mend the route. Then find \
             the file in /etc/sysctl.d that made it strict.",
        ),
        Cause::NoNeighbour => (
            &["ip neigh | grep -e FAILED -e INCOMPLETE", "bridge link"],
            "Look for a filter of ARP or neighbour discovery (`nft list ruleset`, `ebtables -L`), a \
             full neighbour table (`dmesg | grep neigh`, net.ipv4.neigh.default.gc_thresh3), and \
             ports that the pods' bridge lost.",
        ),
        Cause::BridgeFilter => (
            &["sysctl net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables"],
            "Set both to 1. If they are not there, load the module: `modprobe br_netfilter`. Have both done at \
             boot, in /etc/modules-load.d and /etc/sysctl.d. Then find what turned them off.",
        ),
        Cause::Lost => (
            FILTERS,
            "Look for a drop rule whose counters grow, rp_filter, a full conntrack table (`dmesg | \
             grep conntrack`) and a blackhole route.",
        ),
        Cause::NoData => (
            &["iptables -L FORWARD -nv | grep INVALID"],
            "Either a stateful filter drops the data as INVALID, or two datapaths each see half of \
             the connection, or the answer takes another route.",
        ),
        Cause::AnswerLost => (
            FILTERS,
            "Either a filter drops the answers, or a script deleted the conntrack entries \
             (`conntrack -D`, `conntrack -F`), so that the answers are not translated back.",
        ),
        Cause::NotMasqueraded => (
            &[
                "iptables -t nat -L KUBE-POSTROUTING -n",
                "nft list chain ip kube-proxy nat-postrouting",
            ],
            "A firewall reload often empties only POSTROUTING. Restart kube-proxy.",
        ),
        Cause::ConntrackFull => (
            &[
                "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
                "conntrack -L 2>/dev/null | grep -o 'src=[^ ]*' | sort | uniq -c | sort -rn | head",
            ],
            "Raise net.netfilter.nf_conntrack_max (kube-proxy sets it from \
             --conntrack-max-per-core), or stop the client that opens too many connections: the \
             second command counts them by address.",
        ),
        Cause::Mtu => (
            &["ip -d link show", "ip route get DESTINATION"],
            "Small packets pass between nodes and large ones are lost: the MTU of the pods is too \
             large for the path between the nodes, and ICMP packet-too-big messages are dropped. \
             Compare the MTU of the pods' interfaces with the uplink's MTU minus the tunnel header \
             (50 bytes for VXLAN, 60 or 80 for WireGuard), and allow ICMP type 3 code 4 and \
             ICMPv6 type 2.",
        ),
        Cause::Cni => (
            &["kubectl describe node NODE", "ls /etc/cni/net.d"],
            "New pods get no address on this node, and running pods may be cut off. Check the CNI \
             agent on this node (its pod, its log) and its configuration in /etc/cni/net.d; \
             kubelet reads that directory again every few seconds.",
        ),
        Cause::Overlay => (
            &["ip -s -d link show type vxlan", "ip route"],
            "This node sends packets to other nodes, and the network between them loses the \
             packets. Look for a firewall that blocks the tunnel's port (VXLAN 8472 or 4789, \
             Geneve 6081, WireGuard 51820 or 51871, or IP protocol 4), try without checksum \
             offload (`ethtool -K DEVICE tx-checksum-ip-generic off`), and check the CNI agent on \
             this node.",
        ),
        Cause::AnswerNotDelivered => (
            &[],
            "Packets are lost after they leave the node: check the uplink, its switch, and the \
             route back to the clients.",
        ),
    }
}

/// The next steps for a cause in these families.
fn of_cause(cause: Cause, families: &[Family]) -> Remedy {
    let (entries, advice) = entry(cause);
    let mut commands = Vec::new();
    for command in entries {
        for family in families {
            let command = in_family(command, *family);
            if !commands.contains(&command) {
                commands.push(command);
            }
        }
    }
    let advice = match families {
        [family] => in_family(advice, *family),
        _ => advice.to_owned(),
    };
    Remedy {
        subject: cause.name().to_owned(),
        commands,
        advice,
        page: format!("{PAGE}#{}", cause.name()),
    }
}

/// The cause whose next steps apply to a failed probe. ICMP errors come from filters.
fn looked_into(cause: ProbeCause) -> Cause {
    match cause {
        ProbeCause::Unreachable => Cause::Lost,
        cause => cause.cause(),
    }
}

/// A command or advice for IPv4, adapted to this family.
fn in_family(text: &str, family: Family) -> String {
    match family {
        Family::V4 => text.to_owned(),
        Family::V6 => text
            .replace("iptables -", "ip6tables -")
            .replace("chain ip kube-proxy", "chain ip6 kube-proxy")
            .replace("-w net.ipv4.ip_forward", "-w net.ipv6.conf.all.forwarding"),
    }
}

/// Next steps for an Unknown node.
pub fn of_why(why: Why) -> Remedy {
    let advice = match why {
        Why::ObserverBlind => {
            "Grant the missing capability, or read the kernel's error in the agent's log."
        }
        Why::NotSampled => {
            "The agent was stopped or got no CPU time: check its CPU limit and the node's load."
        }
        Why::ViewNotSynced => {
            "Check the manifests folder, or the agent's connection to the API server."
        }
        Why::NothingExpected => {
            "If you expect Services on this node, check --view, --manifests and the node's name."
        }
        Why::NothingProven => {
            "No probe has passed since boot. Fix the most likely cause shown above, then run `pathproof check`."
        }
        Why::Idle => "There is neither traffic nor a sentinel: install the sentinel's Service.",
        Why::Inconclusive => {
            "Wait for more connections, or open one to a Service from a pod of this node."
        }
        Why::EvidenceTooOld => "Open a new connection to a Service from a pod of this node.",
        Why::SentinelAltered => {
            "The sentinel's Service or EndpointSlices were edited: apply their manifest again."
        }
        Why::DatapathChanged => "Another proxy took over. The verdict returns once a probe passes.",
    };
    Remedy {
        subject: why.name().to_owned(),
        commands: Vec::new(),
        advice: advice.to_owned(),
        page: format!("{PAGE}#when-nothing-is-known"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OPERATIONS: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operations.md"
    ));

    #[test]
    fn the_page_has_a_heading_for_every_cause_and_its_commands() {
        let page = OPERATIONS;
        for cause in Cause::ALL {
            let heading = format!("### {}", cause.name());
            let section = page.split_once(&format!("{heading}\n"));
            assert!(section.is_some(), "docs/operations.md lacks {heading:?}");
            for command in entry(cause).0 {
                assert!(
                    page.contains(command),
                    "docs/operations.md lacks {command:?}"
                );
            }
        }
        // Every cause of a probe leads to a heading.
        for cause in ProbeCause::ALL {
            assert!(Cause::ALL.contains(&looked_into(cause)));
        }
    }

    #[rstest]
    #[case(&[Family::V4], "iptables -L FORWARD -nv")]
    #[case(&[Family::V6], "ip6tables -L FORWARD -nv")]
    #[case(
        &[Family::V4, Family::V6],
        "iptables -L FORWARD -nv; ip6tables -L FORWARD -nv; nft list ruleset | grep -n drop"
    )]
    fn commands_are_those_of_the_family(#[case] families: &[Family], #[case] expected: &str) {
        let said = of_cause(Cause::Lost, families).commands.join("; ");
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn a_repair_is_that_of_the_family() {
        let v6 = of_cause(Cause::ForwardingOff, &[Family::V6]);
        assert!(
            v6.advice
                .contains("sysctl -w net.ipv6.conf.all.forwarding=1"),
            "{v6:?}"
        );
    }
}
