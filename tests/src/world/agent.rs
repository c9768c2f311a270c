//! The real agent in the node's namespace: started, awaited, asked, killed, restarted, removed.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Family, Namespace, OldKernel, World, layout, remains};
use crate::http::{self, Response};
use crate::process::Process;
use crate::wait::{self, scaled};

/// Port of /healthz and /livez.
pub const HEALTHZ_PORT: u16 = 10256;
/// Port of /verdict, /metrics and the agent's own health.
pub const ADMIN_PORT: u16 = 19256;
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running agent. Dropping it ends it (SIGTERM, then SIGKILL) and removes its pins with
/// `pathproof cleanup`; on a panic its log is shown.
#[derive(Debug)]
pub struct Agent {
    process: Option<Process>,
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
    let found = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("pathproof"));
    found.into_iter().find(|file| file.is_file()).context(
        "no pathproof binary beside the tests: build it (`cargo build -p pathproof`) or name it in PATHPROOF_AGENT",
    )
}

impl World {
    /// Starts the agent on the node with the manifests in `manifests`, and does not wait. `extra`
    /// are further arguments of `pathproof run`, in place of the harness's own where they are the
    /// same options. Call from the thread that keeps the agent: the kernel kills the agent when
    /// that thread ends, so that a killed test leaves none.
    pub fn spawn_agent(&self, binary: &Path, manifests: &Path, extra: &[&str]) -> Result<Agent> {
        self.start_agent(binary, manifests, extra, true, None)
    }

    /// Like [`World::spawn_agent`], on a kernel that can do less than this one.
    pub fn spawn_agent_on(
        &self,
        kernel: OldKernel,
        binary: &Path,
        manifests: &Path,
        extra: &[&str],
    ) -> Result<Agent> {
        self.start_agent(binary, manifests, extra, true, Some(kernel))
    }

    /// Like [`World::spawn_agent`], but the agent outlives this process (a kept world).
    pub fn spawn_lasting_agent(
        &self,
        binary: &Path,
        manifests: &Path,
        extra: &[&str],
    ) -> Result<Agent> {
        let agent = self.start_agent(binary, manifests, extra, false, None)?;
        remains::record(&self.dir, "agent", agent.pid())?;
        Ok(agent)
    }

    fn start_agent(
        &self,
        binary: &Path,
        manifests: &Path,
        extra: &[&str],
        die_with_parent: bool,
        kernel: Option<OldKernel>,
    ) -> Result<Agent> {
        remains::ensure_bpffs()?;
        let state = self.dir.join("state");
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
            ("--pin-dir", self.pins.as_os_str()),
            ("--state-dir", state.as_os_str()),
            // Most tests have no successor to wait for.
            ("--shutdown-grace", "0".as_ref()),
        ];
        for (option, value) in defaults {
            // An option may be given once: what the test says counts. With an API server there is
            // no folder.
            let no_folder = value.is_empty() || extra.contains(&"--kubeconfig");
            let from_api = option == "--manifests" && no_folder;
            if !extra.contains(&option) && !from_api {
                command.arg(option).arg(value);
            }
        }
        command.args(extra);
        clean(&mut command);
        // Tests count connections of sound Services too.
        command.env("PATHPROOF_SERVICE_METRICS", "all");
        if let Some(kernel) = kernel {
            // SAFETY: `begin` promises it.
            unsafe { command.pre_exec(move || kernel.begin()) };
        }
        let process = match die_with_parent {
            true => Process::start(command, "agent", &self.dir),
            false => Process::start_lasting(command, "agent", &self.dir),
        };
        let process = process.with_context(|| binary.display().to_string())?;
        Ok(Agent {
            process: Some(process.verbose()),
            binary: binary.to_owned(),
            node: self.node.clone(),
            outside: self.outside.clone(),
            pins: self.pins.clone(),
            dir: self.dir.clone(),
            cleanup: true,
        })
    }

    /// Starts the agent and waits until it says that it is ready.
    pub fn ready_agent(&self, binary: &Path, manifests: &Path, extra: &[&str]) -> Result<Agent> {
        let mut agent = self.spawn_agent(binary, manifests, extra)?;
        agent.wait_ready(Duration::from_secs(10))?;
        Ok(agent)
    }
}

/// The tester's environment must not steer the agent; the filter of its log and the tests' own setting may.
fn clean(command: &mut Command) {
    let kept = ["PATHPROOF_LOG_FILTER", wait::SETTLED];
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
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Waits until /agent/readyz answers 200; the error holds the log.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        let timeout = scaled(timeout);
        let start = Instant::now();
        loop {
            if let Some(status) = self.exited()? {
                bail!("the agent ended with {status}:\n{}", self.log());
            }
            let answer = self.admin("/agent/readyz");
            if answer.as_ref().is_ok_and(|response| response.status == 200) {
                return Ok(());
            }
            if start.elapsed() > timeout {
                let last = answer.map_or_else(|e| format!("{e:#}"), |r| format!("{r:?}"));
                bail!(
                    "the agent is not ready after {timeout:?}: {last}\n{}",
                    self.log()
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Exit status where the agent has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.process.as_mut().map_or(Ok(None), Process::exited)
    }

    /// Sends a signal, such as `libc::SIGSTOP`. Gives whether the agent is there.
    pub fn signal(&self, signal: i32) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.signal(signal))
    }

    /// GETs a page of the admin port, inside the node.
    pub fn admin(&self, path: &str) -> Result<Response> {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
        self.node.run(|| http::get(address, path, scaled(PATIENCE)))
    }

    /// GETs a page of the healthz port from outside, at the node's address.
    pub fn outside(&self, path: &str, family: Family) -> Result<Response> {
        let address = SocketAddr::new(healthz_address(family), HEALTHZ_PORT);
        self.outside
            .run(|| http::get(address, path, scaled(PATIENCE)))
    }

    /// Status of /healthz as an outside load balancer sees it.
    pub fn healthz(&self) -> Result<u16> {
        self.outside("/healthz", Family::V4)
            .map(|response| response.status)
    }

    /// Status of /livez as an outside load balancer sees it.
    pub fn livez(&self) -> Result<u16> {
        self.outside("/livez", Family::V4)
            .map(|response| response.status)
    }

    /// The report of /verdict.
    pub fn verdict(&self) -> Result<serde_json::Value> {
        let response = self.admin("/verdict")?;
        serde_json::from_str(&response.body)
            .with_context(|| format!("parse /verdict: {}", response.body))
    }

    /// The text of /metrics.
    pub fn metrics(&self) -> Result<String> {
        self.admin("/metrics").map(|response| response.body)
    }

    /// Its answers at health check node ports of Services so far.
    pub fn health_port_answers(&self) -> Result<u64> {
        let text = self.metrics()?;
        let of = "pathproof_healthz_requests_total{check=\"service\"";
        let lines = text.lines().filter(|line| line.starts_with(of));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        Ok(counts.sum())
    }

    /// What the agent has logged, all its runs in this world.
    pub fn log(&self) -> String {
        let process = self.process.as_ref();
        process.map(Process::log).unwrap_or_default()
    }

    /// Kills the agent at once (SIGKILL); pins and programs stay, as the design wants it.
    pub fn kill(mut self) -> Result<()> {
        self.cleanup = false;
        self.process.as_mut().map_or(Ok(()), Process::kill)
    }

    /// Ends the agent in order (SIGTERM) and gives its exit status; pins stay.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.cleanup = false;
        let process = self.process.as_mut().context("the agent runs")?;
        let ended = process.terminate(Duration::from_secs(20));
        ended.context("the agent ignores SIGTERM")
    }

    /// Leaves the agent running (a kept world).
    pub fn leave(mut self) {
        self.cleanup = false;
        if let Some(process) = self.process.take() {
            process.leave();
        }
    }

    /// Runs another command of the agent's binary inside the node, such as `status`.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.node.command(&self.binary);
        command.args(args);
        clean(&mut command);
        command
    }

    /// Folder of the world, where state and log lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn healthz_address(family: Family) -> IpAddr {
    layout::pick(layout::NODE, family)
}

impl Agent {
    /// Keeps the recording of a test that fails, and of every test where [`RECORDINGS`] is set.
    fn keep_recording(&self) {
        let wanted = std::env::var_os(RECORDINGS).map(PathBuf::from);
        let failed = thread::panicking().then(|| std::env::temp_dir().join("pathproof-recordings"));
        let Some(folder) = wanted.or(failed) else {
            return;
        };
        let test = thread::current()
            .name()
            .unwrap_or("main")
            .replace("::", "-");
        let file = folder.join(format!("{test}.pathproof"));
        let path = file.to_string_lossy().into_owned();
        let _ = fs::create_dir_all(&folder);
        let recorded = self.command(&["record", "--output", &path]).output();
        if recorded.is_ok_and(|output| output.status.success()) {
            eprintln!("recorded: pathproof replay {path}");
        }
    }
}

/// Folder where the recordings of all tests are kept.
const RECORDINGS: &str = "PATHPROOF_KEEP_RECORDINGS";

impl Drop for Agent {
    fn drop(&mut self) {
        let process = self.process.as_mut();
        if process.is_some_and(|process| matches!(process.exited(), Ok(None))) {
            self.keep_recording();
        }
        if let Some(process) = &mut self.process
            && process.terminate(Duration::from_secs(3)).is_none()
        {
            eprintln!("the agent did not end on SIGTERM; killed");
            let _ = process.kill();
        }
        // Of an agent that was killed nobody asks how it ended.
        let report = self.log().contains("ERROR: AddressSanitizer");
        assert!(
            !report || thread::panicking(),
            "the agent went wrong:\n{}",
            self.log()
        );
        if self.cleanup && self.pins.exists() {
            let pins = self.pins.to_string_lossy().into_owned();
            let state = self.dir.join("state").to_string_lossy().into_owned();
            let mut command = self.command(&["cleanup", "--pin-dir", &pins, "--state-dir", &state]);
            // The world removes what is left; a failure of cleanup is its own test's matter.
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}
