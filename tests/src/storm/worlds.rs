//! Worlds of other software, healthy ones. tests/worlds has each of these alone; a
//! storm lays one at a time over everything else.
//!
//! Connections that fail on purpose belong to clients of this file's own, so that they are not taken
//! for users'.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::action::EXTRA_POD;
use super::plan::World;
use crate::detect::Stage;
use crate::traffic::{Client, Plan, Tally};
use crate::world::{Family, Place, layout};

/// A pod that no Service and no user has.
const DENIED: &str = "denied";
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

/// nftables table of the active world.
const TABLE: &str = "storm-world";

/// What the worlds need, and what lasts.
#[derive(Debug, Default)]
pub(super) struct Worlds {
    // Made once: the world has few ranges of source ports.
    scanner: Vec<Plan>,
    denied: Vec<Plan>,
    running: Vec<Client>,
}

impl Worlds {
    /// Adds the pod that is denied at times.
    pub(super) fn prepare(stage: &mut Stage) -> Result<Self> {
        // With the probes filtered too, one denied pod is told from a broken node by users of other
        // Services alone.
        let dialled = stage.manifests.services().iter().filter(|service| {
            let ips = Family::ALL.map(|family| service.cluster_ip(family));
            let mut clients = stage.clients.iter();
            clients.any(|client| ips.contains(&client.plan().target.ip()))
        });
        ensure!(
            dialled.count() >= 2,
            "pods' users of fewer than two Services"
        );
        stage.world.add_pod(DENIED, Place::Local)?;
        let (world, mut worlds) = (&stage.world, Self::default());
        for family in Family::ALL {
            for port in SCANNED {
                let target = SocketAddr::new(world.node_address(family), port);
                let plan = Plan::from_outside(world, SCANNER, target);
                worlds.scanner.push(plan.rate(RATE));
            }
            for service in stage.manifests.services() {
                let target = SocketAddr::new(service.cluster_ip(family), service.port);
                let plan = Plan::from_pod(world, world.pod(DENIED), target);
                worlds.denied.push(plan.rate(RATE));
            }
        }
        Ok(worlds)
    }

    /// Starts the world.
    pub(super) fn begin(&mut self, world: World, stage: &Stage) -> Result<()> {
        let node = &stage.world.node;
        let device = &stage.world.pod(DENIED).device;
        match world {
            World::Mirrored => {
                // Not every kernel has dummies; of a pair's far end nobody reads.
                node.ip_batch(&format!(
                    "link add {MONITOR} type veth peer name {MONITOR}-far\n\
                     link set {MONITOR} up\nlink set {MONITOR}-far up\n"
                ))?;
                let mut batch = String::new();
                for device in mirrored(stage) {
                    let _ = writeln!(batch, "qdisc add dev {device} clsact");
                    for direction in ["ingress", "egress"] {
                        let _ = writeln!(
                            batch,
                            "filter add dev {device} {direction} protocol all u32 match u32 0 0 \
                             action mirred egress mirror dev {MONITOR}"
                        );
                    }
                }
                node.tc_batch(&batch)
            }
            World::Bandwidth => {
                // An ifb has no carrier that anybody notices; whoever adds a pod waits until every
                // device is in this state.
                node.ip_batch(&format!(
                    "link add {IFB} type ifb\nlink set {IFB} up\nlink set {IFB} state up\n"
                ))?;
                let device = &stage.world.pod(SHAPED).device;
                node.tc_batch(&format!(
                    "qdisc add dev {device} ingress\n\
                     filter add dev {device} parent ffff: protocol all u32 match u32 0 0 \
                     action mirred egress redirect dev {IFB}\n"
                ))
            }
            World::Scanned => {
                let (v4, v6) = layout::outside_client(SCANNER);
                let ports = SCANNED.map(|port| port.to_string()).join(", ");
                node.nft(&table(&format!(
                    "type filter hook prerouting priority -300;\n\
                     ip saddr {v4} tcp dport {{ {ports} }} drop\n\
                     ip6 saddr {v6} tcp dport {{ {ports} }} drop"
                )))?;
                self.running = started(&self.scanner)?;
                Ok(())
            }
            World::PodDropped => {
                node.nft(&policy(device, "drop"))?;
                self.running = started(&self.denied)?;
                Ok(())
            }
            World::PodRejected => {
                node.nft(&policy(device, "reject with icmpx type port-unreachable"))?;
                self.running = started(&self.denied)?;
                Ok(())
            }
            // It is a matter of the rules.
            World::ProxyFrozen => Ok(()),
        }
    }

    /// Ends the world and removes its rules.
    pub(super) fn end(&mut self, world: World, stage: &Stage) -> Result<()> {
        let node = &stage.world.node;
        match world {
            World::Mirrored => {
                let devices = mirrored(stage).into_iter();
                let lines = devices.map(|device| format!("qdisc del dev {device} clsact\n"));
                node.tc_batch(&lines.collect::<String>())?;
                node.ip(&format!("link del {MONITOR}"))?;
            }
            World::Bandwidth => {
                let device = &stage.world.pod(SHAPED).device;
                node.tc_batch(&format!("qdisc del dev {device} ingress\n"))?;
                node.ip(&format!("link del {IFB}"))?;
            }
            World::Scanned | World::PodDropped | World::PodRejected => {
                // The clients end first: one that was served means that the filter had no effect.
                let clients = self.running.drain(..);
                let tally: Tally = clients.map(Client::finish).sum();
                ensure!(tally.ok == 0, "meant to fail, and served: {tally:?}");
                node.nft(&format!("delete table inet {TABLE}"))?;
            }
            World::ProxyFrozen => {}
        }
        Ok(())
    }
}

/// Devices to mirror: of every pod but the extra one, and the uplink.
fn mirrored(stage: &Stage) -> Vec<String> {
    let pods = stage.world.pods();
    let here = pods.filter(|pod| pod.place != Place::Remote && pod.name != EXTRA_POD);
    let devices = here.map(|pod| pod.device.clone());
    devices.chain([layout::UPLINK.to_owned()]).collect()
}

fn table(chain: &str) -> String {
    format!("table inet {TABLE} {{ chain it {{ {chain}\n}}\n}}\n")
}

fn policy(device: &str, verdict: &str) -> String {
    table(&format!(
        "type filter hook forward priority -5;\niifname {device} {verdict}"
    ))
}

fn started(plans: &[Plan]) -> Result<Vec<Client>> {
    plans.iter().cloned().map(Plan::start).collect()
}
