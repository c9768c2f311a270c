//! The sentences of a shape: which program translates a path, how much of it is observed, and what
//! to do about it.

use agent_common::service::{Family, SourceClass};

use super::{Facts, Role, Routing, Shape, Told};
use crate::names;
use crate::owners::DatapathOwners;

fn owned(owners: DatapathOwners) -> String {
    let labels: Vec<&str> = owners.iter().map(|owner| owner.label()).collect();
    match labels.as_slice() {
        [] => "translated by an unknown program".to_owned(),
        some => format!("translated by {}", some.join(" or ")),
    }
}

pub(super) fn path(shape: &Shape, path: SourceClass, owners: DatapathOwners) -> String {
    let socket_lb = shape.cilium.map_or(Told::No, |cilium| cilium.socket_lb);
    let mut parts = vec![owned(owners)];
    match (path, socket_lb) {
        (SourceClass::Host, _) => {
            let where_ = match socket_lb {
                Told::Yes => "translated when the socket connects, before any packet is sent",
                Told::No | Told::Unknown => "translated before packets reach an interface",
            };
            parts.push(format!(
                "{where_}: the observer sees only leaked connections; the sentinel's host path \
                 covers the rest"
            ));
            return parts.join("; ");
        }
        (SourceClass::Pod, Told::Yes) => parts.push(
            "if Cilium translates when a pod's socket connects (it does not with \
             bpf-lb-sock-hostns-only), packets carry no cluster IP, and only connections to \
             removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::Pod, Told::Unknown) => parts.push(
            "Cilium may translate when a socket connects (its setting cannot be read); if it does, \
             only connections to removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::Pod, Told::No) if shape.other_socket_lb => parts.push(
            "other BPF programs run when a socket connects; if they translate there, as Calico's do, \
             packets carry no cluster IP, and only connections to removed endpoints are observed"
                .to_owned(),
        ),
        (SourceClass::External, _) if !shape.accelerated.is_empty() => parts.push(format!(
            "an XDP program on {} may answer or translate packets before the observer sees them",
            shape.accelerated.join(", ")
        )),
        (SourceClass::Pod | SourceClass::External, _) => {}
    }
    if shape.netkit > 0 {
        parts.push(match shape.netkit {
            1 => "1 netkit interface is not supported: its traffic is not observed".to_owned(),
            n => format!("{n} netkit interfaces are not supported: their traffic is not observed"),
        });
    }
    if parts.len() == 1 {
        parts.push("fully observed".to_owned());
    }
    if path == SourceClass::External && shape.may_replace() {
        parts.push(
            "with DSR, answers from endpoints on other nodes bypass this node: those connections \
             are observed as forwarded and never as proven"
                .to_owned(),
        );
    }
    parts.join("; ")
}

/// Description of a change: the old and the new owners of each family where they differ, and
/// further facts. Empty if there is nothing to report.
pub(super) fn change(before: &Shape, now: &Shape) -> String {
    let changed = |family| {
        let [before, now] = [before, now].map(|shape| owners(shape, family));
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
fn owners(shape: &Shape, family: Family) -> Option<String> {
    let paths = shape.paths.iter().filter(|path| path.family == family);
    let owners = paths.map(|path| path.owners.iter());
    let owners: Option<Vec<_>> = (!shape.paths.is_empty()).then(|| owners.flatten().collect());
    let owners: DatapathOwners = owners?.into_iter().collect();
    let labels: Vec<&str> = owners.iter().map(|owner| owner.label()).collect();
    match labels.as_slice() {
        [] => Some("nobody that is known".to_owned()),
        labels => Some(labels.join(" and ")),
    }
}

pub(super) fn notes(shape: &Shape, facts: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(cilium) = shape.cilium {
        let replacement = match cilium.replacement {
            Told::Yes => "replaces kube-proxy",
            Told::No => "does not replace kube-proxy",
            Told::Unknown => "may replace kube-proxy (its setting cannot be read)",
        };
        let routing = match cilium.routing {
            Routing::Native => "native routing",
            Routing::Vxlan => "a VXLAN tunnel",
            Routing::Geneve => "a Geneve tunnel, or DSR by Geneve",
        };
        notes.push(format!("Cilium {replacement}; {routing}"));
        if shape.is_mixed() {
            notes.push(
                "two proxies share this node: Cilium serves pods, kube-proxy serves clients \
                 outside; the sentinel probes kube-proxy, and pods are judged by their own \
                 connections"
                    .to_owned(),
            );
        }
        if !shape.probes_stand() {
            notes.push(unprobed(shape, cilium.replacement, facts));
        }
    }
    if !shape.unhooked.is_empty() {
        notes.push(format!(
            "Cilium's program that translates incoming traffic is not attached to {}: node ports \
             and load balancer IPs are not served there",
            shape.unhooked.join(" and ")
        ));
    }
    if shape.cilium.is_none() && !shape.strangers.is_empty() {
        notes.push(format!(
            "other BPF programs run after the observer: {}",
            shape.strangers.join(", ")
        ));
    }
    notes
}

fn unprobed(shape: &Shape, replacement: Told, facts: &Facts) -> String {
    let ends = facts.with(Role::Sentinel);
    let ends: Vec<&str> = ends.map(|device| device.name.as_str()).collect();
    let ends = match ends.as_slice() {
        [] => "the sentinel's interfaces".to_owned(),
        ends => ends.join(" and "),
    };
    let why = match (shape.sentinel_managed, replacement) {
        (Told::Unknown | Told::Yes, _) => {
            format!("it is unknown whether Cilium translates packets that enter through {ends}")
        }
        (Told::No, Told::Yes) => {
            format!("Cilium does not translate packets that enter through {ends}")
        }
        (Told::No, _) => {
            format!(
                "if Cilium replaces kube-proxy, it does not translate packets that enter \
                 through {ends}"
            )
        }
    };
    format!(
        "the sentinel's off-cluster and node port paths are not judged: {why}; add them to \
         Cilium's devices to enable these paths (docs/cilium.md)"
    )
}
