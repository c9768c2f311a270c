//! Negative controls: failures of traffic that resemble a fault of the datapath never cause a 503.

use node_tests::prelude::*;
use node_tests::traffic::Failure;

/// Time for which no 503 may come: twice as long as a confirmation takes.
const WATCHED: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harmless {
    /// All applications have ended, so that the kernel of each pod answers with RST.
    BackendsKilled,
    BackendsSilent,
    /// A NetworkPolicy drops packets to the pods of one Service.
    PolicyForOneService,
    /// A NetworkPolicy drops all packets of one client.
    PolicyForOneClient,
    NoEndpoints,
    /// Clients are outside of loadBalancerSourceRanges.
    SourceRanges,
    /// A Service with externalTrafficPolicy Local has no local endpoint.
    NoLocalEndpoint,
}

#[rstest]
fn never_503(
    #[values(
        Harmless::BackendsKilled,
        Harmless::BackendsSilent,
        Harmless::PolicyForOneService,
        Harmless::PolicyForOneClient,
        Harmless::NoEndpoints,
        Harmless::SourceRanges,
        Harmless::NoLocalEndpoint
    )]
    harmless: Harmless,
) {
    // One backend for each event is enough, because tests of faults cover the differences between backends.
    let backend = Backend::ALL[harmless as usize % 3];
    let mut scene = Scene::proven(backend, &[]);
    let watch = scene.watch();
    harmless.happen(&mut scene);
    thread::sleep(WATCHED);
    assert_never_503(&watch);
    harmless.is_felt(&scene);
    harmless.is_told(&scene);
    let state = scene.report()["verdict"]["state"].clone();
    assert!(
        state == "proven" || state == "degraded",
        "{harmless:?}: {}",
        scene.report()
    );
    assert_never_503(&watch);
    if harmless == Harmless::BackendsKilled {
        // Dead backends must not hide a real fault of the node.
        scene.rules.flush_services().expect("flush");
        wait_answers(&watch, 503);
    }
}

impl Harmless {
    fn happen(self, scene: &mut Scene) {
        match self {
            Self::BackendsKilled => scene.servers.clear(),
            Self::BackendsSilent => {
                for pod in scene.servers.keys() {
                    drop_all(&scene.world.pod(pod).ns, "input", "tcp dport 8080");
                }
            }
            Self::PolicyForOneService => {
                let pods = ["api-1", "api-2"].map(|pod| scene.world.pod(pod));
                let v4 = pods.map(|pod| pod.v4.to_string()).join(", ");
                let v6 = pods.map(|pod| pod.v6.to_string()).join(", ");
                let to = format!("ip daddr {{ {v4} }} drop\nip6 daddr {{ {v6} }}");
                drop_all(&scene.world.node, "forward", &to);
            }
            Self::PolicyForOneClient => {
                let device = &scene.world.pod("client-1").device;
                drop_all(&scene.world.node, "forward", &format!("iifname {device}"));
            }
            Self::NoEndpoints => {
                let empty = Service::new("empty", 4, []).node_port(30084);
                scene.add(empty);
                dial(scene, "empty", Some(30084));
            }
            Self::SourceRanges => {
                let ranges = [
                    "203.0.113.200/32".to_owned(),
                    "2001:db8:ffff::200/128".to_owned(),
                ];
                scene
                    .manifests
                    .change("web", |service| service.source_ranges = ranges.into())
                    .expect("change web");
                scene.rules.install().expect("install");
            }
            Self::NoLocalEndpoint => {
                let far = scene.world.pod("api-2").clone();
                let far = Service::new("far", 4, [&far])
                    .node_port(30084)
                    .external_local();
                scene.add(far);
                dial(scene, "far", Some(30084));
            }
        }
    }

    /// Asserts that the failure is real: the first client fails. A second client, if there is one, is not
    /// affected.
    fn is_felt(self, scene: &Scene) {
        for family in Family::ALL {
            let vip = (scene.manifests.service("web").load_balancer_ip(family), 80).into();
            let pod = |pod, service| scene.pod_plan(pod, scene.cluster_ip(service, family));
            let outside = |target| Plan::from_outside(&scene.world, 2, target);
            let server = scene.world.pod("web-1").endpoint(family, PORT);
            let (denied, served) = match self {
                Self::PolicyForOneService => (pod("spare", "api"), Some(pod("spare", "web"))),
                Self::PolicyForOneClient => (pod("client-1", "web"), Some(pod("spare", "web"))),
                Self::SourceRanges => (outside(vip), Some(pod("spare", "web"))),
                Self::NoLocalEndpoint => {
                    let port = scene.node_port(30084, family);
                    (outside(port), Some(pod("spare", "far")))
                }
                Self::BackendsKilled | Self::BackendsSilent => {
                    (scene.pod_plan("spare", server), None)
                }
                Self::NoEndpoints => return,
            };
            if let Some(served) = served {
                let served = until(PATIENCE, || served.once(0).ok());
                assert!(served.is_some(), "{self:?} {family:?}: others are served");
            }
            let failure = match self {
                Self::BackendsKilled => Failure::Refused,
                _ => Failure::Timeout,
            };
            let denied = denied.patience(Duration::from_secs(2)).once(0);
            assert_eq!(denied, Err(failure), "{self:?} {family:?}");
        }
    }

    /// Asserts that the report names the real reason of the failure.
    fn is_told(self, scene: &Scene) {
        match self {
            Self::PolicyForOneService => {
                eventually("api blamed", || blames(&scene.report(), "demo/api"));
            }
            Self::NoEndpoints => {
                for family in Family::ALL {
                    let rejected = || scene.count("empty", family, "", "rejected");
                    eventually("rejected where no endpoint is", || rejected() > 3);
                    assert_eq!(scene.count("empty", family, "", "lost"), 0);
                    assert_eq!(scene.count("empty", family, "", "refused"), 0);
                }
            }
            Self::NoLocalEndpoint => {
                for family in Family::ALL {
                    eventually("pods are served", || {
                        scene.count("far", family, "pod", "proven") > 3
                    });
                    assert_eq!(scene.count("far", family, "external", "lost"), 0);
                }
            }
            Self::BackendsKilled | Self::BackendsSilent => {
                let report = scene.report();
                assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
            }
            Self::PolicyForOneClient | Self::SourceRanges => {}
        }
    }
}

/// Starts clients of one more Service: from a pod and, if it has a node port, from outside.
fn dial(scene: &mut Scene, service: &str, node_port: Option<u16>) {
    for family in Family::ALL {
        scene.dial("client-1", service, family, 10.0);
        if let Some(port) = node_port {
            scene.dial_outside(2, scene.node_port(port, family), 10.0);
        }
    }
}

fn drop_all(ns: &node_tests::world::Namespace, hook: &str, matching: &str) {
    let script = format!(
        "table inet harmless {{\n chain drops {{\n type filter hook {hook} priority -5; policy accept;\n \
         {matching} drop\n }}\n}}\n"
    );
    ns.nft(&script).expect("a policy");
}
