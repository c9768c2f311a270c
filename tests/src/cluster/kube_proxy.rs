//! The real kube-proxy on the node of the world.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Servers;
use crate::http::{self, Response};
use crate::process::{Process, path_with};
use crate::wait::until;
use crate::world::{self, Family, Namespace, World, layout};

/// Port of kube-proxy's own /healthz and /livez in these tests: 10256 is the agent's here.
pub const HEALTHZ_PORT: u16 = 10356;
/// All tools for legacy tables in one program, by the name it is called by.
const LEGACY: &str = "xtables-legacy-multi";
/// How long the first sync may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flushes the Service chains of a kube-proxy in nftables mode. Gives the script that adds their rules
/// again. kube-proxy may write those of IPv6 some seconds after those of IPv4: waits for both.
pub fn flush_services(node: &Namespace) -> Result<String> {
    let mut rules = String::new();
    for family in ["ip", "ip6"] {
        let list = || node.nft(&format!("list chain {family} kube-proxy services\n"));
        rules += &until(PATIENCE, || list().ok()).map_or_else(list, Ok)?;
    }
    node.nft("flush chain ip kube-proxy services\nflush chain ip6 kube-proxy services\n")?;
    Ok(rules)
}

/// How it translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    /// iptables, by whatever `iptables` is on this machine.
    Iptables,
    /// iptables, by the tools that have the lock: those for nf_tables take none.
    IptablesLegacy,
    /// IPVS, with iptables for what that cannot do.
    Ipvs,
}

impl Mode {
    /// Those that differ to kube-proxy, and that every kernel has.
    pub const ALL: [Self; 2] = [Self::Nftables, Self::Iptables];

    /// As kube-proxy's option has it; also the tool that it needs in PATH, but for the prefix.
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
    /// Address that its health server listens on.
    pub address: SocketAddr,
    /// The program that writes the rules.
    pub mode: Mode,
    outside: Namespace,
    node: Namespace,
    lock: PathBuf,
    held: Option<File>,
    path: OsString,
}

impl KubeProxy {
    /// Starts it, as the bearer of a kubeconfig, and waits until its /healthz says 200.
    pub fn start(world: &World, servers: &Servers, mode: Mode, kubeconfig: &str) -> Result<Self> {
        let mut proxy = Self::spawn(world, servers, mode, kubeconfig, HEALTHZ_PORT, &[])?;
        let (outside, address) = (proxy.outside.clone(), proxy.address);
        proxy.process.wait("200 of its /healthz", PATIENCE, || {
            let answer = outside.run(|| http::get(address, "/healthz", Duration::from_secs(1)));
            answer.is_ok_and(|answer| answer.status == 200)
        })?;
        Ok(proxy)
    }

    /// Starts it with its health server at this port, and more options, and does not wait.
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
        // Limits of connection tracking are the machine's.
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
        // The machine's own lock is not ours.
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

    /// An answer of its own health server, asked from outside.
    pub fn ask(&self, path: &str) -> Result<Response> {
        self.outside
            .run(|| http::get(self.address, path, Duration::from_secs(2)))
    }

    /// What the node itself is answered at its port.
    pub fn ask_here(&self, path: &str) -> Result<Response> {
        let here = SocketAddr::from(([127, 0, 0, 1], self.address.port()));
        self.node
            .run(|| http::get(here, path, Duration::from_secs(2)))
    }

    /// Stops it in its tracks.
    pub fn freeze(&self) {
        self.process.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.signal(libc::SIGCONT);
    }

    /// Runs an iptables command in both families, as someone on the node would.
    pub fn iptables(&self, words: &str) -> Result<()> {
        self.run("iptables", words)?;
        self.run("ip6tables", words)
    }

    /// Runs one command, `iptables` or `ip6tables`.
    pub fn run(&self, program: &str, words: &str) -> Result<()> {
        let words = format!("-w 5 {words}");
        let words: Vec<&str> = words.split_whitespace().collect();
        self.output(program, &words).map(drop)
    }

    /// Takes the lock of iptables until it ends: nobody else changes rules meanwhile.
    pub fn hold_lock(&mut self) -> Result<()> {
        let file = File::options().create(true).append(true).open(&self.lock)?;
        file.lock()?;
        self.held = Some(file);
        Ok(())
    }

    /// What kube-proxy's rules are, as text.
    pub fn rules(&self) -> Result<String> {
        match self.mode {
            Mode::Nftables => self.node.nft("list ruleset\n"),
            Mode::Ipvs => self.output("ipvsadm", &["--list", "--numeric"]),
            Mode::Iptables | Mode::IptablesLegacy => {
                Ok(self.output("iptables-save", &[])? + &self.output("ip6tables-save", &[])?)
            }
        }
    }

    /// Runs one of its mode's tools.
    fn output(&self, program: &str, words: &[&str]) -> Result<String> {
        let env = [
            ("XTABLES_LOCKFILE", self.lock.as_os_str()),
            ("PATH", &self.path),
        ];
        self.node.feed_with(program, words, &env, "")
    }

    /// Where the tools of a mode are found: for legacy tables first in a folder of links.
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
