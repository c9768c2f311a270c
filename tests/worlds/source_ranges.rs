//! `loadBalancerSourceRanges`: at the load balancer's address the proxy drops connections from sources
//! outside the ranges, and serves the others. The rules of the tests' proxy are like kube-proxy's.

use node_tests::prelude::*;
use node_tests::traffic::Tally;

use crate::parts::{SOUND, flushed, stays};

#[test]
fn sources_outside_the_ranges_are_no_victims() {
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let allowed = Family::ALL.map(|family| scene.world.outside_client(0, family));
    scene
        .manifests
        .change("web", |web| {
            web.source_ranges = allowed
                .map(|ip| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }))
                .into();
        })
        .expect("change web");
    scene.rules.install().expect("the rules follow");
    let watch = scene.watch();
    let dialled = |scene: &Scene, client, family| {
        let vip = scene.manifests.service("web").load_balancer_ip(family);
        Plan::from_outside(&scene.world, client, (vip, 80).into()).rate(5.0)
    };
    // Only denied clients dial, so only the sentinel can prove the node.
    let outsiders: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| [1, 2].map(|client| dialled(&scene, client, family)))
        .map(|plan| plan.start().expect("start a client"))
        .collect();
    stays(&scene, &watch, &SOUND);
    let members: Vec<_> = Family::ALL
        .map(|family| dialled(&scene, 0, family).start().expect("a client"))
        .into();
    scene.pod_traffic();
    stays(&scene, &watch, &SOUND);
    let sum = |clients: &[Client]| -> Tally { clients.iter().map(|client| client.tally()).sum() };
    let (dropped, served) = (sum(&outsiders), sum(&members));
    assert!(dropped.ok == 0 && dropped.timeouts > 500, "{dropped:?}");
    assert!(
        served.ok > 100 && served.failed() * 50 <= served.started,
        "{served:?}"
    );
    assert!(!blames(&scene.report(), "demo/web"));
    for family in Family::ALL {
        for outcome in ["refused", "leaked", "misrouted"] {
            let count = scene.count("web", family, "", outcome);
            assert_eq!(count, 0, "{family:?} {outcome}");
        }
        let lost = scene.count("web", family, "", "lost");
        assert!(lost * 50 <= dropped.timeouts, "{family:?}: {lost} lost");
    }
    flushed(&scene, &watch);
}
