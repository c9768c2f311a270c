//! Where `cargo xtask setup-cluster` puts what the tests run.

use std::path::{Path, PathBuf};

pub mod versions;

/// The folder of a version of something. Of Debian's packages, `debian`, there is one, without name.
pub fn folder(name: &str, version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/tools")
        .join(name)
        .join(version)
}
