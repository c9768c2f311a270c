//! A real one-node Kubernetes: kubelet and containerd on the node of a [`World`], the whole control
//! plane on the other one, kube-proxy where it always is, images from archives. No registry, no
//! engine, nothing of Kubernetes imitated.
//!
//! The node has namespaces of its own for everything (`machine`): what a pod, kubelet or the agent
//! does to mounts, bpffs, control groups or sysctls stays in it. Dropping a [`RealNode`] ends every
//! process and leaves nothing; so does the end of the thread that made it.

mod archive;
mod cgroups;
mod config;
mod desk;
mod machine;
mod rollout;
mod tools;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use desk::Desk;
pub use rollout::is_forgotten;
pub use tools::Tools;

use crate::cluster::{Api, ControlPlane, KubeProxy, Mode, Process};
use crate::wait::until;
use crate::watch::Watch;
use crate::world::{ADMIN_PORT, Family, HEALTHZ_PORT, NODE_NAME, World, layout};
use crate::{http, skip};
pub use cgroups::Version;
use machine::{Daemon, Machine};

/// For what takes seconds, on machines that do much else.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The image that deploy/base names.
pub const AGENT_IMAGE: &str = "docker.io/library/pathproof:0.1.0";
/// An image with the program `pod` of this package, for test pods: `serve` or `pause`.
pub const POD_IMAGE: &str = "docker.io/library/pod:1";
/// How often a load balancer asks in these tests.
const EVERY: Duration = Duration::from_millis(100);

/// The programs that go into images.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The agent's image as an archive, or the agent's binary.
    pub agent: PathBuf,
    /// The program `pod` of this package.
    pub pod: PathBuf,
}

/// The running cluster. Dropped in this order.
#[derive(Debug)]
pub struct RealNode {
    kubelet: Option<Daemon>,
    proxy: Option<KubeProxy>,
    _containerd: Daemon,
    machine: Machine,
    _scheduler: Process,
    _controllers: Process,
    /// The API, as an administrator.
    pub api: Api,
    control: ControlPlane,
    tools: Tools,
    folder: PathBuf,
    desk: Desk,
    /// The networks: the node, the other node with the control plane, and the world outside.
    pub world: World,
}

impl RealNode {
    /// A ready node; nothing, loudly, where the machine lacks what it takes.
    pub fn or_skip(test: &str, programs: &Programs) -> Option<Self> {
        let tools = Self::possible(test)?;
        Some(Self::start(&tools, programs).expect("a real node"))
    }

    /// The tools, where such a node can run on this machine; nothing, loudly, where it can not.
    pub fn possible(test: &str) -> Option<Tools> {
        if skip::without_root(test) {
            return None;
        }
        match Version::of_machine() {
            Ok(version) => println!("{test} uses cgroup {version}"),
            Err(missing) => {
                eprintln!("SKIPPED: {test} needs {missing}");
                return None;
            }
        }
        match Tools::find() {
            Ok(tools) => Some(tools),
            Err(missing) => {
                eprintln!(
                    "SKIPPED: {test} needs {missing} (run `cargo xtask setup-cluster --all`)"
                );
                None
            }
        }
    }

    /// Starts everything, and waits until the node is ready and kube-proxy says 200.
    pub fn start(tools: &Tools, programs: &Programs) -> Result<Self> {
        // The clients are pods of the world's own making: as near as a pod, and ours to dial from.
        let world = World::builder().pods(&["client-1", "client-2"]).build()?;
        // Neither below /run nor below /var, of which the node has its own.
        let folder = world.quick_dir()?.join("node");
        fs::create_dir_all(folder.join("cni"))?;
        let control = ControlPlane::start(&world, &tools.servers)?;
        let api = control.api()?;
        let desk = Desk::new(&world, tools, &folder, &control.admin_kubeconfig())?;
        let controllers = controllers(&world, tools, &control, &desk)?;
        let scheduler = scheduler(&world, tools, &desk)?;
        let machine = Machine::start(&world, &folder)?;
        let containerd = containerd(&machine, tools, &folder)?;
        let mut node = Self {
            kubelet: None,
            proxy: None,
            _containerd: containerd,
            machine,
            _scheduler: scheduler,
            _controllers: controllers,
            api,
            tools: tools.clone(),
            folder,
            desk,
            world,
            control,
        };
        node.load_all(programs)?;
        node.start_kubelet()?;
        node.start_proxy()?;
        node.settle()?;
        Ok(node)
    }

    /// Images must be there before kubelet asks for them.
    fn load_all(&self, programs: &Programs) -> Result<()> {
        self.load_program(config::PAUSE, &programs.pod, &["pause"])?;
        self.load_program(POD_IMAGE, &programs.pod, &[])?;
        if programs.agent.extension().is_some_and(|end| end == "tar") {
            return self.load(&programs.agent);
        }
        self.load_program(AGENT_IMAGE, &programs.agent, &[])
    }

    fn load_program(&self, reference: &str, program: &Path, words: &[&str]) -> Result<()> {
        let file = self.folder.join("image.tar");
        archive::write(&file, reference, program, words)?;
        self.load(&file)?;
        fs::remove_file(&file).context("remove an archive")
    }

    /// Imports an image from an archive.
    pub fn load(&self, archive: &Path) -> Result<()> {
        // Where containerd looks for it, and the node sees it.
        let ctr = self.tools.containerd.join("ctr");
        let archive = archive.to_str().context("a path in UTF-8")?;
        let words = ["-n", "k8s.io", "images", "import", "--local", archive];
        self.machine.run(ctr, &words).map(drop)
    }

    /// Starts kubelet, which takes over whatever runs.
    pub fn start_kubelet(&mut self) -> Result<()> {
        let (v4, v6) = layout::NODE;
        let folder = &self.folder;
        fs::write(
            folder.join("kubelet.json"),
            config::kubelet(folder, self.machine.version()),
        )?;
        let mut command = self.machine.command(&self.tools.kubelet);
        command
            .arg(format!("--kubeconfig={}", self.desk.kubeconfig().display()))
            .arg(format!(
                "--config={}",
                folder.join("kubelet.json").display()
            ))
            .arg(format!("--cert-dir={}", folder.join("pki").display()))
            .args(["--root-dir=/var/lib/kubelet", "--v=2"])
            .arg(format!("--hostname-override={NODE_NAME}"))
            .arg(format!("--node-ip={v4},{v6}"));
        self.kubelet = Some(self.machine.daemon(command, "kubelet")?);
        Ok(())
    }

    /// Kills kubelet; its pods run on.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().context("kubelet runs")?.kill()
    }

    /// Starts kube-proxy with its health server where it always is.
    pub fn start_proxy(&mut self) -> Result<()> {
        // The one before holds the port of the health server.
        self.proxy = None;
        let config = self.control.proxy_kubeconfig(ControlPlane::address());
        let (servers, mode) = (&self.tools.servers, Mode::Nftables);
        let proxy = KubeProxy::spawn_at(&self.world, servers, mode, &config, HEALTHZ_PORT, &[])?;
        self.proxy = Some(proxy);
        Ok(())
    }

    pub fn proxy(&self) -> &KubeProxy {
        self.proxy.as_ref().expect("kube-proxy runs")
    }

    /// Waits until the node is ready; gives it the range of its pods, as a cloud would.
    fn settle(&mut self) -> Result<()> {
        let path = format!("/api/v1/nodes/{NODE_NAME}");
        let kubelet = self.kubelet.as_mut().context("kubelet runs")?;
        let mut given = false;
        let (v4, v6) = layout::NODE_POD_CIDRS;
        let range = json!({ "spec": { "podCIDR": v4, "podCIDRs": [v4, v6] } });
        let api = &self.api;
        kubelet.process().wait("a ready node", PATIENCE, || {
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

    /// What an administrator runs: kubectl, helm.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Runs a command on the node, in all its namespaces.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        self.machine.run(program, words)
    }

    /// A command of containerd's client, about Kubernetes' containers.
    pub fn ctr(&self, words: &[&str]) -> Result<String> {
        let mut command = self.machine.command(self.tools.containerd.join("ctr"));
        machine::output(command.args(["-n", "k8s.io"]).args(words))
    }

    pub fn node(&self) -> Result<Value> {
        self.api.get(&format!("/api/v1/nodes/{NODE_NAME}"))
    }

    /// Status of a condition of the Node; empty where it has none.
    pub fn condition(&self, kind: &str) -> String {
        self.node()
            .map(|node| status_of(&node, kind).to_owned())
            .unwrap_or_default()
    }

    /// Asks 10256 from outside, ten times a second, from now on.
    pub fn watch(&self) -> Result<Watch> {
        Watch::start(&self.world, EVERY)
    }

    /// One answer at 10256 from outside.
    pub fn ask(&self, path: &str) -> Result<http::Response> {
        let address = SocketAddr::new(self.world.node_address(Family::V4), HEALTHZ_PORT);
        let ask = || http::get(address, path, Duration::from_secs(2));
        self.world.outside.run(ask)
    }

    /// What the agent says at its admin port, which is the node's own alone.
    pub fn admin(&self, path: &str) -> Result<http::Response> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
        let ask = || http::get(address, path, Duration::from_secs(2));
        self.world.node.run(ask)
    }

    /// The agent's verdict.
    pub fn verdict(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.admin("/verdict")?.body)?)
    }
}

fn status_of<'a>(node: &'a Value, kind: &str) -> &'a str {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .and_then(|all| all.iter().find(|one| one["type"] == kind))
        .and_then(|one| one["status"].as_str())
        .unwrap_or_default()
}

fn containerd(machine: &Machine, tools: &Tools, folder: &Path) -> Result<Daemon> {
    let file = folder.join("containerd.toml");
    fs::write(&file, config::containerd(tools, folder))?;
    fs::write(folder.join("cni/10-pods.conflist"), config::network())?;
    let mut command = machine.command(tools.containerd.join("containerd"));
    // It looks for its shim in PATH.
    let mut path = tools.containerd.clone().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path).arg("--config").arg(file);
    let mut containerd = machine.daemon(command, "containerd")?;
    let ctr = tools.containerd.join("ctr");
    let answers = || machine.run(&ctr, &["version"]).is_ok();
    containerd.process().wait("an answer", PATIENCE, answers)?;
    Ok(containerd)
}

fn controllers(
    world: &World,
    tools: &Tools,
    control: &ControlPlane,
    desk: &Desk,
) -> Result<Process> {
    let ca = world.dir().join("ca.crt");
    fs::write(&ca, control.ca())?;
    let mut command = beside(world, &tools.controllers, desk);
    command
        .arg("--use-service-account-credentials")
        .arg(format!("--root-ca-file={}", ca.display()))
        // Its default is a folder of the machine's, which it makes.
        .arg(format!(
            "--flex-volume-plugin-dir={}",
            world.dir().join("volume-plugins").display()
        ));
    // It signs tokens of a kind that nothing here uses. An API server elsewhere keeps it there.
    let key = control.accounts_key();
    if key.exists() {
        let key = key.display();
        command.arg(format!("--service-account-private-key-file={key}"));
    }
    Process::start(command, "kube-controller-manager", world.dir())
}

fn scheduler(world: &World, tools: &Tools, desk: &Desk) -> Result<Process> {
    let command = beside(world, &tools.scheduler, desk);
    Process::start(command, "kube-scheduler", world.dir())
}

/// A server beside the API server.
fn beside(world: &World, program: &Path, desk: &Desk) -> Command {
    let mut command = world.worker.command(program);
    command
        .arg(format!("--kubeconfig={}", desk.kubeconfig().display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command
}
