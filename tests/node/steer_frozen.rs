//! An agent that cannot answer gives its ports back to the processes that listen there. An agent whose main
//! loop alone hangs can still answer, and keeps them.

use std::net::Ipv6Addr;

use node_tests::http::{self, Response};
use node_tests::prelude::*;
use node_tests::stopped::StoppedThreads;
use node_tests::throttle::{Limit, Throttle};

use crate::steer::{Owner, Who, node_address, outside, who, who_within};

/// Health check node port of web.
const HEALTH_PORT: u16 = 30_999;
/// How long a client waits for an agent that runs late.
const PATIENCE: Duration = Duration::from_secs(20);
/// The smallest quota that the kernel accepts, in its longest period. With busy processes in the group, no
/// thread of the agent runs for seconds.
const STARVED: Limit = Limit::Cpu {
    quota: 1_000,
    period: 1_000_000,
};
/// One processor for the agent and all busy processes.
const SLOW: Limit = Limit::Cpu {
    quota: 100_000,
    period: 100_000,
};

/// A node whose healthz port has an owner, with an agent that answers clients outside.
fn shared() -> (Scene, Owner) {
    let mut scene = Scene::bare(Backend::Nftables);
    let owner = Owner::start(&scene.world.node);
    scene.start(&[]);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    (scene, owner)
}

/// Sends a request to an agent that does not run, calls `wake` a second later, and returns the answer.
fn answer_after(scene: &Scene, address: SocketAddr, wake: impl FnOnce()) -> Response {
    let client = scene.world.outside.clone();
    let asked = thread::spawn(move || client.run(|| http::get(address, "/healthz", PATIENCE)));
    thread::sleep(Duration::from_secs(1));
    wake();
    asked.join().expect("a client").expect("an answer")
}

/// The agent takes the port again, and keeps it.
fn assert_agent_returns(scene: &Scene) {
    eventually("the agent answers again", || {
        outside(scene) == [Who::Pathproof; 2]
    });
    throughout(Duration::from_secs(1), || {
        assert_eq!(outside(scene), [Who::Pathproof; 2]);
    });
}

#[rstest]
#[case::of_v1(Limit::FreezerV1)]
#[case::of_v2(Limit::FreezerV2)]
fn an_agent_in_a_frozen_group_leaves_the_port_to_its_owner(#[case] freezer: Limit) {
    let (scene, _owner) = shared();
    let mut throttle = needs!(skip::needed(Throttle::new(freezer)));
    let hold = |throttle: &mut Throttle| {
        let held = throttle.hold(scene.agent().pid(), scene.world.dir());
        held.expect("frozen");
    };
    // The negative control: its connections wait for a second.
    hold(&mut throttle);
    let answer = answer_after(&scene, node_address(&scene, Family::V4), || {
        throttle.release().expect("thawed");
    });
    assert!(answer.body.contains("\"lastUpdated\""), "{answer:?}");

    hold(&mut throttle);
    eventually("the owner answers", || outside(&scene) == [Who::Owner; 2]);
    throughout(Duration::from_secs(1), || {
        assert_eq!(outside(&scene), [Who::Owner; 2]);
    });
    throttle.release().expect("thawed");
    assert_agent_returns(&scene);
}

#[test]
fn an_agent_without_cpu_time_leaves_the_port_to_its_owner() {
    let (scene, _owner) = shared();
    let mut throttle = needs!(skip::needed(Throttle::new(STARVED)));
    let held = throttle.hold(scene.agent().pid(), scene.world.dir());
    held.expect("a quota");
    eventually("the owner answers", || outside(&scene) == [Who::Owner; 2]);
    throttle.release().expect("no quota");
    assert_agent_returns(&scene);
}

/// The negative control: the agent runs less often, but many times within the time that a heartbeat lasts.
#[test]
fn an_agent_with_little_cpu_time_keeps_the_port() {
    let (scene, _owner) = shared();
    let mut throttle = needs!(skip::needed(Throttle::new(SLOW)));
    let held = throttle.hold(scene.agent().pid(), scene.world.dir());
    held.expect("a quota");
    for _ in 0..10 {
        // On a busy machine an answer takes seconds, but it is the agent's.
        let answers = Family::ALL.map(|family| {
            let address = node_address(&scene, family);
            who_within(&scene.world.outside, address, PATIENCE)
        });
        assert_eq!(answers, [Who::Pathproof; 2]);
        thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_frozen_agent_leaves_a_health_check_node_port_to_its_owner() {
    let mut scene = Scene::bare(Backend::Nftables);
    let changed = scene.manifests.change("web", |service| {
        *service = service.clone().health_port(HEALTH_PORT);
    });
    changed.expect("web");
    scene.rules.install().expect("its rules");
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTH_PORT));
    let _owner = Owner::at(&scene.world.node, everywhere);
    scene.start(&[]);
    let address = |family| SocketAddr::new(scene.world.node_address(family), HEALTH_PORT);
    let answers = |from: Who| {
        Family::ALL.map(|family| who(&scene.world.outside, address(family))) == [from; 2]
    };
    eventually("the agent answers", || answers(Who::Pathproof));

    // The negative control: its connections wait for a second.
    assert!(scene.agent().signal(libc::SIGSTOP));
    let answer = answer_after(&scene, address(Family::V4), || {
        assert!(scene.agent().signal(libc::SIGCONT));
    });
    assert!(answer.body.contains("\"localEndpoints\""), "{answer:?}");

    assert!(scene.agent().signal(libc::SIGSTOP));
    eventually("the owner answers", || answers(Who::Owner));
    throughout(Duration::from_secs(1), || assert!(answers(Who::Owner)));
    assert!(scene.agent().signal(libc::SIGCONT));
    eventually("the agent answers again", || answers(Who::Pathproof));
    throughout(Duration::from_secs(1), || assert!(answers(Who::Pathproof)));
}

/// The thread that answers still runs, so the agent keeps the port. Once the main loop has been silent for
/// 10 s, the node's state is unknown, and the policy decides the answer. The negative control: no 503 in
/// the first 5 s.
#[rstest]
#[case::closed("closed", 503)]
#[case::open("open", 200)]
fn an_agent_whose_main_loop_hangs_keeps_the_port(#[case] policy: &str, #[case] status: u16) {
    let scene = Scene::idle(Backend::Nftables, &["--unknown-policy", policy]);
    let _owner = Owner::start(&scene.world.node);
    // Wait for 200 first: before the first proof, the policy may cause a 503.
    wait_answers(&scene.watch(), 200);
    let watch = scene.watch();
    let hanging = StoppedThreads::all_but("answers", scene.agent().pid()).expect("stopped");
    let began = Instant::now();
    throughout(Duration::from_secs(5), || {
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    });
    assert_never_503(&watch);
    thread::sleep(Duration::from_secs(12).saturating_sub(began.elapsed()));
    wait_answers(&watch, status);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    drop(hanging);
    wait_answers(&watch, 200);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    if status == 200 {
        assert_never_503(&watch);
    }
}
