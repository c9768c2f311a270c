//! Runs packets through every hook with BPF_PROG_TEST_RUN, and checks the returned packets and the maps.
//!
//! `pathproof-wire` tests the rules themselves. These tests show that the compiled programs pass the
//! verifier, leave packets unchanged, write the right maps, agree with the rules on the host ([`scenarios`]),
//! and keep their limits.

mod data;
mod gate;
mod hooks;
mod limits;
mod object;
mod plans;
mod sampler;
mod scenarios;
mod sentinel;
mod stage;
mod udp;

// The shared scenarios of `pathproof-wire` use the name `packet`.
use node_tests::packet;

#[path = "../../crates/wire/tests/parts/scenario.rs"]
pub mod scenario;
