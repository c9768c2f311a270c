//! The simulator and the kernel come to the same verdicts. `cargo xtask compare` plays many cases; here one is
//! played, and histories of other faults are not taken for it.

use node_tests::cluster::Servers;
use node_tests::compare::{Case, Difference, Stage, compare};
use node_tests::prelude::*;

#[test]
fn a_case_has_the_same_verdicts_in_the_simulator_and_in_the_kernel() {
    needs!(skip::root());
    needs!(skip::tool(Mode::Nftables.tool()));
    needs!(skip::tool("conntrack"));
    let programs = needs!(Servers::needed());
    let named = |happening| Case::named("idle", happening).expect("a case of the tables");
    let case = named("forwarding off");
    let played = Stage::build(programs).play(&case).expect("a played case");
    let kernel = played.history;
    println!("{}: {kernel}", case.name());
    assert_eq!(compare(&case.simulated(), &kernel), None);

    let others = [
        ("everything forwarded is dropped", Difference::Answer),
        ("nothing happens", Difference::Answer),
        ("rules flushed", Difference::Cause),
    ];
    for (other, difference) in others {
        let simulated = named(other).simulated();
        assert_eq!(compare(&simulated, &kernel), Some(difference), "{other}");
    }
}
