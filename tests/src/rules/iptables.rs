//! The rules as input of iptables-restore, with kube-proxy's chain names.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;

use super::wanted::{Port, Refusal, Target, Wanted};
use crate::world::Family;

/// Input that empties both tables.
pub(super) fn remove() -> String {
    "*nat\nCOMMIT\n*filter\nCOMMIT\n".to_owned()
}

/// Both tables, whole: restore replaces what is there in one step each.
pub(super) fn render(wanted: &Wanted) -> Result<String> {
    let mut nat = Table::default();
    nat.chain("KUBE-SERVICES")?;
    nat.chain("KUBE-NODEPORTS")?;
    nat.chain("KUBE-MARK-MASQ")?;
    nat.chain("KUBE-POSTROUTING")?;
    nat.rule("PREROUTING -j KUBE-SERVICES")?;
    nat.rule("OUTPUT -j KUBE-SERVICES")?;
    nat.rule("POSTROUTING -j KUBE-POSTROUTING")?;
    nat.rule("KUBE-MARK-MASQ -j MARK --or-mark 0x4000")?;
    nat.rule("KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN")?;
    nat.rule("KUBE-POSTROUTING -j MARK --xor-mark 0x4000")?;
    nat.rule("KUBE-POSTROUTING -j MASQUERADE --random-fully")?;
    for (index, port) in wanted.ports.iter().enumerate() {
        endpoints(
            &mut nat,
            &format!("KUBE-SVC-{index}"),
            &port.protocol,
            &port.all,
        )?;
        if port.external_local || port.internal_local {
            endpoints(
                &mut nat,
                &format!("KUBE-SVL-{index}"),
                &port.protocol,
                &port.local,
            )?;
        }
        external(&mut nat, wanted.pods, index, port)?;
        services(&mut nat, wanted.pods, index, port)?;
    }
    let loopback = if wanted.family == Family::V4 {
        "127.0.0.0/8"
    } else {
        "::1/128"
    };
    nat.rule(&format!(
        "KUBE-SERVICES ! -d {loopback} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
    ))?;
    let mut filter = Table::default();
    filter.chain("KUBE-REFUSALS")?;
    for hook in ["INPUT", "FORWARD", "OUTPUT"] {
        filter.rule(&format!(
            "{hook} -m conntrack --ctstate NEW -j KUBE-REFUSALS"
        ))?;
    }
    for port in &wanted.ports {
        refusals(&mut filter, wanted.family, port)?;
    }
    Ok(format!(
        "*nat\n{}COMMIT\n*filter\n{}COMMIT\n",
        nat.text(),
        filter.text()
    ))
}

/// Chains and rules of a table; the built-in chains need no line.
#[derive(Default)]
struct Table {
    chains: String,
    rules: String,
}

impl Table {
    fn chain(&mut self, name: &str) -> Result<()> {
        Ok(writeln!(self.chains, ":{name} - [0:0]")?)
    }

    fn rule(&mut self, rule: &str) -> Result<()> {
        Ok(writeln!(self.rules, "-A {rule}")?)
    }

    fn text(&self) -> String {
        format!("{}{}", self.chains, self.rules)
    }
}

/// A chain that picks an endpoint at random, and the endpoints' chains.
fn endpoints(nat: &mut Table, name: &str, protocol: &str, targets: &[Target]) -> Result<()> {
    nat.chain(name)?;
    let count = targets.len();
    for (number, Target { endpoint, goes_to }) in targets.iter().enumerate() {
        let chain = format!("{name}-{number}");
        nat.chain(&chain)?;
        // Each of those left has the same chance; the last takes the rest.
        let left = count - number;
        let chance = if left > 1 {
            format!(
                " -m statistic --mode random --probability {:.10}",
                1.0 / left as f64
            )
        } else {
            String::new()
        };
        nat.rule(&format!("{name}{chance} -j {chain}"))?;
        // Hairpin: a pod that is its own endpoint must see another source than itself.
        nat.rule(&format!("{chain} -s {} -j KUBE-MARK-MASQ", endpoint.ip()))?;
        nat.rule(&format!(
            "{chain} -p {protocol} -j DNAT --to-destination {goes_to}"
        ))?;
    }
    Ok(())
}

/// A chain for what comes to node port, load balancer and external addresses.
fn external(nat: &mut Table, pods: &str, index: usize, port: &Port) -> Result<()> {
    let chain = format!("KUBE-EXT-{index}");
    nat.chain(&chain)?;
    if !port.external_local {
        nat.rule(&format!("{chain} -j KUBE-MARK-MASQ"))?;
        return nat.rule(&format!("{chain} -j KUBE-SVC-{index}"));
    }
    // Pods and the node itself are served as by the ClusterIP.
    nat.rule(&format!("{chain} -s {pods} -j KUBE-SVC-{index}"))?;
    nat.rule(&format!(
        "{chain} -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"
    ))?;
    nat.rule(&format!(
        "{chain} -m addrtype --src-type LOCAL -j KUBE-SVC-{index}"
    ))?;
    nat.rule(&format!("{chain} -j KUBE-SVL-{index}"))
}

fn services(nat: &mut Table, pods: &str, index: usize, port: &Port) -> Result<()> {
    let title = format!("-m comment --comment \"{}\"", port.title);
    if port.internal_refusal().is_none() {
        let chain = if port.internal_local {
            "KUBE-SVL"
        } else {
            "KUBE-SVC"
        };
        for address in &port.cluster_ips {
            let dialled = dialled(*address, port);
            nat.rule(&format!(
                "KUBE-SERVICES {dialled} ! -s {pods} -j KUBE-MARK-MASQ"
            ))?;
            nat.rule(&format!(
                "KUBE-SERVICES {dialled} {title} -j {chain}-{index}"
            ))?;
        }
    }
    if port.all.is_empty() {
        return Ok(());
    }
    for address in &port.external_ips {
        let dialled = dialled(*address, port);
        nat.rule(&format!(
            "KUBE-SERVICES {dialled} {title} -j KUBE-EXT-{index}"
        ))?;
    }
    for address in &port.load_balancer_ips {
        let dialled = dialled(*address, port);
        if port.is_restricted() {
            for range in &port.source_ranges {
                let from = format!("{dialled} -s {range} {title}");
                nat.rule(&format!("KUBE-SERVICES {from} -j KUBE-EXT-{index}"))?;
            }
        } else {
            nat.rule(&format!(
                "KUBE-SERVICES {dialled} {title} -j KUBE-EXT-{index}"
            ))?;
        }
    }
    if let Some(number) = port.node_port {
        let protocol = &port.protocol;
        nat.rule(&format!(
            "KUBE-NODEPORTS -p {protocol} --dport {number} {title} -j KUBE-EXT-{index}"
        ))?;
    }
    Ok(())
}

/// What has no endpoint to go to.
fn refusals(filter: &mut Table, family: Family, port: &Port) -> Result<()> {
    if let Some(refusal) = port.internal_refusal() {
        for address in &port.cluster_ips {
            refuse(filter, &dialled(*address, port), family, refusal)?;
        }
    }
    if let Some(refusal) = port.external_refusal() {
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            refuse(filter, &dialled(*address, port), family, refusal)?;
        }
        if let Some(number) = port.node_port {
            let dialled = format!(
                "-p {} -m addrtype --dst-type LOCAL --dport {number}",
                port.protocol
            );
            refuse(filter, &dialled, family, refusal)?;
        }
    } else if port.is_restricted() {
        // Sources within the ranges were translated before they came here.
        for address in &port.load_balancer_ips {
            refuse(filter, &dialled(*address, port), family, Refusal::Drop)?;
        }
    }
    Ok(())
}

fn refuse(filter: &mut Table, dialled: &str, family: Family, refusal: Refusal) -> Result<()> {
    let target = match (refusal, family) {
        (Refusal::Drop, _) => "DROP",
        (Refusal::Reject, Family::V4) => "REJECT --reject-with icmp-port-unreachable",
        (Refusal::Reject, Family::V6) => "REJECT --reject-with icmp6-port-unreachable",
    };
    filter.rule(&format!("KUBE-REFUSALS {dialled} -j {target}"))
}

fn dialled(address: IpAddr, port: &Port) -> String {
    format!("-d {address} -p {} --dport {}", port.protocol, port.port)
}
