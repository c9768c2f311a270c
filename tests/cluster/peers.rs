//! More nodes at a [`Scene`]'s API server, each in a separate world with a real kube-proxy and agent. They
//! have no pods, so only the sentinel's probes show that they work.

use std::fs;

use node_tests::cluster::{ControlPlane, KubeProxy, Relay, base, install_node, wait_proven};
use node_tests::prelude::*;
use node_tests::world::Agent;

use crate::scene::{PATIENCE, Scene};

/// A node. Its fields are dropped in this order.
pub(crate) struct Peer {
    pub(crate) agent: Agent,
    _proxy: KubeProxy,
    _relay: Relay,
    pub(crate) world: World,
}

impl Peer {
    pub(crate) fn start(scene: &Scene, name: &'static str) -> Self {
        let world = World::builder().node_name(name).build();
        let world = world.expect("build a world");
        let server = scene.far();
        let (door, beyond) = (&world.worker, &scene.world.worker);
        let relay = Relay::start(door, server, Some(beyond), ControlPlane::address());
        let relay = relay.expect("a relay");

        let node = scene.manifests.dir().join("node.yaml");
        let node = fs::read_to_string(node).expect("the scene's Node");
        let file = world.dir().join("node.yaml");
        fs::write(&file, node.replace(NODE_NAME, name)).expect("write");
        install_node(&scene.api, &file, name).expect("a Node");

        let config = scene.control.proxy_kubeconfig(server);
        let proxy = KubeProxy::start(&world, &scene.programs, scene.mode, &config);
        let proxy = proxy.expect("a kube-proxy");
        let config = scene
            .control
            .account_kubeconfig(&world, server, base::AGENT);
        let config = config.expect("a kubeconfig");
        let options = ["--kubeconfig", config.to_str().expect("a path in UTF-8")];
        let binary = agent_binary().expect("the agent's binary");
        let agent = world.spawn_agent(&binary, world.dir(), &options);
        let mut agent = agent.expect("start the agent");
        agent.wait_ready(PATIENCE).expect("a ready agent");
        Self {
            agent,
            _proxy: proxy,
            _relay: relay,
            world,
        }
    }

    pub(crate) fn wait_proven(&self) {
        wait_proven(&self.agent);
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch::start(&self.world, Duration::from_millis(20)).expect("a poller")
    }
}
