//! What is read of the evidence, where the kernel refuses a part of it.

use std::net::SocketAddr;
use std::thread;

use agent_common::abi::program;
use agent_common::evidence::Outcome;
use agent_core::cause::Failure;
use agent_core::event::KernelSample;
use agent_core::time::Mono;
use node_tests::observer::monotonic;
use node_tests::packet;
use node_tests::world::OldKernel;
use rstest::rstest;

use crate::on_stage;

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
