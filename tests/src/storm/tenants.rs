//! A tenant beside the users: somebody who may edit one namespace, and whose pods may dial any address.
//!
//! The tenant's pods use the tenant's Services throughout and do not count as users. The tenant's actions
//! overlap those of other kinds, and must neither take the node out nor hide a fault.

use std::cell::Cell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use super::action::{Injector, Undo, on_stage, then};
use super::plan::{Action, Tenant, Users};
use super::worlds;
use crate::detect::Stage;
use crate::manifests::{self, slice, yaml};
use crate::prelude::*;
use crate::traffic::Flood;
use crate::world::layout;

pub(super) const NAMESPACE: &str = "tenant";
/// File of the tenant's permanent Services.
pub(super) const SERVICES_FILE: &str = "tenant.yaml";
/// Files of the tenant's temporary objects. If two Services claim one address, the rules use the Service
/// whose file comes first in the folder.
const FIRST_FILE: &str = "a-tenant.yaml";
const LAST_FILE: &str = "z-tenant.yaml";
/// File of [`Tenant::Products`], which only the agent reads: rules are made from YAML files alone. Rules for
/// thousands of ports would take minutes to install, and the storm tests the agent, not a proxy.
const UNRULED_FILE: &str = "tenant.json";
/// File of the attacker's Service.
const ATTACK_FILE: &str = "attack.yaml";

/// Ports of the tenant's Services, including those that probes dial. The port of /healthz is not among them:
/// load balancers would get the tenant's answer instead of the agent's, which the storm judges.
const PORTS: [u16; 2] = [Sentinel::PORT, 30_999];
/// Pods that dial, then the pod that serves.
const CLIENTS: [&str; 2] = ["tenant-1", "tenant-2"];
const SERVER: &str = "tenant-3";
/// A port of the tenant's server; every packet to it is dropped.
const SILENT: u16 = 8081;
/// Connections a second of each of the tenant's clients.
const RATE: f64 = 3.0;
/// SYNs a second of the flood. If each entry stayed as long as one of an unanswered SYN, they would overflow
/// the map of followed connections.
const FLOOD: u32 = 1_500;

/// Indexes of the tenant's Services in the address plan.
const ONE: u8 = 60;
const TWO: u8 = 61;
const EMPTY: u8 = 62;
const CLAIM: u8 = 63;
const KEPT: u8 = 65;
const FOREIGN: u8 = 66;
const ATTACK: u8 = 67;
/// Range of indexes for [`Tenant::Products`].
const PRODUCTS: std::ops::Range<u8> = 70..73;

/// Clients of the tenant. Their plans are made once, because there are few ranges of source ports for an
/// address.
pub(super) struct Tenants {
    _users: Vec<Client>,
    kept: Plan,
    foreign: Plan,
    /// Source port of the next `kept` client. It changes each time, because conntrack still has an entry of
    /// the previous client.
    next_port: Cell<u16>,
}

impl Tenants {
    /// Adds the tenant's pods and Services, and starts the tenant's clients if `users` is `Everybody`.
    pub(super) fn prepare(stage: &mut Stage, users: Users) -> Result<Self> {
        for pod in CLIENTS.into_iter().chain([SERVER]) {
            stage.world.add_pod(pod, Place::Local)?;
        }
        stage.world.pod(SERVER).ns.nft(&format!(
            "table inet silent {{ chain it {{ type filter hook prerouting priority -300;\n\
             tcp dport {SILENT} drop\n}}\n}}\n"
        ))?;
        stage.serve(SERVER);
        let server = [pod_of(stage, SERVER)];
        let services = [(ONE, &server[..]), (TWO, &server), (EMPTY, &[])];
        let all = services.map(|(index, endpoints)| objects(index, &[], endpoints));
        let manifests = &stage.manifests;
        manifests.write_file(SERVICES_FILE, &yaml(&all.concat())?)?;
        stage.rules.install()?;
        let dials = |pod| [ONE, TWO].map(|index| plan(stage, pod, index));
        let clients = CLIENTS.into_iter().filter(|_| users == Users::Everybody);
        let plans = clients.flat_map(dials);
        let kept = plan(stage, CLIENTS[0], KEPT).rate(1.0);
        Ok(Self {
            _users: plans.map(Plan::start).collect::<Result<_>>()?,
            next_port: Cell::new(kept.ports.start),
            kept: kept.patience(Duration::from_millis(700)),
            foreign: plan(stage, CLIENTS[1], FOREIGN),
        })
    }
}

pub(super) fn begin(tenant: Tenant, injector: &Injector) -> Result<Undo> {
    let (stage, mut client) = (&injector.stage, None);
    let (web, server) = (stage.manifests.service("web"), [pod_of(stage, SERVER)]);
    let web = || Family::ALL.map(|family| web.cluster_ip(family));
    let node = || Family::ALL.map(|family| stage.world.node_address(family));
    let (file, objects) = match tenant {
        Tenant::ClaimsFirst => (FIRST_FILE, objects(CLAIM, &web(), &server)),
        Tenant::ClaimsLast => (LAST_FILE, objects(CLAIM, &web(), &server)),
        Tenant::ClaimsProbed => {
            let clusters = Family::ALL.map(Sentinel::cluster_ip);
            let probed = [clusters, node()].concat();
            (FIRST_FILE, objects(CLAIM, &probed, &server))
        }
        Tenant::ClaimsEcho => {
            let echo = Sentinel::default().endpoints;
            (LAST_FILE, objects(CLAIM, &echo, &[echo]))
        }
        Tenant::ForeignSlices => {
            client = Some(injector.tenants.foreign.clone().start()?);
            (LAST_FILE, objects(FOREIGN, &[], &foreign(stage)))
        }
        Tenant::Products => {
            let nobody = |number: u8| [Ipv4Addr::new(10, 244, 1, 100 + number).into(); 2];
            let nobody: Vec<[IpAddr; 2]> = (0..100).map(nobody).collect();
            let product = |index| {
                let [service, v4, _] = objects_of(index, &[], 1..=1_000, &nobody, PORT);
                [service, v4]
            };
            (UNRULED_FILE, PRODUCTS.flat_map(product).collect())
        }
        Tenant::KeepsPort => {
            client = Some(keep_port(injector)?);
            (LAST_FILE, objects(KEPT, &[], &server))
        }
        Tenant::Dropped => return deny(stage, "drop"),
        Tenant::Rejected => return deny(stage, worlds::REJECT),
        Tenant::Floods => {
            let target = SocketAddr::new(layout::cluster_ip(EMPTY).0.into(), 80);
            let flood = Flood::of_pod(stage.world.pod(CLIENTS[0]), target, FLOOD)?;
            return Ok(then(|_| drop(flood)));
        }
    };
    stage.manifests.write_file(file, &yaml(&objects)?)?;
    injector.announce(file)?;
    // A real proxy would receive a claim of a probed address over its watch. So while the agent's watch is
    // troubled, the rules do not follow.
    let is_troubled = injector.lasts(|action| matches!(action, Action::Api(_)));
    if tenant != Tenant::ClaimsProbed || !is_troubled {
        injector.follow()?;
    }
    Ok(Box::new(move |injector: &mut Injector| {
        drop(client);
        injector.withdraw(file)?;
        fs::remove_file(injector.stage.manifests.dir().join(file))?;
        injector.follow()
    }))
}

/// Adds a Service of the tenant whose slices claim foreign addresses, for the rest of the storm. Returns a
/// client of it in a pod of the tenant.
pub(super) fn attack(injector: &Injector) -> Result<Client> {
    let stage = &injector.stage;
    let objects = objects(ATTACK, &[], &foreign(stage));
    stage.manifests.write_file(ATTACK_FILE, &yaml(&objects)?)?;
    injector.publish(ATTACK_FILE)?;
    plan(stage, CLIENTS[1], ATTACK).start()
}

/// Endpoints that a tenant claims for this node: other users' pods, addresses outside, and the node.
fn foreign(stage: &Stage) -> [[IpAddr; 2]; 5] {
    let outside =
        |client| Family::ALL.map(|family| layout::pick(layout::outside_client(client), family));
    let node = Family::ALL.map(|family| stage.world.node_address(family));
    let [here, elsewhere] = ["web-1", "web-3"].map(|pod| pod_of(stage, pod));
    [here, elsewhere, outside(200), outside(201), node]
}

/// Opens a connection to a silent endpoint. The caller then removes the endpoint.
fn keep_port(injector: &Injector) -> Result<Client> {
    let stage = &injector.stage;
    let silent = objects_of(KEPT, &[], PORTS, &[pod_of(stage, SERVER)], SILENT);
    stage.manifests.write_file(LAST_FILE, &yaml(&silent)?)?;
    injector.publish(LAST_FILE)?;
    let Tenants {
        kept, next_port, ..
    } = &injector.tenants;
    let port = next_port.get();
    next_port.set((port + 1).min(kept.ports.end - 1));
    let mut plan = kept.clone();
    plan.ports = port..port + 1;
    let client = plan.start()?;
    thread::sleep(Duration::from_millis(300));
    Ok(client)
}

fn deny(stage: &Stage, verdict: &str) -> Result<Undo> {
    let chain = worlds::denied(stage, &CLIENTS, verdict);
    stage.filter("tenant", &chain).map(on_stage)
}

/// A client in a pod that uses one of the tenant's Services.
fn plan(stage: &Stage, pod: &str, index: u8) -> Plan {
    let target = SocketAddr::new(layout::cluster_ip(index).0.into(), 80);
    Plan::from_pod(&stage.world, stage.world.pod(pod), target).rate(RATE)
}

fn pod_of(stage: &Stage, pod: &str) -> [IpAddr; 2] {
    let pod = stage.world.pod(pod);
    Family::ALL.map(|family| pod.address(family))
}

/// A Service on [`PORTS`] with its slices.
fn objects(index: u8, external_ips: &[IpAddr], endpoints: &[[IpAddr; 2]]) -> Vec<Value> {
    objects_of(index, external_ips, PORTS, endpoints, PORT).into()
}

/// A Service with one slice for each family. The slices assign all endpoints to this node.
fn objects_of(
    index: u8,
    external_ips: &[IpAddr],
    ports: impl IntoIterator<Item = u16> + Clone,
    endpoints: &[[IpAddr; 2]],
    target: u16,
) -> [Value; 3] {
    let name = format!("service-{index}");
    let (v4, v6) = layout::cluster_ip(index);
    let spec = json!({
        "clusterIP": v4, "clusterIPs": [v4, v6],
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        "externalIPs": external_ips,
        "ports": manifests::ports(ports.clone(), "TCP", None),
    });
    let service = manifests::service(NAMESPACE, &name, spec);
    let ports = manifests::ports(ports, "TCP", Some(target));
    let [v4, v6] = Family::ALL.map(|family| {
        let address = |ips: &[IpAddr; 2]| ips[family as usize];
        let endpoint = |ips| json!({ "addresses": [address(ips)], "nodeName": layout::NODE_NAME });
        let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
        slice(NAMESPACE, &name, family, &ports, &endpoints)
    });
    [service, v4, v6]
}
