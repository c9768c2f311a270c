//! Where the servers lie that `cargo xtask setup-cluster` built.

use std::path::{Path, PathBuf};

use crate::world;

/// Release that the tests are written for.
const KUBERNETES: &str = "v1.36.3";

/// Programs of a cluster.
#[derive(Clone, Debug)]
pub struct Servers {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub apiserver: PathBuf,
    /// kube-proxy.
    pub proxy: PathBuf,
}

impl Servers {
    /// The programs, or the name of the first that is missing. Looks into the folder of
    /// `PATHPROOF_CLUSTER_SERVERS`, else into this clone's target/tools.
    pub fn find() -> Result<Self, &'static str> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../target/tools/kubernetes")
            .join(KUBERNETES);
        let folder = std::env::var_os("PATHPROOF_CLUSTER_SERVERS").map_or(built, PathBuf::from);
        let find = |name: &'static str| {
            let file = folder.join(name);
            if file.is_file() { Ok(file) } else { Err(name) }
        };
        Ok(Self {
            etcd: find("etcd").or_else(|name| world::tool(name).ok_or(name))?,
            apiserver: find("kube-apiserver")?,
            proxy: find("kube-proxy")?,
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
}
