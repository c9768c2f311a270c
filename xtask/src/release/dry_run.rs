//! The dry run of a release: image and chart go to a registry on this machine, and not to ghcr.io.
//! tests/install/release.rs installs from its folder. Nothing is signed.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::debian::Program;
use crate::image::{self, VERSION};
use crate::{host, run, setup_cluster};

/// containerd speaks HTTP without TLS to a registry on loopback, as this one does.
pub(crate) const ADDRESS: &str = "127.0.0.1:5000";
/// Unpacked, because installing it starts a server.
const REGISTRY: Program = Program {
    package: "docker-registry",
    path: "usr/bin/docker-registry",
    origin: "https://github.com/distribution/distribution/releases",
};
/// Time limit for its start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sets the folder's variable for a command that runs tests. Without it, the test of a release is skipped.
pub(crate) fn offer(tests: &mut Command) {
    match push(ADDRESS) {
        Ok(folder) => {
            tests.env("PATHPROOF_REGISTRY", folder);
        }
        Err(error) => eprintln!("the test of a release is skipped: {error:#}"),
    }
}

/// Fills an empty registry folder with the image and the chart of this version. A registry with the folder's
/// config.yml serves them at the same address.
pub(crate) fn push(address: &str) -> Result<PathBuf> {
    host::install_programs("the dry run of a release", &[("skopeo", "skopeo")])?;
    let helm = setup_cluster::chart_tools()?;
    let archive = image::archive()?;
    let folder = run::root().join("target/release-registry");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let config = folder.join("config.yml");
    fs::write(&config, settings(address, &folder))?;
    let _served = Served::start(&config, address)?;
    let image = format!("{address}/pathproof/pathproof");
    let mut copy = Command::new("skopeo");
    // No signature is expected of the image that was just built.
    copy.args(["--insecure-policy", "copy", "--dest-tls-verify=false"]);
    copy.arg(format!("docker-archive:{}", archive.display()));
    run::run(copy.arg(format!("docker://{image}:{VERSION}")))?;
    super::chart(&image, &folder)?;
    let mut push = Command::new(helm);
    push.arg("push");
    push.arg(folder.join(format!("pathproof-{VERSION}.tgz")));
    push.arg(format!("oci://{address}/pathproof/charts"));
    run::run(push.arg("--plain-http"))?;
    Ok(folder)
}

fn settings(address: &str, folder: &Path) -> String {
    let data = folder.join("data");
    format!(
        "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
         http: {{addr: \"{address}\"}}\n",
        data.display()
    )
}

/// A registry that runs until this is dropped.
struct Served(Child);

impl Served {
    fn start(config: &Path, address: &str) -> Result<Self> {
        // Another program there would get the image.
        ensure!(
            TcpStream::connect(address).is_err(),
            "a program listens on {address} already: choose another one by --registry"
        );
        let mut command = Command::new(REGISTRY.ready()?);
        command.arg("serve").arg(config);
        let child = command.spawn().context("start docker-registry")?;
        let mut served = Self(child);
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = served.0.try_wait()?;
            ensure!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "docker-registry does not listen on {address} ({ended:?})"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_in_use_is_refused() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        let error = Served::start(Path::new("config.yml"), &address).err();
        let error = error.unwrap().to_string();
        assert!(error.contains("choose another one"), "{error}");
    }
}
