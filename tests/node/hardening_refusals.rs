//! A thread of the test is confined like an agent with a given configuration. The tests then try files and
//! calls that are allowed or refused. `agent/src/hardening/calls/tests.rs` covers every kind of call.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use node_tests::prelude::*;
use pathproof::config::{Config, Surroundings};
use pathproof::confine::{Confined, confine};
use pathproof_program::args::{Args, Command as Said};
use pathproof_report::FilesReport;
use tempfile::TempDir;

/// The agent's folders, and a folder that it does not use.
struct Scene {
    root: TempDir,
    elsewhere: TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            root: TempDir::new().expect("a folder"),
            elsewhere: TempDir::new().expect("a folder"),
        };
        fs::create_dir_all(scene.manifests()).expect("a folder");
        fs::write(scene.elsewhere.path().join("secret"), "theirs").expect("a file");
        scene
    }

    fn manifests(&self) -> PathBuf {
        self.root.path().join("view/manifests")
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn config(&self, source: &[&str]) -> Config {
        let state = format!("--state-dir={}", self.state().display());
        let head = ["pathproof", "run", "--pin-dir=none", "--node-name=node-1"];
        let line = head.iter().chain(source).copied().chain([state.as_str()]);
        let Said::Run(said) = Args::parse_from(line).command else {
            panic!("not run");
        };
        Config::resolve(&said, &Surroundings::default()).expect("a sound configuration")
    }

    fn of_folder(&self) -> Config {
        self.config(&["--manifests", &self.manifests().to_string_lossy()])
    }
}

/// Runs `act` in a new, confined thread. The test's own thread stays unconfined.
fn confined<T: Send>(config: &Config, act: impl FnOnce(&Confined) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| act(&confine(config)));
        thread.join().expect("no panic")
    })
}

/// The error number of a failed call, or 0 for success.
fn errno(result: impl Into<i64>) -> i32 {
    match result.into() {
        -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}

/// Makes a system call. Callers choose arguments that change nothing, even if the call is allowed.
fn call(number: libc::c_long, arguments: [i64; 4]) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: the only pointer that callers pass is null, to calls that check it.
    errno(unsafe { libc::syscall(number, a, b, c, d, 0, 0) })
}

const BPF_PROG_LOAD: i64 = 5;

/// clone3 must fail with ENOSYS, so that C libraries fall back to clone(2). With another error no thread
/// could be started.
#[test]
fn threads_are_still_started() {
    let scene = Scene::new();
    let (clone3, thread) = confined(&scene.of_folder(), |_| {
        let clone3 = call(libc::SYS_clone3, [0; 4]);
        (clone3, std::thread::spawn(|| 7).join().expect("a thread"))
    });
    assert_eq!((clone3, thread), (libc::ENOSYS, 7));
}

fn is_refused<T>(result: io::Result<T>) -> bool {
    matches!(result, Err(error) if error.raw_os_error() == Some(libc::EACCES))
}

#[test]
fn files_are_the_agents_own_alone() {
    needs!(skip::landlock());
    let scene = Scene::new();
    let secret = scene.elsewhere.path().join("secret");
    let new = scene.elsewhere.path().join("new");
    fs::write(&new, "").expect("allowed without confinement");
    fs::remove_file(&new).expect("allowed without confinement");
    confined(&scene.of_folder(), |confined| {
        assert_eq!(confined.report.files, FilesReport::Confined);
        assert!(is_refused(File::open(&secret)), "reading elsewhere");
        assert!(
            is_refused(fs::read_dir(scene.elsewhere.path())),
            "listing elsewhere"
        );
        assert!(is_refused(fs::write(&new, "")), "a new file elsewhere");
        assert!(
            is_refused(File::options().append(true).open(&secret)),
            "appending"
        );
        assert!(is_refused(fs::remove_file(&secret)), "removing");
        assert!(
            is_refused(fs::rename(&secret, scene.state().join("x"))),
            "moving into the agent's folder"
        );
        let shared = scene.manifests().join("x.yaml");
        assert!(is_refused(fs::write(shared, "")), "manifests are read-only");
        let sysctl = "/proc/sys/net/ipv4/ip_forward";
        assert!(
            is_refused(File::options().write(true).open(sysctl)),
            "a sysctl"
        );
        fs::read_to_string(sysctl).expect("sysctls may be read");
        // The agent writes its state to a second file and renames that.
        let (fresh, state) = (scene.state().join("fresh"), scene.state().join("state"));
        fs::write(&fresh, "mine").expect("write");
        fs::rename(&fresh, &state).expect("into place");
        assert_eq!(fs::read_to_string(&state).expect("read"), "mine");
    });
}

/// Returns a function that reads files in a confined thread.
fn reader(config: Config) -> impl Fn(&Path) -> io::Result<String> {
    let (ask, asked) = std::sync::mpsc::channel::<PathBuf>();
    let (answer, answers) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _confined = confine(&config);
        for path in asked {
            let _ = answer.send(fs::read_to_string(path));
        }
    });
    move |path| {
        ask.send(path.to_owned()).expect("a reader");
        answers.recv().expect("an answer")
    }
}

/// Manifests may be replaced as in a mounted ConfigMap, or by renaming the whole folder.
#[test]
fn what_is_read_may_be_replaced() {
    needs!(skip::landlock());
    let scene = Scene::new();
    let folder = scene.manifests();
    let write = |version: &str, text: &str| {
        let kept = folder.join(version);
        fs::create_dir(&kept).expect("a version");
        fs::write(kept.join("a.yaml"), text).expect("a file");
        let fresh = folder.join("..data_tmp");
        symlink(version, &fresh).expect("a link");
        fs::rename(fresh, folder.join("..data")).expect("into place");
    };
    write("..1", "first");
    symlink("..data/a.yaml", folder.join("a.yaml")).expect("a link");
    let read = reader(scene.of_folder());
    let text = || read(&folder.join("a.yaml")).expect("it may be read");
    assert_eq!(text(), "first");
    write("..2", "second");
    fs::remove_dir_all(folder.join("..1")).expect("the old version");
    assert_eq!(text(), "second");
    fs::rename(&folder, folder.with_extension("old")).expect("away");
    fs::create_dir(&folder).expect("a new one");
    fs::write(folder.join("a.yaml"), "third").expect("a file");
    assert_eq!(text(), "third");
}

fn kubeconfig(scene: &Scene, user: &str) -> PathBuf {
    let path = scene.root.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
         clusters:\n- name: c\n  cluster: {{server: 'https://192.0.2.1'}}\nusers:\n- name: u\n  user: {user}\n"
    );
    fs::write(&path, text).expect("a kubeconfig");
    path
}

/// A token file that the kubeconfig names, in any folder, may be renewed by a rename.
#[test]
fn a_token_may_be_renewed() {
    needs!(skip::landlock());
    let scene = Scene::new();
    let token = scene.elsewhere.path().join("token");
    fs::write(&token, "old").expect("a token");
    let path = kubeconfig(&scene, &format!("{{tokenFile: {}}}", token.display()));
    let config = scene.config(&["--kubeconfig", &path.to_string_lossy()]);
    let read = reader(config);
    assert_eq!(read(&token).expect("the first token"), "old");
    let fresh = token.with_extension("fresh");
    fs::write(&fresh, "new").expect("a token");
    fs::rename(fresh, &token).expect("into place");
    assert_eq!(read(&token).expect("the second token"), "new");
}

/// A credential plugin may be started and may use any file. Calls that no plugin needs are still refused.
#[test]
fn a_program_for_credentials_is_started() {
    let scene = Scene::new();
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: 'true', interactiveMode: Never}}";
    let path = kubeconfig(&scene, exec);
    let config = scene.config(&["--kubeconfig", &path.to_string_lossy()]);
    confined(&config, |confined| {
        let status = Command::new("true").status().expect("it is started");
        assert!(status.success());
        fs::read(scene.elsewhere.path().join("secret")).expect("any file");
        assert_eq!(call(libc::SYS_unshare, [0; 4]), libc::EPERM);
        let missing = confined.report.missing.join("; ");
        assert!(missing.contains("a credential plugin"), "{missing}");
    });
    // The negative control: without a plugin in the kubeconfig, no program can be started.
    let config = scene.config(&["--kubeconfig", &kubeconfig(&scene, "{}").to_string_lossy()]);
    let refused = confined(&config, |_| Command::new("true").status().is_err());
    assert!(refused);
}

/// Only the loader's thread may load eBPF programs.
#[test]
fn the_loader_alone_loads() {
    let scene = Scene::new();
    let config = scene.of_folder();
    let load = || call(libc::SYS_bpf, [BPF_PROG_LOAD, 0, 0, 0]);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let confined = confine(&config);
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime");
            let apart = runtime.block_on(confined.loader.run(load));
            (apart.expect("the loader's answer"), load())
        });
        let (loader, others) = thread.join().expect("no panic");
        assert_ne!(loader, libc::EPERM);
        assert_eq!(others, libc::EPERM);
    });
}

/// If a folder is missing, the agent is confined as usual, and does not report the folder as missing.
#[test]
fn folders_that_are_missing_are_no_error() {
    let scene = Scene::new();
    let missing = scene.root.path().join("nowhere/at/all");
    let config = scene.config(&["--manifests", &missing.to_string_lossy()]);
    let of_missing = confined(&config, |confined| {
        assert_eq!(call(libc::SYS_unshare, [0; 4]), libc::EPERM, "a call");
        let has_landlock = skip::has_landlock();
        let secret = File::open(scene.elsewhere.path().join("secret"));
        assert_eq!(is_refused(secret), has_landlock, "a file elsewhere");
        let beside = fs::create_dir(scene.root.path().join("nowhere"));
        assert_eq!(is_refused(beside), has_landlock, "the folder itself");
        confined.report.clone()
    });
    // The negative control: a folder that exists.
    let of_present = confined(&scene.of_folder(), |confined| confined.report.clone());
    assert_eq!(of_missing, of_present);
}
