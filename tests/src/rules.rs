//! Service NAT on the node by real rules, made from the same YAML that the agent reads: what
//! kube-proxy would install, small enough to read, in nftables or iptables, both families.
//!
//! It reads the YAML with types of its own (`objects`), so that the agent's parser and this one
//! cannot share a mistake. It knows what the tests need: ClusterIP, node port, load balancer and
//! external addresses, a random ready endpoint (terminating ones that still serve where none is
//! ready), masquerade, both traffic policies, source ranges, reject without endpoints; TCP and UDP.
//!
//! The faults of the tests are its methods: [`Rules::flush_services`], [`Rules::redirect`].

mod iptables;
mod nft;
mod objects;
mod wanted;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::world::{Family, Namespace, World};
use wanted::Wanted;

/// The program that does the NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// nftables: one numgen rule a Service.
    Nftables,
    /// iptables by the legacy tables: statistic matches and a chain for each endpoint.
    IptablesLegacy,
    /// iptables by nf_tables.
    IptablesNft,
}

impl Backend {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Nftables, Self::IptablesLegacy, Self::IptablesNft];

    /// The tool it needs in PATH.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Nftables => "nft",
            Self::IptablesLegacy => "iptables-legacy-restore",
            Self::IptablesNft => "iptables-nft-restore",
        }
    }

    fn restore(self, family: Family) -> &'static str {
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
            self.load(family, &script)?;
        }
        Ok(())
    }

    /// The scripts that [`Rules::install`] would feed, per family, to the backend's tool.
    pub fn scripts(&self) -> Result<Vec<(Family, String)>> {
        let objects = objects::read(&self.manifests)?;
        let render = if self.backend == Backend::Nftables {
            nft::render
        } else {
            iptables::render
        };
        let script = |family| {
            let wanted = Wanted::of(&objects, family, &self.redirected);
            render(&wanted).with_context(|| format!("rules for {family:?}"))
        };
        Family::ALL
            .into_iter()
            .map(|family| Ok((family, script(family)?)))
            .collect()
    }

    /// The fault of this project's name: the chain of all Services emptied, everything else left,
    /// as `iptables -t nat -F KUBE-SERVICES` does. A proxy that trusts its own state won't notice.
    pub fn flush_services(&self) -> Result<()> {
        for family in Family::ALL {
            match self.backend {
                Backend::Nftables => self.load(family, nft::flush(family))?,
                Backend::IptablesLegacy | Backend::IptablesNft => {
                    let program = self.backend.restore(family).trim_end_matches("-restore");
                    self.run(
                        program,
                        &["-w", "5", "-t", "nat", "-F", "KUBE-SERVICES"],
                        "",
                    )?;
                }
            }
        }
        Ok(())
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
        for family in Family::ALL {
            let script = match self.backend {
                Backend::Nftables => nft::remove(family),
                Backend::IptablesLegacy | Backend::IptablesNft => iptables::remove(),
            };
            self.load(family, &script)?;
        }
        Ok(())
    }

    fn load(&self, family: Family, script: &str) -> Result<()> {
        let args: &[&str] = match self.backend {
            Backend::Nftables => &["-f", "-"],
            Backend::IptablesLegacy | Backend::IptablesNft => &["-w", "5"],
        };
        self.run(self.backend.restore(family), args, script)
    }

    fn run(&self, program: &str, args: &[&str], input: &str) -> Result<()> {
        if crate::world::tool(program).is_none() {
            bail!("{program} is not in PATH: install the nftables and iptables packages");
        }
        // The lock file of the machine is not ours: worlds would wait for each other, and for the
        // machine's own firewall.
        let env = [("XTABLES_LOCKFILE", self.lock.as_os_str())];
        self.node.feed_with(program, args, &env, input).map(drop)
    }
}

/// Numbers of Services and slices and all endpoint addresses of a folder, by the harness's own
/// reading.
#[cfg(test)]
pub(crate) fn counted(dir: &Path) -> Result<(usize, usize, Vec<std::net::IpAddr>)> {
    let objects = objects::read(dir)?;
    let endpoints = objects.slices.iter().flat_map(|slice| &slice.endpoints);
    let addresses = endpoints
        .flat_map(|endpoint| endpoint.addresses.clone())
        .collect();
    Ok((objects.services.len(), objects.slices.len(), addresses))
}
