//! API server of the cluster tests in a machine. It runs on the host, because etcd and kube-apiserver take
//! minutes on an emulated processor. It has its own network namespace. The machine's emulator runs in the
//! same namespace, so the guest reaches nothing outside of it.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{run, setup_cluster};

#[derive(Debug)]
pub(super) struct Servers {
    /// Folder that also contains kube-proxy.
    pub(super) folder: PathBuf,
    /// Program that starts the servers.
    program: PathBuf,
}

/// An API server for one machine; it ends when dropped.
#[derive(Debug)]
pub(super) struct ControlPlane {
    pub(super) namespace: String,
    /// Certificate of its authority.
    pub(super) ca: PathBuf,
    child: Child,
}

impl Servers {
    /// Builds missing programs.
    pub(super) fn ready() -> Result<Self> {
        Ok(Self {
            folder: setup_cluster::ready()?,
            program: run::build_program("node-tests", "control-plane", "dev")?,
        })
    }

    /// Starts an API server for a machine and waits until it is ready.
    pub(super) fn start(&self) -> Result<ControlPlane> {
        let mut child = Command::new(&self.program)
            .env("PATHPROOF_CLUSTER_SERVERS", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the API server of a machine")?;
        let output = child.stdout.take().context("a piped child has an output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let Some((namespace, ca)) = line.trim().split_once(' ') else {
            let _ = child.wait();
            bail!("the API server of a machine did not start; why is said above");
        };
        Ok(ControlPlane {
            namespace: namespace.to_owned(),
            ca: PathBuf::from(ca),
            child,
        })
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // It ends when its input closes, and removes its servers and namespaces.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
