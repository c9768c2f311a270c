//! The table of pairs: for each act of the simulator that the namespaces can play, what it is there. An act
//! without a pair makes its cases unplayable.
//!
//! The simulator's proxy never repairs rules by itself, so the real one is stopped while they are broken.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use pathproof_sim::{Act, Client, Denial, Fault, Sickness};

use super::pods::{NAMESPACES, NEW_PODS, client_name, endpoints, service_name};
use crate::cluster::{PORT, Scene};
use crate::world::{Family, Place, World, layout};

/// Brings an act about, and returns how it ends.
pub(super) type Inject = Box<dyn FnOnce(&mut Scene) -> Result<Undo>>;
pub(super) type Undo = Box<dyn FnOnce(&mut Scene) -> Result<()>>;

/// nft expression for data after a handshake.
const DATA: &str = "tcp flags & (psh | ack) == psh | ack";
/// The sentinel's address ranges.
const SENTINEL: (&str, &str) = ("198.18.0.0/15", "2001:2::/48");
/// Part of the names of the sentinel's chains in kube-proxy's tables.
const SENTINEL_CHAIN: &str = "pathproof/pathproof-sentinel/";

/// The injection that corresponds to an act; `None` if the act has no pair.
pub(super) fn paired(act: &Act) -> Option<Inject> {
    let both = Family::ALL.to_vec();
    Some(match act.clone() {
        Act::Break(fault) => return broken(fault, both),
        Act::BreakIn(family, fault) => return broken(fault, vec![family]),
        Act::Deny(client, service, denial) => return denied(client, service, denial),
        Act::FilterSentinel => filter(both, |_, family| of_sentinel(family, "drop")),
        Act::RejectSentinel => filter(both, |_, family| of_sentinel(family, "reject")),
        Act::InspectSentinel => filter(both, |_, family| {
            of_sentinel(family, &format!("{DATA} drop"))
        }),
        Act::FreezeProxy => Box::new(|scene: &mut Scene| -> Result<Undo> {
            scene.proxy().freeze();
            Ok(Box::new(restart_proxy))
        }),
        Act::Replace(service, place, grace) if service < NAMESPACES.len() && grace.is_zero() => {
            Box::new(move |scene: &mut Scene| replace(scene, service, place))
        }
        Act::Sicken(service, Sickness::Silent) if service < NAMESPACES.len() => {
            let pods = endpoints(service).map(|(pod, _)| pod);
            Box::new(move |scene: &mut Scene| -> Result<Undo> {
                pods.iter().try_for_each(|pod| silence(scene, pod))?;
                Ok(Box::new(move |scene: &mut Scene| {
                    pods.iter().try_for_each(|pod| unsilence(scene, pod))
                }))
            })
        }
        _ => return None,
    })
}

fn broken(fault: Fault, families: Vec<Family>) -> Option<Inject> {
    Some(match fault {
        Fault::Flushed => rules(families, |ip, _| {
            format!("flush chain {ip} kube-proxy services\n")
        }),
        Fault::TablesGone => rules(families, |ip, _| format!("delete table {ip} kube-proxy\n")),
        Fault::NotMasqueraded => rules(families, |ip, _| {
            format!("flush chain {ip} kube-proxy masquerading\n")
        }),
        Fault::OthersGone => rules(families, without_others),
        Fault::Astray => rules(families, led_astray),
        Fault::PodRoutesGone => routes(families, true),
        Fault::RemoteRoutesGone => routes(families, false),
        Fault::ForwardingOff => Box::new(move |scene: &mut Scene| -> Result<Undo> {
            forward(&scene.world, &families, "0")?;
            Ok(Box::new(move |scene: &mut Scene| {
                forward(&scene.world, &families, "1")
            }))
        }),
        Fault::ForwardDropped => filter(families, |_, _| "policy drop;".to_owned()),
        Fault::ForwardRejected => filter(families, |_, _| "reject".to_owned()),
        // The simulator's fault spares the sentinel.
        Fault::DataDropped => filter(families, |_, family| {
            format!("{}\n{DATA} drop", of_sentinel(family, "accept"))
        }),
        // The connection table is one for the whole machine, the policy is for kube-proxy in iptables mode, and
        // no row of the tables that is played empties one Service.
        Fault::ConntrackFull | Fault::ForwardPolicy | Fault::Emptied(_) => return None,
    })
}

/// A policy for connections to endpoints, after their translation.
fn denied(from: Option<Client>, service: Option<usize>, denial: Denial) -> Option<Inject> {
    let from = match from {
        None => None,
        Some(Client::Pod(number)) => Some(client_name(number)),
        Some(_) => return None,
    };
    let verdict = match denial {
        Denial::Drop => "drop",
        Denial::Reject => "reject",
    };
    Some(filter(Family::ALL.to_vec(), move |scene, family| {
        let device = |pod: &String| format!("iifname {} ", scene.world.pod(pod).device);
        let from = from.as_ref().map_or_else(String::new, device);
        let to = match service {
            None => layout::range(layout::CLUSTER_CIDRS, family).to_owned(),
            Some(place) => {
                let pods = scene
                    .manifests
                    .service(&service_name(place))
                    .endpoints
                    .iter();
                let all = pods.map(|endpoint| endpoint.addresses[family as usize].to_string());
                format!("{{ {} }}", all.collect::<Vec<_>>().join(", "))
            }
        };
        format!("{from}{} daddr {to} tcp dport {PORT} {verdict}", ip(family))
    }))
}

/// Family of nft's tables.
fn ip(family: Family) -> &'static str {
    ["ip", "ip6"][family as usize]
}

fn of_sentinel(family: Family, verdict: &str) -> String {
    let (ip, range) = (ip(family), layout::range(SENTINEL, family));
    format!("{ip} saddr {range} {verdict}\n{ip} daddr {range} {verdict}")
}

/// Adds a chain for forwarded packets before those of the proxy, in a separate table for each family.
fn filter(families: Vec<Family>, rules: impl Fn(&Scene, Family) -> String + 'static) -> Inject {
    static TABLES: AtomicU32 = AtomicU32::new(0);
    Box::new(move |scene: &mut Scene| -> Result<Undo> {
        let table = format!("case-{}", TABLES.fetch_add(1, Ordering::Relaxed));
        let (mut add, mut delete) = (String::new(), String::new());
        for family in families {
            let (ip, rules) = (ip(family), rules(scene, family));
            add += &format!(
                "table {ip} {table} {{ chain it {{ type filter hook forward priority -10; {rules}\n}}\n}}\n"
            );
            delete += &format!("delete table {ip} {table}\n");
        }
        scene.world.node.nft(&add)?;
        Ok(Box::new(move |scene: &mut Scene| {
            scene.world.node.nft(&delete).map(drop)
        }))
    })
}

/// Changes kube-proxy's tables by a script that is made from nft's family and their text.
fn rules(families: Vec<Family>, script: impl Fn(&str, &str) -> String + 'static) -> Inject {
    Box::new(move |scene: &mut Scene| -> Result<Undo> {
        scene.proxy().freeze();
        let node = &scene.world.node;
        let mut scripts = String::new();
        for family in families {
            let ip = ip(family);
            scripts += &script(ip, &node.nft(&format!("list table {ip} kube-proxy\n"))?);
        }
        node.nft(&scripts)?;
        Ok(Box::new(restart_proxy))
    })
}

/// Empties the chains of all Services but the sentinel.
fn without_others(ip: &str, table: &str) -> String {
    let names = table.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("chain ")?.split(' ').next()?;
        let is_other = name.starts_with("service-") && !name.contains(SENTINEL_CHAIN);
        is_other.then_some(name)
    });
    let flush = |name| format!("flush chain {ip} kube-proxy {name}\n");
    names.map(flush).collect()
}

/// Points the rules of all Services but the sentinel to addresses that no pod has.
fn led_astray(ip: &str, table: &str) -> String {
    const ELSEWHERE: [(&str, &str); 4] = [
        ("10.244.0.", "10.244.9."),
        ("10.244.1.", "10.244.9."),
        ("fd00:10:244::", "fd00:10:244:9::"),
        ("fd00:10:244:1::", "fd00:10:244:9::"),
    ];
    let mut script = format!("delete table {ip} kube-proxy\n");
    for line in table.lines() {
        let mut line = line.to_owned();
        if line.contains("dnat to") {
            for (from, to) in ELSEWHERE {
                line = line.replace(from, to);
            }
        }
        script += &line;
        script.push('\n');
    }
    script
}

/// Starts kube-proxy again, which writes all its rules.
fn restart_proxy(scene: &mut Scene) -> Result<()> {
    scene.proxy = None;
    let clear = |family| {
        let ip = ip(family);
        format!("table {ip} kube-proxy\ndelete table {ip} kube-proxy\n")
    };
    scene.world.node.nft(&Family::ALL.map(clear).concat())?;
    scene.start_proxy();
    Ok(())
}

fn routes(families: Vec<Family>, local: bool) -> Inject {
    Box::new(move |scene: &mut Scene| -> Result<Undo> {
        let mut cut = Vec::new();
        for family in families {
            cut.extend(scene.world.cut_some_pod_routes(local, family)?);
        }
        Ok(Box::new(move |scene: &mut Scene| {
            scene.world.mend_pod_routes(&cut)
        }))
    })
}

fn forward(world: &World, families: &[Family], value: &str) -> Result<()> {
    let key = |family: &Family| match family {
        Family::V4 => ("net/ipv4/ip_forward", value),
        Family::V6 => ("net/ipv6/conf/all/forwarding", value),
    };
    let keys: Vec<_> = families.iter().map(key).collect();
    world.node.sysctls(&keys)
}

/// Replaces an endpoint by a new pod. The old one is dead at once.
fn replace(scene: &mut Scene, service: usize, place: usize) -> Result<Undo> {
    let (old, at) = endpoints(service)[place].clone();
    let (service, new) = (
        service_name(service),
        NEW_PODS[usize::from(at == Place::Remote)],
    );
    scene.replace(&service, &old, new);
    silence(scene, &old)?;
    Ok(Box::new(move |scene: &mut Scene| {
        scene.replace(&service, new, &old);
        unsilence(scene, &old)
    }))
}

/// Makes a pod ignore new and open connections.
fn silence(scene: &Scene, pod: &str) -> Result<()> {
    let chain = format!("type filter hook input priority 0; tcp dport {PORT} drop");
    let script = format!("table inet silent {{ chain it {{ {chain}\n}}\n}}\n");
    scene.world.pod(pod).ns.nft(&script).map(drop)
}

fn unsilence(scene: &Scene, pod: &str) -> Result<()> {
    let ns = &scene.world.pod(pod).ns;
    ns.nft("delete table inet silent\n").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "table ip kube-proxy {
\tmap service-ips {
\t}
\tchain services {
\t}
\tchain service-A-shop/s0/tcp/http {
\t\tnumgen random mod 1 vmap { 0 : goto endpoint-A-shop/s0/tcp/http__10.244.0.11/8080 }
\t}
\tchain endpoint-A-shop/s0/tcp/http__10.244.0.11/8080 {
\t\tip saddr 10.244.0.11 jump mark-for-masquerade
\t\tmeta l4proto tcp dnat to 10.244.0.11:8080
\t}
\tchain service-B-pathproof/pathproof-sentinel/tcp/tcp {
\t\tmeta l4proto tcp dnat to 198.18.0.2:20001
\t}
}
";

    #[test]
    fn the_sentinels_rules_stay() {
        assert_eq!(
            without_others("ip", TABLE),
            "flush chain ip kube-proxy service-A-shop/s0/tcp/http\n"
        );
        let astray = led_astray("ip", TABLE);
        let (delete, table) = astray.split_once('\n').expect("two lines");
        assert_eq!(delete, "delete table ip kube-proxy");
        let wanted = TABLE.replace("dnat to 10.244.0.11", "dnat to 10.244.9.11");
        assert_eq!(table, wanted);
        assert!(led_astray("ip6", "dnat to [fd00:10:244:1::b]:80").contains("[fd00:10:244:9::b]"));
        assert!(led_astray("ip6", "dnat to [fd00:10:244::b]:80").contains("[fd00:10:244:9::b]"));
    }
}
