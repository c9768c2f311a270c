//! BPF_PROG_TEST_RUN for every hook: packets in, the packet and the maps looked at afterwards.
//!
//! The rules have their own tests in `agent-common`. Here it is shown that the compiled programs
//! pass the verifier, pass every packet on unchanged, write the maps that they should, come to the
//! same results as the rules on the host ([`scenarios`]), and stay within their limits.

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

// The scenarios, which the tests of the rules have, name the packets.
use node_tests::packet;

#[path = "../../agent-common/tests/parts/scenario.rs"]
pub mod scenario;
