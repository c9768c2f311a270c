//! File access, by Landlock: only the needed paths can be read or written.

use std::path::Path;

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
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

    use super::*;

    #[test]
    fn the_loader_reads_only_kernel_paths() {
        const VERSION: u32 = 1;
        let nothing = std::ptr::null::<u8>();
        // SAFETY: with this flag the call takes no attributes, and changes nothing.
        let version =
            unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
        // The kernel is queried directly, so the test fails if the kernel has Landlock and the agent does not
        // find it.
        if version <= 0 {
            return eprintln!("SKIPPED: it needs a kernel with Landlock");
        }
        let thread = std::thread::spawn(|| {
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
