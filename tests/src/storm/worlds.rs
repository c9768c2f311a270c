//! Worlds of other software, healthy ones. tests/worlds has each of these alone; a
//! storm lays one at a time over everything else.
//!
//! Connections that fail on purpose belong to clients of this file's own, so that they are not taken
//! for users'.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::action::{EXTRA_POD, Injector, Undo};
use super::plan::World;
use crate::detect::Stage;
use crate::traffic::{Client, Plan, Tally};
use crate::world::{Family, Place, layout};

/// A pod that no Service and no user has.
pub(super) const DENIED: &str = "denied";
/// The outside client that no user is.
const SCANNER: u8 = 2;
const SCANNED: [u16; 3] = [30080, 30081, 30082];
/// Device that receives the copies.
const MONITOR: &str = "mon0";
const IFB: &str = "bwp0";
/// A client whose packets go by the ifb.
const SHAPED: &str = "client-1";
/// Connections a second of each client here.
const RATE: f64 = 3.0;

/// Starts the world.
pub(super) fn begin(world: World, stage: &Stage) -> Result<Undo> {
    match world {
        World::Mirrored => mirror(stage),
        World::Bandwidth => shape(stage),
        World::Scanned => scan(stage),
        World::PodDropped => deny(stage, "drop"),
        World::PodRejected => deny(stage, "reject with icmpx type port-unreachable"),
        // As long as it lasts, nobody follows.
        World::ProxyFrozen => Ok(Box::new(|injector| injector.follow())),
    }
}

/// Of every pod but the extra one, and of the uplink.
fn mirror(stage: &Stage) -> Result<Undo> {
    let node = &stage.world.node;
    // Not every kernel has dummies; of a pair's far end nobody reads.
    node.ip_batch(&format!(
        "link add {MONITOR} type veth peer name {MONITOR}-far\n\
         link set {MONITOR} up\nlink set {MONITOR}-far up\n"
    ))?;
    let pods = stage.world.pods();
    let here = pods.filter(|pod| pod.place != Place::Remote && pod.name != EXTRA_POD);
    let mut devices: Vec<String> = here.map(|pod| pod.device.clone()).collect();
    devices.push(layout::UPLINK.to_owned());
    for device in &devices {
        let copy =
            format!("protocol all u32 match u32 0 0 action mirred egress mirror dev {MONITOR}");
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
    // An ifb has no carrier that anybody notices; whoever adds a pod waits until every device is in
    // this state.
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

fn scan(stage: &Stage) -> Result<Undo> {
    let (v4, v6) = layout::outside_client(SCANNER);
    let ports = SCANNED.map(|port| port.to_string()).join(", ");
    let chain = format!(
        "type filter hook prerouting priority -300; \
         ip saddr {v4} tcp dport {{ {ports} }} drop; ip6 saddr {v6} tcp dport {{ {ports} }} drop;"
    );
    let mut plans = Vec::new();
    for address in Family::ALL.map(|family| stage.world.node_address(family)) {
        for port in SCANNED {
            let target = SocketAddr::new(address, port);
            plans.push(Plan::from_outside(&stage.world, SCANNER, target));
        }
    }
    in_vain(stage, &chain, plans)
}

fn deny(stage: &Stage, verdict: &str) -> Result<Undo> {
    let pod = stage.world.pod(DENIED);
    let chain = format!(
        "type filter hook forward priority -5; iifname {} {verdict};",
        pod.device
    );
    let mut plans = Vec::new();
    for service in stage.manifests.services() {
        for family in Family::ALL {
            let target = SocketAddr::new(service.cluster_ip(family), service.port);
            plans.push(Plan::from_pod(&stage.world, pod, target));
        }
    }
    in_vain(stage, &chain, plans)
}

/// Adds a filter, and clients of which it takes everything.
fn in_vain(stage: &Stage, chain: &str, plans: Vec<Plan>) -> Result<Undo> {
    let unfilter = stage.filter("world", chain)?;
    let clients = plans.into_iter().map(|plan| plan.rate(RATE).start());
    let clients = clients.collect::<Result<Vec<Client>>>()?;
    Ok(Box::new(move |injector: &mut Injector| {
        // The clients end first: one that was served means that the filter had no effect.
        let tally: Tally = clients.into_iter().map(Client::finish).sum();
        ensure!(tally.ok == 0, "meant to fail, and served: {tally:?}");
        unfilter(&mut injector.stage)
    }))
}
