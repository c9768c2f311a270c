//! A NodeLocal DNSCache died and left its address and rules: the node itself refuses DNS, and everything else
//! works. Only one Service is affected, and its rules are not the cause.

use node_tests::scene::blames;

use crate::nodelocal_dns::{cached, dial};
use crate::parts::{NAMED, some_fail, stays};

#[test]
fn a_dead_cache_is_named() {
    let (mut scene, servers) = cached();
    let _asking = dial(&mut scene);
    scene.pod_traffic();
    let watch = scene.watch();
    drop(servers);
    some_fail(&scene);
    stays(&scene, &watch, &NAMED);
    scene.wait("DNS is named", |report| blames(report, "demo/dns-tcp"));
}
