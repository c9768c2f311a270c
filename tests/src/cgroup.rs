//! A cgroup of a test's own, below the test's: programs are attached to it alone, never to the root.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// A cgroup of the unified hierarchy; removed when dropped, once its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    handle: File,
}

impl Cgroup {
    /// Makes one. Nothing, loudly, where the unified hierarchy is not to be had.
    pub fn new(test: &str) -> Option<Self> {
        match Self::make() {
            Some(cgroup) => Some(cgroup),
            None => {
                eprintln!(
                    "SKIPPED: {test} needs a cgroup of the unified hierarchy, and none can be made"
                );
                None
            }
        }
    }

    /// One that also takes single threads of this process: clients in several pods are threads.
    pub fn of_threads(test: &str) -> Option<Self> {
        let cgroup = Self::new(test)?;
        match fs::write(cgroup.path.join("cgroup.type"), "threaded") {
            Ok(()) => Some(cgroup),
            Err(error) => {
                eprintln!("SKIPPED: {test} needs a cgroup that takes threads: {error}");
                None
            }
        }
    }

    /// File that takes the thread in that writes "0" to it.
    pub fn threads(&self) -> PathBuf {
        self.path.join("cgroup.threads")
    }

    fn make() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mut lines = mounts.lines().map(|line| line.split(' '));
        let root = lines.find_map(|mut words| {
            let place = words.nth(1)?;
            (words.next()? == "cgroup2").then_some(place)
        })?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pathproof-test-{}-{number}", std::process::id());
        let path = PathBuf::from(format!("{root}{own}")).join(name);
        fs::create_dir(&path).ok()?;
        let handle = File::open(&path).ok()?;
        Some(Self { path, handle })
    }

    /// File that takes processes in.
    pub fn procs(&self) -> String {
        self.path.join("cgroup.procs").display().to_string()
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor.
    pub fn handle(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
