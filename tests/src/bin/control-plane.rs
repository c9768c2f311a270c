//! Runs etcd and kube-apiserver for tests in a virtual machine (`cargo xtask test --kernels`), because inside
//! the machine they would take minutes to start. They run on the host, in a network namespace that the
//! machine's emulator shares.
//!
//! The program prints one line when both are ready: the namespace's name, and the file with their CA
//! certificate. It ends with both servers when its standard input closes.

use std::io::Read as _;

use anyhow::{Context as _, Result, ensure};
use node_tests::cluster::{ControlPlane, Servers};
use node_tests::prelude::*;

fn main() -> Result<()> {
    ensure!(skip::is_root(), "run as root");
    let world = World::builder().build().context("make a namespace")?;
    let control = ControlPlane::start(&world, &Servers::find()?)?;
    let ca = world.dir().join("ca.crt");
    std::fs::write(&ca, &control.ca)?;
    println!("{} {}", world.worker.name(), ca.display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
