//! Locations of the servers that `cargo xtask setup-cluster` built.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::control_plane::elsewhere;
use crate::built::versions::Release;
use crate::skip::{self, Needed};
use crate::{built, world};

#[derive(Clone, Debug)]
pub struct Servers {
    pub etcd: PathBuf,
    pub apiserver: PathBuf,
    pub proxy: PathBuf,
}

impl Servers {
    /// Finds the programs; the error names the first missing one. If the API server runs on another
    /// machine, its programs are not needed here.
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

    pub fn needed() -> Needed<Self> {
        skip::needed(Self::find())
    }

    /// The programs of [`Self::find`], but with kube-proxy of another release.
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
