//! Where a new connection goes, by the current rules, faults and policies of a simulated node. Nothing is
//! changed or sent here.

use std::net::IpAddr;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_wire::service::{Family, FrontendKind};
use pathproof_witness::evidence::EndpointRoute;

use super::{Datapath, Pod, UPLINK, addresses};
use crate::dice::Dice;
use crate::world::{Client, Denial, Fault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It leaves by the uplink unchanged.
    Untranslated,
    /// The node's network stack refuses it.
    Reset,
    /// A rule refuses it by ICMP.
    Rejected,
    Dropped,
    To(Pod),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Accepts,
    Refuses,
    Nothing,
}

impl Datapath {
    pub(crate) fn has(&self, fault: Fault, family: Family) -> bool {
        self.faults.contains(&(fault, family))
    }

    /// Whether there are no rules.
    fn is_flushed(&self, family: Family) -> bool {
        self.has(Fault::Flushed, family) || self.has(Fault::TablesGone, family)
    }

    pub(crate) fn forwards(&self, family: Family) -> bool {
        !self.has(Fault::ForwardingOff, family)
    }

    pub(crate) fn masquerades(&self, family: Family) -> bool {
        !self.has(Fault::NotMasqueraded, family)
    }

    /// Whether routes to this node's pods, or to those of other nodes, exist.
    pub(crate) fn routes_pods(&self, local: bool, family: Family) -> bool {
        !match local {
            true => self.has(Fault::PodRoutesGone, family),
            false => self.has(Fault::RemoteRoutesGone, family),
        }
    }

    /// The pods' device by which the node reaches an address, if one does.
    pub(crate) fn route_to(&self, endpoint: IpAddr) -> Option<EndpointRoute> {
        let family = match endpoint {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        };
        let index = *self.devices.get(&endpoint).filter(|by| **by != UPLINK)?;
        self.routes_pods(true, family).then(|| EndpointRoute {
            endpoint,
            device: "cni0".to_owned(),
            index,
            is_own: true,
        })
    }

    pub(crate) fn reply(&self, pod: Pod, now: Mono) -> Reply {
        if self.is_dead(pod, now) {
            return Reply::Nothing;
        }
        self.sick
            .get(&pod.ips[0])
            .copied()
            .unwrap_or(Reply::Accepts)
    }

    /// Whether an endpoint has left and stopped answering, or never existed.
    pub(crate) fn is_dead(&self, pod: Pod, now: Mono) -> bool {
        let ip = &pod.ips[0];
        match self.graves.get(ip) {
            Some(until) => now >= *until,
            None => !self.devices.contains_key(ip) && !self.remote.contains(ip),
        }
    }

    /// Whether an endpoint has left its slice and stopped answering.
    pub(crate) fn has_left(&self, pod: Pod, now: Mono) -> bool {
        let until = self.graves.get(&pod.ips[0]);
        until.is_some_and(|until| *until > Mono(0) && now >= *until)
    }

    /// Policy that denies this connection, if any. A policy for all clients spares the pod probe, which has
    /// a separate NetworkPolicy.
    pub(crate) fn denial(&self, client: Client, service: usize) -> Option<Denial> {
        let spared = client == Client::PodProbe;
        let meant = |(from, to, _): &&(Option<Client>, Option<usize>, Denial)| {
            from.map_or(!spared, |from| from == client) && to.is_none_or(|to| to == service)
        };
        self.denials.iter().find(meant).map(|(.., denial)| *denial)
    }

    /// Where the rules, faults and policies send a connection.
    pub(crate) fn way(
        &self,
        client: Client,
        service: usize,
        (kind, family): (FrontendKind, Family),
        dice: &mut Dice,
    ) -> Way {
        if self.has(Fault::ConntrackFull, family) {
            return Way::Dropped;
        }
        let Some(pods) = self.ruled(service, (kind, family)) else {
            return self.unruled(client, (kind, family));
        };
        if pods.is_empty() {
            return Way::Rejected;
        }
        let masqueraded = matches!(client, Client::Outsider(_)) && self.masquerades(family);
        if client != Client::Host {
            if let Some(stopped) = self.stopped(masqueraded, family) {
                return stopped;
            }
            match self.denial(client, service) {
                Some(Denial::Drop) => return Way::Dropped,
                Some(Denial::Reject) => return Way::Rejected,
                None => {}
            }
        }
        let chosen = dice.below(pods.len());
        match self.has(Fault::Astray, family) {
            // A restored snapshot points to addresses that were endpoints long ago.
            true => Way::To(Pod {
                ips: addresses::long_ago((service * 8 + chosen) as u32),
                local: false,
                peer: 0,
            }),
            false => Way::To(pods[chosen]),
        }
    }

    /// Endpoints in the rules for the dialled address; `None` if no rule matches.
    fn ruled(&self, service: usize, dialled: (FrontendKind, Family)) -> Option<&Vec<Pod>> {
        let family = dialled.1;
        let gone = self.is_flushed(family)
            || self.has(Fault::Emptied(service), family)
            || self.has(Fault::OthersGone, family);
        let taken = self
            .frontend(service, dialled)
            .and_then(|at| self.taken.get(&at));
        let rules = self.services[taken.copied().unwrap_or(service)]
            .rules
            .as_ref();
        rules.filter(|_| !gone)
    }

    /// The outcome of a translated connection that a fault stops; `None` if no fault stops it.
    fn stopped(&self, masqueraded: bool, family: Family) -> Option<Way> {
        if !self.forwards(family) || self.has(Fault::ForwardDropped, family) {
            return Some(Way::Dropped);
        }
        if self.has(Fault::ForwardRejected, family) {
            return Some(Way::Rejected);
        }
        let denied = self.has(Fault::ForwardPolicy, family) && !masqueraded;
        denied.then_some(Way::Dropped)
    }

    /// The outcome of a connection for which there are no rules.
    fn unruled(&self, client: Client, (kind, family): (FrontendKind, Family)) -> Way {
        let stopped = self.stopped(false, family);
        match kind {
            FrontendKind::ClusterIp if client == Client::Host => Way::Untranslated,
            FrontendKind::ClusterIp => stopped.unwrap_or(Way::Untranslated),
            _ => Way::Reset,
        }
    }

    /// Where a probe goes, and the generation that it reaches.
    pub(crate) fn way_of_probe(
        &self,
        (path, transport, family): (ProbePath, Transport, Family),
        frontend: &std::net::SocketAddr,
    ) -> (Way, Option<u16>) {
        let (client, kind) = match path {
            ProbePath::Pod => (Client::Pod(0), FrontendKind::ClusterIp),
            ProbePath::OffCluster => (Client::Outsider(0), FrontendKind::ClusterIp),
            ProbePath::NodePort => (Client::Outsider(0), FrontendKind::NodePort),
            ProbePath::Host => (Client::Host, FrontendKind::ClusterIp),
        };
        if self.has(Fault::ConntrackFull, family) {
            return (Way::Dropped, None);
        }
        if self.is_flushed(family) {
            return (self.unruled(client, (kind, family)), None);
        }
        if client != Client::Host {
            let masqueraded = path != ProbePath::Pod && self.masquerades(family);
            if let Some(stopped) = self.stopped(masqueraded, family) {
                return (stopped, None);
            }
            match self.filtered.filter(|_| path != ProbePath::Pod) {
                Some(Denial::Drop) => return (Way::Dropped, None),
                Some(Denial::Reject) => return (Way::Rejected, None),
                None => {}
            }
        }
        // Simulated Services have only TCP ports.
        let thief = self.thief(frontend).filter(|_| transport == Transport::Tcp);
        match thief {
            Some(Some(pod)) => return (Way::To(pod), None),
            Some(None) => return (Way::Rejected, None),
            None => {}
        }
        let echo = Pod {
            ips: addresses::ECHO,
            local: true,
            peer: 0,
        };
        (Way::To(echo), Some(self.echo))
    }
}
