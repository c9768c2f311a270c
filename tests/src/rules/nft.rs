//! The rules as an nftables script: one table `kube-proxy` per family, named and laid out
//! as that proxy does it.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;

use super::wanted::{Port, Refusal, Target, Wanted};
use crate::world::Family;

/// Empties the chain of all Services.
pub(super) fn flush(family: Family) -> &'static str {
    match family {
        Family::V4 => "flush chain ip kube-proxy services\n",
        Family::V6 => "flush chain ip6 kube-proxy services\n",
    }
}

/// Removes the table.
pub(super) fn remove(family: Family) -> String {
    let table = table(family);
    format!("table {table} {{}}\ndelete table {table}\n")
}

fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip kube-proxy",
        Family::V6 => "ip6 kube-proxy",
    }
}

/// The whole table, replacing the one that is there.
pub(super) fn render(wanted: &Wanted) -> Result<String> {
    let mut out = remove(wanted.family);
    let ip = if wanted.family == Family::V4 {
        "ip"
    } else {
        "ip6"
    };
    writeln!(out, "table {} {{", table(wanted.family))?;
    for (index, port) in wanted.ports.iter().enumerate() {
        endpoints(
            &mut out,
            ip,
            &format!("svc-{index}"),
            &port.protocol,
            &port.all,
        )?;
        if port.external_local || port.internal_local {
            endpoints(
                &mut out,
                ip,
                &format!("local-{index}"),
                &port.protocol,
                &port.local,
            )?;
        }
        external(&mut out, ip, wanted.pods, index, port)?;
    }
    services(&mut out, ip, wanted)?;
    refusals(&mut out, ip, wanted)?;
    out.push_str(HOOKS);
    out.push_str("}\n");
    Ok(out)
}

const HOOKS: &str = "\
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    jump services
  }
  chain output {
    type nat hook output priority -100; policy accept;
    jump services
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    meta mark & 0x4000 == 0x4000 meta mark set meta mark ^ 0x4000 masquerade fully-random
  }
  chain filter-input {
    type filter hook input priority filter; policy accept;
    ct state new jump refusals
  }
  chain filter-forward {
    type filter hook forward priority filter; policy accept;
    ct state new jump refusals
  }
  chain filter-output {
    type filter hook output priority filter; policy accept;
    ct state new jump refusals
  }
";

/// A chain that picks an endpoint at random, and the endpoints' chains.
fn endpoints(
    out: &mut String,
    ip: &str,
    name: &str,
    protocol: &str,
    targets: &[Target],
) -> Result<()> {
    for (number, Target { endpoint, goes_to }) in targets.iter().enumerate() {
        writeln!(out, "  chain {name}-{number} {{")?;
        // Hairpin: a pod that is its own endpoint must see another source than itself.
        writeln!(out, "    {ip} saddr {} {MASQUERADE}", endpoint.ip())?;
        writeln!(out, "    meta l4proto {protocol} dnat to {goes_to}\n  }}")?;
    }
    writeln!(out, "  chain {name} {{")?;
    if !targets.is_empty() {
        let count = targets.len();
        let choices: Vec<String> = (0..count)
            .map(|number| format!("{number} : goto {name}-{number}"))
            .collect();
        writeln!(
            out,
            "    numgen random mod {count} vmap {{ {} }}",
            choices.join(", ")
        )?;
    }
    writeln!(out, "  }}")?;
    Ok(())
}

/// A chain for what comes to node port, load balancer and external addresses.
fn external(out: &mut String, ip: &str, pods: &str, index: usize, port: &Port) -> Result<()> {
    writeln!(out, "  chain ext-{index} {{")?;
    if port.external_local {
        // Pods and the node itself are served as by the ClusterIP.
        writeln!(out, "    {ip} saddr {pods} goto svc-{index}")?;
        writeln!(out, "    fib saddr type local {MASQUERADE}")?;
        writeln!(out, "    fib saddr type local goto svc-{index}")?;
        writeln!(out, "    goto local-{index}")?;
    } else {
        writeln!(out, "    {MASQUERADE}\n    goto svc-{index}")?;
    }
    writeln!(out, "  }}")?;
    Ok(())
}

/// The chain of all Services: the one that the fault empties.
fn services(out: &mut String, ip: &str, wanted: &Wanted) -> Result<()> {
    writeln!(out, "  chain services {{")?;
    for (index, port) in wanted.ports.iter().enumerate() {
        let title = &port.title;
        if port.internal_refusal().is_none() {
            let chain = if port.internal_local { "local" } else { "svc" };
            for address in &port.cluster_ips {
                let dialled = dialled(ip, *address, port);
                writeln!(
                    out,
                    "    {dialled} {ip} saddr != {} {MASQUERADE}",
                    wanted.pods
                )?;
                writeln!(
                    out,
                    "    {dialled} goto {chain}-{index} comment \"{title}\""
                )?;
            }
        }
        if port.all.is_empty() {
            continue;
        }
        for address in &port.external_ips {
            let dialled = dialled(ip, *address, port);
            writeln!(
                out,
                "    {dialled} goto ext-{index} comment \"{title} external IP\""
            )?;
        }
        for address in &port.load_balancer_ips {
            let dialled = dialled(ip, *address, port);
            let sources = if port.is_restricted() {
                format!(" {ip} saddr {{ {} }}", port.source_ranges.join(", "))
            } else {
                String::new()
            };
            writeln!(
                out,
                "    {dialled}{sources} goto ext-{index} comment \"{title} LB\""
            )?;
        }
    }
    // Node ports last, as kube-proxy has them.
    for (index, port) in wanted.ports.iter().enumerate() {
        if let Some(number) = port.node_port.filter(|_| !port.all.is_empty()) {
            let dialled = node_port(ip, number, &port.protocol);
            writeln!(
                out,
                "    {dialled} goto ext-{index} comment \"{} node port\"",
                port.title
            )?;
        }
    }
    writeln!(out, "  }}")?;
    Ok(())
}

/// What has no endpoint to go to.
fn refusals(out: &mut String, ip: &str, wanted: &Wanted) -> Result<()> {
    writeln!(out, "  chain refusals {{")?;
    for port in &wanted.ports {
        if let Some(refusal) = port.internal_refusal() {
            for address in &port.cluster_ips {
                writeln!(
                    out,
                    "    {} {}",
                    dialled(ip, *address, port),
                    verdict(refusal)
                )?;
            }
        }
        if let Some(refusal) = port.external_refusal() {
            for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
                writeln!(
                    out,
                    "    {} {}",
                    dialled(ip, *address, port),
                    verdict(refusal)
                )?;
            }
            if let Some(number) = port.node_port {
                writeln!(
                    out,
                    "    {} {}",
                    node_port(ip, number, &port.protocol),
                    verdict(refusal)
                )?;
            }
        } else if port.is_restricted() {
            // Sources within the ranges were translated before they came here.
            for address in &port.load_balancer_ips {
                writeln!(out, "    {} drop", dialled(ip, *address, port))?;
            }
        }
    }
    writeln!(out, "  }}")?;
    Ok(())
}

/// kube-proxy's mark.
const MASQUERADE: &str = "meta mark set meta mark | 0x4000";

fn dialled(ip: &str, address: IpAddr, port: &Port) -> String {
    format!("{ip} daddr {address} {} dport {}", port.protocol, port.port)
}

fn node_port(ip: &str, port: u16, protocol: &str) -> String {
    let loopback = if ip == "ip" { "127.0.0.0/8" } else { "::1" };
    format!("fib daddr type local {ip} daddr != {loopback} {protocol} dport {port}")
}

fn verdict(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Reject => "reject",
        Refusal::Drop => "drop",
    }
}
