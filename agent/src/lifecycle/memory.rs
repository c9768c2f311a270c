//! What the process keeps of its memory: a node agent's memory is charged to every node of the cluster, and a
//! large view is read once and freed.

/// Settings that glibc would otherwise adapt to the largest allocation ever made, and one arena for
/// the few threads there are. Other C libraries give memory back by themselves.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: two parameters of the allocator, set before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives freed memory back to the kernel; some milliseconds at scale, so only after a large change.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of pages of code. Start touches most of the program, what follows a small part of it:
/// what is needed again is mapped again from the page cache, in microseconds. On nodes that run
/// short the kernel would do the same, later.
pub fn give_back_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (start, length) in maps.lines().filter_map(code) {
        // SAFETY: code is mapped from files and never written: every page is read anew as it was.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

/// Address and length of a mapping of `/proc/self/maps` that is code of a file (`proc_pid_maps(5)`).
/// Data that is read-only by now is none: relocations were written to it.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let of_a_file = |path: &str| path.starts_with('/');
    if fields.next()? != "r-xp" || !fields.nth(3).is_some_and(of_a_file) {
        return None;
    }
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16));
    let start = start.ok()?;
    Some((start, end.ok()?.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("7f0000001000-7f0000003000 r-xp 00001000 08:01 7 /usr/bin/pathproof", Some((0x7f00_0000_1000, 0x2000)))]
    #[case(
        "7f0000001000-7f0000003000 r--p 00001000 08:01 7 /usr/bin/pathproof",
        None
    )]
    #[case(
        "7f0000001000-7f0000003000 rw-p 00001000 08:01 7 /usr/bin/pathproof",
        None
    )]
    #[case("7ffd00001000-7ffd00003000 r-xp 00000000 00:00 0 [vdso]", None)]
    #[case("7ffd00001000-7ffd00003000 r-xp 00000000 00:00 0", None)]
    #[case("", None)]
    fn only_code_of_files_is_let_go(#[case] line: &str, #[case] wanted: Option<(usize, usize)>) {
        assert_eq!(code(line), wanted);
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        give_back_code();
        assert!(
            std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps
                .lines()
                .filter_map(code)
                .count()
                > 0)
        );
    }
}
