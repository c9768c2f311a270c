//! Service NAT on the node by real rules in nftables or iptables, for both families. The rules are a short
//! equivalent of kube-proxy's, from the same YAML that the agent reads.
//!
//! This module parses the YAML without the agent's types, so that the two parsers cannot share a mistake. It
//! supports ClusterIPs, node ports, load balancer and external addresses, masquerade, both external traffic
//! policies, source ranges, TCP and UDP. The rules select a random ready endpoint. If none is ready, they
//! select a terminating one that still serves. Without endpoints they reject.
//!
//! Its methods include the faults of the tests: [`Rules::flush_services`], [`Rules::redirect`].

mod chains;
mod iptables;
mod nft;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chains::Chains;

use crate::cluster::documents;
use crate::prelude::*;

/// The tool that installs the NAT rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// nftables: numgen matches and a chain for each endpoint.
    Nftables,
    /// iptables with legacy tables: statistic matches and a chain for each endpoint.
    IptablesLegacy,
    /// iptables with nf_tables.
    IptablesNft,
}

impl Backend {
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

#[derive(Debug)]
pub struct Rules {
    backend: Backend,
    node: Namespace,
    manifests: PathBuf,
    lock: PathBuf,
    /// Endpoints whose rule points to another address: the fault "rewritten rule".
    redirected: BTreeMap<SocketAddr, SocketAddr>,
}

impl Rules {
    /// Makes rules for the world's node from a folder of manifests; installs nothing yet.
    pub fn new(world: &World, backend: Backend, manifests: &Path) -> Self {
        Self {
            backend,
            node: world.node.clone(),
            manifests: manifests.to_owned(),
            lock: world.dir().join("xtables.lock"),
            redirected: BTreeMap::new(),
        }
    }

    /// Reads the manifests and installs their rules, atomically for each family. This applies changed
    /// manifests and undoes every fault except redirections, which [`Rules::repair`] removes.
    pub fn install(&self) -> Result<()> {
        for (family, script) in self.scripts()? {
            self.load(family, &script, &[])?;
        }
        Ok(())
    }

    /// The scripts that [`Rules::install`] passes to the backend's tool, one for each family.
    pub fn scripts(&self) -> Result<Vec<(Family, String)>> {
        let objects = read(&self.manifests)?;
        let render = match self.backend {
            Backend::Nftables => nft::render,
            Backend::IptablesLegacy | Backend::IptablesNft => iptables::render,
        };
        let script = |family| render(&Chains::of(&objects, family, &self.redirected));
        Ok(Family::ALL.map(|family| (family, script(family))).into())
    }

    /// Empties the chain of all Services and changes no other rule, like `iptables -t nat -F KUBE-SERVICES`.
    /// A proxy that trusts its own state does not notice this fault.
    pub fn flush_services(&self) -> Result<()> {
        self.load_both(nft::flush, iptables::FLUSH, &["--noflush"])
    }

    /// Makes the rule of one endpoint point to another address than the manifests say, and installs the
    /// rules.
    pub fn redirect(&mut self, endpoint: SocketAddr, elsewhere: SocketAddr) -> Result<()> {
        self.redirected.insert(endpoint, elsewhere);
        self.install()
    }

    /// Removes all redirections and installs the rules.
    pub fn repair(&mut self) -> Result<()> {
        self.redirected.clear();
        self.install()
    }

    pub fn remove(&self) -> Result<()> {
        self.load_both(nft::remove, iptables::REMOVE, &[])
    }

    /// Loads the backend's script for both families.
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
        // Use a separate lock file: with the machine's, worlds would wait for each other and for the
        // machine's firewall.
        let env = [("XTABLES_LOCKFILE", self.lock.as_os_str())];
        let (program, args) = (self.backend.tool(family), [args, options].concat());
        self.node.feed_with(program, &args, &env, script)?;
        Ok(())
    }
}

/// Every object of a folder, in the order of the file names.
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
