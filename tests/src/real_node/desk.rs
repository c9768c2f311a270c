//! The administrator's desk: kubectl and helm outside of the cluster, with a home of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Tools;
use super::machine::output;
use crate::cluster::Process;
use crate::world::{Namespace, World};

/// For a command that asks the API server, or waits as long as it was told.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whoever sits there is in the world outside, with an administrator's token.
#[derive(Clone, Debug)]
pub struct Desk {
    place: Namespace,
    home: PathBuf,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    helm: PathBuf,
}

impl Desk {
    pub(super) fn new(
        world: &World,
        tools: &Tools,
        folder: &Path,
        kubeconfig: &str,
    ) -> Result<Self> {
        let home = folder.join("home");
        fs::create_dir_all(&home)?;
        let file = folder.join("admin.kubeconfig");
        fs::write(&file, kubeconfig)?;
        Ok(Self {
            place: world.outside.clone(),
            home,
            kubeconfig: file,
            kubectl: tools.kubectl.clone(),
            helm: tools.helm.clone(),
        })
    }

    /// An administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A desk of somebody else's: the administrator acts as one of these groups.
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

    /// Runs `kubectl`, words as they are, with a plugin's folder and its own in PATH; gives all that
    /// came of it.
    pub fn kubectl_plugin(&self, folder: &Path, words: &[&str]) -> Result<Output> {
        let own = self.kubectl.parent().context("the folder of kubectl")?;
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let path = [folder.to_owned(), own.to_owned()].into_iter();
        let path = std::env::join_paths(path.chain(std::env::split_paths(&rest)))?;
        let mut command = self.command(&self.kubectl);
        command.args(words).env("PATH", path);
        command.output().context("start kubectl")
    }

    /// Runs `kubectl`, words separated by spaces; gives its standard output.
    pub fn kubectl(&self, words: &str) -> Result<String> {
        output(self.command(&self.kubectl).args(words.split_whitespace()))
    }

    /// Runs `kubectl`, words as they are.
    pub fn kubectl_with(&self, words: &[&str]) -> Result<String> {
        output(self.command(&self.kubectl).args(words))
    }

    /// Makes objects, or makes them so.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let file = self.home.join("object.json");
        fs::write(&file, object.to_string())?;
        let file = file.to_str().context("a path in UTF-8")?;
        self.kubectl_with(&["apply", "-f", file]).map(drop)
    }

    /// Runs `helm`, words as they are.
    pub fn helm(&self, words: &[&str]) -> Result<String> {
        output(self.command(&self.helm).args(words))
    }

    /// Forwards a port of a pod to this desk until the process is dropped; gives where to.
    pub fn forward(&self, namespace: &str, pod: &str, port: u16) -> Result<(Process, SocketAddr)> {
        let mut command = self.command(&self.kubectl);
        command.args([
            "--namespace",
            namespace,
            "port-forward",
            pod,
            &format!(":{port}"),
        ]);
        let mut process = Process::start(command, "port-forward", &self.home)?;
        let log = self.home.join("port-forward.log");
        let mut address = None;
        process.wait("a port", PATIENCE, || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            // "Forwarding from 127.0.0.1:41001 -> 19256"
            address = log
                .split_whitespace()
                .find_map(|word| word.parse::<SocketAddr>().ok())
                .filter(|one| one.ip() == Ipv4Addr::LOCALHOST);
            address.is_some()
        })?;
        Ok((process, address.context("a port")?))
    }

    /// The network that the desk is in.
    pub fn place(&self) -> &Namespace {
        &self.place
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.place.command(program);
        command
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(&self.home);
        command
    }
}
