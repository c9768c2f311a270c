//! API objects, rules and pods of a simulated node. `ways` decides where a connection goes; no packet is
//! sent here.

pub(super) mod addresses;
mod claims;
mod objects;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use addresses::Both;
pub(super) use objects::sentinel_rule;
use pathproof_facts::cluster::{Change, NodeFacts, ServiceFacts};
use pathproof_facts::freshness::{FIRST_GENERATION, next_generation};
use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, FrontendKind};
pub(super) use ways::{Reply, Way};

use super::kernel::{Device, FIRST_POD, UPLINK};
use super::world::{Client, Denial, Fault, ServiceSpec, Sickness, Stack, World};

/// Default port of every Service and endpoint.
pub(super) const PORT: u16 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) ips: Both,
    pub(super) local: bool,
    /// Number of its node; 0 for this node, or if the agent does not receive the number.
    peer: u16,
}

impl Pod {
    pub(super) fn ip(&self, family: Family) -> IpAddr {
        self.ips[family as usize]
    }
}

/// A Service in the API and in the rules.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) facts: Arc<ServiceFacts>,
    pub(super) target: u16,
    exists: bool,
    pods: Vec<Pod>,
    /// Endpoints that are not its pods.
    foreign: Vec<Pod>,
    /// Endpoints as the proxy last wrote them; `None` if it wrote no rules.
    rules: Option<Vec<Pod>>,
}

impl Service {
    fn api_pods(&self) -> impl Iterator<Item = Pod> {
        self.pods.iter().chain(&self.foreign).copied()
    }
}

/// API, rules and pods of a node.
#[derive(Debug)]
pub(super) struct Datapath {
    pub(super) node: Arc<NodeFacts>,
    pub(super) address: Both,
    pub(super) services: Vec<Service>,
    pub(super) stack: Stack,
    sentinel: Arc<ServiceFacts>,
    generation: u16,
    /// The generation in the sentinel's rules.
    pub(super) echo: u16,
    pub(super) faults: BTreeSet<(Fault, Family)>,
    pub(super) frozen: bool,
    pub(super) denials: Vec<(Option<Client>, Option<usize>, Denial)>,
    /// Effect of a filter on the sentinel's range, if there is one.
    pub(super) filtered: Option<Denial>,
    /// Whether an inline filter drops the data of the sentinel's connections.
    pub(super) inspected: bool,
    /// Pods that left, by IPv4 address, with the time when they stop answering.
    graves: BTreeMap<IpAddr, Mono>,
    /// Pods that do not accept connections, by IPv4 address.
    sick: BTreeMap<IpAddr, Reply>,
    /// Devices of this node's pods in both families.
    pub(super) devices: BTreeMap<IpAddr, Device>,
    /// Whether this node's pods are bridged to the uplink, which is then their device.
    flat: bool,
    /// Addresses of other nodes' pods.
    pub(super) remote: BTreeSet<IpAddr>,
    /// Frontends that several Services claim, including the sentinel's, with the Service whose rules apply.
    taken: BTreeMap<SocketAddr, usize>,
    claims_win: bool,
    /// Index of the pod probe's Service.
    pod_probe: Option<usize>,
    pods_made: u32,
    number: u32,
}

impl Datapath {
    pub(super) fn new(number: u32, world: &World) -> Self {
        let stack = world.stack;
        let mut datapath = Self {
            node: Arc::new(objects::node(number, stack)),
            address: addresses::node(number),
            services: Vec::new(),
            stack,
            sentinel: Arc::new(objects::sentinel(stack, !world.no_node_ports)),
            generation: FIRST_GENERATION,
            echo: FIRST_GENERATION,
            faults: BTreeSet::new(),
            frozen: false,
            denials: Vec::new(),
            filtered: None,
            inspected: false,
            graves: BTreeMap::new(),
            sick: BTreeMap::new(),
            devices: BTreeMap::new(),
            remote: BTreeSet::new(),
            taken: BTreeMap::new(),
            claims_win: world.claims_win,
            flat: world.flat,
            pod_probe: world.services.iter().position(ServiceSpec::is_pod_probe),
            pods_made: 0,
            number,
        };
        for (place, spec) in world.services.iter().enumerate() {
            let service = datapath.service(place, spec);
            datapath.services.push(service);
        }
        for (place, spec) in world.services.iter().enumerate() {
            for (foreign, local) in &spec.foreign {
                let pod = datapath.foreign(*foreign, *local);
                datapath.services[place].foreign.extend(pod);
            }
        }
        datapath.sync();
        datapath
    }

    fn service(&mut self, place: usize, spec: &ServiceSpec) -> Service {
        let local = (0..spec.local).map(|_| true);
        let pods = local.chain((0..spec.remote).map(|_| false));
        let claims = spec.claims.iter();
        let claimed = claims.flat_map(|claim| self.stack.of(self.claimed(*claim)));
        let external_ips = claimed.collect();
        Service {
            facts: Arc::new(objects::service(place, spec, external_ips, self.stack)),
            target: if spec.is_pod_probe() { spec.port } else { PORT },
            exists: !spec.later,
            pods: pods.map(|local| self.make_pod(local)).collect(),
            foreign: Vec::new(),
            rules: None,
        }
    }

    fn make_pod(&mut self, local: bool) -> Pod {
        self.pods_made += 1;
        let made = self.pods_made;
        // The first addresses belong to clients.
        let ips = match local {
            true => addresses::pod(self.number, 20 + (made % 230) as u8),
            false => addresses::remote_pod(made),
        };
        self.graves.remove(&ips[0]);
        self.sick.remove(&ips[0]);
        match local {
            true if self.flat => self.devices.extend(ips.map(|ip| (ip, UPLINK))),
            true => self.devices.extend(ips.map(|ip| (ip, FIRST_POD + made))),
            false => self.remote.extend(ips),
        }
        let peer = match local {
            true => 0,
            false => 1 + (made % u32::from(objects::PEERS)) as u16,
        };
        Pod { ips, local, peer }
    }

    pub(super) fn client(&self, client: Client) -> Both {
        match client {
            Client::Pod(pod) => addresses::pod(self.number, 2 + pod % 16),
            Client::PodProbe => self.pod_probe().map_or(self.address, |pod| pod.ips),
            Client::Host => self.address,
            Client::Outsider(outsider) => addresses::outsider(outsider),
        }
    }

    pub(super) fn pod_probe(&self) -> Option<Pod> {
        let mut pods = self.services[self.pod_probe?].pods.iter();
        pods.find(|pod| pod.local).copied()
    }

    /// The reserved address of the sentinel's pod lane.
    pub(super) fn pod_prober(&self, family: Family) -> IpAddr {
        addresses::pod(self.number, 254)[family as usize]
    }

    pub(super) fn frontend(
        &self,
        service: usize,
        (kind, family): (FrontendKind, Family),
    ) -> Option<SocketAddr> {
        let facts = &self
            .services
            .get(service)
            .filter(|service| service.exists)?
            .facts;
        objects::dialled(facts, &self.address, kind, family)
    }

    pub(super) fn probed(&self, kind: FrontendKind, family: Family) -> Option<SocketAddr> {
        objects::dialled(&self.sentinel, &self.address, kind, family)
    }

    /// Makes the proxy write the rules that the API currently requires.
    pub(super) fn sync(&mut self) {
        for service in &mut self.services {
            let all = service.api_pods().collect();
            service.rules = service.exists.then_some(all);
        }
        self.taken = match self.claims_win {
            true => self.claims(),
            false => BTreeMap::new(),
        };
        self.echo = self.generation;
    }

    /// Deletes the Service and its slices.
    pub(super) fn delete(&mut self, service: usize) -> Vec<Change> {
        let Some(found) = self
            .services
            .get_mut(service)
            .filter(|service| service.exists)
        else {
            return Vec::new();
        };
        found.exists = false;
        let name = &found.facts.name;
        let of_slice = |family| Change::SliceGone {
            service: Arc::clone(&name.name),
            slice: objects::slice_name(name, family),
        };
        let slices = self.stack.families().map(of_slice);
        [Change::ServiceGone(name.clone())]
            .into_iter()
            .chain(slices)
            .collect()
    }

    pub(super) fn create(&mut self, service: usize) -> Vec<Change> {
        let stack = self.stack;
        let Some(found) = self.services.get_mut(service) else {
            return Vec::new();
        };
        found.exists = true;
        let made = Change::Service(Arc::clone(&found.facts));
        let slices = objects::slices_of(found, stack);
        [made].into_iter().chain(slices).collect()
    }

    /// Replaces all endpoints of a Service, or one of them.
    pub(super) fn roll(&mut self, service: usize, one: Option<usize>, until: Mono) -> Vec<Change> {
        let Some(before) = self
            .services
            .get(service)
            .map(|service| service.pods.clone())
        else {
            return Vec::new();
        };
        let mut after = before.clone();
        for (place, pod) in before.into_iter().enumerate() {
            if one.is_none_or(|one| one == place) {
                after[place] = self.make_pod(pod.local);
                self.graves.insert(pod.ips[0], until);
            }
        }
        let stack = self.stack;
        let found = &mut self.services[service];
        found.pods = after;
        match found.exists {
            true => objects::slices_of(found, stack).collect(),
            false => Vec::new(),
        }
    }

    /// Makes a Service's endpoints stop serving while they stay in its slice.
    pub(super) fn sicken(&mut self, service: usize, sickness: Sickness) {
        let reply = match sickness {
            Sickness::Silent => Reply::Nothing,
            Sickness::Refuses => Reply::Refuses,
        };
        let pods = self
            .services
            .get(service)
            .into_iter()
            .flat_map(|service| &service.pods);
        self.sick.extend(pods.map(|pod| (pod.ips[0], reply)));
    }

    /// Moves the sentinel's endpoint.
    pub(super) fn rotate(&mut self) -> Vec<Change> {
        self.generation = next_generation(self.generation);
        self.sentinel_changes()
    }

    fn sentinel_changes(&self) -> Vec<Change> {
        let sentinel = &self.sentinel;
        let slices = objects::sentinel_slices(sentinel, self.generation, self.stack);
        let service = Change::Service(Arc::clone(sentinel));
        [service].into_iter().chain(slices).collect()
    }

    /// The sentinel, as an uncached read returns it.
    pub(super) fn read_sentinel(&self) -> Vec<Change> {
        let mut changes = self.sentinel_changes();
        changes.push(Change::Synced);
        changes
    }

    /// All objects, as a new watch lists them.
    pub(super) fn list(&self) -> Vec<Change> {
        let mut changes = vec![Change::Node(Arc::clone(&self.node)), objects::peers()];
        for service in self.services.iter().filter(|service| service.exists) {
            changes.push(Change::Service(Arc::clone(&service.facts)));
            changes.extend(objects::slices_of(service, self.stack));
        }
        changes.extend(self.read_sentinel());
        changes
    }
}
