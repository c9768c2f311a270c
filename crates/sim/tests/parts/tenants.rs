//! A tenant beside honest Services may edit one namespace, and has pods that dial arbitrary addresses.
//!
//! The tenant can neither cause a 503 nor hide a fault of the node. Failures of the tenant's pods and
//! Services, and of addresses that the tenant claims from others, are no fault of the node.

use std::time::Duration;

use pathproof_sim::{
    Act, Claim, Client, Denial, Foreign, ServiceSpec, SimNode, Stream, TENANT, TENANT_PODS, World,
};
use proptest::prelude::*;

use super::fault::broken_and_repaired;
use super::worlds;
use crate::{RUN, config, ms, s};

/// Maximum time from a repair to 200, which losses of the tenant's pods delay.
const REPAIRED_BESIDE: Duration = Duration::from_secs(5);
const SENTINEL_NODE_PORT: u16 = 32_767;

/// Addresses that a tenant's Service may claim.
#[derive(Clone, Copy, Debug)]
enum Claims {
    /// Addresses of honest Services, the sentinel and the node.
    Any,
    /// Addresses of honest Services and the node, but none that probes dial.
    NotTheSentinels,
}

fn claim(honest: usize, claims: Claims) -> impl Strategy<Value = Claim> {
    let probed = u32::from(matches!(claims, Claims::Any));
    prop_oneof![
        3 => (0..honest).prop_map(Claim::ClusterIp),
        1 => Just(Claim::Node),
        1 => Just(Claim::Echo),
        1 => any::<u8>().prop_map(|own| Claim::Own(own.into())),
        2 * probed => Just(Claim::Sentinel),
    ]
}

fn foreign(honest: usize) -> impl Strategy<Value = (Foreign, bool)> {
    let foreign = prop_oneof![
        (0..honest).prop_map(Foreign::PodOf),
        any::<u8>().prop_map(Foreign::Outsider),
        Just(Foreign::Echo),
        Just(Foreign::Node),
    ];
    (foreign, any::<bool>())
}

fn service(honest: usize, claims: Claims) -> impl Strategy<Value = ServiceSpec> {
    let sentinels = u32::from(matches!(claims, Claims::Any));
    let port = prop_oneof![
        4 => Just(80),
        2 => (0..honest).prop_map(|service| 30_000 + service as u16),
        1 => 1..1_000_u16,
        2 * sentinels => Just(SENTINEL_NODE_PORT),
    ];
    let ports = prop_oneof![3 => Just(1_u16), 1 => 2..40_u16];
    let pods = (0..3_usize, 0..2_usize);
    let claimed = prop::collection::vec(claim(honest, claims), 0..4);
    let strangers = prop::collection::vec(foreign(honest), 0..3);
    (port, ports, pods, claimed, strangers, any::<bool>()).prop_map(
        |(port, ports, (local, remote), claims, foreign, later)| ServiceSpec {
            claims,
            port,
            ports,
            foreign,
            later,
            ..ServiceSpec::new(TENANT, local, remote)
        },
    )
}

/// Connections of the tenant's pods to all Services, and of other pods to the tenant's Services.
fn stream(his: std::ops::Range<usize>) -> impl Strategy<Value = Stream> {
    let all = 0..his.end;
    let every = prop_oneof![3 => 100..2_000_u64, 1 => 5..20_u64];
    let pod = TENANT_PODS..TENANT_PODS + 3;
    prop_oneof![
        4 => (pod.clone(), his.clone(), every.clone()),
        2 => (pod, all, every.clone()),
        1 => (0..4_u8, his, every),
    ]
    .prop_flat_map(|(pod, service, every)| {
        let begins = 0..50_000_u64;
        (Just((pod, service, every)), any::<bool>(), begins)
    })
    .prop_map(|((pod, service, every), keeps_port, begins)| {
        // A thousand connections are enough to simulate a flood.
        let lasts = ms(every * 1_000).min(s(40));
        Stream {
            keeps_port,
            during: (ms(begins), ms(begins) + lasts),
            ..Stream::of_pod(pod, service, ms(every))
        }
    })
}

fn act(his: std::ops::Range<usize>) -> impl Strategy<Value = Act> {
    let denial = prop_oneof![Just(Denial::Drop), Just(Denial::Reject)];
    let pod = TENANT_PODS..TENANT_PODS + 3;
    prop_oneof![
        3 => (his.clone(), 0..20_u64).prop_map(|(service, grace)| Act::Roll(service, s(grace))),
        2 => his.clone().prop_map(Act::Create),
        1 => his.clone().prop_map(Act::Delete),
        3 => (pod, prop::option::of(his), denial)
            .prop_map(|(pod, to, denial)| Act::Deny(Some(Client::Pod(pod)), to, denial)),
    ]
}

prop_compose! {
    fn with_tenant(world: World, claims: Claims)(
        services in prop::collection::vec(service(world.services.len(), claims), 1..4),
        world in Just(world),
    )(
        streams in prop::collection::vec(stream(his(&world, &services)), 0..6),
        acts in prop::collection::vec(
            (0..55_000_u64, act(his(&world, &services))), 0..8),
        claims_win in any::<bool>(),
        services in Just(services),
        world in Just(world),
    ) -> World {
        let mut world = world;
        // Another namespace is in use, so failures of one namespace alone are no fault of the node.
        world.services.push(ServiceSpec::new("namespace-3", 1, 1));
        world.streams.push(Stream::of_pod(4, world.services.len() - 1, s(1)));
        world.services.extend(services);
        world.streams.extend(streams);
        world.acts.extend(acts.into_iter().map(|(at, act)| (ms(at), act)));
        world.claims_win = claims_win;
        world
    }
}

/// Indices of the tenant's Services, after the honest ones.
fn his(world: &World, services: &[ServiceSpec]) -> std::ops::Range<usize> {
    let first = world.services.len() + 1;
    first..first + services.len()
}

fn tenant(honest: impl Strategy<Value = World>, claims: Claims) -> impl Strategy<Value = World> {
    honest.prop_flat_map(move |world| with_tenant(world, claims))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_tenant_takes_no_node_out(
        world in tenant(worlds::undisturbed(), Claims::Any),
        seed: u64,
    ) {
        let mut node = SimNode::new(0, world, seed);
        node.run(RUN);
        prop_assert_eq!(node.truth().pods.failed, 0, "the world is not healthy");
        let failed = node.answers().iter().find(|answered| answered.livez != 200);
        prop_assert_eq!(failed, None);
    }

    #[test]
    fn a_tenant_hides_no_fault(
        world in tenant(worlds::undisturbed(), Claims::NotTheSentinels),
        seed: u64,
        at in 11_000_u64..40_000,
        lasts in 2_000_u64..15_000,
        tables in any::<bool>(),
    ) {
        broken_and_repaired(world, seed, at, lasts, tables, REPAIRED_BESIDE)?;
    }
}
