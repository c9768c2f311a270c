//! Negative controls: events that make the sentinel's probes fail, or could, although the datapath has no
//! fault. They never cause a 503.

use std::process::Command;

use node_tests::prelude::*;
use node_tests::traffic::Failure;

use crate::agent_attach::tc;
use crate::agent_kernel::detach_all;

/// Time for which no 503 may come: several times as long as a confirmation takes.
const WATCHED: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harmless {
    /// An administrator deletes the sentinel, and the rules follow.
    Deleted,
    /// An administrator puts another endpoint into the sentinel's slices, and the rules follow.
    Edited,
    /// An administrator puts another endpoint into the sentinel's slices, and the rules do not follow.
    EditedAndRulesGone,
    /// A policy drops packets from and to 198.18.0.0/15 and 2001:2::/48.
    RangeDropped,
    /// A policy answers packets from these ranges with RST.
    RangeReset,
    DevicesDown,
    /// Another program repeatedly flushes the devices' routes.
    RoutesFlushed,
    DeviceDeleted,
    BackendsKilled,
    /// 250 devices are added and removed.
    BurstOfDevices,
    /// `ip_forward` is 0, but forwarding is on for each interface except the sentinel's.
    ForwardedByInterface,
}

/// Each backend gets a part of the events. Each event is reverted before the next.
#[rstest]
#[case::nftables(Backend::Nftables, &[Harmless::BurstOfDevices, Harmless::RangeDropped, Harmless::RoutesFlushed, Harmless::ForwardedByInterface, Harmless::Deleted])]
#[case::iptables_legacy(Backend::IptablesLegacy, &[Harmless::RangeReset, Harmless::DeviceDeleted, Harmless::Edited])]
#[case::iptables_nft(Backend::IptablesNft, &[Harmless::DevicesDown, Harmless::BackendsKilled, Harmless::EditedAndRulesGone])]
fn never_503(
    #[case] backend: Backend,
    #[case] all: &[Harmless],
    #[values(false, true)] busy: bool,
) {
    let begin = if busy { Scene::busy } else { Scene::idle };
    let mut scene = begin(backend, &[]);
    let watch = scene.watch();
    for harmless in all {
        println!("{harmless:?}");
        let log = scene.agent().log().len();
        harmless.happen(&mut scene);
        harmless.is_told(&scene, log, busy);
        let callers = harmless.callers(&scene, busy);
        thread::sleep(harmless.watched());
        drop(callers);
        assert_never_503(&watch);
        harmless.mend(&mut scene);
        scene.wait_probed();
        assert_never_503(&watch);
    }
}

impl Harmless {
    fn happen(self, scene: &mut Scene) {
        let node = &scene.world.node;
        match self {
            Self::Deleted => {
                scene.manifests.remove_sentinel().expect("remove");
                scene.rules.install().expect("rules");
            }
            Self::Edited | Self::EditedAndRulesGone => {
                let edited = Sentinel {
                    endpoints: [
                        "10.244.0.99".parse().expect("an address"),
                        "fd00:10:244::99".parse().expect("an address"),
                    ],
                    ..Sentinel::default()
                };
                scene.manifests.put_sentinel(&edited).expect("edit");
                if self == Self::Edited {
                    scene.rules.install().expect("rules");
                }
            }
            Self::RangeDropped => {
                node.nft(
                    "table inet filtered { chain bogons { type filter hook forward priority -10; \
                     ip saddr 198.18.0.0/15 drop; ip daddr 198.18.0.0/15 drop; \
                     ip6 saddr 2001:2::/48 drop; ip6 daddr 2001:2::/48 drop; }\n}\n",
                )
                .expect("nft");
            }
            Self::RangeReset => {
                node.nft(
                    "table inet filtered { chain bogons { type filter hook forward priority -10; \
                     ip saddr 198.18.0.0/15 meta l4proto tcp reject with tcp reset; \
                     ip6 saddr 2001:2::/48 meta l4proto tcp reject with tcp reset; }\n}\n",
                )
                .expect("nft");
            }
            Self::DevicesDown => {
                for device in ["pathproof-c0", "pathproof-s0"] {
                    node.ip(&format!("link set {device} down")).expect("down");
                }
            }
            Self::RoutesFlushed => {
                for _ in 0..10 {
                    for device in ["pathproof-c0", "pathproof-s0"] {
                        let _ = node.ip(&format!("route flush dev {device}"));
                        let _ = node.ip(&format!("-6 route flush dev {device}"));
                    }
                    thread::sleep(Duration::from_millis(300));
                }
            }
            Self::DeviceDeleted => {
                node.ip("link del pathproof-s0").expect("delete");
            }
            Self::BackendsKilled => scene.servers.clear(),
            Self::ForwardedByInterface => {
                let set = scene.world.forward_by_interface("pathproof-");
                set.expect("sysctls");
            }
            Self::BurstOfDevices => {
                let add: String = (0..250)
                    .map(|n| format!("link add burst{n} type veth peer name tsrub{n}\n"))
                    .collect();
                let remove: String = (0..250).map(|n| format!("link del burst{n}\n")).collect();
                node.ip_batch(&add).expect("add");
                node.ip_batch(&remove).expect("remove");
            }
        }
    }
}

impl Harmless {
    /// Time for which no 503 may come. It exceeds the time for which the agent ignores failures after a
    /// change of the sentinel.
    fn watched(self) -> Duration {
        match self {
            Self::Deleted | Self::Edited | Self::EditedAndRulesGone => WATCHED + settled(),
            _ => WATCHED,
        }
    }

    /// Clients of the killed backends. An idle node has no other clients.
    fn callers(self, scene: &Scene, busy: bool) -> Vec<Client> {
        let targets = ["web", "api"]
            .map(|service| Family::ALL.map(|family| scene.cluster_ip(service, family)));
        let targets = targets.into_iter().flatten();
        let targets = targets.filter(|_| self == Self::BackendsKilled && !busy);
        let dial = |target| {
            let plans = ["client-1", "client-2"].map(|pod| scene.pod_plan(pod, target).rate(10.0));
            plans.map(|plan| plan.start().expect("start a client"))
        };
        targets.flat_map(dial).collect()
    }

    /// Reverts the event if the agent does not repair it.
    fn mend(self, scene: &mut Scene) {
        match self {
            Self::Deleted | Self::Edited | Self::EditedAndRulesGone => {
                scene.add_sentinel(&Sentinel::default());
            }
            Self::RangeDropped | Self::RangeReset => {
                let open = "delete table inet filtered\n";
                scene.nft(open);
            }
            Self::BackendsKilled => scene.serve_all(),
            Self::ForwardedByInterface => scene.world.set_forwarding(true).expect("sysctl"),
            Self::DevicesDown
            | Self::RoutesFlushed
            | Self::DeviceDeleted
            | Self::BurstOfDevices => {}
        }
    }

    /// Asserts that the event took effect and is reported. `log` is the length of the log before the event.
    fn is_told(self, scene: &Scene, log: usize, busy: bool) {
        let logged = |text: &str| scene.agent().log()[log..].contains(text);
        match self {
            Self::Deleted => drop(scene.wait("no lane is probed", |report| {
                Family::ALL.iter().all(|family| {
                    let lanes = family_of(report, *family)["lanes"].as_array();
                    lanes.is_none_or(|all| all.iter().all(|lane| lane["state"] == "off"))
                })
            })),
            Self::Edited | Self::EditedAndRulesGone => {
                eventually("it is called altered", || {
                    logged("the sentinel is not probed")
                });
            }
            Self::RangeDropped | Self::RangeReset => {
                let state = if busy { "degraded" } else { "suspect" };
                scene.wait("probes are lost, and no more", |report| {
                    in_both(report, |family| family["state"] == state)
                });
            }
            Self::DevicesDown | Self::RoutesFlushed | Self::DeviceDeleted => {
                eventually("the damage is told", || logged("interfaces are damaged"));
            }
            // Dial from here, because an idle node has no other clients that would fail.
            Self::BackendsKilled => {
                for family in Family::ALL {
                    let target = scene.cluster_ip("web", family);
                    for turn in 0..3 {
                        let plan = scene.pod_plan("spare", target);
                        let plan = plan.patience(Duration::from_secs(2));
                        // Repeat: a connection that a backend had not accepted when it ended is reset instead
                        // of refused.
                        eventually("nobody listens", || {
                            plan.once(turn) == Err(Failure::Refused)
                        });
                    }
                }
            }
            Self::ForwardedByInterface => {
                let state = if busy { "degraded" } else { "suspect" };
                scene.wait("probes of IPv4 are lost, and no more", |report| {
                    family_of(report, Family::V4)["state"] == state
                });
            }
            Self::BurstOfDevices => {}
        }
    }
}

/// Without the program at the echo, or the one that collects answers, no probe can pass. This is no failure.
/// The agent attaches the program again, and then still finds a real fault.
#[rstest]
#[case::echo("pathproof-s1", &[])]
#[case::collector_by_clsact("pathproof-c1", &["--attach", "clsact"])]
fn detached_programs_are_put_back(#[case] device: &str, #[case] attach: &[&str]) {
    let scene = Scene::idle(Backend::Nftables, attach);
    let watch = scene.watch();
    if attach.is_empty() {
        let detached = detach_all(&scene.world.node, device).expect("detach");
        assert_eq!(detached, 1, "programs at {device}");
    } else {
        tc(&scene, &format!("qdisc del dev {device} clsact"));
    }
    eventually("it is told and put back", || {
        scene.agent().log().contains("programs were attached again")
    });
    scene.wait_probed();
    assert_never_503(&watch);
    scene.break_and_mend(&watch);
}

/// The agent has no free file descriptors and so cannot check its devices. They may be intact, so it keeps
/// them.
#[test]
fn devices_that_cannot_be_checked_are_not_replaced() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let index = || {
        scene
            .world
            .node
            .ifindex("pathproof-c0")
            .expect("an interface")
    };
    let (before, repaired) = (index(), repairs(&scene));
    let files = |limit: &str| {
        let pid = scene.agent().pid().to_string();
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &pid, &format!("--nofile={limit}:")]);
        assert!(prlimit.status().expect("run prlimit").success());
    };
    files("3");
    eventually("it cannot check", || {
        scene
            .agent()
            .log()
            .contains("interfaces could not be checked")
    });
    files("1024");
    scene.wait_probed();
    assert_eq!((index(), repairs(&scene)), (before, repaired));
    assert!(!scene.agent().log().contains("interfaces are damaged"));
    let watch = scene.watch();
    scene.break_and_mend(&watch);
}

/// The sentinel's ports do not answer unknown clients: only registered probes get an answer.
#[test]
fn strangers_get_no_answer() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    for family in Family::ALL {
        let of_sentinel = SocketAddr::new(Sentinel::cluster_ip(family), Sentinel::PORT);
        for plan in [
            Plan::from_outside(&scene.world, 0, scene.node_port(30_999, family)),
            scene.pod_plan("client-1", of_sentinel),
        ] {
            let answer = plan.patience(Duration::from_secs(2)).once(0);
            assert_eq!(answer, Err(Failure::Timeout), "{family:?}");
        }
        scene.wait("still proven", |report| {
            family_of(report, family)["state"] == "proven"
        });
    }
}

/// An agent that exits after SIGTERM removes its devices. A killed agent leaves them, and the next one adopts
/// them.
#[test]
fn devices_go_with_the_agent_and_are_found_again() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let there = |scene: &Scene| scene.world.node.ifindex("pathproof-c0").ok();
    let before = there(&scene).expect("the device");
    scene.take_agent().kill().expect("kill");
    assert_eq!(there(&scene), Some(before), "a killed agent leaves them");
    scene.start(&[]);
    scene.wait_probed();
    assert_eq!(there(&scene), Some(before), "the next one adopts them");
    scene.take_agent().terminate().expect("terminate");
    assert_eq!(there(&scene), None, "an agent that ends removes them");
    let left = scene.world.node.ip("route show table all").expect("routes");
    assert!(!left.contains("198.18."), "{left}");
}
