//! Reading the evidence while the kernel refuses a part of it, and while a flood fills the map of
//! connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use agent_common::abi::{FOLLOW_ALL, program};
use agent_common::evidence::{Fault, Outcome};
use agent_common::service::{FrontendKind, FrontendValue, Owed, endpoint_flag};
use agent_core::cause::Failure;
use agent_core::event::KernelSample;
use agent_core::time::Mono;
use node_tests::observer::{Observer, Sandbox, monotonic};
use node_tests::packet;
use node_tests::scenario::mapped;
use node_tests::world::OldKernel;
use rstest::rstest;

use crate::{SERVICE, on_stage};

fn counted(look: &KernelSample, outcome: Outcome) -> u32 {
    let counts = look.counts.iter();
    counts.map(|delta| delta.counts[outcome as usize]).sum()
}

/// A look that fails half-way; the next one finds everything that the failed one had read, once.
#[rstest]
#[case::before_the_sweep(OldKernel::NoBatchLookup)]
#[case::in_the_sweep(OldKernel::NoBatchDelete)]
fn a_failed_look_loses_nothing(#[case] kernel: OldKernel) {
    on_stage(&[], |observer, sandbox| {
        let mut sampler = observer.sampler().expect("the maps");
        let now = || Mono(monotonic());
        sampler.sample(now()).expect("a first look");
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let web = address("10.96.0.1:80");
        for (hook, client, number, device) in [
            (program::INGRESS, "10.244.0.5:40001", 1_000, sandbox.client),
            (program::EGRESS, "10.244.0.6:40001", 2_000, sandbox.uplink),
        ] {
            let syn = packet::syn(address(client), web, number).bytes();
            observer.run(hook, &syn, device).expect("a run");
        }

        // Long after: one connection is lost, and both are to be forgotten.
        let later = Mono(now().0 + 200_000_000_000);
        thread::scope(|scope| {
            let refused = scope.spawn(|| {
                kernel.begin().expect("a filter");
                sampler.sample(later).map(drop)
            });
            let failed = refused.join().expect("a look");
            failed.expect_err("the kernel refuses");
        });
        let look = sampler.sample(later).expect("a look").sample;
        assert_eq!(counted(&look, Outcome::Arrived), 1, "{look:?}");
        assert_eq!(counted(&look, Outcome::Leaked), 1, "{look:?}");
        assert_eq!(look.counts.iter().map(|delta| delta.lost).sum::<u32>(), 1);
        let mut failures: Vec<_> = look.sightings.iter().map(|one| one.failure).collect();
        failures.sort_unstable();
        assert_eq!(failures, [Failure::Leaked, Failure::Lost]);

        let read = sampler.sample(later).expect("a look");
        let look = &read.sample;
        assert!(
            look.counts.is_empty() && look.sightings.is_empty(),
            "{look:?}"
        );
        assert_eq!(read.under_way, 0, "forgotten");
    });
}

/// The Service that is flooded.
const FLOODED: u32 = SERVICE + 1;
/// As many as come before a second is over, from so many clients.
const WAVE: u32 = 10_000;
const CLIENTS: u32 = 250;
const SECOND: u64 = 1_000_000_000;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn owe(observer: &mut Observer, owed: Owed) {
    let value = FrontendValue {
        service: FLOODED,
        kind: FrontendKind::ClusterIp as u8,
        owed: [owed as u8; 3],
        ..FrontendValue::default()
    };
    let frontend = mapped(address("10.96.0.2:80").ip());
    observer.put_frontend(frontend, 80, value).expect("room");
}

fn sees(observer: &Observer, hook: &str, bytes: &[u8], device: u32) {
    observer.run(hook, bytes, device).expect("a run");
}

/// A SYN of the flood comes in, and goes on where it is owed that.
fn syn(observer: &Observer, sandbox: Sandbox, number: u32, owed: Owed) {
    let client = Ipv4Addr::from(0x0af4_0100 + number % CLIENTS);
    let client = SocketAddr::from((client, 1_024 + (number / CLIENTS) as u16));
    let comes = |to| packet::syn(client, address(to), 1_000 + number * 7).bytes();
    sees(
        observer,
        program::INGRESS,
        &comes("10.96.0.2:80"),
        sandbox.client,
    );
    if owed.is_forward() {
        sees(
            observer,
            program::EGRESS,
            &comes("10.244.9.9:80"),
            sandbox.pods,
        );
    }
}

fn failures(look: &KernelSample) -> Vec<(u32, Failure)> {
    let failed = look.sightings.iter();
    failed.map(|one| (one.service, one.failure)).collect()
}

/// More SYNs that nobody answers than the map has room for, within the time in which they may come
/// again: nothing is full, nothing uncertain. A fault of another Service is seen, and one of this
/// Service too; a SYN that comes again is none.
#[rstest]
#[case::to_a_service_without_endpoints(Owed::Reject, WAVE)]
#[case::to_a_silent_endpoint(Owed::Forward, WAVE + 4_096)]
fn a_flood_that_nobody_answers(#[case] owed: Owed, #[case] most: u32) {
    on_stage(&[(FOLLOW_ALL, 1)], |observer, sandbox| {
        owe(observer, owed);
        let endpoint = mapped(address("10.244.9.9:80").ip());
        observer
            .put_endpoint(FLOODED, endpoint, 80, 0)
            .expect("room");
        let mut sampler = observer.sampler().expect("the maps");
        sampler.sample(Mono(monotonic())).expect("a first look");
        let mut look = || {
            let later = Mono(monotonic() + 10 * SECOND);
            let read = sampler.sample(later).expect("a look");
            assert_eq!(read.sample.faults[Fault::PendingFull as usize], 0);
            assert_eq!(read.sample.forgotten_early, 0);
            assert!(read.under_way <= most as usize, "{}", read.under_way);
            failures(&read.sample)
        };
        for wave in 0..4 {
            for number in 0..WAVE {
                syn(observer, sandbox, wave * WAVE + number, owed);
            }
            assert_eq!(look(), []);
        }

        // Now there are endpoints, and rules that lead to one that left.
        owe(observer, Owed::Forward);
        let left = endpoint_flag::LEFT;
        observer
            .put_endpoint(FLOODED, endpoint, 80, left)
            .expect("room");
        for number in 0..20 {
            syn(observer, sandbox, number, Owed::Forward);
        }
        assert_eq!(look(), [], "they come again");
        syn(observer, sandbox, 5 * WAVE, Owed::Forward);
        assert_eq!(look(), [(FLOODED, Failure::Stale)]);
        for (hook, to, device) in [
            (program::INGRESS, "10.96.0.1:80", sandbox.client),
            (program::EGRESS, "10.244.7.7:80", sandbox.pods),
        ] {
            let bytes = packet::syn(address("10.244.0.5:40001"), address(to), 5).bytes();
            sees(observer, hook, &bytes, device);
        }
        assert_eq!(look(), [(SERVICE, Failure::Misrouted)]);
    });
}

/// More at once than the map holds: those that were not followed are counted, and who came in their
/// place is told. After the next look there is room, although nothing is over yet.
#[test]
fn a_flood_that_fills_the_map_at_once() {
    on_stage(&[(FOLLOW_ALL, 1)], |observer, sandbox| {
        owe(observer, Owed::Forward);
        let mut sampler = observer.sampler().expect("the maps");
        sampler.sample(Mono(monotonic())).expect("a first look");
        let honest = |number: u32| {
            let client = SocketAddr::from(([10, 244, 0, 5], 40_000 + number as u16));
            packet::syn(client, address("10.96.0.1:80"), number).bytes()
        };
        for number in 0..100 {
            sees(observer, program::INGRESS, &honest(number), sandbox.client);
        }
        for number in 0..4 * WAVE {
            syn(observer, sandbox, number, Owed::Reject);
        }
        let read = sampler
            .sample(Mono(monotonic() + SECOND / 10))
            .expect("a look");
        let missed = read.sample.faults[Fault::PendingFull as usize];
        assert!(missed > 0);
        // On a slow machine they are old enough already.
        let mut lost = lost_of(&read.sample, SERVICE);
        let heaviest = read.sample.heaviest.expect("a crowded map");
        assert_eq!(heaviest.service, FLOODED);
        assert!(heaviest.to_service > 32_000, "{heaviest:?}");
        for number in 4 * WAVE..5 * WAVE {
            syn(observer, sandbox, number, Owed::Reject);
        }
        let read = sampler
            .sample(Mono(monotonic() + 2 * SECOND))
            .expect("a look");
        assert_eq!(read.sample.faults[Fault::PendingFull as usize], missed);
        assert_eq!(read.sample.forgotten_early, 0);
        lost += lost_of(&read.sample, SERVICE);
        assert_eq!(lost, 100, "nobody else's was evicted");
    });
}

fn lost_of(look: &KernelSample, service: u32) -> u32 {
    let counts = look.counts.iter();
    let of = counts.filter(|delta| delta.service == service);
    of.map(|delta| delta.lost).sum()
}
