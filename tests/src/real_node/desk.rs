//! kubectl and helm outside of the cluster, with their own home folder.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::tools;
use crate::deploy::said;
use crate::prelude::*;
use crate::process::{Process, path_with};

/// Time limit for a command that queries the API server.
const PATIENCE: Duration = Duration::from_secs(30);

/// An administrator's tools in the outside network, with an administrator's token.
#[derive(Clone, Debug)]
pub struct Desk {
    pub place: Namespace,
    /// Folder with kubectl's plugins.
    pub home: PathBuf,
    pub(super) kubeconfig: PathBuf,
}

impl Desk {
    pub(super) fn new(world: &World, folder: &Path, kubeconfig: &str) -> Result<Self> {
        let (home, file) = (folder.join("home"), folder.join("admin.kubeconfig"));
        fs::create_dir_all(&home)?;
        fs::write(&file, kubeconfig)?;
        Ok(Self {
            place: world.outside.clone(),
            home,
            kubeconfig: file,
        })
    }

    /// The same tools for another user: the administrator impersonates this name with these groups.
    pub fn of(&self, name: &str, groups: &[&str]) -> Result<Self> {
        let home = self.home.join(name);
        fs::create_dir(&home)?;
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&self.kubeconfig)?)?;
        let user = &mut config["users"][0]["user"];
        user["as"] = name.into();
        user["as-groups"] = groups.iter().copied().collect();
        let kubeconfig = home.join("config");
        fs::write(&kubeconfig, config.to_string())?;
        Ok(Self {
            home,
            kubeconfig,
            ..self.clone()
        })
    }

    /// Runs `kubectl` with words separated by spaces; returns its standard output.
    pub fn kubectl(&self, words: &str) -> Result<String> {
        self.kubectl_with(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs `kubectl` with these arguments.
    pub fn kubectl_with(&self, words: &[&str]) -> Result<String> {
        said(self.command("kubectl").args(words))
    }

    pub fn helm(&self, words: &[&str]) -> Result<String> {
        said(self.command("helm").args(words))
    }

    /// Forwards a port of a pod to the same loopback port here, until the process is dropped.
    pub fn forward(&self, namespace: &str, pod: &str, port: u16) -> Result<Process> {
        let mut command = self.command("kubectl");
        command.args(["--namespace", namespace, "port-forward", pod]);
        command.arg(port.to_string());
        let mut process = Process::start(command, "port-forward", &self.home)?;
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        process.wait("a port", PATIENCE, || self.place.run(connect))?;
        Ok(process)
    }

    /// A command in the outside network, with kubectl and helm in PATH.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let path = path_with(tools::folders().into_iter().chain([self.home.clone()]));
        let mut command = self.place.command(program);
        command
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", path)
            .current_dir(&self.home);
        command
    }
}
