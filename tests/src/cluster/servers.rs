//! Where the servers lie that `cargo xtask setup-cluster` built.

use std::path::PathBuf;

use super::control_plane::elsewhere;
use crate::built;
use crate::built::versions::{KUBERNETES, Release};
use crate::world;

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
    /// The programs, or the name of the first that is missing. Looks into the folder of
    /// `PATHPROOF_CLUSTER_SERVERS`, else into this clone's target/tools. Of an API server on
    /// another machine nothing is wanted here.
    pub fn find() -> Result<Self, &'static str> {
        let built = built::folder("kubernetes", KUBERNETES);
        let folder = std::env::var_os("PATHPROOF_CLUSTER_SERVERS").map_or(built, PathBuf::from);
        let find = |name: &'static str| {
            let file = folder.join(name);
            if file.is_file() { Ok(file) } else { Err(name) }
        };
        let proxy = find("kube-proxy")?;
        if elsewhere().is_some() {
            let (etcd, apiserver) = (folder.join("etcd"), folder.join("kube-apiserver"));
            return Ok(Self {
                etcd,
                apiserver,
                proxy,
            });
        }
        Ok(Self {
            etcd: find("etcd").or_else(|name| world::tool(name).ok_or(name))?,
            apiserver: find("kube-apiserver")?,
            proxy,
        })
    }

    /// The programs; nothing, loudly, where one is missing.
    pub fn or_skip(test: &str) -> Option<Self> {
        match Self::find() {
            Ok(servers) => Some(servers),
            Err(missing) => {
                eprintln!("SKIPPED: {test} needs {missing} (run `cargo xtask setup-cluster`)");
                None
            }
        }
    }

    /// The same with the kube-proxy of another release.
    pub fn or_skip_beside(test: &str, release: Release) -> Option<Self> {
        let proxy = built::folder(release.folder, release.version).join("kube-proxy");
        if !proxy.is_file() {
            eprintln!(
                "SKIPPED: {test} needs kube-proxy {} (run `cargo xtask setup-cluster --proxies`)",
                release.version
            );
            return None;
        }
        Some(Self {
            proxy,
            ..Self::or_skip(test)?
        })
    }
}
