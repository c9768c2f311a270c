//! What the kernel says about this process: the agent measures itself.

use std::fs;

/// Clock ticks a second in /proc/self/stat: USER_HZ, 100 on every architecture that Linux has.
const TICKS: f64 = 100.0;

/// Cost of the process so far.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) open_files: u64,
}

impl Usage {
    /// Reads /proc; what cannot be read is zero.
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd")
            .map(Iterator::count)
            .unwrap_or_default();
        Self {
            cpu_seconds: cpu_seconds(&stat).unwrap_or_default(),
            resident_bytes: resident_bytes(&status).unwrap_or_default(),
            open_files: files as u64,
        }
    }
}

/// Fields 14 and 15 of proc_pid_stat(5). The command's name, field 2, may hold anything but ends
/// with the last parenthesis.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS)
}

/// `VmRSS:  1234 kB` of proc_pid_status(5).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(
            resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"),
            Some(2048 * 1024)
        );
        let usage = Usage::read();
        assert!(usage.resident_bytes > 0 && usage.open_files > 0);
    }
}
