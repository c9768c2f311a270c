//! The sampler reads the evidence while the kernel refuses some of its calls, and while a flood fills the
//! map.

use std::net::Ipv4Addr;

use node_tests::observer::monotonic;
use node_tests::packet::{self, Packet, flag};
use node_tests::prelude::*;
use node_tests::world::OldKernel;
use pathproof_facts::cause::Failure;
use pathproof_facts::time::Mono;
use pathproof_node::event::KernelSample;
use pathproof_wire::abi::FOLLOW_ALL;
use pathproof_wire::evidence::{Fault, Outcome};
use pathproof_wire::service::{ExpectedHandling, PEER_SHIFT, endpoint_flag};
use pathproof_witness::evidence::Place;

use crate::stage::{SERVICE, Stage, at, cluster_ip, on_stage};

fn counted(look: &KernelSample, outcome: Outcome) -> u32 {
    let counts = look.counts.iter();
    counts.map(|delta| delta.counts[outcome as usize]).sum()
}

fn syn(client: &str, to: &str, number: u32) -> Packet {
    packet::syn(at(client), at(to), number)
}

/// A sample fails half-way. The next sample contains everything that the failed one had read, exactly once.
#[rstest]
#[case::before_the_sweep(OldKernel::NoBatchLookup)]
#[case::in_the_sweep(OldKernel::NoBatchDelete)]
fn a_failed_look_loses_nothing(#[case] kernel: OldKernel) {
    on_stage(&[], |stage| {
        let mut sampler = stage.sampler();
        let now = || Mono(monotonic());
        sampler.sample(now()).expect("a first sample");
        let web = "10.96.0.1:80";
        stage.comes(&syn("10.244.0.5:40001", web, 1_000), stage.at.client);
        stage.goes(&syn("10.244.0.6:40001", web, 2_000), stage.at.uplink);

        // Sample much later, so that one connection is lost and both are due for removal.
        let later = Mono(now().0 + 200_000_000_000);
        thread::scope(|scope| {
            let refused = scope.spawn(|| {
                kernel.begin().expect("a filter");
                sampler.sample(later).map(drop)
            });
            let failed = refused.join().expect("a sample");
            failed.expect_err("the kernel refuses");
        });
        let look = sampler.sample(later).expect("a sample").sample;
        assert_eq!(counted(&look, Outcome::Arrived), 1, "{look:?}");
        assert_eq!(counted(&look, Outcome::Leaked), 1, "{look:?}");
        assert_eq!(look.counts.iter().map(|delta| delta.lost).sum::<u32>(), 1);
        let mut failures: Vec<_> = look
            .failed_connections
            .iter()
            .map(|one| one.failure)
            .collect();
        failures.sort_unstable();
        assert_eq!(failures, [Failure::Leaked, Failure::Lost]);

        let read = sampler.sample(later).expect("a sample");
        let look = &read.sample;
        assert!(
            look.counts.is_empty() && look.failed_connections.is_empty(),
            "{look:?}"
        );
        assert_eq!(read.under_way, 0, "forgotten");
    });
}

/// A connection is a success when it was delivered to a pod of this node, or when its answer left for the
/// client. Each sample reports only new successes.
#[test]
fn successes_by_place() {
    on_stage(&[], |stage| {
        let (near, remote) = (at("10.244.0.9:80"), at("10.245.0.9:80"));
        stage.put_endpoint(SERVICE, near, endpoint_flag::LOCAL);
        stage.put_endpoint(SERVICE, remote, 7 << PEER_SHIFT);
        let mut sampler = stage.sampler();
        let mut look = || {
            let look = sampler.sample(Mono(monotonic())).expect("a sample").sample;
            let successes = look.successes.into_iter();
            let successes = successes.map(|one| (one.place, one.answered.is_some()));
            successes.collect::<Vec<_>>()
        };
        let (pod, web) = ("10.244.0.5:40001", "10.96.0.1:80");
        for (number, endpoint) in [(1_000, near), (2_000, remote)] {
            stage.comes(&syn(pod, web, number), stage.at.client);
            let device = if endpoint == near {
                stage.at.pods
            } else {
                stage.at.overlay
            };
            stage.goes(&packet::syn(at(pod), endpoint, number), device);
        }
        assert_eq!(look(), [(Place::Near, false)]);
        let answer = |from| packet::syn_ack(from, at(pod), 2_000);
        stage.comes(&answer(remote), stage.at.overlay);
        assert_eq!(look(), []);
        stage.goes(&answer(at(web)), stage.at.client);
        assert_eq!(look(), [(Place::Remote, true)]);
        assert_eq!(look(), []);
    });
}

const FLOODED: u32 = SERVICE + 1;
const FLOODED_AT: &str = "10.96.0.2:80";
/// Number of SYNs of one wave, which takes less than a second. They come from [`CLIENTS`] clients.
const WAVE: u32 = 10_000;
const CLIENTS: u32 = 250;
const SECOND: u64 = 1_000_000_000;

fn expect_handling(stage: &mut Stage, handling: ExpectedHandling) {
    let mut value = cluster_ip(FLOODED, 0);
    value.owed = [handling as u8; 3];
    stage.put_frontend(at(FLOODED_AT), value);
}

/// Runs the arrival of a SYN of the flood. If the expected handling is to forward it, it also leaves.
fn flood(stage: &Stage, number: u32, handling: ExpectedHandling) {
    let client = Ipv4Addr::from(0x0af4_0100 + number % CLIENTS);
    let client = SocketAddr::from((client, 1_024 + (number / CLIENTS) as u16));
    let syn = |to| packet::syn(client, at(to), 1_000 + number * 7);
    stage.comes(&syn(FLOODED_AT), stage.at.client);
    if handling.is_forward() {
        stage.goes(&syn("10.244.9.9:80"), stage.at.pods);
    }
}

fn failures(look: &KernelSample) -> Vec<(u32, Failure)> {
    let failed = look.failed_connections.iter();
    failed.map(|one| (one.service, one.failure)).collect()
}

/// More unanswered SYNs arrive than the map has room for, within the time in which they may be retransmitted.
/// The map never becomes full, retransmissions are recognized, and faults of any Service are still found.
#[rstest]
#[case::to_a_service_without_endpoints(ExpectedHandling::Reject, WAVE)]
#[case::to_a_silent_endpoint(ExpectedHandling::Forward, WAVE + 4_096)]
fn a_flood_that_nobody_answers(#[case] handling: ExpectedHandling, #[case] most: u32) {
    on_stage(&[(FOLLOW_ALL, 1)], |stage| {
        expect_handling(stage, handling);
        let endpoint = at("10.244.9.9:80");
        stage.put_endpoint(FLOODED, endpoint, 0);
        let mut sampler = stage.sampler();
        sampler.sample(Mono(monotonic())).expect("a first sample");
        let mut look = || {
            let later = Mono(monotonic() + 10 * SECOND);
            let read = sampler.sample(later).expect("a sample");
            assert_eq!(read.sample.faults[Fault::PendingFull as usize], 0);
            assert_eq!(read.sample.forgotten_early, 0);
            assert!(read.under_way <= most as usize, "{}", read.under_way);
            failures(&read.sample)
        };
        for wave in 0..4 {
            for number in 0..WAVE {
                flood(stage, wave * WAVE + number, handling);
            }
            assert_eq!(look(), []);
        }

        // Give the Service endpoints, and let the rules lead to one that was removed.
        expect_handling(stage, ExpectedHandling::Forward);
        stage.put_endpoint(FLOODED, endpoint, endpoint_flag::LEFT);
        for number in 0..20 {
            flood(stage, number, ExpectedHandling::Forward);
        }
        assert_eq!(look(), [], "retransmissions are no failures");
        flood(stage, 5 * WAVE, ExpectedHandling::Forward);
        assert_eq!(look(), [(FLOODED, Failure::Stale)]);
        let pod = "10.244.0.5:40001";
        stage.comes(&syn(pod, "10.96.0.1:80", 5), stage.at.client);
        stage.goes(&syn(pod, "10.244.7.7:80", 5), stage.at.pods);
        assert_eq!(look(), [(SERVICE, Failure::Misrouted)]);
    });
}

/// More SYNs arrive at once than the map holds. The sample counts those that were not followed. After it the map
/// has room again, although no connection has timed out.
#[test]
fn a_flood_that_fills_the_map_at_once() {
    on_stage(&[(FOLLOW_ALL, 1)], |stage| {
        expect_handling(stage, ExpectedHandling::Forward);
        let mut sampler = stage.sampler();
        sampler.sample(Mono(monotonic())).expect("a first sample");
        for number in 0..100_u16 {
            let client = SocketAddr::from(([10, 244, 0, 5], 40_000 + number));
            let honest = packet::syn(client, at("10.96.0.1:80"), number.into());
            stage.comes(&honest, stage.at.client);
        }
        for number in 0..4 * WAVE {
            flood(stage, number, ExpectedHandling::Reject);
        }
        let first = sampler.sample(Mono(monotonic() + SECOND / 10));
        let first = first.expect("a sample").sample;
        let missed = first.faults[Fault::PendingFull as usize];
        assert!(missed > 0);
        for number in 4 * WAVE..5 * WAVE {
            flood(stage, number, ExpectedHandling::Reject);
        }
        let second = sampler.sample(Mono(monotonic() + 2 * SECOND));
        let second = second.expect("a sample").sample;
        assert_eq!(second.faults[Fault::PendingFull as usize], missed);
        assert_eq!(second.forgotten_early, 0);
        // Add both samples: on a slow machine some connections are already old enough to be lost in the
        // first.
        let counts = first.counts.iter().chain(&second.counts);
        let of_service = counts.filter(|delta| delta.service == SERVICE);
        let lost: u32 = of_service.map(|delta| delta.lost).sum();
        assert_eq!(
            lost, 100,
            "the flood evicted none of the other Service's connections"
        );
    });
}

/// A SYN with data (TCP fast open) takes two entries. A flood of them from as many clients, which fills the
/// map, evicts its own entries only.
#[test]
fn a_flood_of_syns_with_data_evicts_its_own() {
    const HONEST: u32 = 100;
    const FLOOD: u32 = 16_300;
    on_stage(&[(FOLLOW_ALL, 1)], |stage| {
        expect_handling(stage, ExpectedHandling::Forward);
        let mut sampler = stage.sampler();
        sampler.sample(Mono(monotonic())).expect("a first sample");
        for number in 0..HONEST {
            let client = SocketAddr::from(([10, 244, 0, 5], 40_000 + number as u16));
            let honest = packet::syn(client, at("10.96.0.1:80"), number);
            stage.comes(&honest, stage.at.client);
        }
        for number in 0..FLOOD {
            let client = SocketAddr::from((Ipv4Addr::from(0x0af4_0100 + number), 1_024));
            let isn = 1_000 + number * 7;
            let syn = packet::tcp(client, at(FLOODED_AT), flag::SYN, isn, 0, &[0; 3]);
            stage.comes(&syn, stage.at.client);
        }
        let first = sampler.sample(Mono(monotonic() + SECOND / 10));
        let first = first.expect("a sample").sample;
        assert_eq!(first.faults[Fault::PendingFull as usize], 0);
        let second = sampler.sample(Mono(monotonic() + 2 * SECOND));
        let second = second.expect("a sample").sample;
        let counts = first.counts.iter().chain(&second.counts);
        let of_service = counts.filter(|delta| delta.service == SERVICE);
        let lost: u32 = of_service.map(|delta| delta.lost).sum();
        assert_eq!(
            lost, HONEST,
            "all of the other Service's connections are judged"
        );
    });
}
