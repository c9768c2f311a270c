//! The fleet brake in a cluster of five nodes, each with a real agent and a real kube-proxy, and one API
//! server.

use std::iter;

use node_tests::prelude::*;
use node_tests::watch::Change;
use node_tests::world::Agent;

use crate::peers::Peer;
use crate::scene::{PATIENCE, Scene, flush, wait_healthz};

const PEERS: [&str; 4] = ["node-2", "node-3", "node-4", "node-5"];

struct Five {
    peers: Vec<Peer>,
    scene: Scene,
}

impl Five {
    fn nodes(&self) -> Vec<&Namespace> {
        let peers = self.peers.iter().map(|peer| &peer.world.node);
        iter::once(&self.scene.world.node).chain(peers).collect()
    }

    fn agents(&self) -> Vec<&Agent> {
        let peers = self.peers.iter().map(|peer| &peer.agent);
        iter::once(self.scene.agent()).chain(peers).collect()
    }

    /// Waits until all nodes are healthy, and starts a watch of each.
    fn watches(&self) -> Vec<Watch> {
        self.scene.wait_proven();
        self.peers.iter().for_each(Peer::wait_proven);
        self.scene.counted(0, 5);
        let peers = self.peers.iter().map(Peer::watch);
        let all: Vec<Watch> = iter::once(self.scene.watch()).chain(peers).collect();
        for watch in &all {
            wait_healthz(watch, 200);
        }
        all
    }

    /// Breaks all nodes at once. The brake makes each answer 200 again while its rules are still gone.
    fn all_fail(&self) {
        let watches = self.watches();
        let nodes = self.nodes();
        let began = Instant::now();
        let rules: Vec<String> = thread::scope(|scope| {
            let flushes: Vec<_> = nodes
                .iter()
                .map(|node| scope.spawn(|| flush(node)))
                .collect();
            let ended = flushes
                .into_iter()
                .map(|flush| flush.join().expect("flushed"));
            ended.collect()
        });
        let all = |holds: fn(&Agent) -> bool| self.agents().iter().all(|agent| holds(agent));
        let held = until(PATIENCE, || all(is_held).then_some(()));
        let curve = curve(&watches, began);
        println!("all of five at once: {curve:.1?}");
        assert!(held.is_some(), "never all held: {curve:?}");
        self.scene.counted(5, 5);
        assert!(all(is_held), "released by the count of all");
        for (node, rules) in nodes.iter().zip(&rules) {
            node.nft(rules).expect("the rules again");
        }
    }
}

fn curve(watches: &[Watch], from: Instant) -> Vec<(Duration, usize)> {
    let changes: Vec<Vec<Change>> = watches.iter().map(Watch::changes).collect();
    let mut moments: Vec<Instant> = changes.iter().flatten().map(|change| change.at).collect();
    moments.retain(|at| *at >= from);
    moments.sort();
    let failing = |at: Instant| {
        let fails = |changes: &&Vec<Change>| {
            let last = changes.iter().rfind(|change| change.at <= at);
            last.is_some_and(|change| change.codes.healthz == 503)
        };
        changes.iter().filter(fails).count()
    };
    let points = moments.into_iter().map(|at| (at - from, failing(at)));
    points.collect()
}

fn is_held(agent: &Agent) -> bool {
    agent.verdict().is_ok_and(|report| {
        report["verdict"]["state"] == "broken"
            && report["answers"]["healthz"]["status"] == 200
            && report["answers"]["held"]["fleet"].is_object()
    })
}

#[test]
fn five_nodes_that_fail_at_once_keep_their_200_and_one_alone_does_not() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let _rotator = scene.rotator("rotator-1", &[]);
    let peers = PEERS.map(|name| Peer::start(&scene, name)).into();
    let five = Five { peers, scene };
    five.scene.counted(0, 5);

    five.all_fail();

    let watches = five.watches();
    let node = &five.peers[1].world.node;
    let began = Instant::now();
    let rules = flush(node);
    let failed = wait_healthz(&watches[2], 503);
    println!("one of five: 503 after {:.1?}", failed - began);
    five.scene.counted(1, 5);
    assert_eq!(watches[2].now().healthz, 503);
    node.nft(&rules).expect("the rules again");
    wait_healthz(&watches[2], 200);
    let curve = curve(&watches, began);
    assert!(curve.iter().all(|(_, failing)| *failing <= 1), "{curve:?}");
}
