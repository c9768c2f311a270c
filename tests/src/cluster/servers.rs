//! Where the servers lie that `cargo xtask setup-cluster` built.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::control_plane::elsewhere;
use crate::built;
use crate::built::versions::Release;
use crate::{skip, world};

/// Programs of a cluster.
#[derive(Clone, Debug)]
pub struct Servers {
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub apiserver: PathBuf,
    /// kube-proxy.
    pub proxy: PathBuf,
}

impl Servers {
    /// The programs; the error names the first that is missing. Of an API server on another machine
    /// nothing is wanted here.
    pub fn find() -> Result<Self> {
        let folder = built::kubernetes();
        let find = |name: &str| {
            let found = built::program(&folder, name);
            found.with_context(|| format!("{name} (run `cargo xtask setup-cluster`)"))
        };
        let server = |name: &str| match elsewhere() {
            Some(_) => Ok(folder.join(name)),
            None => find(name),
        };
        Ok(Self {
            etcd: server("etcd").or_else(|missing| world::tool("etcd").ok_or(missing))?,
            apiserver: server("kube-apiserver")?,
            proxy: find("kube-proxy")?,
        })
    }

    /// The programs; nothing, loudly, where one is missing.
    pub fn or_skip(test: &str) -> Option<Self> {
        skip::needed(test, Self::find())
    }

    /// The same with the kube-proxy of another release.
    pub fn beside(release: Release) -> Result<Self> {
        let folder = built::folder(release.folder, release.version);
        let missing = || {
            let version = release.version;
            format!("kube-proxy {version} (run `cargo xtask setup-cluster --proxies`)")
        };
        Ok(Self {
            proxy: built::program(&folder, "kube-proxy").with_context(missing)?,
            ..Self::find()?
        })
    }
}
