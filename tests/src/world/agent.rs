//! The real agent in the node's namespace.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::{fs, io};

use anyhow::{Context, Result};
use seccompiler::apply_filter;

use super::{Family, Namespace, OldKernel, World, layout, remains};
use crate::http::{self, Response};
use crate::prelude::*;
use crate::process::Process;
use crate::wait::{self};

/// Port of /healthz and /livez.
pub const HEALTHZ_PORT: u16 = 10256;
/// Port of /verdict, /metrics and /agent/readyz.
pub const ADMIN_PORT: u16 = 19256;
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running agent. When dropped, it ends (SIGTERM, then SIGKILL) and `pathproof cleanup` removes its
/// pins; on a panic its log is printed.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    binary: PathBuf,
    node: Namespace,
    outside: Namespace,
    pins: PathBuf,
    dir: PathBuf,
    cleanup: bool,
}

/// The agent's binary: `PATHPROOF_AGENT`, else `pathproof` beside the test binaries.
pub fn agent_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PATHPROOF_AGENT") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let folders = test.ancestors().skip(1).take(2);
    let mut found = folders.map(|dir| dir.join("pathproof"));
    found.find(|file| file.is_file()).context(
        "no pathproof binary beside the tests: build it (`cargo build -p pathproof`) or name it in PATHPROOF_AGENT",
    )
}

impl World {
    /// Starts the agent on the node with this folder of manifests, without waiting. `extra` contains more
    /// arguments of `pathproof run`, which replace the harness's arguments for the same options. Call this
    /// function from the thread that owns the agent: the kernel kills the agent when that thread ends, so
    /// that a killed test leaves none.
    pub fn spawn_agent(&self, binary: &Path, manifests: &Path, extra: &[&str]) -> Result<Agent> {
        self.spawn_agent_on(None, binary, manifests, extra)
    }

    /// Like [`World::spawn_agent`], as on a kernel that lacks features of this one.
    pub fn spawn_agent_on(
        &self,
        kernel: Option<OldKernel>,
        binary: &Path,
        manifests: &Path,
        extra: &[&str],
    ) -> Result<Agent> {
        remains::ensure_bpffs()?;
        let state = self.dir().join("state");
        fs::create_dir_all(&state)?;
        let mut command = self.node.command(binary);
        command.arg("run");
        let healthz = format!("0.0.0.0:{HEALTHZ_PORT}");
        let admin = format!("127.0.0.1:{ADMIN_PORT}");
        let defaults: [(&str, &OsStr); 7] = [
            ("--manifests", manifests.as_os_str()),
            ("--node-name", self.node_name.as_ref()),
            ("--healthz-bind-address", healthz.as_ref()),
            ("--admin-bind-address", admin.as_ref()),
            ("--pin-dir", self.pin_dir().as_os_str()),
            ("--state-dir", state.as_os_str()),
            // Do not wait for a successor at shutdown: most tests have none.
            ("--shutdown-grace", "0".as_ref()),
        ];
        for (option, value) in defaults {
            // Options must not repeat, so the test's value replaces the default. With an API server there is
            // no folder of manifests.
            let from_api = option == "--manifests" && extra.contains(&"--kubeconfig");
            if !value.is_empty() && !extra.contains(&option) && !from_api {
                command.arg(option).arg(value);
            }
        }
        command.args(extra);
        clean(&mut command);
        // Export all Services, because tests also count connections of healthy ones.
        command.env("PATHPROOF_SERVICE_METRICS", "all");
        // Enforce, because a fault has to show in the answer. Options in `extra` take precedence.
        command.env("PATHPROOF_ENFORCEMENT", "enforce");
        if let Some(kernel) = kernel {
            let filter = kernel.filter()?;
            let begin = move || apply_filter(&filter).map_err(io::Error::other);
            // SAFETY: the closure makes two system calls, and touches no memory unless one of them fails.
            unsafe { command.pre_exec(begin) };
        }
        let process = Process::start(command, "agent", self.dir());
        let process = process.with_context(|| binary.display().to_string())?;
        Ok(Agent {
            process: process.verbose(),
            binary: binary.to_owned(),
            node: self.node.clone(),
            outside: self.outside.clone(),
            pins: self.pin_dir().to_owned(),
            dir: self.dir().to_owned(),
            cleanup: true,
        })
    }
}

fn admin(node: &Namespace, path: &str) -> Result<Response> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
    node.run(|| http::get(address, path, scaled(PATIENCE)))
}

/// Removes environment variables that configure the agent, except its log filter and the tests' settings.
pub fn clean(command: &mut Command) {
    let kept = ["PATHPROOF_LOG_FILTER", wait::SETTLED, wait::BOOT];
    let steers = |name: &str| {
        name == "NODE_NAME" || (name.starts_with("PATHPROOF_") && !kept.contains(&name))
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| steers(name)) {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
}

impl Agent {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until /agent/readyz answers 200. The error contains the last answer and the log.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        let mut last = None;
        let is_ready = || {
            let answer = last.insert(admin(&self.node, "/agent/readyz"));
            answer.as_ref().is_ok_and(|answer| answer.status == 200)
        };
        let waited = self.process.wait("ready", timeout, is_ready);
        waited.with_context(|| format!("last answer of /agent/readyz: {last:?}"))
    }

    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Sends a signal, such as `libc::SIGSTOP`. Returns whether the agent exists.
    pub fn signal(&self, signal: i32) -> bool {
        self.process.signal(signal)
    }

    /// GETs a page of the admin port, inside the node.
    pub fn admin(&self, path: &str) -> Result<Response> {
        admin(&self.node, path)
    }

    /// GETs a page of the healthz port from outside, at the node's address.
    pub fn outside(&self, path: &str, family: Family) -> Result<Response> {
        let address = SocketAddr::new(layout::pick(layout::NODE, family), HEALTHZ_PORT);
        let get = || http::get(address, path, scaled(PATIENCE));
        self.outside.run(get)
    }

    /// Status of /healthz for an outside load balancer.
    pub fn healthz(&self) -> Result<u16> {
        Ok(self.outside("/healthz", Family::V4)?.status)
    }

    pub fn verdict(&self) -> Result<serde_json::Value> {
        let response = self.admin("/verdict")?;
        serde_json::from_str(&response.body)
            .with_context(|| format!("parse /verdict: {}", response.body))
    }

    /// Start time of the agent that answers at the admin port: the later of two, once it steers.
    pub fn started(&self) -> Option<String> {
        let report = self.verdict().ok()?;
        report["agent"]["started"].as_str().map(str::to_owned)
    }

    pub fn metrics(&self) -> Result<String> {
        self.admin("/metrics").map(|response| response.body)
    }

    /// Number of answers so far at Services' health check node ports.
    pub fn health_port_answers(&self) -> Result<u64> {
        let (name, of_services) = ("pathproof_healthz_requests_total", ["check=\"service\""]);
        Ok(metric(&self.metrics()?, name, &of_services))
    }

    /// The log of all agents in this world.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Kills the agent with SIGKILL. Pins and programs stay, as designed.
    pub fn kill(mut self) -> Result<()> {
        self.cleanup = false;
        self.process.kill()
    }

    /// Ends the agent with SIGTERM and returns its exit status. Pins stay.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.cleanup = false;
        let ended = self.process.terminate(Duration::from_secs(20));
        ended.context("the agent ignores SIGTERM")
    }

    /// Another command of the agent's binary inside the node, such as `status`.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.node.command(&self.binary);
        command.args(args);
        clean(&mut command);
        command
    }

    /// Saves the recording of a failing test, or of every test if [`RECORDINGS`] is set.
    fn keep_recording(&self) {
        let wanted = std::env::var_os(RECORDINGS).is_some();
        if wanted || thread::panicking() {
            let thread = thread::current();
            self.keep_recording_as(thread.name().unwrap_or("main"));
        }
    }

    /// Saves a recording under this name, in the folder `PATHPROOF_KEEP_RECORDINGS` or else in that for
    /// failed tests.
    pub fn keep_recording_as(&self, name: &str) {
        let wanted = std::env::var_os(RECORDINGS).map(PathBuf::from);
        let folder = wanted.unwrap_or_else(|| std::env::temp_dir().join("pathproof-recordings"));
        let path = format!("{}/{}.pathproof", folder.display(), name.replace("::", "-"));
        let _ = fs::create_dir_all(&folder);
        let recorded = self.command(&["record", "--output", &path]).output();
        if recorded.is_ok_and(|output| output.status.success()) {
            eprintln!("recorded: pathproof replay {path}");
        }
    }
}

/// Environment variable that names a folder for the recordings of all tests.
const RECORDINGS: &str = "PATHPROOF_KEEP_RECORDINGS";

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.exited(), Ok(None)) {
            self.keep_recording();
        }
        if self.process.terminate(Duration::from_secs(3)).is_none() {
            eprintln!("the agent did not end on SIGTERM; killed");
            let _ = self.process.kill();
        }
        // Check the log here: no test checks how a killed agent ended.
        let log = self.log();
        if log.contains("ERROR: AddressSanitizer") && !thread::panicking() {
            panic!("the agent went wrong:\n{log}");
        }
        if self.cleanup && self.pins.exists() {
            let mut command = self.command(&["cleanup", "--pin-dir"]);
            command.arg(&self.pins).arg("--state-dir");
            command.arg(self.dir.join("state"));
            // Ignore failures: the world removes what is left, and other tests cover failures of cleanup.
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}
