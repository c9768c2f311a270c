//! Other software beside which a node is healthy. tests/worlds tests each of these worlds alone. A storm has
//! one at a time, together with actions of all other kinds.
//!
//! Connections that fail on purpose belong to this file's clients, which do not count as users.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::action::{EXTRA_POD, Injector, Undo};
use super::plan::World;
use crate::detect::Stage;
use crate::traffic::{Client, Plan, Tally};
use crate::world::{Family, Place, layout};

/// A pod that neither serves nor dials as a user.
const DENIED: &str = "denied";
/// Number of an outside client that does not count as a user.
const SCANNER: u8 = 2;
/// Device that receives the mirrored packets.
const MONITOR: &str = "mon0";
const IFB: &str = "bwp0";
/// A user's pod whose packets pass the ifb device.
const SHAPED: &str = "client-1";
/// Connections a second of each client here.
const RATE: f64 = 3.0;

/// Clients that fail on purpose. Their plans are made once, because there are few ranges of source ports for
/// an address.
pub(super) struct Worlds {
    scanner: Vec<Plan>,
    denied: Vec<Plan>,
}

impl Worlds {
    /// Adds the pod that is denied traffic at times.
    pub(super) fn prepare(stage: &mut Stage) -> Result<Self> {
        stage.world.add_pod(DENIED, Place::Local)?;
        let (world, services) = (&stage.world, stage.manifests.services());
        let (mut scanner, mut denied) = (Vec::new(), Vec::new());
        for family in Family::ALL {
            for port in 30080..=30082 {
                let target = SocketAddr::new(world.node_address(family), port);
                scanner.push(Plan::from_outside(world, SCANNER, target).rate(RATE));
            }
            for service in services {
                let target = SocketAddr::new(service.cluster_ip(family), service.port);
                denied.push(Plan::from_pod(world, world.pod(DENIED), target).rate(RATE));
            }
        }
        Ok(Self { scanner, denied })
    }

    pub(super) fn begin(&self, world: World, stage: &Stage) -> Result<Undo> {
        match world {
            World::Mirrored => mirror(stage),
            World::Bandwidth => shape(stage),
            World::Scanned => self.scan(stage),
            World::PodDropped => self.deny(stage, "drop"),
            World::PodRejected => self.deny(stage, REJECT),
            // While this action is in force, `follow` does nothing. At its end the rules catch up.
            World::ProxyFrozen => Ok(Box::new(|injector| injector.follow())),
        }
    }

    fn scan(&self, stage: &Stage) -> Result<Undo> {
        let (v4, v6) = layout::outside_client(SCANNER);
        let chain = format!(
            "type filter hook prerouting priority -300; \
             ip saddr {v4} tcp dport 30080-30082 drop; ip6 saddr {v6} tcp dport 30080-30082 drop;"
        );
        in_vain(stage, &chain, &self.scanner)
    }

    fn deny(&self, stage: &Stage, verdict: &str) -> Result<Undo> {
        in_vain(stage, &denied(stage, &[DENIED], verdict), &self.denied)
    }
}

/// nft statement that rejects a packet.
pub(super) const REJECT: &str = "reject with icmpx type port-unreachable";

/// A chain that denies these pods all traffic through the node.
pub(super) fn denied(stage: &Stage, pods: &[&str], verdict: &str) -> String {
    let devices = pods.iter().map(|pod| stage.world.pod(pod).device.as_str());
    let devices = devices.collect::<Vec<_>>().join(", ");
    format!("type filter hook forward priority -5; iifname {{ {devices} }} {verdict};")
}

/// Mirrors every pod except the extra one, and the uplink.
fn mirror(stage: &Stage) -> Result<Undo> {
    let node = &stage.world.node;
    // Use a veth pair, whose far end is unused, because not every kernel has dummy devices.
    node.ip_batch(&format!(
        "link add {MONITOR} type veth peer name {MONITOR}-far\n\
         link set {MONITOR} up\nlink set {MONITOR}-far up\n"
    ))?;
    let pods = stage.world.pods();
    let here = pods.filter(|pod| pod.place != Place::Remote && pod.name != EXTRA_POD);
    let mut devices: Vec<String> = here.map(|pod| pod.device.clone()).collect();
    devices.push(layout::UPLINK.to_owned());
    let copy = format!("protocol all u32 match u32 0 0 action mirred egress mirror dev {MONITOR}");
    for device in &devices {
        node.tc_batch(&format!(
            "qdisc add dev {device} clsact\n\
             filter add dev {device} ingress {copy}\nfilter add dev {device} egress {copy}\n"
        ))?;
    }
    Ok(Box::new(move |injector: &mut Injector| {
        let node = &injector.stage.world.node;
        for device in devices {
            node.tc_batch(&format!("qdisc del dev {device} clsact\n"))?;
        }
        node.ip(&format!("link del {MONITOR}")).map(drop)
    }))
}

fn shape(stage: &Stage) -> Result<Undo> {
    let (node, device) = (&stage.world.node, stage.world.pod(SHAPED).device.clone());
    // An ifb has no carrier. Set its operational state by hand, because adding a pod waits until every device
    // is up.
    node.ip_batch(&format!(
        "link add {IFB} type ifb\nlink set {IFB} up\nlink set {IFB} state up\n"
    ))?;
    node.tc_batch(&format!(
        "qdisc add dev {device} ingress\n\
         filter add dev {device} parent ffff: protocol all u32 match u32 0 0 \
         action mirred egress redirect dev {IFB}\n"
    ))?;
    Ok(Box::new(move |injector: &mut Injector| {
        let node = &injector.stage.world.node;
        node.tc_batch(&format!("qdisc del dev {device} ingress\n"))?;
        node.ip(&format!("link del {IFB}")).map(drop)
    }))
}

/// Adds a filter, and starts clients that must all fail because of it.
fn in_vain(stage: &Stage, chain: &str, plans: &[Plan]) -> Result<Undo> {
    let unfilter = stage.filter("world", chain)?;
    let clients = plans.iter().cloned().map(Plan::start);
    let clients = clients.collect::<Result<Vec<Client>>>()?;
    Ok(Box::new(move |injector: &mut Injector| {
        // End the clients before the filter is removed. If a client was served, the filter had no effect.
        let tally: Tally = clients.into_iter().map(Client::finish).sum();
        ensure!(tally.ok == 0, "meant to fail, and served: {tally:?}");
        unfilter(&mut injector.stage)
    }))
}
