//! `pathproof echo` in pods of a world, as its DaemonSet would start it.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::{Scene, base, create};
use crate::manifests::{Endpoint, Service, managed, slice};
use crate::process::Process;
use crate::world::{Family, World, agent_binary};

/// Name of its Service in deploy/base.
const SERVICE: &str = "pathproof-echo";

/// Port at which pods answer, and port to which a pod connects to report a large transfer that failed.
pub const ECHO_PORT: u16 = 19257;
pub const LARGE_TRANSFER_PORT: u16 = 19258;

/// A pod, and the node that its slice names (`None`: the pod's real node).
pub type Placed = (&'static str, Option<&'static str>);

/// The pod probe's Service with this index in the address plan.
pub fn service(world: &World, index: u8, pods: &[Placed]) -> Service {
    let mut service = Service::new(SERVICE, index, []);
    service.namespace = "pathproof";
    (service.port, service.target_port) = (ECHO_PORT, ECHO_PORT);
    service.second = Some(("cut", LARGE_TRANSFER_PORT));
    for (pod, node) in pods {
        let mut endpoint = Endpoint::from(world.pod(pod));
        endpoint.node = node.unwrap_or(endpoint.node);
        service.endpoints.push(endpoint);
    }
    service
}

/// Starts a pod probe in each of these pods, as the chart installs it. Its Service is in deploy/base, but its
/// slices are written here, because no controller does it. Each pod has the name of its node.
pub fn start_in(scene: &Scene, pods: &[(&str, &str)]) -> Result<Probes> {
    let port = |(name, port)| json!({ "name": name, "port": port, "protocol": "TCP" });
    let ports: Vec<Value> = [("echo", ECHO_PORT), ("cut", LARGE_TRANSFER_PORT)]
        .map(port)
        .into();
    for family in Family::ALL {
        let endpoint = |(pod, node): &(&str, &str)| {
            json!({
                "addresses": [scene.world.pod(pod).address(family)],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": node,
                "targetRef": { "kind": "Pod", "name": pod, "namespace": base::NAMESPACE },
            })
        };
        let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
        let slice = slice(base::NAMESPACE, SERVICE, family, &ports, &endpoints);
        create(&scene.api, managed(slice))?;
    }
    let path = format!("/api/v1/namespaces/{}/services/{SERVICE}", base::NAMESPACE);
    let service = scene.api.get(&path)?;
    let ips = service["spec"]["clusterIPs"].as_array();
    let ips = ips.context("the Service of the pod probe")?.iter();
    let ips: Vec<&str> = ips.filter_map(Value::as_str).collect();
    let pods = pods.iter().map(|(pod, _)| *pod);
    Probes::start_with(&scene.world, &agent_binary()?, &ips.join(","), pods)
}

/// Deletes the slices of [`start_in`].
pub fn withdraw(scene: &Scene) -> Result<()> {
    let slices = Family::ALL.map(|family| slice(base::NAMESPACE, SERVICE, family, &[], &[]));
    let mut slices = slices.iter();
    slices.try_for_each(|slice| scene.api.delete_object(slice))
}

/// Running pod probes; killed when dropped.
#[derive(Debug)]
pub struct Probes(Vec<Process>);

impl Probes {
    /// Starts a pod probe in each pod, with the ClusterIPs of [`service`] instead of the Service's name.
    pub fn start(world: &World, binary: &Path, index: u8, pods: &[Placed]) -> Result<Self> {
        let service = service(world, index, &[]);
        let ips = Family::ALL.map(|family| service.cluster_ip(family).to_string());
        Self::start_with(
            world,
            binary,
            &ips.join(","),
            pods.iter().map(|(pod, _)| *pod),
        )
    }

    /// Starts a pod probe in each pod, with these ClusterIPs instead of the Service's name.
    pub fn start_with<'a>(
        world: &World,
        binary: &Path,
        service: &str,
        pods: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let started = pods.into_iter().map(|pod| {
            let mut command = world.pod(pod).ns.command(binary);
            command.args(["echo", "--service", service]);
            Process::start(command, &format!("echo-{pod}"), world.dir())
        });
        Ok(Self(started.collect::<Result<_>>()?))
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(Process::pid)
    }
}
