//! System calls, by seccomp: calls that an agent never makes fail with an error, and never with a signal. All
//! others stay allowed. docs/internal/design/shell.md#privileges explains why the refused calls are listed,
//! and not the allowed ones.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::Refused;

/// A call that is refused if all arguments of one of these lists match, or always if there is no list.
type Refusal = (c_long, Vec<Vec<Argument>>);

/// Index of an argument, how it is compared, and the value to compare with.
type Argument = (u8, Compare, u64);

/// Refuses calls that no thread ever makes, in this thread and in those that it starts. With
/// `programs`, calls that start other programs stay allowed.
///
/// # Errors
/// The calls stay allowed; the error gives the reason.
pub(super) fn forbid_common(programs: bool) -> Result<(), Refused> {
    install(common(programs), libc::EPERM)?;
    // The arguments of clone3 are behind a pointer, which no filter can follow. C libraries expect
    // this error, as in containers, and fall back to clone(2).
    install(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)
}

/// Refuses calls that are needed only until all programs are loaded.
pub(super) fn forbid_loading() -> Result<(), Refused> {
    install(loading(), libc::EPERM)
}

fn install(refused: Vec<Refusal>, with: i32) -> Result<(), Refused> {
    let mut rules = BTreeMap::new();
    for (call, arguments) in refused {
        let written = arguments.iter().map(|one| rule(one));
        let written = written.collect::<Result<Vec<_>, _>>()?;
        for number in numbers(call) {
            rules.insert(number, written.clone());
        }
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(with as u32),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?;
    Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
}

/// Calls with another number in the x32 ABI (asm/unistd_x32.h). The others keep theirs.
const RENUMBERED: [(c_long, i64); 9] = [
    (libc::SYS_ioctl, 514),
    (libc::SYS_execve, 520),
    (libc::SYS_ptrace, 521),
    (libc::SYS_rt_sigqueueinfo, 524),
    (libc::SYS_kexec_load, 528),
    (libc::SYS_rt_tgsigqueueinfo, 536),
    (libc::SYS_process_vm_readv, 539),
    (libc::SYS_process_vm_writev, 540),
    (libc::SYS_execveat, 545),
];

/// Numbers of a call. An x86-64 kernel may also accept the call in the x32 ABI.
fn numbers(call: c_long) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let renumbered = RENUMBERED.iter().find(|(native, _)| *native == call);
    let number = renumbered.map_or(call, |(_, number)| *number);
    let second = cfg!(target_arch = "x86_64").then_some(number | X32);
    std::iter::once(call).chain(second)
}

fn rule(arguments: &[Argument]) -> Result<SeccompRule, BackendError> {
    let conditions = arguments.iter().map(|(number, compare, value)| {
        SeccompCondition::new(*number, Length::Dword, compare.clone(), *value)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

fn common(programs: bool) -> Vec<Refusal> {
    let mut refused: Vec<Refusal> = NEVER.iter().map(|call| (*call, Vec::new())).collect();
    refused.extend(conditional(programs));
    if !programs {
        refused.extend(WITHOUT_PROGRAMS.map(|call| (call, Vec::new())));
        #[cfg(target_arch = "x86_64")]
        refused.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Vec::new())));
    }
    refused
}

/// Calls that are refused for certain arguments.
fn conditional(programs: bool) -> Vec<Refusal> {
    let bits = |argument, bits: libc::c_int| {
        let bits = bits as u32 as u64;
        vec![(argument, Compare::MaskedEq(bits), bits)]
    };
    let mut clone: Vec<_> = NAMESPACES.map(|flag| bits(0, flag)).into();
    if !programs {
        // A clone that is not a thread is a process.
        let thread = libc::CLONE_THREAD as u64;
        clone.push(vec![(0, Compare::MaskedEq(thread), 0)]);
    }
    // The C library maps its modules for host names executable, but not writable.
    let written_code = libc::PROT_WRITE | libc::PROT_EXEC;
    let mut refused = Vec::new();
    if !programs {
        // Signals to other processes; abort(3) sends one to this process.
        let others = vec![(0, Compare::Ne, u64::from(std::process::id()))];
        refused = [libc::SYS_kill, libc::SYS_tgkill]
            .map(|call| (call, vec![others.clone()]))
            .into();
        // The kernel sends a file's owner the signal that F_SETSIG chooses.
        let owner = [libc::F_SETOWN, F_SETOWN_EX].map(|it| vec![(1, Compare::Eq, it as u64)]);
        refused.push((libc::SYS_fcntl, owner.into()));
    }
    let requests = [TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP];
    let requests = requests.map(|request| vec![(1, Compare::Eq, request)]);
    let families = FAMILIES.map(|family| (0, Compare::Ne, family as u64));
    refused.extend([
        (libc::SYS_clone, clone),
        (libc::SYS_socket, vec![families.into()]),
        // No executable memory except the program's code, which was loaded at its start.
        (libc::SYS_mmap, vec![bits(2, written_code)]),
        (libc::SYS_mprotect, vec![bits(2, libc::PROT_EXEC)]),
        (libc::SYS_pkey_mprotect, vec![bits(2, libc::PROT_EXEC)]),
        // No input to the terminal that started the process, and no owner of a socket, as with fcntl(2).
        (libc::SYS_ioctl, requests.into()),
    ]);
    refused
}

/// Commands of bpf(2) that create objects in the kernel: BPF_MAP_CREATE, BPF_PROG_LOAD and
/// BPF_BTF_LOAD (linux/bpf.h). Links, pins and BPF_RAW_TRACEPOINT_OPEN use loaded objects.
const LOADING: [u64; 3] = [0, 5, 18];

fn loading() -> Vec<Refusal> {
    let commands = LOADING.map(|command| vec![(0, Compare::Eq, command)]);
    vec![(libc::SYS_bpf, commands.into())]
}

/// Requests of ioctl(2) (asm-generic/ioctls.h). The constants in libc have a different type for each C
/// library.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
/// Requests of asm-generic/sockios.h.
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
/// Command of fcntl(2) (asm-generic/fcntl.h).
const F_SETOWN_EX: libc::c_int = 15;

/// Kinds of sockets that the agent opens.
const FAMILIES: [libc::c_int; 5] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
];

const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Calls that are refused unless the agent starts other programs, which may need them.
const WITHOUT_PROGRAMS: [c_long; 7] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    // A file without a name, from which code can be run.
    libc::SYS_memfd_create,
    // Signals to other processes.
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];

/// Calls that are refused with any arguments. Calls that need a dropped capability (mounts,
/// modules, clocks, other users) are not listed: the kernel refuses them.
const NEVER: &[c_long] = &[
    // Memory and descriptors of other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Access to files that does not use their paths.
    libc::SYS_open_tree,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // Namespaces.
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel's log, and the execution domain of this process.
    libc::SYS_syslog,
    libc::SYS_personality,
    // The kernel's keys.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Performs operations that bypass these filters.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Specific to this processor.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

#[cfg(test)]
mod tests;
