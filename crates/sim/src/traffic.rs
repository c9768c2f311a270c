//! Client connections: their packets at every device that they cross, and whether they were really
//! answered.

use std::net::SocketAddr;
use std::time::Duration;

use pathproof_facts::node_context::address;
use pathproof_facts::time::Mono;
use pathproof_wire::classify::Direction::{Egress, Ingress};
use pathproof_wire::packet::{Kind, Segment};
use pathproof_wire::service::{Family, FrontendKind};

use super::datapath::{Pod, Reply, Way};
use super::kernel::{BRIDGE, Device, FIRST_POD, Kernel, MIRROR, TUNNEL, UPLINK};
use super::world::{Client, TENANT_PODS};
use super::{SimNode, Task, Unanswered, family_of};

/// Time that a packet takes from one device to the next.
pub(super) const HOP: Duration = Duration::from_micros(40);
/// Size of a client's first data, in bytes. It is large and irregular, so that the sequence numbers of two
/// connections hardly ever differ by exactly this number.
const REQUEST: u32 = 0x0bad_0001;
/// Maximum number of unanswered connections that are recorded.
const KEPT: usize = 4_000;
/// Pauses before a SYN is repeated.
const RETRIES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// A connection without an answer so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialled {
    client: Client,
    service: usize,
    dialled: (FrontendKind, Family),
    ends: (SocketAddr, SocketAddr),
    isn: u32,
    /// Where conntrack sends its packets, if it has an entry.
    way: Option<Way>,
    /// Whether a tenant had taken the dialled address at one of the attempts.
    taken: bool,
    tried: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    pub dialled: u64,
    /// Answered at any attempt.
    pub answered: u64,
    /// Not answered, because a policy denied it or a tenant had taken the address.
    pub denied: u64,
    /// Not answered for any other reason, and abandoned.
    pub failed: u64,
}

/// Creates a packet of a connection from its source and destination.
pub(super) fn packet(kind: Kind, (from, to): (SocketAddr, SocketAddr), isn: u32) -> Segment {
    let port = |at: SocketAddr| match kind {
        Kind::Unreachable => [0; 2],
        _ => at.port().to_be_bytes(),
    };
    Segment {
        source: address(&from.ip()),
        destination: address(&to.ip()),
        kind,
        family: family_of(&to.ip()),
        isn,
        payload: 0,
        source_port: port(from),
        destination_port: port(to),
        beginning: [0; 4],
    }
}

/// The trip of one packet through the node, with one hop per device.
pub(super) struct Trip<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) now: Mono,
}

impl Trip<'_> {
    pub(super) fn enters(&mut self, device: Device, packet: &Segment) -> Mono {
        self.now = self.now.plus(HOP);
        self.kernel.cross(device, Ingress, packet, self.now);
        self.now
    }

    pub(super) fn leaves(&mut self, device: Device, packet: &Segment) -> Mono {
        self.now = self.now.plus(HOP);
        self.kernel.cross(device, Egress, packet, self.now);
        self.now
    }
}

impl SimNode {
    /// Dials for a client, if the Service exists.
    pub(super) fn dial(&mut self, stream: usize, now: Mono) {
        let place = stream;
        let stream = &self.world.streams[place];
        let (client, service) = (stream.client, stream.service);
        let (kind, family) = (stream.kind, stream.family);
        let keeps_port = stream.keeps_port;
        let Some(frontend) = self.datapath.frontend(service, (kind, family)) else {
            return;
        };
        self.port = if self.port < 60_000 {
            self.port + 1
        } else {
            20_000
        };
        let kept = self.kept.get(&place).copied().filter(|_| keeps_port);
        let port = kept.map_or(self.port, |(port, _)| port);
        let source = SocketAddr::new(self.datapath.client(client)[family as usize], port);
        self.truth_of(client, service).dialled += 1;
        let isn = self.dice.word() as u32;
        let way = kept.map(|(_, way)| way);
        let dialled = Dialled {
            client,
            service,
            dialled: (kind, family),
            ends: (source, frontend),
            isn,
            way,
            taken: false,
            tried: 0,
        };
        let way = self.try_dial(dialled, now);
        // If the last connection was closed, a SYN from the same port gets a new conntrack entry. If it was
        // not answered, the old entry stays as long as SYNs arrive.
        match way {
            Some(way @ Way::To(_)) if keeps_port => drop(self.kept.insert(place, (port, way))),
            _ => drop(self.kept.remove(&place)),
        }
    }

    /// Outcomes that this connection counts for. The tenant's pods and Services are counted separately.
    fn truth_of(&mut self, client: Client, service: usize) -> &mut Truth {
        let is_his = |pod: u8| pod >= TENANT_PODS;
        if matches!(client, Client::Pod(pod) if is_his(pod))
            || self.world.services[service].is_tenants()
        {
            return &mut self.truth.tenant;
        }
        match client {
            Client::PodProbe => &mut self.truth.pod_probe,
            Client::Outsider(_) => &mut self.truth.outsiders,
            Client::Pod(_) | Client::Host => &mut self.truth.pods,
        }
    }

    /// Sends a SYN for the first time or again. If it is not answered, returns where it went.
    pub(super) fn try_dial(&mut self, mut dialled: Dialled, now: Mono) -> Option<Way> {
        let (client, service) = (dialled.client, dialled.service);
        let way = match dialled.way {
            // conntrack keeps no entry for dropped and refused SYNs.
            Some(way @ (Way::To(_) | Way::Untranslated)) => way,
            _ => {
                let to = dialled.dialled;
                self.datapath.way(client, service, to, &mut self.dice)
            }
        };
        dialled.way = Some(way);
        dialled.taken |= self.datapath.is_taken(service, dialled.dialled);
        if self.send(&dialled, way, now) {
            self.truth_of(client, service).answered += 1;
            return None;
        }
        let meant = self.datapath.denial(client, service).is_some() || dialled.taken;
        self.note_unanswered(&dialled, way, meant, now);
        let Some(pause) = RETRIES.get(dialled.tried) else {
            let truth = self.truth_of(client, service);
            match meant {
                true => truth.denied += 1,
                false => truth.failed += 1,
            }
            return Some(way);
        };
        dialled.tried += 1;
        self.push(now.plus(*pause), Task::Again(dialled));
        Some(way)
    }

    fn note_unanswered(&mut self, dialled: &Dialled, way: Way, meant: bool, now: Mono) {
        let family = dialled.dialled.1;
        if way == Way::Dropped && self.datapath.has(super::Fault::ConntrackFull, family) {
            self.dropped_by_table += 1;
        }
        if dialled.tried > 0 || meant || self.unanswered.len() >= KEPT {
            return;
        }
        self.unanswered.push(Unanswered {
            at: now,
            client: dialled.client,
            stale: matches!(way, Way::To(pod) if self.datapath.has_left(pod, now)),
            astray: match way {
                Way::To(pod) if !self.datapath.routes_pods(pod.local, family) => {
                    Some(pod.ip(family))
                }
                _ => None,
            },
        });
    }

    /// Device by which a client's packets enter; `None` for the pod probe, whose device depends on its pod.
    pub(super) fn door_of(client: Client) -> Option<Device> {
        match client {
            Client::Pod(pod) => Some(FIRST_POD + 10_000 + u32::from(pod)),
            Client::Outsider(_) => Some(UPLINK),
            Client::PodProbe | Client::Host => None,
        }
    }

    fn device_of(&self, client: Client) -> Option<Device> {
        let of_probe = || {
            let pod = self.datapath.pod_probe()?;
            self.datapath.devices.get(&pod.ips[0]).copied()
        };
        match client {
            Client::PodProbe => of_probe(),
            _ => Self::door_of(client),
        }
    }

    /// Device by which answers to a client leave: the uplink if the routes to this node's pods are gone.
    fn way_back(&self, dialled: &Dialled) -> Option<Device> {
        let is_pod = matches!(dialled.client, Client::Pod(_) | Client::PodProbe);
        let door = self.device_of(dialled.client)?;
        match is_pod && !self.datapath.routes_pods(true, dialled.dialled.1) {
            true => Some(UPLINK),
            false => Some(door),
        }
    }
    /// Sends one SYN and everything that follows. Returns whether it was answered.
    fn send(&self, dialled: &Dialled, way: Way, now: Mono) -> bool {
        let (source, frontend) = dialled.ends;
        let door = self.device_of(dialled.client);
        let bridged =
            self.world.bridged && matches!(dialled.client, Client::Pod(_) | Client::PodProbe);
        let mut trip = Trip {
            kernel: &self.kernel,
            now,
        };
        let syn = packet(Kind::Syn, dialled.ends, dialled.isn);
        if let Some(door) = door {
            trip.enters(door, &syn);
            if self.world.mirrored {
                trip.leaves(MIRROR, &syn);
            }
            if bridged {
                trip.enters(BRIDGE, &syn);
            }
        }
        let refusal = match way {
            Way::To(pod) => return self.deliver(dialled, pod, &mut trip),
            Way::Untranslated => {
                trip.leaves(UPLINK, &syn);
                return false;
            }
            Way::Dropped => return false,
            Way::Reset => packet(Kind::Reset, (frontend, source), dialled.isn),
            Way::Rejected => {
                let node = self.datapath.address[dialled.dialled.1 as usize];
                let node = SocketAddr::new(node, 0);
                packet(Kind::Unreachable, (node, source), dialled.isn)
            }
        };
        if let Some(door) = self.way_back(dialled) {
            trip.leaves(door, &refusal);
        }
        false
    }

    /// Delivers a SYN to an endpoint, and its answer.
    fn deliver(&self, dialled: &Dialled, pod: Pod, trip: &mut Trip<'_>) -> bool {
        let (source, _) = dialled.ends;
        let family = dialled.dialled.1;
        let from_outside = matches!(dialled.client, Client::Outsider(_));
        // A pod that reaches itself is masqueraded too, since it would not accept an answer from itself.
        let is_own = pod.ip(family) == source.ip();
        let masqueraded = (from_outside || is_own) && self.datapath.masquerades(family);
        let seen_as = match masqueraded {
            true => SocketAddr::new(self.datapath.address[family as usize], source.port()),
            false => source,
        };
        let port = self.datapath.services[dialled.service].target;
        let endpoint = SocketAddr::new(pod.ip(family), port);
        let syn = packet(Kind::Syn, (seen_as, endpoint), dialled.isn);
        let routed = self.datapath.routes_pods(pod.local, family);
        let device = self.datapath.devices.get(&pod.ip(family)).copied();
        let Some(device) = device.filter(|_| routed) else {
            let is_outside = pod.local && self.datapath.is_foreign(dialled.service, pod);
            let by = match self.world.overlay && routed && !is_outside {
                true => TUNNEL,
                false => UPLINK,
            };
            trip.leaves(by, &syn);
            // An endpoint on another node answers to the source that it saw. A client that dialled this
            // node does not accept such a direct answer.
            let reached = routed && !pod.local && (masqueraded || !from_outside);
            return reached && self.answered(dialled, pod, (by, endpoint, seen_as), trip);
        };
        if self.world.bridged {
            trip.leaves(BRIDGE, &syn);
        }
        trip.leaves(device, &syn);
        self.answered(dialled, pod, (device, endpoint, seen_as), trip)
    }

    /// Lets an endpoint accept, refuse or ignore a SYN. Returns whether the client got an answer.
    fn answered(
        &self,
        dialled: &Dialled,
        pod: Pod,
        (device, endpoint, seen_as): (Device, SocketAddr, SocketAddr),
        trip: &mut Trip<'_>,
    ) -> bool {
        let kind = match self.datapath.reply(pod, trip.now) {
            Reply::Accepts => Kind::SynAck,
            Reply::Refuses => Kind::Reset,
            Reply::Nothing => return false,
        };
        let (source, frontend) = dialled.ends;
        trip.enters(device, &packet(kind, (endpoint, seen_as), dialled.isn));
        let door = self.way_back(dialled);
        if let Some(door) = door {
            trip.leaves(door, &packet(kind, (frontend, source), dialled.isn));
        }
        if door != self.device_of(dialled.client) {
            return false;
        }
        kind == Kind::Reset || self.exchange(dialled, (device, endpoint, seen_as), trip)
    }

    /// Exchanges a client's data and the answer. Returns whether the client got the answer.
    fn exchange(
        &self,
        dialled: &Dialled,
        (device, endpoint, seen_as): (Device, SocketAddr, SocketAddr),
        trip: &mut Trip<'_>,
    ) -> bool {
        let (source, frontend) = dialled.ends;
        let Some(door) = self.device_of(dialled.client) else {
            return true;
        };
        let request = |ends| Segment {
            payload: REQUEST,
            beginning: 0_u32.to_ne_bytes(),
            ..packet(Kind::Data, ends, dialled.isn)
        };
        trip.enters(door, &request((source, frontend)));
        if self
            .datapath
            .has(super::Fault::DataDropped, dialled.dialled.1)
        {
            // The client repeats its data, and nothing else happens on this connection.
            trip.enters(door, &request((source, frontend)));
            trip.enters(door, &request((source, frontend)));
            return false;
        }
        trip.leaves(device, &request((seen_as, endpoint)));
        let answer = Segment {
            beginning: dialled.isn.wrapping_add(REQUEST).to_ne_bytes(),
            payload: REQUEST,
            ..packet(Kind::Data, (frontend, source), !dialled.isn)
        };
        trip.leaves(door, &answer);
        true
    }
}
