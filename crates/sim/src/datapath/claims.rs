//! Claims of Services on foreign addresses: external IPs, and endpoints that are not their pods.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, FrontendKind};

use super::super::world::{Claim, Client, Foreign};
use super::addresses::{self, Both, ECHO};
use super::{Datapath, Pod};

impl Datapath {
    pub(super) fn foreign(&mut self, foreign: Foreign, local: bool) -> Option<Pod> {
        let ips = match foreign {
            Foreign::PodOf(service) => self.services.get(service)?.pods.first()?.ips,
            Foreign::Outsider(outsider) => self.client(Client::Outsider(outsider)),
            Foreign::Echo => ECHO,
            Foreign::Node => self.address,
        };
        if !matches!(foreign, Foreign::PodOf(_)) {
            // An endpoint that is no simulated pod never answers.
            self.graves.insert(ips[0], Mono(0));
        }
        Some(Pod {
            ips,
            local,
            peer: 0,
        })
    }

    /// Whether a Service's endpoint is none of its pods.
    pub(in super::super) fn is_foreign(&self, service: usize, endpoint: Pod) -> bool {
        self.services[service].foreign.contains(&endpoint)
    }

    pub(super) fn claimed(&self, claim: Claim) -> Both {
        match claim {
            Claim::ClusterIp(service) => addresses::cluster_ip(service),
            Claim::Sentinel => addresses::SENTINEL,
            Claim::Echo => ECHO,
            Claim::Node => self.address,
            Claim::Own(number) => addresses::unused(number),
        }
    }

    /// Claims by external IPs.
    pub(super) fn claims(&self) -> BTreeMap<SocketAddr, usize> {
        let exist = self
            .services
            .iter()
            .enumerate()
            .filter(|(_, service)| service.exists);
        let claims = exist.flat_map(|(place, service)| {
            let ports = service.facts.ports.iter();
            ports.flat_map(move |port| {
                let ips = service.facts.external_ips.iter();
                ips.map(move |ip| (SocketAddr::new(*ip, port.port), place))
            })
        });
        claims.collect()
    }

    /// Whether a tenant has taken this address of a Service.
    pub(in super::super) fn is_taken(
        &self,
        service: usize,
        dialled: (FrontendKind, Family),
    ) -> bool {
        let frontend = self.frontend(service, dialled);
        frontend.is_some_and(|frontend| {
            let taken = self.taken.get(&frontend);
            taken.is_some_and(|by| *by != service)
        })
    }

    /// If a Service has taken a probe's frontend: its endpoint, if it has one.
    pub(super) fn thief(&self, frontend: &SocketAddr) -> Option<Option<Pod>> {
        let rules = self.services[*self.taken.get(frontend)?].rules.as_ref()?;
        Some(rules.first().copied())
    }
}
