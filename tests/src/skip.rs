//! Tests that need something this machine lacks print that and pass. Cluster tests do the same without root.
//! Without root, the tests of tests/kernel, tests/node and tests/worlds fail instead, so `cargo xtask` leaves
//! them out and lists them as skipped.

use std::fmt;

/// Something that a test needs and this machine lacks. No other error converts into this type, so a failure
/// cannot pass as a skipped test.
#[derive(Debug)]
pub struct Missing(String);

pub type Needed<T = ()> = Result<T, Missing>;

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "needs {}", self.0)
    }
}

/// Ends the test, as skipped, if something that it needs is [`Missing`]. The macro prints what is missing,
/// and `cargo xtask` counts the test as skipped.
#[macro_export]
macro_rules! needs {
    ($found:expr) => {
        match $found {
            Ok(found) => found,
            Err(missing) => {
                eprintln!("SKIPPED: {missing}");
                return;
            }
        }
    };
}

/// The value that a test needs. An error becomes the reason to skip the test.
pub fn needed<T>(found: anyhow::Result<T>) -> Needed<T> {
    found.map_err(|missing| Missing(format!("{missing:#}")))
}

fn present(has: bool, what: impl Into<String>) -> Needed {
    has.then_some(()).ok_or_else(|| Missing(what.into()))
}

/// Requires root, for namespaces, rules and eBPF.
pub fn root() -> Needed {
    present(is_root(), "root (run `cargo xtask test` with sudo)")
}

/// Requires a tool in PATH, such as `nft`.
pub fn tool(tool: &str) -> Needed {
    let found = crate::world::tool(tool).is_some();
    present(found, format!("{tool}, which is not in PATH"))
}

pub fn ipvs() -> Needed {
    tool("ipvsadm")?;
    // Try ipvsadm, which loads the kernel module if the module exists.
    let shown = std::process::Command::new("ipvsadm").output();
    let works = shown.is_ok_and(|output| output.status.success());
    present(
        works,
        "a kernel with IPVS (see `cargo xtask test --kernels`)",
    )
}

/// Requires an environment variable that allows a test to change settings of the whole machine.
pub fn own_machine(variable: &str) -> Needed {
    present(
        std::env::var_os(variable).is_some(),
        format!("{variable}, which `cargo xtask test --kernels` sets in a virtual machine"),
    )
}

/// The first Linux version that attaches programs to devices by TCX. The agent tries TCX to find out; tests
/// use the kernel's version.
pub const TCX: (u32, u32) = (6, 6);

/// Whether the kernel has this version or a later one.
pub fn is_linux((major, minor): (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let parts = release.split(['.', '-']);
    let mut numbers = parts.map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Requires this version of the kernel or a later one.
pub fn linux(version: (u32, u32)) -> Needed {
    let (major, minor) = version;
    present(is_linux(version), format!("Linux {major}.{minor}"))
}

/// Whether the kernel reports Landlock. Tests do not use the agent's report for this, because the agent must
/// not decide which of its tests run.
pub fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: with this flag the call takes no attributes, and changes nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    version > 0
}

pub fn landlock() -> Needed {
    present(has_landlock(), "a kernel with Landlock")
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
