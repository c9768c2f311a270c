//! Checks made on the node, such as keepalived's: at one loopback address they get the answer of clients
//! outside, and the owner's while the agent is away. At all other addresses the node gets the owner's.

use node_tests::http;
use node_tests::prelude::*;
use node_tests::world::HEALTHZ_PORT;

use crate::steer::{Owner, Who, inside, node_address, outside, who};

fn checks() -> SocketAddr {
    SocketAddr::from(([127, 10, 2, 56], HEALTHZ_PORT))
}

fn at_checks(scene: &Scene) -> Who {
    who(&scene.world.node, checks())
}

#[rstest]
#[case::audit("audit", 200)]
#[case::enforce("enforce", 503)]
fn a_check_on_the_node_gets_what_clients_outside_get(
    #[case] enforcement: &str,
    #[case] broken: u16,
) {
    let mut scene = Scene::proven(Backend::Nftables, &["--enforcement", enforcement]);
    let _owner = Owner::start(&scene.world.node);
    eventually("the node is the owner's", || {
        inside(&scene) == [Who::Owner; 4]
    });
    assert_eq!(at_checks(&scene), Who::Pathproof);
    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let ask = || {
        let answer = http::get(checks(), "/healthz", Duration::from_secs(2));
        answer.map(|answer| answer.status).ok()
    };
    eventually("the answer", || scene.world.node.run(ask) == Some(broken));
    assert_eq!(inside(&scene), [Who::Owner; 4]);

    assert!(scene.agent().signal(libc::SIGSTOP));
    eventually("the owner answers for a frozen agent", || {
        at_checks(&scene) == Who::Owner
    });
    assert!(scene.agent().signal(libc::SIGCONT));
    eventually("the agent answers again", || {
        at_checks(&scene) == Who::Pathproof
    });
    scene.take_agent().kill().expect("kill");
    eventually("the owner answers after a kill", || {
        at_checks(&scene) == Who::Owner
    });
}

/// Without an owner a killed agent leaves nobody, as for clients outside. An agent that answers at one address
/// of the node leaves this one to the owner.
#[test]
fn a_check_on_the_node_is_refused_where_clients_outside_are() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    assert_eq!(at_checks(&scene), Who::Pathproof);
    scene.take_agent().kill().expect("kill");
    eventually("nobody answers", || at_checks(&scene) == Who::Nobody);

    let _owner = Owner::start(&scene.world.node);
    let address = node_address(&scene, Family::V4).to_string();
    scene.start(&["--healthz-bind-address", &address]);
    assert_eq!(outside(&scene), [Who::Pathproof, Who::Owner]);
    assert_eq!(at_checks(&scene), Who::Owner);
}
