//! A real one-node Kubernetes: kubelet and containerd on the node of a [`World`], the whole control plane on
//! the other one, kube-proxy on its usual port, and images from archives. It uses no registry or container
//! engine, and imitates no part of Kubernetes.
//!
//! The node has its own namespaces (`machine`), so changes to mounts, bpffs, control groups or sysctls by a
//! pod, kubelet or the agent stay inside. Dropping a [`RealNode`] ends every process and removes everything.
//! The same happens when the thread that made it ends.

mod archive;
mod cgroups;
mod config;
mod desk;
mod machine;
mod rollout;
mod site;
mod tools;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result};
pub use desk::Desk;
use machine::Machine;
pub use rollout::{is_forgotten, is_ready};
use site::Site;
pub use tools::check;
pub(crate) use tools::find;

use crate::cluster::{Api, ControlPlane, KubeProxy, Servers};
use crate::http;
use crate::prelude::*;
use crate::process::{Process, path_with};
use crate::world::{ADMIN_PORT, HEALTHZ_PORT};

/// Time limit for steps that normally take seconds, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The image that deploy/base names.
pub const AGENT_IMAGE: &str = "docker.io/library/pathproof:0.1.0";
/// An image with the program `pod` of this package, for test pods: `serve` or `pause`.
pub const POD_IMAGE: &str = "docker.io/library/pod:1";
/// Poll interval of a load balancer in these tests.
const EVERY: Duration = Duration::from_millis(100);

/// The running cluster. Its parts are dropped in this order.
pub struct RealNode {
    kubelet: Option<Process>,
    proxy: Option<KubeProxy>,
    _containerd: Process,
    machine: Machine,
    _scheduler: Process,
    _controllers: Process,
    /// API client of an administrator.
    pub api: Api,
    control: ControlPlane,
    /// The administrator's kubectl and helm.
    pub desk: Desk,
    /// The networks: the node, the other node with the control plane, and the outside.
    pub world: World,
}

impl RealNode {
    /// Checks that this machine meets the requirements of a real node. The error names what is missing.
    pub fn possible() -> Needed {
        skip::root()?;
        let version = skip::needed(cgroups::version())?;
        println!("cgroup v{version}");
        skip::needed(check())
    }

    /// Starts everything, and waits until the node is ready and kube-proxy answers 200. `pod` is the binary
    /// `pod` of this package. The agent's image is the archive `PATHPROOF_IMAGE`, or else one built from the
    /// agent's binary.
    pub fn start(pod: &Path) -> Result<Self> {
        // The clients are pods of the world, not of the cluster, so that the test can dial from them. Their
        // paths to the node are as short as those of the cluster's pods.
        let world = World::builder().pods(&["client-1", "client-2"]).build()?;
        let site = Site::node(&world)?;
        fs::create_dir_all(&site.folder)?;
        let control = ControlPlane::start(&world, &Servers::find()?)?;
        let desk = Desk::new(&world, &site.folder, &control.admin_kubeconfig())?;
        let machine = Machine::start(site)?;
        let mut node = Self {
            kubelet: None,
            proxy: None,
            _containerd: containerd(&machine)?,
            machine,
            _scheduler: beside(&world, "kube-scheduler", &desk, "")?,
            _controllers: controllers(&world, &control.ca, &desk)?,
            api: control.api()?,
            control,
            desk,
            world,
        };
        node.load_all(pod)?;
        node.start_kubelet()?;
        node.start_proxy()?;
        node.settle()?;
        Ok(node)
    }

    /// Loads all images. They must exist before kubelet uses them, because none is pulled.
    fn load_all(&self, pod: &Path) -> Result<()> {
        self.load_program(config::PAUSE, pod, &["pause"])?;
        self.load_program(POD_IMAGE, pod, &[])?;
        match std::env::var_os("PATHPROOF_IMAGE") {
            Some(archive) => self.load(Path::new(&archive)),
            None => self.load_program(AGENT_IMAGE, &agent_binary()?, &[]),
        }
    }

    fn load_program(&self, reference: &str, program: &Path, words: &[&str]) -> Result<()> {
        let file = self.machine.site.folder.join("image.tar");
        archive::write(&file, reference, program, words)?;
        self.load(&file)?;
        fs::remove_file(&file).context("remove an archive")
    }

    fn load(&self, archive: &Path) -> Result<()> {
        let archive = archive.to_str().context("a path in UTF-8")?;
        self.ctr(&["images", "import", "--local", archive])
            .map(drop)
    }

    /// Starts kubelet. A restarted kubelet takes over the running pods.
    pub fn start_kubelet(&mut self) -> Result<()> {
        self.kubelet = Some(kubelet(&self.machine, &self.desk)?);
        Ok(())
    }

    /// Kills kubelet; its pods continue to run.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        machine::kill(self.kubelet.take().context("kubelet runs")?)
    }

    /// Starts kube-proxy with its health server on the usual port.
    pub fn start_proxy(&mut self) -> Result<()> {
        // End the previous kube-proxy first: it holds the port of the health server.
        self.proxy = None;
        let config = self.control.proxy_kubeconfig(ControlPlane::address());
        let (servers, mode) = (Servers::find()?, Mode::Nftables);
        let proxy = KubeProxy::spawn(&self.world, &servers, mode, &config, HEALTHZ_PORT, &[])?;
        self.proxy = Some(proxy);
        Ok(())
    }

    pub fn proxy(&self) -> &KubeProxy {
        self.proxy.as_ref().expect("kube-proxy runs")
    }

    /// Waits until the node is ready, and assigns its pod range, as a cloud would.
    fn settle(&mut self) -> Result<()> {
        let path = format!("/api/v1/nodes/{NODE_NAME}");
        let kubelet = self.kubelet.as_mut().context("kubelet runs")?;
        let mut given = false;
        let (v4, v6) = self.machine.site.pod_cidrs;
        let range = json!({ "spec": { "podCIDR": v4, "podCIDRs": [v4, v6] } });
        let api = &self.api;
        kubelet.wait("a ready node", PATIENCE, || {
            let Ok(node) = api.get(&path) else {
                return false;
            };
            given = given || api.patch(&path, &range).is_ok();
            given && status_of(&node, "Ready") == "True" && node["spec"]["taints"].is_null()
        })?;
        until(PATIENCE, || {
            let answer = self.proxy().ask("/healthz").ok()?;
            (answer.status == 200).then_some(())
        })
        .context("kube-proxy says 200")
    }

    /// Deploys two pods behind node port 30080 and waits until they are ready.
    pub fn serve(&self) -> Result<()> {
        self.deploy("web", include_str!("real_node/web.yaml"))
    }

    /// Deploys an ingress pod behind node port 30080 and waits until it is ready.
    pub fn serve_ingress(&self) -> Result<()> {
        self.deploy("ingress", include_str!("real_node/ingress.yaml"))
    }

    /// Writes the text, which contains a Deployment of this name and other objects, applies it, and waits for
    /// the Deployment's pods.
    fn deploy(&self, name: &str, text: &str) -> Result<()> {
        let file = self.machine.site.folder.join(format!("{name}.yaml"));
        fs::write(&file, text)?;
        self.desk.kubectl(&format!("apply -f {}", file.display()))?;
        let seconds = scaled(Duration::from_secs(60)).as_secs();
        let rollout = format!("rollout status deployment/{name} --timeout {seconds}s");
        self.desk.kubectl(&rollout).map(drop)
    }

    /// Runs a command in all namespaces of the node.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        self.machine.run(program, words)
    }

    /// Runs containerd's client on Kubernetes' containers.
    pub fn ctr(&self, words: &[&str]) -> Result<String> {
        self.machine
            .run(tools::find("ctr")?, &[&["-n", "k8s.io"], words].concat())
    }

    pub fn node(&self) -> Result<Value> {
        self.api.get(&format!("/api/v1/nodes/{NODE_NAME}"))
    }

    /// Status of a condition of the Node, or an empty string.
    pub fn condition(&self, kind: &str) -> String {
        self.node()
            .map(|node| status_of(&node, kind).to_owned())
            .unwrap_or_default()
    }

    /// Polls port 10256 from outside ten times a second, from now on.
    pub fn watch(&self) -> Result<Watch> {
        Watch::start(&self.world, EVERY)
    }

    /// Requests a path once at port 10256 from outside.
    pub fn ask(&self, path: &str) -> Result<http::Response> {
        let address = self.world.node_address(Family::V4);
        get(&self.world.outside, (address, HEALTHZ_PORT), path)
    }

    /// Requests a path of the agent's admin port, which only the node itself can reach.
    pub fn admin(&self, path: &str) -> Result<http::Response> {
        let address = Ipv4Addr::LOCALHOST.into();
        get(&self.world.node, (address, ADMIN_PORT), path)
    }

    pub fn verdict(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.admin("/verdict")?.body)?)
    }
}

fn get(from: &Namespace, at: (IpAddr, u16), path: &str) -> Result<http::Response> {
    from.run(|| http::get(at.into(), path, Duration::from_secs(2)))
}

fn status_of<'a>(node: &'a Value, kind: &str) -> &'a str {
    let conditions = node["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == kind));
    found
        .and_then(|one| one["status"].as_str())
        .unwrap_or_default()
}

fn containerd(machine: &Machine) -> Result<Process> {
    let folder = &machine.site.folder;
    let file = folder.join("containerd.toml");
    fs::write(&file, config::containerd(folder)?)?;
    fs::write(
        folder.join("cni/10-pods.conflist"),
        config::network(&machine.site),
    )?;
    let mut command = machine.command(tools::find("containerd")?);
    // containerd finds its shim in PATH.
    command.env("PATH", path_with(tools::folders()));
    command.arg("--config").arg(file);
    let mut containerd = Process::start(command, "containerd", folder)?;
    let ctr = tools::find("ctr")?;
    let answers = || machine.run(&ctr, &["version"]).is_ok();
    containerd.wait("an answer", PATIENCE, answers)?;
    Ok(containerd)
}

fn kubelet(machine: &Machine, desk: &Desk) -> Result<Process> {
    let site = &machine.site;
    let (folder, (v4, v6)) = (&site.folder, site.addresses);
    let file = folder.join("kubelet.yaml");
    fs::write(&file, config::kubelet(folder, machine.groups.version))?;
    let options = format!(
        "--v=2 --kubeconfig={} --config={} --cert-dir={} --root-dir=/var/lib/kubelet \
         --hostname-override={} --node-ip={v4},{v6}",
        desk.kubeconfig.display(),
        file.display(),
        folder.join("pki").display(),
        site.name,
    );
    let mut command = machine.command(tools::find("kubelet")?);
    command.args(options.split_whitespace());
    Process::start(command, "kubelet", folder)
}

fn controllers(world: &World, ca: &str, desk: &Desk) -> Result<Process> {
    let file = world.dir().join("ca.crt");
    fs::write(&file, ca)?;
    // Set the plugin folder: the server creates it, and the default one is outside of the world.
    let more = format!(
        "--use-service-account-credentials --root-ca-file={} --flex-volume-plugin-dir={}",
        file.display(),
        world.dir().join("volume-plugins").display()
    );
    beside(world, "kube-controller-manager", desk, &more)
}

/// Starts a program of the control plane on the API server's node.
fn beside(world: &World, name: &str, desk: &Desk, more: &str) -> Result<Process> {
    let mut command = world.worker.command(tools::find(name)?);
    command
        .arg(format!("--kubeconfig={}", desk.kubeconfig.display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
        .args(more.split_whitespace());
    Process::start(command, name, world.dir())
}
