//! File access, by Landlock: only the needed paths can be read or written. From Linux 6.12 on, Landlock also
//! keeps signals and abstract Unix sockets within the process.
//!
//! TCP ports are not restricted: a process with CAP_NET_RAW or CAP_NET_ADMIN can use any port without a TCP
//! socket, and the API server's port may change with the kubeconfig.

use std::path::Path;

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus, Scope,
    path_beneath_rules,
};
use pathproof_report::FilesReport;

use super::{Needs, Refused};

/// Newest access rights that are requested; an older kernel enforces those that it supports.
const RIGHTS: ABI = ABI::V5;

const KERNEL: [&str; 4] = ["/proc", "/sys", "/dev/null", "/dev/urandom"];

/// Paths that are read to resolve host names and to verify certificates: settings, certificate authorities,
/// and modules of the C library.
pub const SYSTEM: [&str; 8] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/nscd",
];

const ABSENT: &str =
    "this kernel has no Landlock (needs Linux 5.13 and `landlock` in CONFIG_LSM or lsm=)";

/// Restricts this thread and those that it starts. On an error nothing is restricted.
pub(super) fn confine(needs: &Needs) -> Result<FilesReport, Refused> {
    // If the root must be readable, reading is not restricted: a rule for the root would allow everything.
    let reads = !needs.read.iter().any(|path| path == Path::new("/"));
    let write = AccessFs::from_write(RIGHTS);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // No rule grants Execute: no program is ever started.
    let handled = write | AccessFs::Execute;
    let handled = if reads { handled | read } else { handled };
    let make = AccessFs::MakeDir | AccessFs::MakeReg | AccessFs::MakeSym;
    // Rights on a folder's content cannot be granted on a file.
    let made = needs.made.iter().filter(|path| path.is_dir());
    // A missing path is skipped, and stays forbidden if it is created later.
    let mut rules = Ruleset::default()
        .handle_access(handled)?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(path_beneath_rules(&needs.written, (write | read) & handled))?
        .add_rules(path_beneath_rules(made, (make | read) & handled))?;
    if reads {
        rules = rules
            .add_rules(path_beneath_rules(KERNEL, read))?
            .add_rules(path_beneath_rules(&needs.read, read))?;
    }
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(ABSENT.into()),
        _ if reads => Ok(FilesReport::Confined),
        _ => Ok(FilesReport::WritesConfined),
    }
}

/// Kernel paths that the loader thread reads.
const LOADING: [&str; 3] = ["/proc", "/sys/devices", "/sys/fs/bpf"];

/// Keeps this thread from reading other files, among them the kernel's types. aya before 0.15
/// parses these for every object (aya-rs/aya#1172). That takes more memory than the rest of
/// loading, and none of pathproof's programs is relocated against them.
///
/// On an error nothing is restricted, and loading takes longer.
pub(super) fn confine_loader() -> Result<(), Refused> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::ReadFile)?
        .create()?
        .add_rules(path_beneath_rules(LOADING, AccessFs::ReadFile))?;
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(ABSENT.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::process::Command;
    use std::thread;

    use nix::errno::Errno;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    /// The kernel's version of Landlock. It is queried directly, so the tests fail if the kernel has Landlock
    /// and the agent does not find it.
    fn version() -> i64 {
        const VERSION: u32 = 1;
        let nothing = std::ptr::null::<u8>();
        // SAFETY: with this flag the call takes no attributes, and changes nothing.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) }
    }

    /// A process and a socket of another domain.
    #[test]
    fn signals_and_abstract_sockets_of_others_are_out_of_reach() {
        if version() < 6 {
            return eprintln!("SKIPPED: it needs Linux 6.12 with Landlock");
        }
        let mut other = Command::new("sleep").arg("60").spawn().expect("a process");
        let process = Pid::from_raw(i32::try_from(other.id()).expect("a process id"));
        let name = format!("pathproof-scopes-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("an address");
        let _socket = UnixDatagram::bind_addr(&address).expect("a free name");
        let reach = move || {
            let socket = UnixDatagram::unbound().expect("a socket");
            let connected = socket.connect_addr(&address);
            let signal = kill(process, None::<Signal>);
            (signal, connected.map_err(|error| error.kind()))
        };
        assert_eq!(reach(), (Ok(()), Ok(())), "without confinement");
        let thread = thread::spawn(move || {
            confine(&Needs::default()).expect("confined");
            reach()
        });
        let reached = thread.join().expect("no panic");
        let refused = (Err(Errno::EPERM), Err(ErrorKind::PermissionDenied));
        assert_eq!(reached, refused);
        other.kill().and_then(|()| other.wait()).expect("its end");
    }

    #[test]
    fn the_loader_reads_only_kernel_paths() {
        if version() <= 0 {
            return eprintln!("SKIPPED: it needs a kernel with Landlock");
        }
        let thread = thread::spawn(|| {
            confine_loader().expect("confined");
            File::open("/proc/self/status").expect("of the kernel");
            let kind = |path| File::open(path).expect_err(path).kind();
            assert_eq!(kind("/etc/passwd"), ErrorKind::PermissionDenied);
            // Kernels without BTF lack this file.
            let types = kind("/sys/kernel/btf/vmlinux");
            assert!([ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&types));
        });
        thread.join().expect("no panic");
        File::open("/etc/passwd").expect("other threads can still read");
    }
}
