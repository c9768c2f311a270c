//! Kinds of users of a node. They matter because most rules of the verdict were written for pods, while an
//! ingress node has only outside clients.

use std::fmt;

use node_tests::cluster::{Process, base};
use node_tests::outage::Users;
use node_tests::pod_probe::{self, Probes};
use node_tests::prelude::*;

use crate::scene::Scene;

pub(crate) const NODE_PORTS: [u16; 2] = [30080, 30081];
/// Number of outside clients.
pub(crate) const SOURCES: u8 = 3;
/// Connections per second of each outside client; 60 for all of them together.
const RATE: f64 = 5.0;
/// Pods of the pod probe with their nodes. Each node has one, as the DaemonSet would place them.
const PROBES: [(&str, Place, &str); 2] = [
    ("echo", Place::Local, "node-1"),
    ("echo-far", Place::Remote, "node-2"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Only outside clients: two Services, three sources, both families.
    Outside,
    PodProbe,
    /// Outside clients and one pod that dials one Service.
    OnePod,
}

impl Use {
    pub(crate) const ALL: [Self; 3] = [Self::Outside, Self::PodProbe, Self::OnePod];
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "clients outside alone",
            Self::PodProbe => "clients outside and the pod probe",
            Self::OnePod => "clients outside and one pod",
        })
    }
}

pub(crate) struct AtWork {
    pub(crate) users: Users,
    _probes: Option<Probes>,
}

impl AtWork {
    pub(crate) fn start(scene: &mut Scene, kind: Use) -> Self {
        let mut plans = outside(scene, 0..SOURCES);
        if kind == Use::OnePod {
            let pod = scene.world.pod("client-1");
            let dial = |family| Plan::from_pod(&scene.world, pod, scene.inside("web", family));
            plans.extend(Family::ALL.map(|family| dial(family).rate(RATE)));
        }
        let probes = (kind == Use::PodProbe).then(|| pod_probe(scene));
        let users = Users::start(plans);
        users.wait_served();
        Self {
            users,
            _probes: probes,
        }
    }
}

/// Plans of outside clients that dial the node ports of both Services, in both families.
pub(crate) fn outside(scene: &Scene, sources: std::ops::Range<u8>) -> Vec<Plan> {
    let mut plans = Vec::new();
    for family in Family::ALL {
        for port in NODE_PORTS {
            let port = SocketAddr::new(scene.world.node_address(family), port);
            let plan = |source| Plan::from_outside(&scene.world, source, port).rate(RATE);
            plans.extend(sources.clone().map(plan));
        }
    }
    plans
}

/// Starts the pod probe on both nodes.
fn pod_probe(scene: &mut Scene) -> Probes {
    for (pod, place, _) in PROBES {
        scene.world.add_pod(pod, place).expect("a pod");
    }
    let pods = PROBES.map(|(pod, _, node)| (pod, node));
    pod_probe::start_in(scene, &pods).expect("the pod probe")
}

/// Starts the rotator as shipped, so it moves the sentinel at the interval of its manifest.
pub(crate) fn rotator(scene: &Scene) -> Process {
    let objects = base::objects().expect("deploy/base");
    let is_it = |object: &&Value| {
        object["kind"] == "Deployment" && object["metadata"]["name"] == "pathproof-rotator"
    };
    let shipped = objects
        .iter()
        .find(is_it)
        .expect("the rotator's Deployment");
    let args = &shipped["spec"]["template"]["spec"]["containers"][0]["args"];
    let args = args.as_array().into_iter().flatten();
    let mut command = scene.world.node.command(agent_binary().expect("a binary"));
    command
        .args(args.filter_map(Value::as_str))
        .arg("--kubeconfig")
        .arg(scene.kubeconfig_of(base::ROTATOR));
    Process::start(command, "rotator", scene.world.dir()).expect("a rotator")
}
