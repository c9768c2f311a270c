//! The chain of one Service is emptied, as by a tool that edits the proxy's rules. All connections to this
//! Service fail, and everything else works. This is no fault of the node, and the log must not repeat it
//! every few seconds.

use node_tests::prelude::*;

use crate::measured::{Fault, settled};

const WATCHED: Duration = Duration::from_secs(25);

/// Empties the Service's chain, to which the rule of its ClusterIP jumps.
fn empty(scene: &Scene, backend: Backend, service: &str) {
    let node = &scene.world.node;
    for (family, script) in scene.rules.scripts().expect("the rules") {
        let address = scene.manifests.service(service).cluster_ip(family);
        let rules = script
            .lines()
            .filter(|line| line.contains(&format!(" {address} ")));
        let is_chain = |word: &&str| word.starts_with("svc-") || word.starts_with("KUBE-SVC-");
        let mut words = rules.flat_map(str::split_whitespace);
        let chain = words.find(is_chain).expect("its chain");
        let v4 = family == Family::V4;
        if backend == Backend::Nftables {
            let table = if v4 { "ip" } else { "ip6" };
            node.nft(&format!("flush chain {table} kube-proxy {chain}\n"))
                .expect("flush");
            continue;
        }
        let program = ["ip6tables-legacy", "iptables-legacy"][usize::from(v4)];
        let lock = scene.world.dir().join("xtables.lock");
        let env = [("XTABLES_LOCKFILE", lock.as_os_str())];
        let words = ["-w", "5", "-t", "nat", "-F", chain];
        node.feed_with(program, &words, &env, "").expect("flush");
    }
}

#[rstest]
#[case::nftables(Backend::Nftables, "api")]
#[case::iptables(Backend::IptablesLegacy, "web")]
fn one_service_is_named_once(#[case] backend: Backend, #[case] service: &str) {
    let scene = Scene::busy(backend, &[]);
    let watch = settled(&scene);
    let lines = || scene.agent().log().matches("the verdict changed").count();
    let before = lines();
    let object = format!("demo/{service}");
    let fault = Fault::inject(&scene, &watch, |scene| {
        empty(scene, backend, service);
    });
    let mut states: Vec<(u128, String)> = Vec::new();
    let begun = Instant::now();
    throughout(WATCHED, || {
        let state = scene.report()["verdict"]["state"].to_string();
        if states.last().is_none_or(|(_, last)| *last != state) {
            states.push((begun.elapsed().as_millis(), state));
        }
    });
    let told = lines() - before;
    let felt = fault.felt(Instant::now());
    eprintln!("MEASURED {object}: {states:?}, {told} lines; {felt:?}");
    assert_never_503(&watch);
    assert!(
        felt.pods.0 * 5 > felt.pods.1,
        "too few pods are affected: {felt:?}"
    );
    let report = scene.report();
    for family in Family::ALL {
        assert_eq!(family_of(&report, family)["state"], "degraded");
    }
    assert!(blames(&report, &object), "{report:#}");
    assert!(
        (1..=3).contains(&told),
        "{told} lines:\n{}",
        scene.agent().log()
    );
    let mended = Instant::now();
    scene.rules.install().expect("install again");
    scene.wait_probed();
    let back = mended.elapsed();
    eprintln!(
        "MEASURED {object}: proven {back:.2?} after the repair, {} lines in all",
        lines() - before
    );
    assert_never_503(&watch);
}
