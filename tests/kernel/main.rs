//! BPF_PROG_TEST_RUN for every hook: packets in, the packet and the maps looked at afterwards.
//!
//! The rules have their own tests in `agent-common`. Here it is shown that the compiled programs
//! pass the verifier, pass every packet on unchanged, write the maps that they should, come to the
//! same results as the rules on the host ([`scenarios`]), and stay within their limits.

mod gate;
mod hooks;
mod limits;
mod object;
mod plans;
mod sampler;
mod scenarios;
mod sentinel;
mod udp;

use agent_common::service::{FrontendKind, FrontendValue, Owed, SourceClass, device_flag};
use node_tests::observer::{Observer, Sandbox, in_sandbox};
use node_tests::scenario::mapped;

/// Id of the Service of [`on_stage`].
const SERVICE: u32 = 17;

/// Runs `test` with an observer of its own, with the capacities given, in a network namespace of
/// its own. [`SERVICE`] has one frontend, 10.96.0.1:80 and [fd00:10:96::1]:80, and all sources in
/// 10.244.0.0/16 and fd00:10:244::/48 are pods. Skips, loudly, without the privileges.
fn on_stage(capacities: &[(&'static str, u32)], test: impl FnOnce(&mut Observer, Sandbox) + Send) {
    let Some(mut observer) = Observer::load(capacities).expect("load the observer") else {
        return;
    };
    in_sandbox(|sandbox| {
        let value = FrontendValue {
            service: SERVICE,
            kind: FrontendKind::ClusterIp as u8,
            owed: [Owed::Forward as u8; 3],
            ..FrontendValue::default()
        };
        for (frontend, pods, bits) in [
            ("10.96.0.1", "10.244.0.0", 96 + 16),
            ("fd00:10:96::1", "fd00:10:244::", 48),
        ] {
            let address = |text: &str| mapped(text.parse().expect("an address"));
            observer
                .put_frontend(address(frontend), 80, value)
                .expect("room for a frontend");
            observer
                .put_source(address(pods), bits, SourceClass::Pod)
                .expect("room for a source");
        }
        observer
            .put_device(sandbox.uplink, device_flag::UPLINK)
            .expect("room for a device");
        test(&mut observer, sandbox);
    })
    .expect("a network namespace");
}
