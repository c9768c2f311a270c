//! Calls that the filters refuse and calls that they allow, each tried in its own thread.

use rstest::rstest;

use super::*;

/// The kernel never returns this error, so only a filter can have returned it.
const OURS: i32 = 4_000;

const WX: i64 = (libc::PROT_WRITE | libc::PROT_EXEC) as i64;
const PRIVATE: i64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as i64;

/// Makes a call with arguments that change nothing even if it is allowed; returns 0 if it succeeds.
fn call(number: c_long, [a, b, c, d]: [i64; 4]) -> i32 {
    // SAFETY: no argument is a pointer to memory of this process.
    match unsafe { libc::syscall(number, a, b, c, d, 0, 0) } {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}

/// The same call with both filters installed, as after start-up.
fn filtered(number: c_long, arguments: [i64; 4]) -> i32 {
    let thread = std::thread::spawn(move || {
        install(common(false), OURS).unwrap();
        install(loading(), OURS).unwrap();
        call(number, arguments)
    });
    thread.join().unwrap()
}

#[rstest]
#[case::a_program(libc::SYS_execve, [0; 4])]
#[case::a_process(libc::SYS_clone, [libc::CLONE_SIGHAND as i64, 0, 0, 0])]
#[case::a_thread_in_a_namespace(libc::SYS_clone, [libc::CLONE_NEWNET as i64 | libc::CLONE_THREAD as i64, 0, 0, 0])]
#[case::a_namespace(libc::SYS_unshare, [0; 4])]
#[case::another_namespace(libc::SYS_setns, [-1; 4])]
#[case::another_registers(libc::SYS_ptrace, [libc::PTRACE_PEEKDATA as i64, i32::MAX as i64, 0, 0])]
#[case::reading_another_memory(libc::SYS_process_vm_readv, [-1; 4])]
#[case::writing_another_memory(libc::SYS_process_vm_writev, [-1; 4])]
#[case::counting_events(libc::SYS_perf_event_open, [0; 4])]
#[case::keys(libc::SYS_keyctl, [-1; 4])]
#[case::a_personality(libc::SYS_personality, [0xffff_ffff, 0, 0, 0])]
#[case::a_file_by_its_handle(libc::SYS_name_to_handle_at, [-1; 4])]
#[case::others_files(libc::SYS_fanotify_init, [-1; 4])]
#[case::calls_past_the_filter(libc::SYS_io_uring_enter, [-1; 4])]
#[case::a_socket_to_the_kernels_ciphers(libc::SYS_socket, [libc::AF_ALG as i64, -1, 0, 0])]
#[case::memory_that_is_written_and_run(libc::SYS_mmap, [0, 4096, WX, PRIVATE])]
#[case::a_file_without_a_name(libc::SYS_memfd_create, [0; 4])]
#[case::a_signal_to_all(libc::SYS_kill, [-1, 0, 0, 0])]
#[case::a_signal_to_another(libc::SYS_kill, [1, 0, 0, 0])]
#[case::a_signal_to_anothers_thread(libc::SYS_tgkill, [1, 1, 0, 0])]
#[case::a_signal_to_a_thread(libc::SYS_tkill, [-1, 0, 0, 0])]
#[case::a_signal_by_a_file(libc::SYS_fcntl, [-1, libc::F_SETOWN as i64, 1, 0])]
#[case::a_signal_by_a_file_to_a_thread(libc::SYS_fcntl, [-1, F_SETOWN_EX as i64, 0, 0])]
#[case::a_signal_by_a_socket(libc::SYS_ioctl, [-1, FIOSETOWN as i64, 0, 0])]
#[case::a_signal_by_a_sockets_group(libc::SYS_ioctl, [-1, SIOCSPGRP as i64, 0, 0])]
#[case::memory_that_becomes_code(libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as i64, 0])]
#[case::a_map(libc::SYS_bpf, [0; 4])]
#[case::a_program_in_the_kernel(libc::SYS_bpf, [5, 0, 0, 0])]
fn what_agents_never_do_is_refused(#[case] number: c_long, #[case] arguments: [i64; 4]) {
    let before = call(number, arguments);
    let after = filtered(number, arguments);
    assert_eq!(after, OURS, "it was {before} before");
}

/// These calls have other numbers in the x32 ABI. The filter refuses them even where the kernel lacks that ABI,
/// because it runs first.
#[cfg(target_arch = "x86_64")]
#[rstest]
#[case::a_program(520, [0; 4])]
#[case::a_program_of_a_folder(545, [0; 4])]
#[case::anothers_memory(540, [0; 4])]
#[case::a_signal_by_a_socket(514, [-1, FIOSETOWN as i64, 0, 0])]
fn numbers_of_the_x32_abi_are_refused(#[case] number: c_long, #[case] arguments: [i64; 4]) {
    assert_eq!(filtered(0x4000_0000 | number, arguments), OURS);
}

#[rstest]
#[case::reading_a_map(libc::SYS_bpf, [1, 0, 0, 0])]
#[case::attaching_what_was_loaded(libc::SYS_bpf, [17, 0, 0, 0])]
#[case::memory(libc::SYS_mmap, [0, 4096, libc::PROT_WRITE as i64, PRIVATE])]
#[case::a_packet_socket_of_no_kind(libc::SYS_socket, [libc::AF_PACKET as i64, -1, 0, 0])]
#[case::a_netlink_socket(libc::SYS_socket, [libc::AF_NETLINK as i64, libc::SOCK_RAW as i64, 0, 0])]
#[case::flags_of_a_file(libc::SYS_fcntl, [-1, libc::F_GETFL as i64, 0, 0])]
#[case::a_socket_that_does_not_block(libc::SYS_ioctl, [-1, libc::FIONBIO as i64, 0, 0])]
#[case::a_signal_to_itself(libc::SYS_kill, [i64::from(std::process::id()), 0, 0, 0])]
fn calls_of_agents_are_not_filtered(#[case] number: c_long, #[case] arguments: [i64; 4]) {
    assert_eq!(filtered(number, arguments), call(number, arguments));
}
