//! A tenant beside the users: somebody who may edit one namespace, and whose pods dial what they like.
//!
//! His pods use his Services all the while; they are not taken for users. What he does besides lies over
//! everything else, and must neither take the node out nor hide a fault.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::plan::Tenant;
use crate::detect::Stage;
use crate::manifests::{self, Sentinel, slice, yaml};
use crate::traffic::{Client, Flood, Plan};
use crate::world::{Family, Place, layout};

pub(super) const NAMESPACE: &str = "tenant";
/// His Services that are always there.
pub(super) const SERVICES_FILE: &str = "tenant.yaml";
/// Files of the tenant's objects. The first file of the folder is the first in the rules, and wins
/// where two Services claim one address.
const FIRST_FILE: &str = "a-tenant.yaml";
const LAST_FILE: &str = "z-tenant.yaml";
/// The agent reads it, and the rules do not: no proxy is under test, and they would take minutes.
const UNRULED_FILE: &str = "tenant.json";
const TABLE: &str = "storm-tenant";

/// Pods that dial, and the one that serves.
const CLIENTS: [&str; 2] = ["tenant-1", "tenant-2"];
const SERVER: &str = "tenant-3";
/// A port of his server at which nothing comes back.
const SILENT: u16 = 8081;
/// Connections a second of each of his clients.
const RATE: f64 = 3.0;
/// SYNs a second: more than the map of connections has places for, if each stayed there for as long as
/// an unanswered one does.
const FLOOD: u32 = 1_500;

/// Places of his Services in the address plan.
const ONE: u8 = 60;
const TWO: u8 = 61;
const EMPTY: u8 = 62;
const CLAIM: u8 = 63;
const PROBED: u8 = 64;
const KEPT: u8 = 65;
const FOREIGN: u8 = 66;
/// Of products, so many Services.
const PRODUCTS: std::ops::Range<u8> = 70..73;

/// The tenant's objects and pods, and the actions that last.
#[derive(Debug)]
pub(super) struct Tenants {
    /// Made once: the world has few ranges of source ports.
    kept: Plan,
    foreign: Plan,
    next_port: u16,
    _users: Vec<Client>,
    running: Option<Client>,
    flood: Option<Flood>,
}

/// Change of the cluster that an action asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) file: &'static str,
    /// The rules follow.
    pub(super) ruled: bool,
}

impl Tenants {
    /// Adds his pods, and his Services to the folder, and lets the former use the latter.
    pub(super) fn prepare(stage: &mut Stage) -> Result<Self> {
        for pod in CLIENTS.into_iter().chain([SERVER]) {
            stage.world.add_pod(pod, Place::Local)?;
        }
        let server = stage.world.pod(SERVER);
        server.ns.nft(&format!(
            "table inet silent {{ chain it {{ type filter hook prerouting priority -300;\n\
             tcp dport {SILENT} drop\n}}\n}}\n"
        ))?;
        let serves = crate::traffic::Server::start(server, Stage::PORT)?;
        stage.servers.insert(SERVER.to_owned(), serves);
        let world = &stage.world;
        let mut objects = Vec::new();
        for (name, index) in [("one", ONE), ("two", TWO), ("empty", EMPTY)] {
            objects.push(service(name, index, &[], &[80]));
            if name != "empty" {
                objects.extend(slices(name, &[pod_of(stage, SERVER)], Stage::PORT));
            }
        }
        stage
            .manifests
            .write_file(SERVICES_FILE, &yaml(&objects)?)?;
        stage.rules.install()?;
        let dialled = |index| SocketAddr::new(layout::cluster_ip(index).0.into(), 80);
        let plan = |pod: &str, index| {
            let plan = Plan::from_pod(world, world.pod(pod), dialled(index));
            plan.rate(RATE)
        };
        let mut users = Vec::new();
        for pod in CLIENTS {
            for index in [ONE, TWO] {
                users.push(plan(pod, index).start()?);
            }
        }
        let kept = plan(CLIENTS[0], KEPT).rate(1.0);
        Ok(Self {
            next_port: kept.ports.start,
            kept: kept.patience(Duration::from_millis(700)),
            foreign: plan(CLIENTS[1], FOREIGN),
            _users: users,
            running: None,
            flood: None,
        })
    }

    /// Begins it. Gives what the cluster and the rules are to follow.
    pub(super) fn begin(&mut self, tenant: Tenant, stage: &Stage) -> Result<Option<Written>> {
        let server = || vec![pod_of(stage, SERVER)];
        let (file, objects) = match tenant {
            Tenant::ClaimsFirst | Tenant::ClaimsLast => {
                let file = match tenant {
                    Tenant::ClaimsFirst => FIRST_FILE,
                    _ => LAST_FILE,
                };
                let web = stage.manifests.service("web");
                let claimed = Family::ALL.map(|family| web.cluster_ip(family));
                let mut objects = vec![service("claim", CLAIM, &claimed, &[80])];
                objects.extend(slices("claim", &server(), Stage::PORT));
                (file, objects)
            }
            Tenant::ClaimsProbed => {
                let clusters = Family::ALL.map(Sentinel::cluster_ip);
                let nodes = Family::ALL.map(|family| stage.world.node_address(family));
                let mut objects = vec![
                    service("claim", CLAIM, &clusters, &[Sentinel::PORT]),
                    service("probed", PROBED, &nodes, &[30_999]),
                ];
                objects.extend(slices("claim", &server(), Stage::PORT));
                objects.extend(slices("probed", &server(), Stage::PORT));
                (FIRST_FILE, objects)
            }
            Tenant::ClaimsEcho => {
                let echo = Sentinel::default().endpoints;
                let mut objects = vec![service("claim", CLAIM, &echo, &[80])];
                objects.extend(slices("claim", &[echo], Stage::PORT));
                (LAST_FILE, objects)
            }
            Tenant::ForeignSlices => {
                self.running = Some(self.foreign.clone().start()?);
                let outside = [0, 1].map(|client| {
                    let (v4, v6) = layout::outside_client(200 + client);
                    [IpAddr::V4(v4), IpAddr::V6(v6)]
                });
                let mut endpoints = vec![pod_of(stage, "web-1"), pod_of(stage, "web-3")];
                endpoints.extend(outside);
                endpoints.push(Family::ALL.map(|family| stage.world.node_address(family)));
                let mut objects = vec![service("foreign", FOREIGN, &[], &[80])];
                objects.extend(slices("foreign", &endpoints, Stage::PORT));
                (LAST_FILE, objects)
            }
            Tenant::Products => {
                let ports: Vec<u16> = (1..=1_000).collect();
                let nobody = |of: u8| [Ipv4Addr::new(10, 244, 1, 100 + of).into(); 2];
                let nobody: Vec<[IpAddr; 2]> = (0..100).map(nobody).collect();
                let mut objects = Vec::new();
                for index in PRODUCTS {
                    let name = format!("product-{index}");
                    objects.push(service(&name, index, &[], &ports));
                    let served = manifests::ports(ports.iter().copied(), "TCP", Some(Stage::PORT));
                    objects.push(slice_of(&name, &nobody, &served, Family::V4));
                }
                (UNRULED_FILE, objects)
            }
            Tenant::KeepsPort => {
                let mut objects = vec![service("kept", KEPT, &[], &[80])];
                objects.extend(slices("kept", &server(), SILENT));
                (LAST_FILE, objects)
            }
            Tenant::Dropped | Tenant::Rejected => {
                let verdict = match tenant {
                    Tenant::Dropped => "drop",
                    _ => "reject with icmpx type port-unreachable",
                };
                let [one, two] = CLIENTS.map(|pod| &stage.world.pod(pod).device);
                stage.world.node.nft(&format!(
                    "table inet {TABLE} {{ chain it {{ type filter hook forward priority -5;\n\
                     iifname {{ {one}, {two} }} {verdict}\n}}\n}}\n"
                ))?;
                return Ok(None);
            }
            Tenant::Floods => {
                let target = SocketAddr::new(layout::cluster_ip(EMPTY).0.into(), 80);
                let pod = stage.world.pod(CLIENTS[0]);
                self.flood = Some(Flood::of_pod(pod, target, FLOOD)?);
                return Ok(None);
            }
        };
        stage.manifests.write_file(file, &yaml(&objects)?)?;
        let ruled = file != UNRULED_FILE;
        Ok(Some(Written { file, ruled }))
    }

    /// Goes on once the rules have followed. An endpoint that is silent gets a connection, and leaves.
    pub(super) fn go_on(&mut self, tenant: Tenant, stage: &Stage) -> Result<bool> {
        if tenant != Tenant::KeepsPort {
            return Ok(false);
        }
        // The entry of an earlier one is still there.
        let ports = self.next_port..self.next_port + 1;
        self.next_port = (self.next_port + 1).min(self.kept.ports.end - 1);
        let plan = Plan {
            ports,
            ..self.kept.clone()
        };
        self.running = Some(plan.start()?);
        thread::sleep(Duration::from_millis(300));
        let mut objects = vec![service("kept", KEPT, &[], &[80])];
        objects.extend(slices("kept", &[pod_of(stage, SERVER)], Stage::PORT));
        stage.manifests.write_file(LAST_FILE, &yaml(&objects)?)?;
        Ok(true)
    }

    /// Takes it back. Gives the file that goes.
    pub(super) fn end(&mut self, tenant: Tenant, stage: &Stage) -> Result<Option<Written>> {
        (self.running, self.flood) = (None, None);
        let (file, ruled) = match tenant {
            Tenant::ClaimsFirst | Tenant::ClaimsProbed => (FIRST_FILE, true),
            Tenant::Products => (UNRULED_FILE, false),
            Tenant::Dropped | Tenant::Rejected => {
                let script = format!("delete table inet {TABLE}");
                stage.world.node.nft(&script)?;
                return Ok(None);
            }
            Tenant::Floods => return Ok(None),
            _ => (LAST_FILE, true),
        };
        Ok(Some(Written { file, ruled }))
    }
}

fn pod_of(stage: &Stage, pod: &str) -> [IpAddr; 2] {
    let pod = stage.world.pod(pod);
    Family::ALL.map(|family| pod.address(family))
}

fn service(name: &str, index: u8, external_ips: &[IpAddr], ports: &[u16]) -> Value {
    let (v4, v6) = layout::cluster_ip(index);
    let spec = json!({
        "clusterIP": v4, "clusterIPs": [v4, v6],
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        "externalIPs": external_ips,
        "ports": manifests::ports(ports.iter().copied(), "TCP", None),
    });
    manifests::service(NAMESPACE, name, spec)
}

/// A slice of each family, of a Service with port 80 or those that are claimed.
fn slices(name: &str, endpoints: &[[IpAddr; 2]], port: u16) -> [Value; 2] {
    let ports = manifests::ports([80, 30_999, 10_256], "TCP", Some(port));
    Family::ALL.map(|family| slice_of(name, endpoints, &ports, family))
}

fn slice_of(name: &str, endpoints: &[[IpAddr; 2]], ports: &[Value], family: Family) -> Value {
    // He places all of them on this node.
    let endpoint = |addresses: &[IpAddr; 2]| json!({ "addresses": [addresses[family as usize]], "nodeName": layout::NODE_NAME });
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    slice(NAMESPACE, name, family, ports, &endpoints)
}
