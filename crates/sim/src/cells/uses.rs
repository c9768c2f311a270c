//! Uses of a node: which clients dial which Services, and how often. Events are in other tables.

use std::time::Duration;

use pathproof_rotator::rotation::INTERVAL;
use pathproof_wire::service::Family;

use crate::world::{ServiceSpec, Stack, Stream, World};

/// Endpoints of each Service on this node and on other nodes.
const LOCAL: usize = 2;
const REMOTE: usize = 2;
/// Pods of the pod probe on other nodes.
const OTHERS: usize = 3;
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub name: &'static str,
    /// Namespace of each Service.
    pub services: &'static [&'static str],
    /// Whether the pod probe runs as the chart installs it.
    pub pod_probe: bool,
    users: &'static [Users],
}

/// Clients that each dial all Services.
#[derive(Clone, Copy, Debug)]
struct Users {
    who: Who,
    number: u8,
    /// New connections per second of all these clients together, divided among the families.
    per_second: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Outside,
    Pods,
    Host,
}

const fn users(who: Who, number: u8, per_second: u32) -> Users {
    Users {
        who,
        number,
        per_second,
    }
}

const fn used(
    name: &'static str,
    services: &'static [&'static str],
    users: &'static [Users],
) -> Use {
    Use {
        name,
        services,
        pod_probe: false,
        users,
    }
}

const fn with_pod_probe(used: Use) -> Use {
    Use {
        pod_probe: true,
        ..used
    }
}

const BALANCER: &[Users] = &[users(Who::Outside, 1, 10)];
const CROWD: &[Users] = &[users(Who::Outside, 20, 60)];
const ONE_POD: &[Users] = &[users(Who::Pods, 1, 5)];
const TEAM: &[Users] = &[users(Who::Pods, 3, 9)];
const ALL: &[Users] = &[users(Who::Pods, 4, 12), users(Who::Outside, 6, 12)];
const HOST: &[Users] = &[users(Who::Host, 1, 5)];

const SHOPS: &[&str] = &["shop", "bank"];
const TEAMS: &[&str] = &["shop", "shop", "bank", "mail"];

/// The uses of the tables.
pub const USES: [Use; 10] = [
    used("idle", &[], &[]),
    with_pod_probe(used("idle, pod probe", &[], &[])),
    used("outside only, 1 Service, 1 source", &["shop"], BALANCER),
    used("outside only, many", SHOPS, CROWD),
    with_pod_probe(used("outside only, many, pod probe", SHOPS, CROWD)),
    used("one pod, one Service", &["shop"], ONE_POD),
    used("one namespace", &["shop", "shop", "shop"], TEAM),
    used("many", TEAMS, ALL),
    with_pod_probe(used("many, pod probe", TEAMS, ALL)),
    used("host network pods only", SHOPS, HOST),
];

impl Use {
    pub(super) fn has_outsiders(&self) -> bool {
        self.has(Who::Outside)
    }

    /// Whether pods other than the pod probe use the node.
    pub(super) fn has_pods(&self) -> bool {
        self.has(Who::Pods)
    }

    pub(super) fn has_host(&self) -> bool {
        self.has(Who::Host)
    }

    fn has(&self, who: Who) -> bool {
        self.users.iter().any(|users| users.who == who)
    }

    /// Whether at most the pod probe uses the node.
    pub(super) fn is_idle(&self) -> bool {
        self.users.is_empty()
    }

    /// Number of dialled Services, including the pod probe's.
    pub(super) fn dialled(&self) -> usize {
        self.services.len() + usize::from(self.pod_probe)
    }

    /// World with this use and without events.
    pub fn world(&self, stack: Stack) -> World {
        let named = self.services.iter();
        let mut services: Vec<_> = named
            .map(|namespace| ServiceSpec::new(namespace, LOCAL, REMOTE))
            .collect();
        let families = stack.families();
        let each = stack.families().count() as u32;
        let mut streams: Vec<Stream> = families
            .flat_map(|family| self.streams(family, each))
            .collect();
        if self.pod_probe {
            let probe = Stream::of_pod_probe(services.len());
            let families = stack.families();
            streams.extend(families.map(|family| probe.clone().over(family)));
            services.push(ServiceSpec::pod_probe(OTHERS));
        }
        World {
            services,
            streams,
            rotation: Some(INTERVAL),
            stack,
            overlay: true,
            ..World::default()
        }
    }

    /// Streams in one of `families` families that share the rate.
    fn streams(&self, family: Family, families: u32) -> Vec<Stream> {
        let mut streams = Vec::new();
        for users in self.users {
            let number = u32::from(users.number) * self.services.len() as u32 * families;
            let every = Duration::from_secs(1) * number / users.per_second;
            for (client, service) in (0..users.number)
                .flat_map(|client| (0..self.services.len()).map(move |service| (client, service)))
            {
                let stream = match users.who {
                    Who::Outside => Stream::of_outsider(client, service, every),
                    Who::Pods => Stream::of_pod(client, service, every),
                    Who::Host => Stream::of_host(service, every),
                };
                streams.push(stream.over(family));
            }
        }
        streams
    }
}
