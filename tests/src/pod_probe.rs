//! `pathproof echo` in pods of a world, as its DaemonSet would start it.

use std::path::Path;

use anyhow::Result;

use crate::manifests::{Endpoint, Service};
use crate::process::Process;
use crate::world::{Family, World};

/// Port at which pods answer, and port to which a pod connects to report a large transfer that failed.
pub const ECHO_PORT: u16 = 19257;
pub const LARGE_TRANSFER_PORT: u16 = 19258;

/// A pod, and the node that its slice names (`None`: the pod's real node).
pub type Placed = (&'static str, Option<&'static str>);

/// The pod probe's Service with this index in the address plan.
pub fn service(world: &World, index: u8, pods: &[Placed]) -> Service {
    let mut service = Service::new("pathproof-echo", index, []);
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
