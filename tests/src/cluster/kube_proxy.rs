//! The real kube-proxy on the node of the world.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Servers;
use crate::http::{self, Response};
use crate::prelude::*;
use crate::process::{Process, path_with};
use crate::world::{self, layout};

/// Port of /healthz and /livez of kube-proxy in these tests; the agent has 10256.
pub const HEALTHZ_PORT: u16 = 10356;
/// The binary that contains all tools for legacy tables; the name by which it is called selects the tool.
const LEGACY: &str = "xtables-legacy-multi";
/// Time limit of the first sync.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flushes the Service chains of a kube-proxy in nftables mode. Waits until both exist, because kube-proxy
/// may write the IPv6 chain some seconds later. Returns the script that restores their rules.
pub fn flush_services(node: &Namespace) -> Result<String> {
    let mut rules = String::new();
    for family in ["ip", "ip6"] {
        let list = || node.nft(&format!("list chain {family} kube-proxy services\n"));
        rules += &until(PATIENCE, || list().ok()).map_or_else(list, Ok)?;
    }
    node.nft("flush chain ip kube-proxy services\nflush chain ip6 kube-proxy services\n")?;
    Ok(rules)
}

/// How kube-proxy implements Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    /// iptables, with the machine's default `iptables`.
    Iptables,
    /// iptables, with the legacy tools. Only these take the xtables lock.
    IptablesLegacy,
    /// IPVS, with iptables for the features that IPVS lacks.
    Ipvs,
}

impl Mode {
    /// The modes that kube-proxy implements differently and that work on every kernel.
    pub const ALL: [Self; 2] = [Self::Nftables, Self::Iptables];

    /// Value of kube-proxy's option `--proxy-mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables | Self::IptablesLegacy => "iptables",
            Self::Ipvs => "ipvs",
        }
    }

    /// The tool that kube-proxy runs.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Nftables => "nft",
            Self::Iptables => "iptables-restore",
            Self::IptablesLegacy => LEGACY,
            Self::Ipvs => "ipset",
        }
    }
}

/// A kube-proxy; ends when dropped.
#[derive(Debug)]
pub struct KubeProxy {
    pub process: Process,
    /// Address of its health server.
    pub address: SocketAddr,
    pub mode: Mode,
    outside: Namespace,
    node: Namespace,
    lock: PathBuf,
    held: Option<File>,
    path: OsString,
}

impl KubeProxy {
    /// Starts kube-proxy with a kubeconfig and waits until its /healthz answers 200.
    pub fn start(world: &World, servers: &Servers, mode: Mode, kubeconfig: &str) -> Result<Self> {
        let mut proxy = Self::spawn(world, servers, mode, kubeconfig, HEALTHZ_PORT, &[])?;
        let (outside, address) = (proxy.outside.clone(), proxy.address);
        proxy.process.wait("200 of its /healthz", PATIENCE, || {
            let answer = outside.run(|| http::get(address, "/healthz", Duration::from_secs(1)));
            answer.is_ok_and(|answer| answer.status == 200)
        })?;
        Ok(proxy)
    }

    /// Starts kube-proxy with a port for its health server and more options, without waiting.
    pub fn spawn(
        world: &World,
        servers: &Servers,
        mode: Mode,
        kubeconfig: &str,
        port: u16,
        more: &[&str],
    ) -> Result<Self> {
        let dir = world.dir();
        let (file, lock) = (dir.join("kube-proxy.kubeconfig"), dir.join("xtables.lock"));
        fs::write(&file, kubeconfig)?;
        let path = Self::search_path(dir, mode)?;
        let (v4, v6) = layout::CLUSTER_CIDRS;
        // Leave conntrack limits unchanged, because they apply to the whole machine.
        let options = format!(
            "--v=2 --kubeconfig={} --hostname-override={} --proxy-mode={} --cluster-cidr={v4},{v6} \
             --healthz-bind-address=0.0.0.0:{port} --conntrack-max-per-core=0 --conntrack-min=0 \
             --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0",
            file.display(),
            world.node_name,
            mode.name(),
        );
        let mut command = world.node.command(&servers.proxy);
        command.args(options.split_whitespace()).args(more);
        // Use a separate lock file, not the machine's.
        command.env("XTABLES_LOCKFILE", &lock).env("PATH", &path);
        Ok(Self {
            process: Process::start(command, "kube-proxy", dir)?,
            address: SocketAddr::new(world.node_address(Family::V4), port),
            mode,
            outside: world.outside.clone(),
            node: world.node.clone(),
            lock,
            held: None,
            path,
        })
    }

    /// Requests a path of its health server from outside.
    pub fn ask(&self, path: &str) -> Result<Response> {
        self.outside
            .run(|| http::get(self.address, path, Duration::from_secs(2)))
    }

    /// Requests a path at its port from the node itself.
    pub fn ask_here(&self, path: &str) -> Result<Response> {
        let here = SocketAddr::from(([127, 0, 0, 1], self.address.port()));
        self.node
            .run(|| http::get(here, path, Duration::from_secs(2)))
    }

    /// Stops the process (SIGSTOP).
    pub fn freeze(&self) {
        self.process.signal(libc::SIGSTOP);
    }

    /// Continues the process (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal(libc::SIGCONT);
    }

    /// Runs an iptables command in both families, as an administrator would.
    pub fn iptables(&self, words: &str) -> Result<()> {
        self.run("iptables", words)?;
        self.run("ip6tables", words)
    }

    /// Runs one command of `iptables` or `ip6tables`.
    pub fn run(&self, program: &str, words: &str) -> Result<()> {
        let words = format!("-w 5 {words}");
        let words: Vec<&str> = words.split_whitespace().collect();
        self.output(program, &words).map(drop)
    }

    /// Takes the iptables lock until `self` is dropped: until then no other tool can change rules.
    pub fn hold_lock(&mut self) -> Result<()> {
        let file = File::options().create(true).append(true).open(&self.lock)?;
        file.lock()?;
        self.held = Some(file);
        Ok(())
    }

    /// kube-proxy's rules as text.
    pub fn rules(&self) -> Result<String> {
        match self.mode {
            Mode::Nftables => self.node.nft("list ruleset\n"),
            Mode::Ipvs => self.output("ipvsadm", &["--list", "--numeric"]),
            Mode::Iptables | Mode::IptablesLegacy => {
                Ok(self.output("iptables-save", &[])? + &self.output("ip6tables-save", &[])?)
            }
        }
    }

    fn output(&self, program: &str, words: &[&str]) -> Result<String> {
        let env = [
            ("XTABLES_LOCKFILE", self.lock.as_os_str()),
            ("PATH", &self.path),
        ];
        self.node.feed_with(program, words, &env, "")
    }

    /// Search path for the tools of a mode. Legacy tools come first, from a folder of links.
    pub fn search_path(dir: &Path, mode: Mode) -> Result<OsString> {
        if mode != Mode::IptablesLegacy {
            return Ok(path_with([]));
        }
        let tool = world::tool(LEGACY).with_context(|| format!("no {LEGACY}"))?;
        let links = dir.join("legacy");
        fs::create_dir_all(&links)?;
        for family in ["iptables", "ip6tables"] {
            for name in ["", "-restore", "-save"] {
                let link = links.join(format!("{family}{name}"));
                if !link.exists() {
                    symlink(&tool, link)?;
                }
            }
        }
        Ok(path_with([links]))
    }
}
