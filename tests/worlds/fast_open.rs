//! TCP Fast Open: clients send their request in the SYN, and the SYN-ACK acknowledges both. The kernel's
//! implementation is used without cookies, so that the first connection carries data too.

use node_tests::prelude::*;

use crate::parts::{SOUND, everybody_is_served, flushed, stays};

/// Value of `tcp_fastopen`: client and server side enabled, both without cookies, for all listeners.
const WITHOUT_COOKIES: &str = "1543";
const SERVERS: [&str; 6] = ["web-1", "web-2", "web-3", "api-1", "api-2", "db-1"];

/// Number of connections with data in the SYN that servers of a namespace accepted.
fn taken(ns: &Namespace) -> u64 {
    let text = ns.feed("cat", &["/proc/net/netstat"], "").expect("netstat");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs
        .find(|(name, _)| *name == "TCPFastOpenPassive")
        .expect("a count");
    value.parse().expect("a number")
}

#[test]
fn data_in_the_syn_changes_nothing() {
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let on = |ns: &Namespace| {
        ns.sysctl("net/ipv4/tcp_fastopen", WITHOUT_COOKIES)
            .expect("sysctl")
    };
    on(&scene.world.outside);
    scene.world.pods().for_each(|pod| on(&pod.ns));
    for pod in SERVERS {
        // Restart the server, because the kernel reads the sysctl at listen().
        drop(scene.servers.remove(pod));
        scene.serve(pod);
    }
    let watch = scene.watch();
    for family in Family::ALL {
        for (pod, service) in [("client-1", "web"), ("client-2", "api"), ("client-1", "db")] {
            let plan = scene.pod_plan(pod, scene.cluster_ip(service, family));
            scene.run(plan.rate(7.0).fast_open());
        }
        let plan = Plan::from_outside(&scene.world, 0, scene.node_port(30081, family));
        scene.run(plan.rate(7.0).fast_open());
    }
    stays(&scene, &watch, &SOUND);
    everybody_is_served(&scene);
    let taken: u64 = SERVERS
        .iter()
        .map(|pod| taken(&scene.world.pod(pod).ns))
        .sum();
    assert!(taken > 500, "only {taken} with data in the SYN");
    for service in ["web", "api", "db"] {
        for family in Family::ALL {
            let proven = scene.count(service, family, "", "proven");
            assert!(proven > 50, "{service} {family:?}: {proven}");
        }
    }
    flushed(&scene, &watch);
}
