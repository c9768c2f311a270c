//! Where `cargo xtask setup-cluster` puts what the tests run.

use std::path::{Path, PathBuf};

use crate::world;

pub mod versions;

/// The folder of a version of something. Of Debian's packages, `debian`, there is one, without name.
pub fn folder(name: &str, version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/tools")
        .join(name)
        .join(version)
}

/// The folder of Kubernetes' own programs. `PATHPROOF_CLUSTER_SERVERS` names another one.
pub fn kubernetes() -> PathBuf {
    let other = std::env::var_os("PATHPROOF_CLUSTER_SERVERS");
    other.map_or_else(|| folder("kubernetes", versions::KUBERNETES), PathBuf::from)
}

/// A program in a folder, by a path that leads there from everywhere.
pub fn program(folder: &Path, name: &str) -> Option<PathBuf> {
    let file = folder.join(name).canonicalize().ok()?;
    file.is_file().then_some(file)
}

/// A program of Debian's package, or of this machine.
pub fn unpacked(name: &str) -> Option<PathBuf> {
    program(&folder("debian", ""), name).or_else(|| world::tool(name))
}
