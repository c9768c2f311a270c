//! Service NAT on the node by real rules, made from the same YAML that the agent reads: what
//! kube-proxy would install, small enough to read, in nftables or iptables, both families.
//!
//! It reads the YAML without the agent's types, so that the agent's parser and this one cannot
//! share a mistake. It knows what the tests need: ClusterIP, node port, load balancer and
//! external addresses, a random ready endpoint (terminating ones that still serve where none is
//! ready), masquerade, both external traffic policies, source ranges, reject without endpoints; TCP and UDP.
//!
//! The faults of the tests are its methods: [`Rules::flush_services`], [`Rules::redirect`].

mod chains;
mod iptables;
mod nft;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::documents;
use crate::world::{Family, Namespace, World};
use chains::Chains;

/// The program that does the NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// nftables: numgen matches and a chain for each endpoint.
    Nftables,
    /// iptables by the legacy tables: statistic matches and a chain for each endpoint.
    IptablesLegacy,
    /// iptables by nf_tables.
    IptablesNft,
}

impl Backend {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Nftables, Self::IptablesLegacy, Self::IptablesNft];

    fn tool(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Nftables, _) => "nft",
            (Self::IptablesLegacy, Family::V4) => "iptables-legacy-restore",
            (Self::IptablesLegacy, Family::V6) => "ip6tables-legacy-restore",
            (Self::IptablesNft, Family::V4) => "iptables-nft-restore",
            (Self::IptablesNft, Family::V6) => "ip6tables-nft-restore",
        }
    }
}

/// The rules of one node.
#[derive(Debug)]
pub struct Rules {
    backend: Backend,
    node: Namespace,
    manifests: PathBuf,
    lock: PathBuf,
    /// Endpoints whose rule is to point elsewhere: the fault "rewritten rule".
    redirected: BTreeMap<SocketAddr, SocketAddr>,
}

impl Rules {
    /// Rules for the world's node from a folder of manifests; installs nothing yet.
    pub fn new(world: &World, backend: Backend, manifests: &Path) -> Self {
        Self {
            backend,
            node: world.node.clone(),
            manifests: manifests.to_owned(),
            lock: world.dir().join("xtables.lock"),
            redirected: BTreeMap::new(),
        }
    }

    /// Reads the manifests and installs what they want, atomically per family. Also the repair
    /// after every fault here, and the sync after a change of the manifests.
    pub fn install(&self) -> Result<()> {
        for (family, script) in self.scripts()? {
            self.load(family, &script, &[])?;
        }
        Ok(())
    }

    /// The scripts that [`Rules::install`] would feed, per family, to the backend's tool.
    pub fn scripts(&self) -> Result<Vec<(Family, String)>> {
        let objects = read(&self.manifests)?;
        let render = match self.backend {
            Backend::Nftables => nft::render,
            Backend::IptablesLegacy | Backend::IptablesNft => iptables::render,
        };
        let script = |family| render(&Chains::of(&objects, family, &self.redirected));
        Ok(Family::ALL.map(|family| (family, script(family))).into())
    }

    /// The fault of this project's name: the chain of all Services emptied, everything else left,
    /// as `iptables -t nat -F KUBE-SERVICES` does. A proxy that trusts its own state won't notice.
    pub fn flush_services(&self) -> Result<()> {
        self.load_both(nft::flush, iptables::FLUSH, &["--noflush"])
    }

    /// Makes the rule of one endpoint point elsewhere, against the manifests, and installs.
    pub fn redirect(&mut self, endpoint: SocketAddr, elsewhere: SocketAddr) -> Result<()> {
        self.redirected.insert(endpoint, elsewhere);
        self.install()
    }

    /// Takes all redirections back and installs.
    pub fn repair(&mut self) -> Result<()> {
        self.redirected.clear();
        self.install()
    }

    /// Removes every rule.
    pub fn remove(&self) -> Result<()> {
        self.load_both(nft::remove, iptables::REMOVE, &[])
    }

    /// Loads the script of the backend's kind, for both families.
    fn load_both(&self, nft: fn(Family) -> String, iptables: &str, options: &[&str]) -> Result<()> {
        for family in Family::ALL {
            match self.backend {
                Backend::Nftables => self.load(family, &nft(family), &[])?,
                _ => self.load(family, iptables, options)?,
            }
        }
        Ok(())
    }

    fn load(&self, family: Family, script: &str, options: &[&str]) -> Result<()> {
        let args: &[&str] = match self.backend {
            Backend::Nftables => &["-f", "-"],
            _ => &["-w", "5"],
        };
        // The lock file of the machine is not ours: worlds would wait for each other, and for the
        // machine's own firewall.
        let env = [("XTABLES_LOCKFILE", self.lock.as_os_str())];
        let (program, args) = (self.backend.tool(family), [args, options].concat());
        self.node.feed_with(program, &args, &env, script)?;
        Ok(())
    }
}

/// Every object of a folder, in the order of the files' names.
pub(crate) fn read(dir: &Path) -> Result<Vec<Value>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|x| x == "yaml" || x == "yml"));
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let read = documents(&text).with_context(|| format!("in {}", file.display()))?;
        objects.extend(read);
    }
    Ok(objects)
}
