//! Random worlds, without situations that the rules are known to get wrong.

use std::time::Duration;

use pathproof_sim::{Act, Client, Denial, ServiceSpec, Span, Stream, World};
use proptest::prelude::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

prop_compose! {
    fn span(least: std::ops::Range<u64>, more: u64)(from in least, more in 0..=more) -> Span {
        (ms(from), ms(from + more))
    }
}

prop_compose! {
    fn service()(namespace in 0..3_u8, local in 0..3_usize, remote in 0..4_usize) -> ServiceSpec {
        // At least one endpoint, because nothing is expected of a Service without any.
        ServiceSpec::new(&format!("namespace-{namespace}"), local, remote.max(1 - local.min(1)))
    }
}

prop_compose! {
    fn stream(services: usize)(
        client in 0..8_u8,
        service in 0..services,
        every in prop_oneof![100..1_000_u64, 1_000..10_000_u64],
    ) -> Stream {
        match client {
            0..4 => Stream::of_pod(client, service, ms(every)),
            4 => Stream { client: Client::Host, ..Stream::of_pod(0, service, ms(every)) },
            _ => Stream::of_outsider(client, service, ms(every)),
        }
    }
}

prop_compose! {
    /// A world without events, with or without traffic.
    pub(crate) fn undisturbed()(services in prop::collection::vec(service(), 1..6))(
        streams in prop::collection::vec(stream(services.len()), 0..12),
        services in Just(services),
        view_delay in span(1..500, 500),
        proxy_delay in span(1..500, 1_500),
        rotation in prop::option::of(20_u64..90),
        pod_lane in any::<bool>(),
        bridged in any::<bool>(),
        no_node_ports in any::<bool>(),
    ) -> World {
        World {
            services,
            streams,
            view_delay,
            proxy_delay,
            rotation: rotation.map(Duration::from_secs),
            pod_lane,
            bridged,
            no_node_ports,
            ..World::default()
        }
    }
}

fn denial() -> impl Strategy<Value = Denial> {
    prop_oneof![Just(Denial::Drop), Just(Denial::Reject)]
}

/// Events that leave no pod's connection unanswered.
fn harmless(services: usize) -> impl Strategy<Value = Act> {
    let grace = Duration::from_secs(30);
    prop_oneof![
        3 => (0..services).prop_map(move |service| Act::Roll(service, grace)),
        1 => (10..6_000_u64).prop_map(|span| Act::Restart(ms(span))),
        1 => (10..9_000_u64).prop_map(|span| Act::Starve(ms(span))),
        1 => (100..40_000_u64, 0..90_000_u64).prop_map(|(span, noticed)| Act::Silence {
            span: ms(span),
            noticed: ms(noticed),
        }),
        1 => (10..9_000_u64).prop_map(|span| Act::Unreadable(ms(span))),
        1 => (10..20_000_u64).prop_map(|span| Act::LoseSightings(ms(span))),
        1 => (10..5_000_u64).prop_map(|span| Act::DamageDevices(ms(span))),
        1 => Just(Act::FilterSentinel),
        2 => (5..8_u8, prop::option::of(0..services), denial()).prop_map(|(client, service, denial)| {
            Act::Deny(Some(Client::Outsider(client)), service, denial)
        }),
    ]
}

/// Two denied pods and a filtered sentinel resemble a fault, so another pod has to show that the node works.
fn with_denied_pods(mut world: World, denied: Vec<(u8, Denial)>) -> World {
    if denied.len() > 1 {
        world.streams.push(Stream::of_pod(9, 0, ms(300)));
    }
    for (pod, denial) in denied {
        let denied = Act::Deny(Some(Client::Pod(pod)), None, denial);
        world = world.with(ms(5_000), denied);
    }
    world
}

prop_compose! {
    /// A world that answers all pods' connections except those that a policy denies.
    pub(crate) fn healthy()(world in undisturbed())(
        acts in prop::collection::vec((0..55_000_u64, harmless(world.services.len())), 0..8),
        // At most 12 s: later, removed endpoints no longer answer, and beyond 15 s the rules are known to
        // be wrong.
        proxy_delay in span(1..4_000, 8_000),
        mirrored in any::<bool>(),
        denied in prop::collection::vec((0..4_u8, denial()), 0..3),
        world in Just(world),
    ) -> World {
        let world = with_denied_pods(world, denied);
        let mut acts: Vec<(Duration, Act)> =
            acts.into_iter().map(|(at, act)| (ms(at), act)).collect();
        acts.extend(world.acts);
        World {
            acts,
            proxy_delay,
            mirrored,
            ..world
        }
    }
}

pub(crate) fn any_at_all() -> impl Strategy<Value = World> {
    use pathproof_sim::Fault;
    let fault = prop_oneof![
        Just(Fault::Flushed),
        Just(Fault::TablesGone),
        Just(Fault::Emptied(0)),
        Just(Fault::PodRoutesGone),
        Just(Fault::ForwardingOff),
        Just(Fault::NotMasqueraded),
    ];
    let faults = prop::collection::vec((fault, 0..25_000_u64, 0..15_000_u64), 0..3);
    (healthy(), faults, any::<bool>()).prop_map(|(world, faults, mirrored)| {
        let world = World { mirrored, ..world };
        faults.into_iter().fold(world, |world, (fault, at, lasts)| {
            world
                .with(ms(at), Act::Break(fault))
                .with(ms(at + lasts), Act::Repair(fault))
        })
    })
}
