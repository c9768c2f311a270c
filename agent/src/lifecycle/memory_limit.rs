//! The limit of memory that the container or unit sets. A process that exceeds it is killed.

use std::fs;
use std::path::Path;

/// Where distributions and container runtimes mount the control groups.
const MOUNTS: &str = "/sys/fs/cgroup";

/// The limit in bytes; `None` if there is none, or it cannot be read. Version 1 of control groups has a very
/// large number instead of none.
pub(crate) fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    lowest(Path::new(MOUNTS), &own)
}

/// The lowest limit of this process's group and of the groups above it. `own` has the lines of
/// /proc/self/cgroup. A container of version 1 sees its own group at the mount, and the path of its group
/// does not exist there.
fn lowest(mounts: &Path, own: &str) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => (mounts.to_owned(), "memory.max"),
            some if some.split(',').any(|one| one == "memory") => {
                (mounts.join(some), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/'));
        let limit = |group: &Path| {
            let text = fs::read_to_string(mount.join(group).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        group.ancestors().filter_map(limit).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    #[rstest]
    #[case::version_2_in_a_container("0::/", &[("memory.max", "134217728\n")], Some(128 * MEBIBYTE))]
    #[case::version_2_of_a_unit(
        "0::/system.slice/pathproof.service",
        &[("system.slice/memory.max", "max\n"), ("system.slice/pathproof.service/memory.max", "134217728\n")],
        Some(128 * MEBIBYTE)
    )]
    #[case::a_group_above_has_less(
        "0::/kubepods/pod",
        &[("kubepods/memory.max", "1048576\n"), ("kubepods/pod/memory.max", "2097152\n")],
        Some(MEBIBYTE)
    )]
    #[case::version_1_in_a_container(
        "4:memory:/kubepods/pod\n0::/kubepods/pod",
        &[("memory/memory.limit_in_bytes", "134217728\n")],
        Some(128 * MEBIBYTE)
    )]
    #[case::no_limit("0::/a", &[("a/memory.max", "max\n")], None)]
    #[case::not_mounted("0::/", &[], None)]
    #[case::cut_short("0:", &[], None)]
    fn the_lowest_limit_counts(
        #[case] own: &str,
        #[case] files: &[(&str, &str)],
        #[case] expected: Option<u64>,
    ) {
        let mounts = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = mounts.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        assert_eq!(lowest(mounts.path(), own), expected);
    }
}
