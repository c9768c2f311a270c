//! State of the API, state of the rules, and where the rules take a connection.

mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use agent_common::service::FrontendKind;

use super::dice::Dice;
use super::kernel::{Device, FIRST_POD, map_of};
use super::world::{Client, Denial, Fault, ServiceSpec, World};
use crate::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use crate::expect::sentinel::SentinelRule;
use crate::freshness::{FIRST_GENERATION, next_generation};
use crate::time::Mono;

/// Port of every Service and endpoint.
pub(super) const PORT: u16 = 80;
const SENTINEL_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 255, 1);
const SENTINEL_NODE_PORT: u16 = 32_767;
/// The sentinel's one endpoint.
pub(super) const ECHO: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Source of its probes.
pub(super) const PROBER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) ip: Ipv4Addr,
    pub(super) local: bool,
}

/// A Service, as the API has it and as the rules have it.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) facts: Arc<ServiceFacts>,
    exists: bool,
    pods: Vec<Pod>,
    /// Endpoints that are no pods of its own.
    foreign: Vec<Pod>,
    /// Endpoints as the proxy last wrote them; nothing where it wrote none.
    rules: Option<Vec<Pod>>,
}

/// Way that a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It leaves by the uplink as it came.
    Untranslated,
    /// The node's own stack refuses it.
    Reset,
    /// A rule refuses it by ICMP.
    Rejected,
    /// It is dropped.
    Dropped,
    /// To an endpoint.
    To(Pod),
}

/// API, rules and pods of a node.
#[derive(Debug)]
pub(super) struct Datapath {
    pub(super) node: Arc<NodeFacts>,
    pub(super) address: Ipv4Addr,
    pub(super) services: Vec<Service>,
    sentinel: Arc<ServiceFacts>,
    generation: u16,
    /// The generation of the sentinel's rules.
    pub(super) echo: u16,
    pub(super) faults: BTreeSet<Fault>,
    pub(super) frozen: bool,
    pub(super) denials: Vec<(Option<Client>, Option<usize>, Denial)>,
    /// The sentinel's range is filtered.
    pub(super) filtered: bool,
    /// Pods that have left, and when they cease to answer.
    graves: BTreeMap<Ipv4Addr, Mono>,
    /// Devices of this node's pods.
    pub(super) devices: BTreeMap<Ipv4Addr, Device>,
    /// Frontends that several Services claim, and the one whose rules apply. The sentinel's, too.
    taken: BTreeMap<SocketAddr, usize>,
    claims_win: bool,
    pods_made: u32,
    number: u32,
}

/// The sentinel as every simulated node is configured.
pub(super) fn sentinel_rule() -> SentinelRule {
    SentinelRule {
        service: ObjectName::new("pathproof", "pathproof-sentinel"),
        echo: [
            IpAddr::V4(ECHO),
            IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)),
        ],
        clients: Vec::new(),
        pods: Vec::new(),
    }
}

impl Datapath {
    pub(super) fn new(number: u32, world: &World) -> Self {
        let [_, high, low, last] = number.to_be_bytes();
        let address = Ipv4Addr::new(172, 16 | high, low, last);
        let pod_range = ipnet::Ipv4Net::new_assert(pod_address(number, 0), 24);
        let node_port = (!world.no_node_ports).then_some(SENTINEL_NODE_PORT);
        let mut datapath = Self {
            node: Arc::new(NodeFacts {
                name: format!("node-{number}").into(),
                addresses: vec![address.into()],
                pod_cidrs: vec![pod_range.into()],
                ..NodeFacts::default()
            }),
            address,
            services: Vec::new(),
            sentinel: Arc::new(facts(sentinel_rule().service, SENTINEL_IP, node_port)),
            generation: FIRST_GENERATION,
            echo: FIRST_GENERATION,
            faults: BTreeSet::new(),
            frozen: false,
            denials: Vec::new(),
            filtered: false,
            graves: BTreeMap::new(),
            devices: BTreeMap::new(),
            taken: BTreeMap::new(),
            claims_win: world.claims_win,
            pods_made: 0,
            number,
        };
        for (place, spec) in world.services.iter().enumerate() {
            let service = datapath.service(place, spec);
            datapath.services.push(service);
        }
        for (place, spec) in world.services.iter().enumerate() {
            for (of, local) in &spec.foreign {
                let pod = datapath.foreign(*of, *local);
                datapath.services[place].foreign.extend(pod);
            }
        }
        datapath.sync();
        datapath
    }

    fn service(&mut self, place: usize, spec: &ServiceSpec) -> Service {
        let name = ObjectName::new(&spec.namespace, &format!("service-{place}"));
        let local = (0..spec.local).map(|_| true);
        let pods = local.chain((0..spec.remote).map(|_| false));
        let mut facts = facts(name, cluster_ip(place), Some(30_000 + place as u16));
        let claims = spec.claims.iter();
        facts.external_ips = claims.map(|claim| self.claimed(*claim).into()).collect();
        facts.ports = (0..spec.ports)
            .map(|of| ServicePort {
                name: if of == 0 {
                    "".into()
                } else {
                    format!("p{of}").into()
                },
                protocol: Protocol::Tcp,
                port: spec.port.saturating_add(of),
                node_port: (of == 0).then_some(30_000 + place as u16),
            })
            .collect();
        Service {
            facts: Arc::new(facts),
            exists: !spec.later,
            pods: pods.map(|local| self.make_pod(local)).collect(),
            foreign: Vec::new(),
            rules: None,
        }
    }

    fn make_pod(&mut self, local: bool) -> Pod {
        self.pods_made += 1;
        let made = self.pods_made;
        // Addresses of the first few are those of clients.
        let ip = match local {
            true => pod_address(self.number, 20 + (made % 230) as u8),
            false => Ipv4Addr::new(10, 255, (made >> 8) as u8, made as u8),
        };
        self.graves.remove(&ip);
        if local {
            self.devices.insert(ip, FIRST_POD + made);
        }
        Pod { ip, local }
    }

    /// The address of a client.
    pub(super) fn client(&self, client: Client) -> Ipv4Addr {
        match client {
            Client::Pod(pod) => pod_address(self.number, 2 + pod % 16),
            Client::Host => self.address,
            Client::Outsider(outsider) => Ipv4Addr::new(203, 0, 113, outsider),
        }
    }

    /// The address that is reserved for the sentinel's pod lane.
    pub(super) fn pod_prober(&self) -> Ipv4Addr {
        pod_address(self.number, 254)
    }

    /// Address that a client dials.
    pub(super) fn frontend(&self, service: usize, kind: FrontendKind) -> Option<SocketAddr> {
        let facts = &self.services.get(service).filter(|of| of.exists)?.facts;
        dialled(facts, self.address, kind)
    }

    /// Address that a probe dials.
    pub(super) fn probed(&self, kind: FrontendKind) -> Option<SocketAddr> {
        dialled(&self.sentinel, self.address, kind)
    }

    /// The proxy writes rules as the API has them.
    pub(super) fn sync(&mut self) {
        for service in &mut self.services {
            let all = || {
                service
                    .pods
                    .iter()
                    .chain(&service.foreign)
                    .copied()
                    .collect()
            };
            service.rules = service.exists.then(all);
        }
        self.taken = match self.claims_win {
            true => self.claims(),
            false => BTreeMap::new(),
        };
        self.echo = self.generation;
    }

    /// The Service and its slice are deleted.
    pub(super) fn delete(&mut self, service: usize) -> Vec<Change> {
        let Some(found) = self.services.get_mut(service).filter(|of| of.exists) else {
            return Vec::new();
        };
        found.exists = false;
        let name = found.facts.name.clone();
        let of_slice = Change::SliceGone {
            service: Arc::clone(&name.name),
            slice: name.clone(),
        };
        vec![Change::ServiceGone(name), of_slice]
    }

    /// The Service comes into being.
    pub(super) fn create(&mut self, service: usize) -> Vec<Change> {
        let Some(found) = self.services.get_mut(service) else {
            return Vec::new();
        };
        found.exists = true;
        vec![Change::Service(Arc::clone(&found.facts)), slice_of(found)]
    }

    /// Others take the places of a Service's endpoints.
    pub(super) fn roll(&mut self, service: usize, until: Mono) -> Vec<Change> {
        let Some(before) = self.services.get(service).map(|of| of.pods.clone()) else {
            return Vec::new();
        };
        let after = before.iter().map(|pod| self.make_pod(pod.local)).collect();
        self.graves
            .extend(before.into_iter().map(|pod| (pod.ip, until)));
        let found = &mut self.services[service];
        found.pods = after;
        match found.exists {
            true => vec![slice_of(found)],
            false => Vec::new(),
        }
    }

    /// The sentinel's endpoint moves.
    pub(super) fn rotate(&mut self) -> Vec<Change> {
        self.generation = next_generation(self.generation);
        self.sentinel_changes()
    }

    fn sentinel_changes(&self) -> Vec<Change> {
        let sentinel = &self.sentinel;
        let echo = Pod {
            ip: ECHO,
            local: false,
        };
        let names = sentinel.ports.iter().map(|port| &port.name);
        let slice = slice(&sentinel.name, names, self.generation, &[echo]);
        vec![Change::Service(Arc::clone(sentinel)), slice]
    }

    /// The sentinel as an uncached reading has it.
    pub(super) fn read_sentinel(&self) -> Vec<Change> {
        let mut changes = self.sentinel_changes();
        changes.push(Change::Synced);
        changes
    }

    /// Everything, as a new watch lists it.
    pub(super) fn list(&self) -> Vec<Change> {
        let mut changes = vec![Change::Node(Arc::clone(&self.node))];
        for service in self.services.iter().filter(|service| service.exists) {
            changes.push(Change::Service(Arc::clone(&service.facts)));
            changes.push(slice_of(service));
        }
        changes.extend(self.read_sentinel());
        changes
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// No rule takes what is dialled.
    pub(super) fn is_flushed(&self) -> bool {
        self.has(Fault::Flushed) || self.has(Fault::TablesGone)
    }

    pub(super) fn forwards(&self) -> bool {
        !self.has(Fault::ForwardingOff)
    }

    pub(super) fn masquerades(&self) -> bool {
        !self.has(Fault::NotMasqueraded)
    }

    pub(super) fn routes_pods(&self) -> bool {
        !self.has(Fault::PodRoutesGone)
    }

    /// Whether an endpoint answers what reaches it.
    pub(super) fn answers(&self, pod: Pod, now: Mono) -> bool {
        self.graves.get(&pod.ip).is_none_or(|until| now < *until)
    }

    /// Whether a policy means this connection to fail.
    pub(super) fn denial(&self, client: Client, service: usize) -> Option<Denial> {
        let meant = |(of, to, _): &&(Option<Client>, Option<usize>, Denial)| {
            of.is_none_or(|of| of == client) && to.is_none_or(|to| to == service)
        };
        self.denials.iter().find(meant).map(|(.., denial)| *denial)
    }

    /// Way that the rules give a connection.
    pub(super) fn way(
        &self,
        client: Client,
        service: usize,
        kind: FrontendKind,
        dice: &mut Dice,
    ) -> Way {
        let dialled = self.frontend(service, kind);
        let taken = dialled.and_then(|dialled| self.taken.get(&dialled));
        let rules = self.services[taken.copied().unwrap_or(service)]
            .rules
            .as_ref();
        let rules = rules.filter(|_| !self.is_flushed() && !self.has(Fault::Emptied(service)));
        let Some(pods) = rules else {
            return self.unruled(client, kind);
        };
        if pods.is_empty() {
            return Way::Rejected;
        }
        if client != Client::Host {
            if !self.forwards() {
                return Way::Dropped;
            }
            match self.denial(client, service) {
                Some(Denial::Drop) => return Way::Dropped,
                Some(Denial::Reject) => return Way::Rejected,
                None => {}
            }
        }
        Way::To(pods[dice.below(pods.len())])
    }

    /// Way of a connection that no rule takes.
    pub(super) fn unruled(&self, client: Client, kind: FrontendKind) -> Way {
        match kind {
            FrontendKind::ClusterIp if client != Client::Host && !self.forwards() => Way::Dropped,
            FrontendKind::ClusterIp => Way::Untranslated,
            _ => Way::Reset,
        }
    }
}

fn cluster_ip(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, (place >> 8) as u8, place as u8)
}

fn pod_address(node: u32, last: u8) -> Ipv4Addr {
    let [.., high, low] = node.to_be_bytes();
    Ipv4Addr::new(10, 128 | high, low, last)
}

fn facts(name: ObjectName, ip: Ipv4Addr, node_port: Option<u16>) -> ServiceFacts {
    ServiceFacts {
        name,
        cluster_ips: vec![ip.into()],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: PORT,
            node_port,
        }],
        ..ServiceFacts::default()
    }
}

fn dialled(facts: &ServiceFacts, node: Ipv4Addr, kind: FrontendKind) -> Option<SocketAddr> {
    let port = facts.ports.first()?;
    match kind {
        FrontendKind::ClusterIp => Some(SocketAddr::new(*facts.cluster_ips.first()?, port.port)),
        _ => Some(SocketAddr::new(node.into(), port.node_port?)),
    }
}

fn slice_of(service: &Service) -> Change {
    let pods = service.pods.iter().chain(&service.foreign).copied();
    let pods: Vec<Pod> = pods.collect();
    let ports = service.facts.ports.iter().map(|port| &port.name);
    slice(&service.facts.name, ports, PORT, &pods)
}

fn slice<'a>(
    service: &ObjectName,
    names: impl Iterator<Item = &'a Arc<str>>,
    port: u16,
    pods: &[Pod],
) -> Change {
    let endpoint = |pod: &Pod| EndpointFacts {
        peer: 0,
        address: map_of(pod.ip),
        ready: true,
        serving: true,
        terminating: false,
        local: pod.local,
    };
    Change::Slice(Arc::new(SliceFacts {
        name: service.clone(),
        service: Arc::clone(&service.name),
        ports: names
            .map(|name| SlicePort {
                name: Arc::clone(name),
                protocol: Protocol::Tcp,
                port,
            })
            .collect(),
        endpoints: pods.iter().map(endpoint).collect(),
        fleet: None,
        triggered: None,
    }))
}
