//! Innocent worlds, in which the node is not at fault. Each row names the explanation of all its failures.
//! Do not add a fault of a node here, unless it affects nobody.

use std::time::Duration;

use pathproof_wire::service::Family;

use super::uses::Use;
use crate::ms;
use crate::world::{
    Act, Claim, Client, Denial, Fault, Foreign, ServiceSpec, Sickness, Stack, Stream, TENANT,
    TENANT_PODS, World,
};

#[derive(Clone, Copy, Debug)]
pub struct WorldRow {
    pub name: &'static str,
    /// Explanation of all failures in it.
    pub covered_by: &'static str,
    begin: fn(World, Duration) -> World,
}

const fn row(
    name: &'static str,
    covered_by: &'static str,
    begin: fn(World, Duration) -> World,
) -> WorldRow {
    WorldRow {
        name,
        covered_by,
        begin,
    }
}

const S: Duration = Duration::from_secs(1);
/// Time between the start of two filters or policies without a common onset.
const APART: Duration = Duration::from_secs(10);
/// Time for which an endpoint keeps serving after it left.
const GRACE: Duration = Duration::from_secs(40);
const POLICY: &str = "a NetworkPolicy";
const BOTH: &str = "a filter and a policy, without a common onset";
const FILTER: &str = "a filter on the sentinel's addresses";
const INSPECTED: &str = "an inline filter on the sentinel's data";
const NEVER: &str = "a port that never worked, dialled from outside";
const LATE: &str = "a proxy that has not followed yet";
const APPLICATION: &str = "the application";
const UNUSED: &str = "nobody uses that family";
pub(super) const QUIET: &str = "nothing fails";

/// The innocent worlds of the table.
#[rustfmt::skip]
pub const WORLDS: [WorldRow; 43] = [
    row("nothing happens", QUIET, |world, _| world),
    row("a policy drops one pod", POLICY, |world, at| denied(world, at, Scope::Pod, Denial::Drop)),
    row("a policy rejects one pod", POLICY, |world, at| denied(world, at, Scope::Pod, Denial::Reject)),
    row("a policy drops one Service", POLICY, |world, at| denied(world, at, Scope::Service, Denial::Drop)),
    row("a policy rejects one Service", POLICY, |world, at| denied(world, at, Scope::Service, Denial::Reject)),
    row("a policy drops one namespace", POLICY, |world, at| denied(world, at, Scope::Namespace, Denial::Drop)),
    row("a policy rejects one namespace", POLICY, |world, at| denied(world, at, Scope::Namespace, Denial::Reject)),
    row("a default deny drops all pods but the pod probe", POLICY, |world, at| denied(world, at, Scope::All, Denial::Drop)),
    row("a default deny rejects all pods but the pod probe", POLICY, |world, at| denied(world, at, Scope::All, Denial::Reject)),
    row("a filter drops the sentinel", FILTER, |world, at| world.with(at, Act::FilterSentinel)),
    row("a filter rejects the sentinel", FILTER, |world, at| world.with(at, Act::RejectSentinel)),
    row("an inline filter drops the sentinel's data", INSPECTED, |world, at| world.with(at, Act::InspectSentinel)),
    row("the filter, 10 s later one pod is dropped", BOTH, |world, at| filtered(world, at, Scope::Pod)),
    row("the filter, 10 s later one Service is dropped", BOTH, |world, at| filtered(world, at, Scope::Service)),
    row("the filter, 10 s later one namespace is dropped", BOTH, |world, at| filtered(world, at, Scope::Namespace)),
    row("the filter, 10 s later a default deny", BOTH, |world, at| filtered(world, at, Scope::All)),
    row("one pod is dropped, 10 s later the filter", BOTH, |world, at| denied_first(world, at, Scope::Pod)),
    row("one Service is dropped, 10 s later the filter", BOTH, |world, at| denied_first(world, at, Scope::Service)),
    row("one namespace is dropped, 10 s later the filter", BOTH, |world, at| denied_first(world, at, Scope::Namespace)),
    row("a default deny, 10 s later the filter", BOTH, |world, at| denied_first(world, at, Scope::All)),
    row("scanners at a filtered node port", NEVER, |world, _| scanned(world, None)),
    row("scanners at a node port without rules", NEVER, |world, _| scanned(world, Some(()))),
    row("scanners and the filter", "a filter, and a port that never worked", |world, at| scanned(world, None).with(at, Act::FilterSentinel)),
    row("forged SYNs from outside", "packets of clients that never succeeded", |world, _| forged(world)),
    row("forged SYNs and the filter", "a filter, and packets of clients that never succeeded", |world, at| forged(world).with(at, Act::FilterSentinel)),
    row("a tenant claims the sentinel's address", "a claim by another Service", |world, _| claimed(world)),
    row("a tenant's Service has foreign endpoints, his pods are denied", "the tenant's namespace", mischief),
    row("a tenant of two namespaces lists addresses outside as endpoints here", "endpoints that no pod's device ever led to", two_namespaces),
    row("proxy 5 s late, endpoints move", LATE, |world, at| late(world, at, S * 5, GRACE)),
    row("proxy 5 s late, endpoints die at once", LATE, |world, at| late(world, at, S * 5, Duration::ZERO)),
    row("proxy 20 s late, endpoints end gracefully", LATE, |world, at| late(world, at, S * 20, GRACE)),
    row("a new Service, proxy 5 s late", LATE, new_service),
    row("the node itself dials two new Services, proxy 45 s late", LATE, new_to_host),
    row("source ports reused to an endpoint that left", "the clients' own ports", reused),
    row("source ports reused alone, nothing else changes", "the clients' own ports", reused_alone),
    row("endpoints move every 5 s", QUIET, |world, at| late(world, at, ms(500), GRACE)),
    row("a mirror copies every SYN", QUIET, |world, _| World { mirrored: true, ..world }),
    row("backends of one Service are silent", APPLICATION, |world, at| world.with(at, Act::Sicken(0, Sickness::Silent))),
    row("backends of all Services are silent", APPLICATION, |world, at| sick(world, at, Sickness::Silent)),
    row("pods are bridged to the uplink, backends of all Services are silent", APPLICATION, |world, at| sick(World { flat: true, ..world }, at, Sickness::Silent)),
    row("a load balancer probes an application that refuses", APPLICATION, probed),
    row("IPv6's rules gone where only IPv4 is used", UNUSED, |world, at| unused(world, at, Family::V6)),
    row("IPv4's rules gone where only IPv6 is used", UNUSED, |world, at| unused(world, at, Family::V4)),
];

impl WorldRow {
    /// Whether it affects this use. Some rows need pods or outside clients. Without them, policies deny
    /// nothing (a default deny spares the pod probe). No users' data shows that an inline filter drops only
    /// the sentinel's data. And no family counts as unused.
    pub fn touches(&self, used: &Use) -> bool {
        let needs_users = [POLICY, BOTH, INSPECTED, UNUSED].contains(&self.covered_by);
        !needs_users || used.has_pods() || used.has_outsiders()
    }

    /// Adds the event to a world.
    pub fn begin(&self, world: World, at: Duration) -> World {
        (self.begin)(world, at)
    }
}

#[derive(Clone, Copy)]
enum Scope {
    Pod,
    Service,
    Namespace,
    All,
}

fn denied(mut world: World, at: Duration, scope: Scope, denial: Denial) -> World {
    let (client, services): (_, Vec<Option<usize>>) = match scope {
        Scope::Pod => (Some(Client::Pod(0)), vec![None]),
        Scope::Service => (None, vec![Some(0)]),
        Scope::Namespace => (None, first_namespace(&world)),
        Scope::All => (None, vec![None]),
    };
    for service in services {
        world = world.with(at, Act::Deny(client, service, denial));
    }
    world
}

/// Services in the namespace of the first one.
fn first_namespace(world: &World) -> Vec<Option<usize>> {
    let first = world
        .services
        .first()
        .map(|service| service.namespace.clone());
    let all = world.services.iter().enumerate();
    let same = all.filter(|(_, service)| Some(&service.namespace) == first.as_ref());
    same.map(|(place, _)| Some(place)).collect()
}

fn filtered(world: World, at: Duration, scope: Scope) -> World {
    let world = world.with(at, Act::FilterSentinel);
    denied(world, at + APART, scope, Denial::Drop)
}

fn denied_first(world: World, at: Duration, scope: Scope) -> World {
    let world = denied(world, at, scope, Denial::Drop);
    world.with(at + APART, Act::FilterSentinel)
}

/// Adds clients outside, each in every family.
fn with_outsiders(
    mut world: World,
    clients: std::ops::Range<u8>,
    service: usize,
    every: Duration,
) -> World {
    let families: Vec<Family> = world.stack.families().collect();
    for client in clients {
        let stream = Stream::of_outsider(client, service, every);
        let all = families.iter().map(|family| stream.clone().over(*family));
        world.streams.extend(all);
    }
    world
}

const SCANNERS: std::ops::Range<u8> = 200..205;
const FORGED: std::ops::Range<u8> = 100..110;

/// A Service that no client outside ever reached: its node port is filtered or has no rules.
fn scanned(mut world: World, ruleless: Option<()>) -> World {
    let service = world.services.len();
    world.services.push(ServiceSpec::new("internal", 1, 1));
    let act = match ruleless {
        Some(()) => Act::Break(Fault::Emptied(service)),
        None => Act::Deny(None, Some(service), Denial::Drop),
    };
    let world = world.with(Duration::ZERO, act);
    with_outsiders(world, SCANNERS, service, ms(500))
}

/// SYNs from sources that the kernel does not accept on the uplink.
fn forged(mut world: World) -> World {
    for client in FORGED {
        let denied = Act::Deny(Some(Client::Outsider(client)), None, Denial::Drop);
        world = world.with(Duration::ZERO, denied);
    }
    for service in 0..world.services.len() {
        world = with_outsiders(world, FORGED, service, ms(1_000));
    }
    world
}

fn claimed(mut world: World) -> World {
    world.services.push(ServiceSpec {
        claims: vec![Claim::Sentinel],
        ..ServiceSpec::new(TENANT, 1, 0)
    });
    World {
        claims_win: true,
        ..world
    }
}

fn mischief(mut world: World, at: Duration) -> World {
    let service = world.services.len();
    let pod = TENANT_PODS;
    world.services.push(ServiceSpec {
        foreign: vec![(Foreign::Outsider(9), true), (Foreign::Node, false)],
        ..ServiceSpec::new(TENANT, 1, 0)
    });
    for family in world.stack.families() {
        for to in 0..=service {
            let stream = Stream::of_pod(pod, to, ms(200));
            world.streams.push(stream.over(family));
        }
    }
    world.with(at, Act::Deny(Some(Client::Pod(pod)), None, Denial::Drop))
}

/// Connections to these endpoints leave by the uplink, as if routes of pods were missing.
fn two_namespaces(mut world: World, _: Duration) -> World {
    for (pod, namespace) in (TENANT_PODS..).zip([TENANT, "tenant-prod"]) {
        let service = world.services.len();
        world.services.push(ServiceSpec {
            foreign: vec![(Foreign::Outsider(pod), true)],
            ..ServiceSpec::new(namespace, 0, 0)
        });
        for family in world.stack.families() {
            let stream = Stream::of_pod(pod, service, ms(200));
            world.streams.push(stream.over(family));
        }
    }
    world
}

/// The Services' endpoints move in turn, and the proxy follows late.
fn late(mut world: World, at: Duration, delay: Duration, grace: Duration) -> World {
    let services = world.services.len();
    for turn in 0..10 {
        // The pod probe's pods are not replaced, because real ones move rarely.
        let service = turn as usize % services.max(1);
        let is_users = (world.services.get(service)).is_some_and(|service| !service.is_pod_probe());
        if is_users {
            world = world.with(at + S * 5 * turn, Act::Roll(service, grace));
        }
    }
    World {
        proxy_delay: (delay, delay),
        ..world
    }
}

fn new_service(mut world: World, at: Duration) -> World {
    let service = world.services.len();
    world.services.push(ServiceSpec {
        later: true,
        ..ServiceSpec::new("new", 1, 1)
    });
    for family in world.stack.families() {
        let stream = Stream::of_pod(8, service, ms(300));
        world.streams.push(stream.over(family));
    }
    let world = World {
        proxy_delay: (S * 5, S * 5),
        ..world
    };
    with_outsiders(world, SCANNERS, service, ms(500)).with(at, Act::Create(service))
}

fn new_to_host(mut world: World, at: Duration) -> World {
    world.proxy_delay = (S * 45, S * 45);
    for name in ["new", "newer"] {
        let service = world.services.len();
        world.services.push(ServiceSpec {
            later: true,
            ..ServiceSpec::new(name, 1, 1)
        });
        let streams =
            (world.stack.families()).map(|family| Stream::of_host(service, ms(200)).over(family));
        world.streams.extend(streams);
        world = world.with(at, Act::Create(service));
    }
    world
}

/// Clients keep their source port until they are answered.
fn reused(mut world: World, at: Duration) -> World {
    if world.services.is_empty() {
        world.services.push(ServiceSpec::new("shop", 2, 2));
    }
    world.proxy_delay = (S * 2, S * 2);
    let before = world.streams.len();
    let mut world = with_outsiders(world, 230..233, 0, ms(200));
    for stream in &mut world.streams[before..] {
        stream.keeps_port = true;
    }
    let place = world.services[0].local;
    world.with(at, Act::Replace(0, place, Duration::ZERO))
}

/// A Service whose only clients keep their source ports. Nothing else could show that the proxy follows:
/// there is no rotation and no change of another Service.
fn reused_alone(mut world: World, at: Duration) -> World {
    let service = world.services.len();
    world.services.push(ServiceSpec::new("kept", 1, 1));
    world.rotation = None;
    let before = world.streams.len();
    let mut world = with_outsiders(world, 230..233, service, ms(200));
    let pod = |family| Stream::of_pod(8, service, ms(200)).over(family);
    let families: Vec<Family> = world.stack.families().collect();
    world.streams.extend(families.into_iter().map(pod));
    for stream in &mut world.streams[before..] {
        stream.keeps_port = true;
    }
    let place = world.services[service].local;
    world.proxy_delay = (S * 2, S * 2);
    world.with(at, Act::Replace(service, place, Duration::ZERO))
}

fn sick(mut world: World, at: Duration, sickness: Sickness) -> World {
    for service in 0..world.services.len() {
        if !world.services[service].is_pod_probe() {
            world = world.with(at, Act::Sicken(service, sickness));
        }
    }
    world
}

/// The rules of this family are gone on a dual-stack node where no client uses the family.
fn unused(mut world: World, at: Duration, family: Family) -> World {
    if world.stack != Stack::Dual {
        return world;
    }
    (world.streams).retain(|stream| stream.family != family || stream.client == Client::PodProbe);
    world.with(at, Act::BreakIn(family, Fault::Flushed))
}

fn probed(mut world: World, at: Duration) -> World {
    let service = world.services.len();
    world.services.push(ServiceSpec::new("web", 1, 1));
    with_outsiders(world, 250..252, service, ms(1_000))
        .with(at, Act::Sicken(service, Sickness::Refuses))
}
