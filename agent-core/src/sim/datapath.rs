//! State of the API, state of the rules, and the pods of a simulated node. Where the rules take a
//! connection is in `ways`; no packet is sent here.

pub(super) mod addresses;
mod claims;
mod objects;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agent_common::service::{Family, FrontendKind};

use super::kernel::{Device, FIRST_POD, UPLINK};
use super::world::{Client, Denial, Fault, ServiceSpec, Sickness, Stack, World};
use crate::cluster::{Change, NodeFacts, ServiceFacts};
use crate::freshness::{FIRST_GENERATION, next_generation};
use crate::time::Mono;
use addresses::Both;
pub(super) use objects::sentinel_rule;
pub(super) use ways::{Reply, Way};

/// Default port of every Service and endpoint.
pub(super) const PORT: u16 = 80;

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) ips: Both,
    pub(super) local: bool,
    /// Number of the other node that it is on; zero if it is on this node or the agent does not get the number.
    peer: u16,
}

impl Pod {
    pub(super) fn ip(&self, family: Family) -> IpAddr {
        self.ips[family as usize]
    }
}

/// A Service, as the API has it and as the rules have it.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) facts: Arc<ServiceFacts>,
    /// Port of its endpoints.
    pub(super) target: u16,
    exists: bool,
    pods: Vec<Pod>,
    /// Endpoints that are no pods of its own.
    foreign: Vec<Pod>,
    /// Endpoints as the proxy last wrote them; nothing where it wrote none.
    rules: Option<Vec<Pod>>,
}

impl Service {
    /// Endpoints as the API has them.
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
    /// The generation of the sentinel's rules.
    pub(super) echo: u16,
    pub(super) faults: BTreeSet<(Fault, Family)>,
    pub(super) frozen: bool,
    pub(super) denials: Vec<(Option<Client>, Option<usize>, Denial)>,
    /// How a filter on the sentinel's range denies connections, if there is one.
    pub(super) filtered: Option<Denial>,
    /// An inline filter drops the data of the sentinel's connections.
    pub(super) inspected: bool,
    /// Pods that have left, by their IPv4 addresses, and when they cease to answer.
    graves: BTreeMap<IpAddr, Mono>,
    /// Pods that do not accept connections, by their IPv4 addresses.
    sick: BTreeMap<IpAddr, Reply>,
    /// Devices of this node's pods, in both families.
    pub(super) devices: BTreeMap<IpAddr, Device>,
    /// Pods of this node are bridged to the uplink, so their device is the uplink.
    flat: bool,
    /// Addresses of other nodes' pods.
    pub(super) remote: BTreeSet<IpAddr>,
    /// Frontends that several Services claim, and the one whose rules apply. The sentinel's, too.
    taken: BTreeMap<SocketAddr, usize>,
    claims_win: bool,
    /// Place of the pod probe's Service.
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
            for (of, local) in &spec.foreign {
                let pod = datapath.foreign(*of, *local);
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
        // Addresses of the first few are those of clients.
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

    /// Addresses of a client.
    pub(super) fn client(&self, client: Client) -> Both {
        match client {
            Client::Pod(pod) => addresses::pod(self.number, 2 + pod % 16),
            Client::PodProbe => self.pod_probe().map_or(self.address, |pod| pod.ips),
            Client::Host => self.address,
            Client::Outsider(outsider) => addresses::outsider(outsider),
        }
    }

    /// The pod probe of this node.
    pub(super) fn pod_probe(&self) -> Option<Pod> {
        let mut pods = self.services[self.pod_probe?].pods.iter();
        pods.find(|pod| pod.local).copied()
    }

    /// The address that is reserved for the sentinel's pod lane.
    pub(super) fn pod_prober(&self, family: Family) -> IpAddr {
        addresses::pod(self.number, 254)[family as usize]
    }

    /// Address that a client dials.
    pub(super) fn frontend(
        &self,
        service: usize,
        (kind, family): (FrontendKind, Family),
    ) -> Option<SocketAddr> {
        let facts = &self.services.get(service).filter(|of| of.exists)?.facts;
        objects::dialled(facts, &self.address, kind, family)
    }

    /// Address that a probe dials.
    pub(super) fn probed(&self, kind: FrontendKind, family: Family) -> Option<SocketAddr> {
        objects::dialled(&self.sentinel, &self.address, kind, family)
    }

    /// The proxy writes rules as the API has them.
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

    /// The Service and its slices are deleted.
    pub(super) fn delete(&mut self, service: usize) -> Vec<Change> {
        let Some(found) = self.services.get_mut(service).filter(|of| of.exists) else {
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

    /// The Service comes into being.
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

    /// Others take the places of all of a Service's endpoints, or of one.
    pub(super) fn roll(&mut self, service: usize, one: Option<usize>, until: Mono) -> Vec<Change> {
        let Some(before) = self.services.get(service).map(|of| of.pods.clone()) else {
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

    /// Endpoints of a Service stop serving, and stay in its slice.
    pub(super) fn sicken(&mut self, service: usize, sickness: Sickness) {
        let reply = match sickness {
            Sickness::Silent => Reply::Nothing,
            Sickness::Refuses => Reply::Refuses,
        };
        let pods = self
            .services
            .get(service)
            .into_iter()
            .flat_map(|of| &of.pods);
        self.sick.extend(pods.map(|pod| (pod.ips[0], reply)));
    }

    /// The sentinel's endpoint moves.
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

    /// The sentinel as an uncached reading has it.
    pub(super) fn read_sentinel(&self) -> Vec<Change> {
        let mut changes = self.sentinel_changes();
        changes.push(Change::Synced);
        changes
    }

    /// Everything, as a new watch lists it.
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
