//! The machine that runs a task: its user, its programs, and how to install more.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// Whether this process may load programs and create namespaces.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Reason why tests in network namespaces cannot run here; `None` if they can.
pub(crate) fn no_world() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some("needs Linux");
    }
    if !is_root() {
        return Some("needs root");
    }
    // Root in a container may lack CAP_SYS_ADMIN.
    let unshared = Command::new("unshare").args(["--net", "true"]).output();
    match unshared {
        Ok(output) if !output.status.success() => {
            Some("needs network namespaces: run the container with --privileged")
        }
        _ => None,
    }
}

/// Full path of a program in PATH, or in a system folder that a plain user's PATH may lack.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Installs packages with apt-get, and reports that; `purpose` begins the sentence "... needs PACKAGES".
pub(crate) fn install(purpose: &str, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if find("apt-get").is_none() {
        bail!("{purpose} needs {list}, and there is no apt-get here; install them by hand");
    }
    if !is_root() && find("sudo").is_none() {
        bail!("{purpose} needs {list}; run as root: apt-get install {list}");
    }
    eprintln!("{purpose} needs {list}: installing with apt-get");
    let options = ["install", "--yes", "--quiet", "--no-install-recommends"];
    let install = [&options, packages].concat();
    // A fresh machine has no package lists, or stale ones.
    apt_get(&install)
        .or_else(|_| update_lists().and_then(|()| apt_get(&install)))
        .with_context(|| format!("{purpose} needs {list}; install them and try again"))
}

pub(crate) fn update_lists() -> Result<()> {
    apt_get(&["update", "--quiet"])
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let apt = find("apt-get").context("there is no apt-get here")?;
    let silent = [("DEBIAN_FRONTEND", OsStr::new("noninteractive"))];
    let _alone = run::alone("apt-get")?;
    run::run(as_root_with(apt, &silent)?.args(arguments))
}

/// A program to run as root: directly, or through sudo.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    as_root_with(program, &[])
}

/// [`as_root`] with variables, which sudo would not pass on.
pub(crate) fn as_root_with(
    program: impl AsRef<OsStr>,
    variables: &[(&str, &OsStr)],
) -> Result<Command> {
    let program = program.as_ref();
    if is_root() {
        let mut command = Command::new(program);
        command.envs(variables.iter().copied());
        return Ok(command);
    }
    let sudo = find("sudo").with_context(|| {
        let program = Path::new(program).display();
        format!("{program} must run as root, and there is no sudo here; become root and try again")
    })?;
    let mut command = Command::new(sudo);
    command.args(["--", "env"]);
    for (name, value) in variables {
        let mut pair = OsString::from(name);
        pair.push("=");
        pair.push(value);
        command.arg(pair);
    }
    command.arg(program);
    Ok(command)
}

/// Programs that the namespace worlds of tests and demo use, with their Debian packages.
const WORLD: [(&str, &str); 4] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
];

/// The version of control groups that a real node uses on this machine.
pub(crate) fn cgroup_version() -> Result<&'static str> {
    let own = std::fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
    version_of(&own).context(
        "a real Kubernetes node needs cgroup v2, or a cgroup v1 hierarchy of memory, and this \
         machine has neither",
    )
}

/// The version according to /proc/PID/cgroup, with lines `NUMBER:CONTROLLERS:GROUP`. A controller that v1
/// uses is not available in v2. The only line of v2 names no controller.
fn version_of(own: &str) -> Option<&'static str> {
    let controllers = own.lines().filter_map(|line| line.split(':').nth(1));
    let mut controllers = controllers.flat_map(|all| all.split(','));
    if controllers.any(|one| one == "memory") {
        return Some("v1");
    }
    let has_v2 = own.lines().any(|line| line.starts_with("0::"));
    has_v2.then_some("v2")
}

pub(crate) fn install_world(purpose: &str) -> Result<()> {
    install_programs(purpose, &WORLD)
}

/// Installs the missing ones of these programs, each with its Debian package.
pub(crate) fn install_programs(purpose: &str, programs: &[(&str, &str)]) -> Result<()> {
    let missing = programs.iter().filter(|(one, _)| find(one).is_none());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    install(purpose, &missing)
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn version_1_is_used_where_it_has_the_controllers() {
        assert_eq!(version_of("5:cpu,memory:/jobs\n0::/\n"), Some("v1"));
        assert_eq!(version_of("2:memory:/\n"), Some("v1"));
        assert_eq!(version_of("0::/user.slice/memory\n"), Some("v2"));
        assert_eq!(version_of("1:name=memory:/\n"), None);
    }
}
