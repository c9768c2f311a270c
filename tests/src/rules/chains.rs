//! Content of one family's rules, independent of their syntax: the chains that kube-proxy would make from
//! Services and their slices.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::prelude::*;
use crate::world::layout::{self, NODE_NAME};

/// Name of the chain of all Services, which [`Rules::flush_services`](super::Rules::flush_services) empties.
pub(super) const SERVICES: &str = "services";

#[derive(Debug)]
pub(super) struct Chains {
    pub(super) family: Family,
    /// Chains that do NAT, by name.
    pub(super) nat: BTreeMap<String, Vec<ChainRule>>,
    /// Rules that refuse traffic to destinations without an endpoint.
    pub(super) refusals: Vec<ChainRule>,
}

/// Conditions on a packet, and then what happens to it.
pub(super) type ChainRule = Vec<Word>;

#[derive(Clone, Debug)]
pub(super) enum Word {
    /// To this address (`None`: any address of the node), by "tcp" or "udp", at this port.
    To(Option<IpAddr>, String, u64),
    From(String),
    NotFrom(String),
    /// The packet comes from the node itself.
    FromNode,
    /// True with a probability of 1 in this number.
    Chance(usize),
    /// Marks the packet, which then leaves with an address of the node.
    Masquerade,
    Goto(String),
    /// Sends the packet to an endpoint, by this protocol.
    Translate(String, SocketAddr),
    Reject,
    Drop,
}

impl Chains {
    /// Makes the chains from all objects of a folder. Traffic to an endpoint in `redirected` goes to the
    /// address that the map has for it.
    pub(super) fn of(
        objects: &[Value],
        family: Family,
        redirected: &BTreeMap<SocketAddr, SocketAddr>,
    ) -> Self {
        let mut chains = Self {
            family,
            nat: BTreeMap::from([(SERVICES.to_owned(), Vec::new())]),
            refusals: Vec::new(),
        };
        for service in of_kind(objects, "Service") {
            let slices: Vec<&Value> = of_kind(objects, "EndpointSlice")
                .filter(|slice| belongs(slice, service))
                .collect();
            for port in items(&service["spec"]["ports"]) {
                let endpoints = endpoints(&slices, port, family);
                chains.add(service, port, &endpoints);
            }
        }
        for word in chains.nat.values_mut().flatten().flatten() {
            if let Word::Translate(_, endpoint) = word {
                *endpoint = *redirected.get(endpoint).unwrap_or(endpoint);
            }
        }
        chains
    }

    fn add(&mut self, service: &Value, port: &Value, endpoints: &[(&Value, SocketAddr)]) {
        let (spec, family) = (&service["spec"], self.family);
        let cluster_ips: Vec<IpAddr> = addresses(items(&spec["clusterIPs"]), family).collect();
        if cluster_ips.is_empty() {
            return;
        }
        let is_local = |(endpoint, _): &(&Value, _)| endpoint["nodeName"] == NODE_NAME;
        let all = serving(endpoints.iter().copied());
        let local = serving(endpoints.iter().copied().filter(is_local));
        let is_policy_local = spec["externalTrafficPolicy"] == "Local";

        let number = self.nat.len();
        let chain = |kind| format!("{kind}-{number}");
        let (to_all, to_local, external) = (chain("svc"), chain("local"), chain("ext"));
        self.choice(&to_all, protocol(port), &all);
        self.choice(&to_local, protocol(port), &local);
        let goto = |chain: &String| Word::Goto(chain.clone());
        let rules = match is_policy_local {
            // With `externalTrafficPolicy: Local`, pods and the node itself get the same endpoints as through
            // the ClusterIP.
            true => vec![
                vec![Word::From(pods(family)), goto(&to_all)],
                vec![Word::FromNode, Word::Masquerade],
                vec![Word::FromNode, goto(&to_all)],
                vec![goto(&to_local)],
            ],
            false => vec![vec![Word::Masquerade], vec![goto(&to_all)]],
        };
        self.nat.insert(external.clone(), rules);

        for address in cluster_ips {
            let to = to(Some(address), port, "port");
            if all.is_empty() {
                self.refusals.push(vec![to, Word::Reject]);
                continue;
            }
            let outside = Word::NotFrom(pods(family));
            self.serve(vec![to.clone(), outside, Word::Masquerade]);
            self.serve(vec![to, goto(&to_all)]);
        }
        let refusal = if all.is_empty() {
            Some(Word::Reject)
        } else if is_policy_local && local.is_empty() {
            Some(Word::Drop)
        } else {
            None
        };
        self.frontends(service, port, &goto(&external), refusal.as_ref());
    }

    fn serve(&mut self, rule: ChainRule) {
        let services = self.nat.entry(SERVICES.to_owned()).or_default();
        services.push(rule);
    }

    /// Adds the load balancer's addresses, the external addresses, and the node port.
    fn frontends(&mut self, service: &Value, port: &Value, then: &Word, refusal: Option<&Word>) {
        let (spec, family) = (&service["spec"], self.family);
        let vips: Vec<IpAddr> = vips(service, family).collect();
        let others = addresses(items(&spec["externalIPs"]), family);
        let addresses = vips.iter().copied().chain(others).map(Some);
        let addresses = addresses.map(|address| (address, to(address, port, "port")));
        let node_port = port.get("nodePort");
        let node_port = node_port.map(|_| (None, to(None, port, "nodePort")));
        let ranges = source_ranges(spec, family);
        let is_served = !matches!(refusal, Some(Word::Reject));
        for (address, to) in addresses.chain(node_port) {
            let is_vip = address.is_some_and(|address| vips.contains(&address));
            let is_limited = is_vip && !ranges.is_empty();
            if is_served && is_limited {
                for range in &ranges {
                    self.serve(vec![to.clone(), Word::From(range.clone()), then.clone()]);
                }
            } else if is_served {
                self.serve(vec![to.clone(), then.clone()]);
            }
            if let Some(word) = refusal {
                self.refusals.push(vec![to, word.clone()]);
            } else if is_limited {
                // Only sources outside of the ranges get here: sources within them are translated before the
                // refusals.
                self.refusals.push(vec![to, Word::Drop]);
            }
        }
    }

    /// A chain that selects an endpoint at random, and the endpoints' chains.
    fn choice(&mut self, name: &str, protocol: String, endpoints: &[SocketAddr]) {
        let mut choice = Vec::new();
        for (number, endpoint) in endpoints.iter().enumerate() {
            let chain = format!("{name}-{number}");
            // Give each of the remaining endpoints the same chance.
            let chance = Word::Chance(endpoints.len() - number);
            choice.push(vec![chance, Word::Goto(chain.clone())]);
            // Hairpin: a pod that connects to itself through the Service must see another source address.
            let itself = Word::From(endpoint.ip().to_string());
            let there = Word::Translate(protocol.clone(), *endpoint);
            let rules = vec![vec![itself, Word::Masquerade], vec![there]];
            self.nat.insert(chain, rules);
        }
        self.nat.insert(name.to_owned(), choice);
    }
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// Elements of a list, which may be missing.
fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Addresses of pods: sources that are not masqueraded for ClusterIPs.
fn pods(family: Family) -> String {
    layout::range(layout::CLUSTER_CIDRS, family).to_owned()
}

fn addresses<'a>(
    texts: impl Iterator<Item = &'a Value>,
    family: Family,
) -> impl Iterator<Item = IpAddr> {
    let parsed = texts.filter_map(|text| text.as_str()?.parse().ok());
    let is_v4 = family == Family::V4;
    parsed.filter(move |address: &IpAddr| address.is_ipv4() == is_v4)
}

/// Addresses of the load balancer whose traffic this node handles itself.
fn vips(service: &Value, family: Family) -> impl Iterator<Item = IpAddr> {
    let ingress = items(&service["status"]["loadBalancer"]["ingress"]);
    let vips = ingress.filter(|one| one.get("ipMode").is_none_or(|mode| mode == "VIP"));
    addresses(vips.map(|one| &one["ip"]), family)
}

/// Sources that may dial the load balancer's address; empty if all may.
fn source_ranges(spec: &Value, family: Family) -> Vec<String> {
    let ranges = items(&spec["loadBalancerSourceRanges"]).filter_map(Value::as_str);
    let ours = ranges.filter(|range| range.contains(':') == (family == Family::V6));
    ours.map(str::to_owned).collect()
}

fn belongs(slice: &Value, service: &Value) -> bool {
    let (slice, service) = (&slice["metadata"], &service["metadata"]);
    slice["namespace"] == service["namespace"]
        && slice["labels"]["kubernetes.io/service-name"] == service["name"]
}

fn protocol(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or("TCP").to_lowercase()
}

/// Matches this address (`None`: any address of the node) at a Service's port of this kind.
fn to(address: Option<IpAddr>, port: &Value, kind: &str) -> Word {
    let number = port[kind].as_u64().unwrap_or_default();
    Word::To(address, protocol(port), number)
}

/// Every endpoint of a port, with its address.
fn endpoints<'a>(
    slices: &[&'a Value],
    port: &Value,
    family: Family,
) -> Vec<(&'a Value, SocketAddr)> {
    let same = |other: &&Value| other["name"] == port["name"] && protocol(other) == protocol(port);
    let mut found = Vec::new();
    for slice in slices {
        let number = items(&slice["ports"])
            .find(same)
            .and_then(|port| port["port"].as_u64());
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            continue;
        };
        for endpoint in items(&slice["endpoints"]) {
            let address = addresses(items(&endpoint["addresses"]).take(1), family);
            found.extend(address.map(|address| (endpoint, SocketAddr::new(address, number))));
        }
    }
    found
}

/// The ready endpoints, or else the terminating ones that still serve.
fn serving<'a>(endpoints: impl Iterator<Item = (&'a Value, SocketAddr)>) -> Vec<SocketAddr> {
    let (mut ready, mut terminating) = (Vec::new(), Vec::new());
    for (endpoint, address) in endpoints {
        let conditions = &endpoint["conditions"];
        if conditions["ready"] != false {
            ready.push(address);
        } else if conditions["serving"] == true && conditions["terminating"] == true {
            terminating.push(address);
        }
    }
    if ready.is_empty() { terminating } else { ready }
}
