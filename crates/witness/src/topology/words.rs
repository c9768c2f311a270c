//! The sentences of a topology: which program translates a path, how much of it is observed, and what
//! to do about it.

use pathproof_facts::names;
use pathproof_facts::owners::DatapathOwners;
use pathproof_wire::service::{Family, SourceClass};

use super::{DatapathTopology, Role, TopologyFacts, Tristate};

fn owned(owners: DatapathOwners) -> String {
    let owners = owners.listed(" or ");
    let owners = owners.as_deref().unwrap_or("an unknown program");
    format!("translated by {owners}")
}

pub(super) fn path(
    topology: &DatapathTopology,
    path: SourceClass,
    owners: DatapathOwners,
) -> String {
    let socket_lb = topology
        .cilium
        .map_or(Tristate::No, |cilium| cilium.socket_lb);
    let mut parts = vec![owned(owners)];
    match (path, socket_lb) {
        (SourceClass::Host, _) => {
            let where_ = match socket_lb {
                Tristate::Yes => "translated when the socket connects, before any packet is sent",
                Tristate::No | Tristate::Unknown => "translated before packets reach an interface",
            };
            parts.push(format!(
                "{where_}: the observer sees only leaked connections; the sentinel's host path \
                 covers the rest"
            ));
            return parts.join("; ");
        }
        (SourceClass::Pod, Tristate::Yes) => parts.push(
            "if Cilium translates when a pod's socket connects (it does not with \
             bpf-lb-sock-hostns-only), packets carry no cluster IP, and only connections to \
             removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::Pod, Tristate::Unknown) => parts.push(
            "Cilium may translate when a socket connects (its setting cannot be read); if it does, \
             only connections to removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::Pod, Tristate::No) if topology.other_socket_lb => parts.push(
            "other BPF programs run when a socket connects; if they translate there, as Calico's do, \
             packets carry no cluster IP, and only connections to removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::External, _) if !topology.accelerated.is_empty() => parts.push(format!(
            "an XDP program on {} may answer or translate packets before the observer sees them",
            topology.accelerated.join(", ")
        )),
        (SourceClass::Pod | SourceClass::External, _) => {}
    }
    if topology.netkit > 0 {
        parts.push(match topology.netkit {
            1 => "1 netkit interface is not supported: its traffic is not observed".to_owned(),
            n => format!("{n} netkit interfaces are not supported: their traffic is not observed"),
        });
    }
    if parts.len() == 1 {
        parts.push("fully observed".to_owned());
    }
    if path == SourceClass::External && topology.may_replace() {
        parts.push(
            "with DSR, answers from endpoints on other nodes bypass this node: those connections \
             are observed as forwarded and never as proven"
                .to_owned(),
        );
    }
    parts.join("; ")
}

/// Each family's new and old owners if they differ, and the notes. If neither changed, the sentences
/// of changed paths. Empty if there are none.
pub(super) fn change(before: &DatapathTopology, now: &DatapathTopology) -> String {
    let changed = |family| {
        let [before, now] = [before, now].map(|topology| owners(topology, family));
        let name = names::of_family(family);
        match before {
            _ if before == now => None,
            None => Some(format!("{name}: {}", now?)),
            Some(before) => Some(format!("{name}: {}; before: {before}", now?)),
        }
    };
    let mut parts: Vec<String> = Family::ALL.into_iter().filter_map(changed).collect();
    if parts.is_empty() && before.notes == now.notes {
        let others = now.paths.iter().filter(|path| !before.paths.contains(path));
        parts.extend(others.map(|path| path.sentence.clone()));
        parts.dedup();
    } else {
        parts.extend(now.notes.iter().cloned());
    }
    parts.join("; ")
}

/// Names of all owners of a family; `None` before the first read.
fn owners(topology: &DatapathTopology, family: Family) -> Option<String> {
    let paths = topology.paths.iter().filter(|path| path.family == family);
    let owners = paths.map(|path| path.owners.iter());
    let owners: Option<Vec<_>> = (!topology.paths.is_empty()).then(|| owners.flatten().collect());
    let owners: DatapathOwners = owners?.into_iter().collect();
    let nobody = || "nobody that is known".to_owned();
    Some(owners.listed(" and ").unwrap_or_else(nobody))
}

pub(super) fn notes(topology: &DatapathTopology, facts: &TopologyFacts) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(cilium) = topology.cilium {
        let replacement = match cilium.replacement {
            Tristate::Yes => "replaces kube-proxy",
            Tristate::No => "does not replace kube-proxy",
            Tristate::Unknown => "may replace kube-proxy (its setting cannot be read)",
        };
        notes.push(format!("Cilium {replacement}"));
        if topology.is_mixed() {
            notes.push(
                "two proxies share this node: Cilium serves pods, kube-proxy serves clients \
                 outside; the sentinel probes kube-proxy, and pods are judged by their own \
                 connections"
                    .to_owned(),
            );
        }
        if !topology.has_applicable_probes() {
            notes.push(unprobed(topology, cilium.replacement, facts));
        }
    }
    if !topology.unhooked.is_empty() {
        notes.push(format!(
            "Cilium's program that translates incoming traffic is not attached to {}: node ports \
             and load balancer IPs are not served there",
            topology.unhooked.join(" and ")
        ));
    }
    if topology.cilium.is_none() && !topology.foreign_programs.is_empty() {
        notes.push(format!(
            "other BPF programs run after the observer: {}",
            topology.foreign_programs.join(", ")
        ));
    }
    notes
}

fn unprobed(topology: &DatapathTopology, replacement: Tristate, facts: &TopologyFacts) -> String {
    let ends = facts.with(Role::Sentinel);
    let ends: Vec<&str> = ends.map(|device| device.name.as_str()).collect();
    let ends = match ends.as_slice() {
        [] => "the sentinel's interfaces".to_owned(),
        ends => ends.join(" and "),
    };
    let why = match (topology.sentinel_managed, replacement) {
        (Tristate::Unknown | Tristate::Yes, _) => {
            format!("it is unknown whether Cilium translates packets that enter through {ends}")
        }
        (Tristate::No, Tristate::Yes) => {
            format!("Cilium does not translate packets that enter through {ends}")
        }
        (Tristate::No, _) => {
            format!(
                "if Cilium replaces kube-proxy, it does not translate packets that enter \
                 through {ends}"
            )
        }
    };
    format!(
        "the sentinel's off-cluster and node port paths are not judged: {why}; add them to \
         Cilium's devices to enable these paths"
    )
}
