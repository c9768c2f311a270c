//! The privileges that a running agent has dropped, as the kernel shows them for each thread. All other tests
//! run the agent with hardening, and so show that the remaining privileges suffice
//! (docs/internal/design/shell.md#privileges).
//!
//! `hardening_refusals` tests that calls are refused, because a running agent cannot be made to attempt them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;

use node_tests::cluster::Process;
use node_tests::prelude::*;

/// Bits of the capabilities that the agent keeps (linux/capability.h).
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const OTHER: u32 = 65534;

/// Fields of /proc/PID/task/TID/status.
struct Thread {
    name: String,
    status: String,
}

impl Thread {
    fn field(&self, name: &str) -> &str {
        let lines = self.status.lines();
        let found = lines.filter_map(|line| line.split_once(':'));
        let mut found = found.filter(|(field, _)| *field == name);
        let value = found.next().map(|(_, value)| value.trim());
        value.unwrap_or_else(|| panic!("no {name} in {}", self.status))
    }

    fn capabilities(&self, set: &str) -> u64 {
        u64::from_str_radix(self.field(set), 16).expect("a mask")
    }

    fn number(&self, name: &str) -> u32 {
        self.field(name).parse().expect("a number")
    }
}

fn threads(process: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a running agent");
    let read = |task: fs::DirEntry, file: &str| fs::read_to_string(task.path().join(file)).ok();
    let thread = |task: fs::DirEntry| {
        Some(Thread {
            status: fs::read_to_string(task.path().join("status")).ok()?,
            name: read(task, "comm")?.trim().to_owned(),
        })
    };
    tasks.flatten().filter_map(thread).collect()
}

/// The test's thread. The agent inherits its seccomp filters.
fn own() -> Thread {
    Thread {
        name: "test".to_owned(),
        status: fs::read_to_string("/proc/thread-self/status").expect("procfs"),
    }
}

fn assert_left(scene: &Scene, capabilities: u64) {
    let threads = threads(scene.agent().pid());
    assert!(threads.len() >= 3, "the main thread and two workers");
    for thread in threads {
        let name = &thread.name;
        assert_ne!(name, "loader", "it ends when all is loaded");
        for (set, left) in [
            ("CapEff", capabilities),
            ("CapPrm", capabilities),
            ("CapInh", 0),
            ("CapAmb", 0),
            ("CapBnd", 0),
        ] {
            assert_eq!(thread.capabilities(set), left, "{set} of {name}");
        }
        assert_eq!(thread.number("NoNewPrivs"), 1, "{name}");
        assert_eq!(thread.number("Seccomp"), 2, "{name}");
        let filters = own().number("Seccomp_filters") + 3;
        assert_eq!(thread.number("Seccomp_filters"), filters, "{name}");
    }
}

#[test]
fn every_thread_keeps_what_it_needs_alone() {
    // Use a sentinel, because its prober is a separate thread.
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    assert_left(&scene, NET_ADMIN | NET_RAW);
    let report = scene.report();
    let told = &report["hardening"];
    assert_eq!(
        told["capabilities"],
        json!(["CAP_NET_ADMIN", "CAP_NET_RAW"])
    );
    assert_eq!(told["no_new_privs"], true);
    let has_landlock = skip::has_landlock();
    let files = if has_landlock { "confined" } else { "open" };
    assert_eq!(told["files"], files, "{told:#}");
    assert_eq!(told["missing"] == json!([]), has_landlock, "{told:#}");

    // Without a sentinel, the agent also drops CAP_NET_RAW.
    scene.take_agent().terminate().expect("an end in order");
    scene.start(&["--sentinel", "off"]);
    assert_left(&scene, NET_ADMIN);
}

/// The rotator needs no capability. It drops its privileges before its first request.
#[test]
fn the_rotator_keeps_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(agent_binary().expect("a binary"));
    command.args(["rotate", "--server", "http://127.0.0.1:1"]);
    let mut rotator = Process::start(command, "rotator", folder.path()).expect("a rotator");
    let log = folder.path().join("rotator.log");
    let asked = || fs::read_to_string(&log).is_ok_and(|log| log.contains("is not available"));
    let waited = rotator.wait("first request", Duration::from_secs(30), asked);
    waited.expect("a first request");
    for thread in threads(rotator.pid()) {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(thread.capabilities(set), 0, "{set} of {}", thread.name);
        }
        assert_eq!(thread.number("NoNewPrivs"), 1, "{}", thread.name);
        let filters = own().number("Seccomp_filters") + 3;
        assert_eq!(thread.number("Seccomp_filters"), filters);
    }
}

/// The negative control: without hardening, the agent keeps its privileges.
#[test]
fn without_hardening_no_privilege_is_dropped() {
    let scene = Scene::new(Backend::Nftables, &["--hardening", "off"]);
    let own = own();
    for thread in threads(scene.agent().pid()) {
        for field in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp_filters"] {
            assert_eq!(thread.field(field), own.field(field), "{field}");
        }
    }
    assert_eq!(scene.report()["hardening"]["wanted"], false);
    assert!(scene.agent().log().contains("--hardening=off"));
}

/// A symlink in the manifests leads to a file outside of the folders that the agent may read. If it is added
/// while the agent runs, the agent reports the refusal. Without hardening the agent reads the file.
#[test]
fn files_elsewhere_are_out_of_reach() {
    needs!(skip::landlock());
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let elsewhere = tempfile::tempdir().expect("a folder");
    let file = elsewhere.path().join("later.yaml");
    // Make the file's content invalid, so that another problem is reported if the file is read.
    fs::write(&file, "kind: [\n").expect("write");
    symlink(&file, scene.manifests.dir().join("later.yaml")).expect("a link");
    let problem = |report: &Value, word: &str| {
        let problems = report["cluster"]["problems"].to_string();
        problems.contains("later.yaml")
            && problems.contains("Permission denied") == (word == "denied")
    };
    scene.wait("refused", |report| problem(report, "denied"));
    scene.take_agent().terminate().expect("an end in order");
    scene.start(&["--hardening", "off"]);
    scene.wait("read, and found wrong", |report| problem(report, "read"));
    // At its start, the agent allows itself the files to which existing links lead.
    scene.take_agent().terminate().expect("an end in order");
    scene.start(&[]);
    scene.wait("followed", |report| problem(report, "read"));
}

/// If root needs CAP_DAC_READ_SEARCH to read another user's manifests, the agent keeps this capability and
/// reports that.
#[test]
fn a_users_manifests_are_read_all_the_same() {
    let mut scene = Scene::bare(Backend::Nftables);
    let folder = scene.manifests.dir().to_owned();
    chown(&folder, Some(OTHER), Some(OTHER)).expect("give the folder away");
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).expect("their own");
    scene.start(&[]);
    scene.traffic();
    let report = scene.wait_proven();
    let told = report["hardening"].to_string();
    assert!(told.contains("CAP_DAC_READ_SEARCH is kept"), "{told}");
}
