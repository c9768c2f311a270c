//! The sentinel in the cluster view: what can be probed on this node, and how its objects differ from the
//! installed ones. An administrator who edits or deletes them must not cause a 503. So any difference is
//! reported, and probes of an altered sentinel are no evidence.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use pathproof_facts::cluster::{
    EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SlicePort,
};
use pathproof_facts::fleet_report::{FLEET, FleetReport, Published};
use pathproof_facts::freshness::{FIRST_GENERATION, LAST_GENERATION, is_generation};
use pathproof_facts::names;
use pathproof_facts::node_context::address;
use pathproof_facts::trace::{LaneConflict, Transport};
use pathproof_facts::view::ServiceState;
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelRule {
    pub service: ObjectName,
    /// The only endpoint that its slices may have, by [`Family`].
    pub echo: [IpAddr; FAMILIES],
    /// Source addresses of probes from outside the cluster. These and `pods` only serve to find other
    /// users in the view. A replay has none, so neither is recorded.
    #[serde(skip)]
    pub clients: Vec<IpAddr>,
    /// Sources of its probes within this node's podCIDRs.
    #[serde(skip)]
    pub pods: Vec<IpAddr>,
}

/// The sentinel in the cluster view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sentinel {
    pub exists: bool,
    /// How the sentinel differs from the installed one, as a sentence.
    pub altered: Option<String>,
    /// Whether that is only because an EndpointSlice is not created yet. It matters for the log alone.
    #[serde(skip)]
    pub awaits_slice: bool,
    /// Parts that can be probed, by [`Family`]; none of an altered sentinel.
    pub families: [Option<SentinelFamily>; FAMILIES],
    /// Lanes whose frontend another Service uses.
    #[serde(rename = "contested")]
    pub conflicts: Vec<LaneConflict>,
    /// The rotator's count of the cluster's nodes.
    pub fleet: Option<Published>,
    /// Why an existing count is ignored, as a sentence.
    pub fleet_error: Option<String>,
    /// A sentence of the rotator about a Node that uses one of the sentinel's addresses.
    pub in_use: Option<String>,
    /// The annotation [`ENFORCEMENT`](pathproof_facts::switches::ENFORCEMENT) of its Service.
    pub enforcement: Option<Box<str>>,
}

/// How the sentinel differs from the installed one, as a part of a sentence.
enum Alteration {
    /// As of a new sentinel, whose EndpointSlices come one after the other.
    NoEndpoint(String),
    Other(String),
}

impl From<String> for Alteration {
    fn from(sentence: String) -> Self {
        Self::Other(sentence)
    }
}

pub static ABSENT: LazyLock<Sentinel> = LazyLock::new(Sentinel::default);

impl Sentinel {
    /// The part that rotations do not change. While it is unchanged, the sentinel counts as unchanged.
    pub fn fixed(&self) -> (bool, [Option<SentinelFamily>; FAMILIES]) {
        let fixed = |family: Option<SentinelFamily>| family.map(SentinelFamily::without_generation);
        (self.exists, self.families.map(fixed))
    }

    /// The generations of the sentinel's endpoint, as the API has them.
    pub fn generations(&self) -> impl Iterator<Item = (Family, Transport, u16)> {
        let families = Family::ALL.into_iter().zip(self.families);
        families.flat_map(|(family, found)| {
            let tcp = found.map(|found| (family, Transport::Tcp, found.tcp.generation));
            let udp = found.and_then(|found| found.udp);
            let udp = udp.map(|udp| (family, Transport::Udp, udp.generation));
            [tcp, udp].into_iter().flatten()
        })
    }
}

/// The parts that can be probed in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SentinelFamily {
    pub cluster_ip: IpAddr,
    pub tcp: SentinelPort,
    pub udp: Option<SentinelPort>,
    /// The address of this node at which node ports are dialled.
    pub node_address: Option<IpAddr>,
    /// The sentinel's endpoint for TCP; the port is the generation.
    pub echo: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SentinelPort {
    /// Port of the cluster IP.
    pub port: u16,
    pub node_port: Option<u16>,
    /// Port of the endpoint: the generation that the API holds.
    pub generation: u16,
}

impl SentinelFamily {
    /// The same without generations. A rotation does not change the result, so it disarms no lane.
    #[must_use]
    pub fn without_generation(self) -> Self {
        let fixed = |port: SentinelPort| SentinelPort {
            generation: 0,
            ..port
        };
        Self {
            tcp: fixed(self.tcp),
            udp: self.udp.map(fixed),
            echo: SocketAddr::new(self.echo.ip(), 0),
            ..self
        }
    }
}

/// The sentinel, derived from its Service, its slices and this node.
pub fn sentinel(
    rule: &SentinelRule,
    state: Option<&ServiceState>,
    node: Option<&NodeFacts>,
) -> Sentinel {
    let Some((state, service)) = state.and_then(|state| Some((state, state.service.as_deref()?)))
    else {
        return Sentinel::default();
    };
    let found = routed(service).and_then(|()| families(rule, state, service, node));
    let altered = found.as_ref().err();
    let (newest, fleet_error) = counted(state);
    let value_of = |label: &str| {
        let mark = format!("label {label}");
        node?.marks.get(mark.as_str()).map(|value| &**value)
    };
    let fleet = newest.as_ref().map(|report| report.published(value_of));
    Sentinel {
        exists: true,
        conflicts: Vec::new(),
        fleet,
        fleet_error,
        in_use: newest.and_then(|report| report.in_use),
        enforcement: service.enforcement.clone(),
        awaits_slice: matches!(altered, Some(Alteration::NoEndpoint(_))),
        altered: altered.map(|(Alteration::NoEndpoint(how) | Alteration::Other(how))| {
            format!("Service {} {how}", rule.service)
        }),
        families: found.unwrap_or_default(),
    }
}

/// The newest report in the slices (a slice of an earlier rotator may have an old one), and why a report
/// is ignored.
fn counted(state: &ServiceState) -> (Option<FleetReport>, Option<String>) {
    let (mut newest, mut wrong) = (None::<FleetReport>, None);
    for text in state
        .slices
        .iter()
        .filter_map(|slice| slice.fleet.as_deref())
    {
        match FleetReport::parse(text) {
            Ok(report) => {
                let both = newest.into_iter().chain([report]);
                newest = both.max_by_key(|report| report.written);
            }
            Err(error) => {
                wrong.get_or_insert(format!("the annotation {FLEET} is ignored: {error}"));
            }
        }
    }
    (newest, wrong)
}

/// Checks that no setting of the Service makes a datapath drop or reject probes on purpose.
fn routed(service: &ServiceFacts) -> Result<(), Alteration> {
    if service.external_local || service.internal_local {
        return Err(
            "has traffic policy Local, but its endpoint is not on any node: set both \
             traffic policies to Cluster"
                .to_owned()
                .into(),
        );
    }
    if service.has_source_ranges {
        return Err("has loadBalancerSourceRanges: remove them"
            .to_owned()
            .into());
    }
    Ok(())
}

fn families(
    rule: &SentinelRule,
    state: &ServiceState,
    service: &ServiceFacts,
    node: Option<&NodeFacts>,
) -> Result<[Option<SentinelFamily>; FAMILIES], Alteration> {
    let port = |protocol| service.ports.iter().find(|port| port.protocol == protocol);
    let tcp = port(Protocol::Tcp).ok_or_else(|| "has no TCP port".to_owned())?;
    let udp = port(Protocol::Udp);
    let mut found = [None; FAMILIES];
    for family in Family::ALL {
        let of_family = |ip: &&IpAddr| Family::of(&address(ip)) == family;
        let Some(cluster_ip) = service.cluster_ips.iter().find(of_family) else {
            continue;
        };
        let held = |port: &ServicePort| -> Result<SentinelPort, Alteration> {
            Ok(SentinelPort {
                port: port.port,
                node_port: port.node_port,
                generation: generation(rule, state, family, port)?,
            })
        };
        let tcp = held(tcp)?;
        found[family as usize] = Some(SentinelFamily {
            cluster_ip: *cluster_ip,
            tcp,
            udp: udp.map(held).transpose()?,
            node_address: node.and_then(|node| node.addresses.iter().find(of_family).copied()),
            echo: SocketAddr::new(rule.echo[family as usize], tcp.generation),
        });
    }
    if found.iter().all(Option::is_none) {
        return Err("has no cluster IP".to_owned().into());
    }
    Ok(found)
}

/// The port of a family's only endpoint.
fn generation(
    rule: &SentinelRule,
    state: &ServiceState,
    family: Family,
    port: &ServicePort,
) -> Result<u16, Alteration> {
    let expected = rule.echo[family as usize];
    let named =
        |candidate: &&SlicePort| candidate.name == port.name && candidate.protocol == port.protocol;
    let mut endpoints = state.slices.iter().flat_map(|slice| {
        let number = slice.ports.iter().find(named).map(|port| port.port);
        let of_family = |endpoint: &&EndpointFacts| Family::of(&endpoint.address) == family;
        let endpoints = slice.endpoints.iter().filter(of_family);
        endpoints.map(move |endpoint| (endpoint, number))
    });
    let title = names::of_family(family);
    let wanted =
        format!("its {title} EndpointSlice must contain exactly one ready endpoint, {expected}");
    match (endpoints.next(), endpoints.next()) {
        (Some((endpoint, Some(number))), None)
            if endpoint.address == address(&expected)
                && endpoint.ready
                && !endpoint.terminating =>
        {
            if is_generation(number) {
                return Ok(number);
            }
            Err(format!(
                "has port {number} in its {title} EndpointSlice: the port must be from \
                 {FIRST_GENERATION} to {LAST_GENERATION}"
            )
            .into())
        }
        (None, _) => Err(Alteration::NoEndpoint(format!(
            "has no {title} endpoint: the rotator creates its EndpointSlice"
        ))),
        (Some((_, None)), _) => Err(format!(
            "has a port that its {title} EndpointSlice lacks: {wanted}, with all ports of the \
             Service"
        )
        .into()),
        _ => Err(format!("has an endpoint that is not the sentinel's: {wanted}").into()),
    }
}

#[cfg(test)]
mod tests;
