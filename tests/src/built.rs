//! Locations of the programs that `cargo xtask setup-cluster` provides for tests.

use std::path::{Path, PathBuf};

use crate::world;

pub mod versions;

/// The folder of one version of a program. Debian's packages have a single folder `debian` without a version.
pub fn folder(name: &str, version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/tools")
        .join(name)
        .join(version)
}

/// The folder of Kubernetes' programs; the environment variable `PATHPROOF_CLUSTER_SERVERS` replaces it.
pub fn kubernetes() -> PathBuf {
    let other = std::env::var_os("PATHPROOF_CLUSTER_SERVERS");
    other.map_or_else(|| folder("kubernetes", versions::KUBERNETES), PathBuf::from)
}

/// The absolute path of a program in a folder.
pub fn program(folder: &Path, name: &str) -> Option<PathBuf> {
    let file = folder.join(name).canonicalize().ok()?;
    file.is_file().then_some(file)
}

/// A program of the unpacked Debian packages, or else of this machine.
pub fn unpacked(name: &str) -> Option<PathBuf> {
    program(&folder("debian", ""), name).or_else(|| world::tool(name))
}
