//! The first install, in audit mode, where a machine elsewhere has one of the sentinel's addresses. On many
//! clouds such an address is reached by the default route, so nothing on the node shows the conflict.

use node_tests::prelude::*;
use node_tests::traffic::Manner;

use crate::scene::Scene;

/// The sentinel's default endpoint, which is another machine's address here.
const THEIRS: &str = "198.18.0.2";
const PORT: u16 = 8080;

#[test]
fn a_first_install_leaves_the_sentinels_address_to_a_machine_that_has_it() {
    let scene = needs!(Scene::bare());
    scene.node.serve().expect("a Service with pods");
    let outside = &scene.node.world.outside;
    let add = format!("addr add {THEIRS}/32 dev lo");
    outside.ip(&add).expect("their address");
    let _server = Server::start_as(outside, "theirs", PORT, Manner::Answers).expect("their server");
    scene.assert_reached();

    scene.install_shipped();
    let words = format!("{THEIRS} is in use");
    scene.wait("the reason is in the report", || {
        let report = scene.node.verdict().unwrap_or_default();
        report["sentinel"].to_string().contains(&words)
    });
    scene.assert_reached();
    let made = scene.node.world.node.ifindex("pathproof-s0").is_ok();
    assert!(!made, "the agent must make no device");
    assert!(scene.agent_log().contains(&words), "{}", scene.told());
    let agent = scene.agent();
    let name = agent["metadata"]["name"].as_str().expect("a name");
    let status = scene.kubectl(&format!("-n pathproof exec {name} -- pathproof status"));
    println!("{status}");
    assert!(status.contains(&words), "{status}");
    scene.wait_codes(200, 200);
}

impl Scene {
    /// Asserts that the node and a pod of it reach the other machine.
    fn assert_reached(&self) {
        let world = &self.node.world;
        let theirs = SocketAddr::new(THEIRS.parse().expect("an address"), PORT);
        Plan::from_node(world, theirs)
            .once(0)
            .expect("reached from the node");
        let pod = self.pod_process("web");
        let dial = format!("exec 3<>/dev/tcp/{THEIRS}/{PORT}");
        let words = ["-t", &pod, "-n", "timeout", "5", "bash", "-c", &dial];
        self.node
            .run("nsenter", &words)
            .expect("reached from a pod");
    }
}
