//! Tests that need something this machine lacks print that and pass. Without root, cluster tests do so as
//! well. The tests of tests/kernel, tests/node and tests/worlds fail instead, so `cargo xtask` leaves
//! them out and lists them as skipped.

/// Returns something that a test needs. If this machine lacks it, prints why the test is skipped, and
/// returns `None`.
pub fn needed<T>(test: &str, found: anyhow::Result<T>) -> Option<T> {
    let skipped = |missing| eprintln!("SKIPPED: {test} needs {missing:#}");
    found.map_err(skipped).ok()
}

/// Whether a test must be skipped; prints the reason.
fn skips(test: &str, has: bool, what: &str) -> bool {
    if !has {
        eprintln!("SKIPPED: {test} needs {what}");
    }
    !has
}

/// Whether the test must be skipped because it needs root (namespaces, rules, eBPF).
/// Use as `if skip::without_root("name") { return; }`.
pub fn without_root(test: &str) -> bool {
    skips(test, is_root(), "root (run `cargo xtask test` with sudo)")
}

/// Whether the test must be skipped because a tool such as `nft` is not in PATH.
pub fn without_tool(test: &str, tool: &str) -> bool {
    let found = crate::world::tool(tool).is_some();
    skips(test, found, &format!("{tool}, which is not in PATH"))
}

/// Whether the test must be skipped because the kernel lacks IPVS.
pub fn without_ipvs(test: &str) -> bool {
    // ipvsadm loads the kernel module if it exists.
    let mut command = std::process::Command::new("ipvsadm");
    let mut works = || command.output().is_ok_and(|output| output.status.success());
    let kernel = "a kernel with IPVS (see `cargo xtask test --kernels`)";
    without_tool(test, "ipvsadm") || skips(test, works(), kernel)
}

/// The first Linux that attaches programs to devices by TCX. The agent finds out by trying; tests use the
/// kernel's version.
pub const TCX: (u32, u32) = (6, 6);

/// Whether the kernel has this version or a later one.
pub fn is_linux((major, minor): (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let parts = release.split(['.', '-']);
    let mut numbers = parts.map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Whether the test must be skipped because the kernel is older.
pub fn without_linux(test: &str, version: (u32, u32)) -> bool {
    let (major, minor) = version;
    skips(test, is_linux(version), &format!("Linux {major}.{minor}"))
}

/// Whether the kernel reports Landlock. The agent's report must not decide which tests of the agent run.
pub fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: with this flag the call takes no attributes, and changes nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    version > 0
}

/// Whether the test must be skipped because the kernel lacks Landlock.
pub fn without_landlock(test: &str) -> bool {
    skips(test, has_landlock(), "a kernel with Landlock")
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
