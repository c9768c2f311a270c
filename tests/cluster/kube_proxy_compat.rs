//! The agent in kube-proxy's place, as RKE 1 starts, checks and probes it: with kube-proxy's name, flags and
//! rights. Every cluster binds the user system:kube-proxy to the ClusterRole system:node-proxier. A real
//! kube-proxy, with its health server at another port, writes the Services' rules.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use node_tests::cluster::{KUBE_PROXY_HEALTHZ_PORT, Process, Servers};
use node_tests::http::{self, Response};
use node_tests::prelude::*;
use node_tests::world::{HEALTHZ_PORT, clean};
use pathproof_kube_proxy_compat::flags::FLAGS;

use crate::scene::{PATIENCE, Scene, flush};

/// kube-proxy's metrics port, which serves as the agent's admin port here.
const METRICS_PORT: u16 = 10249;
/// The flag that RKE's releases set by default. If an operator's flag follows, the last one applies.
const LOOPBACK: &str = "--healthz-bind-address=127.0.0.1";

/// Runs the agent as RKE's entry point does: `exec kube-proxy FLAGS`.
fn command(world: &World) -> Command {
    let link = world.dir().join("bin/kube-proxy");
    if !link.exists() {
        fs::create_dir_all(world.dir().join("bin")).expect("a folder");
        symlink(agent_binary().expect("the agent's binary"), &link).expect("a link");
    }
    let mut command = world.node.command(link);
    clean(&mut command);
    command
        .env("PATHPROOF_ENFORCEMENT", "enforce")
        .env("PATHPROOF_PIN_DIR", "none")
        .env("PATHPROOF_STATE_DIR", world.dir().join("drop-in-state"));
    command
}

fn kubeconfig(scene: &Scene) -> PathBuf {
    let file = scene.world.dir().join("kubecfg-kube-proxy.yaml");
    fs::write(&file, scene.control.proxy_kubeconfig(scene.far())).expect("a kubeconfig");
    file
}

/// Starts the agent with RKE's arguments and `more`.
fn start(scene: &Scene, more: &[&str]) -> Process {
    fs::create_dir_all(scene.world.dir().join("drop-in-state")).expect("a folder");
    let mut command = command(&scene.world);
    command
        .arg("--cluster-cidr=10.42.0.0/16")
        .arg(format!("--kubeconfig={}", kubeconfig(scene).display()))
        .arg("--v=2")
        .arg(format!("--hostname-override={}", NODE_NAME.to_uppercase()))
        .arg(LOOPBACK)
        .args(more);
    let mut process = Process::start(command, "drop-in", scene.world.dir()).expect("a drop-in");
    process
        .wait("/agent/readyz", PATIENCE, || {
            let ready = here(scene, METRICS_PORT, "/agent/readyz");
            ready.is_some_and(|answer| answer.status == 200)
        })
        .expect("a ready agent");
    process
}

fn ask(address: IpAddr, port: u16, path: &str) -> Option<Response> {
    http::get(SocketAddr::new(address, port), path, Duration::from_secs(2)).ok()
}

fn here(scene: &Scene, port: u16, path: &str) -> Option<Response> {
    let loopback = Ipv4Addr::LOCALHOST.into();
    scene.world.node.run(|| ask(loopback, port, path))
}

/// Status codes of a path: from outside in both families, then at loopback in both.
fn codes(scene: &Scene, path: &str) -> [Option<u16>; 4] {
    let world = &scene.world;
    let outside = |family| {
        let address = world.node_address(family);
        world.outside.run(|| ask(address, HEALTHZ_PORT, path))
    };
    let loopback = |address: IpAddr| world.node.run(|| ask(address, HEALTHZ_PORT, path));
    [
        outside(Family::V4),
        outside(Family::V6),
        loopback(Ipv4Addr::LOCALHOST.into()),
        loopback(Ipv6Addr::LOCALHOST.into()),
    ]
    .map(|answer| answer.map(|answer| answer.status))
}

fn wait_codes(scene: &Scene, what: &str, path: &str, wanted: [u16; 4]) {
    let wanted = wanted.map(Some);
    let seen = until(PATIENCE, || (codes(scene, path) == wanted).then_some(()));
    let last = codes(scene, path);
    assert!(seen.is_some(), "{what}: {path}: {last:?}, not {wanted:?}");
}

fn wait_state(scene: &Scene, process: &Process, wanted: &str) {
    let mut last = Value::Null;
    let seen = until(PATIENCE, || {
        let answer = here(scene, METRICS_PORT, "/verdict")?;
        last = serde_json::from_str(&answer.body).ok()?;
        let families = last["verdict"]["families"].as_array()?;
        let all = families.iter().all(|family| family["state"] == wanted);
        (all && families.len() == 2).then_some(())
    });
    assert!(seen.is_some(), "not {wanted}: {last:#}\n{}", process.log());
}

#[test]
fn the_agent_replaces_kube_proxy_as_rke_starts_it() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    // Restart the real kube-proxy with other ports, because it must not hold the agent's.
    drop(scene.proxy.take());
    let aside = ["--metrics-bind-address=127.0.0.1:10349"];
    scene.start_proxy_at(KUBE_PROXY_HEALTHZ_PORT, &aside);
    let mut process = start(
        &scene,
        &["--healthz-bind-address", "0.0.0.0", "--surprise=1"],
    );
    wait_state(&scene, &process, "proven");
    wait_codes(&scene, "sound", "/healthz", [200; 4]);
    wait_codes(&scene, "sound", "/livez", [200; 4]);

    // At loopback the agent answers 200 even if the node is being removed, because `rke up` requests
    // http://localhost:10256/healthz and expects 200.
    scene.taint(&[AUTOSCALER_TAINT]);
    wait_codes(&scene, "leaving", "/healthz", [503, 503, 200, 200]);
    assert_eq!(codes(&scene, "/livez"), [200; 4].map(Some));
    scene.taint(&[]);
    wait_codes(&scene, "staying", "/healthz", [200; 4]);

    // At loopback the agent also answers 200 while the datapath is broken.
    scene.proxy().freeze();
    settle();
    flush(&scene.world.node);
    wait_codes(&scene, "broken", "/healthz", [503, 503, 200, 200]);
    wait_codes(&scene, "broken", "/livez", [503; 4]);

    let metrics = here(&scene, METRICS_PORT, "/metrics")
        .expect("metrics")
        .body;
    for path in ["healthz", "livez"] {
        for code in ["200", "503"] {
            let series = format!("kubeproxy_proxy_{path}_total{{code=\"{code}\"}} ");
            let line = metrics.lines().find(|line| line.starts_with(&series));
            let count = line.map(|line| &line[series.len()..]);
            assert!(
                count.is_some_and(|count| count != "0"),
                "{series}: {line:?}"
            );
        }
    }
    let log = process.log();
    let once = |text: &str| assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    once("ignored flags that have no effect in pathproof: --cluster-cidr");
    once("ignored flags that kube-proxy 1.36 does not have");
    once("--surprise");
    assert!(!log.contains("forbidden"), "{log}");

    process.signal(libc::SIGTERM);
    let status = until(PATIENCE, || process.exited().ok()?).expect("an end");
    assert!(status.success(), "{status}");

    nothing_is_served_where_that_is_said(&scene);
}

fn nothing_is_served_where_that_is_said(scene: &Scene) {
    let process = start(scene, &["--healthz-port=0"]);
    assert_eq!(codes(scene, "/healthz"), [None; 4]);
    let said = here(scene, METRICS_PORT, "/verdict").is_some();
    assert!(said, "{}", process.log());
}

#[test]
fn flags_that_kube_proxy_refuses_are_refused() {
    needs!(node_tests::skip::root());
    let world = World::builder().build().expect("build a world");
    let run = |words: &[&str]| {
        let output = command(&world).args(words).output().expect("run it");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    for (words, said) in [
        (&["run"][..], "kube-proxy takes no arguments"),
        (&["-kubeconfig=/k"], "there is no flag -k"),
        (&["--kubeconfig"], "--kubeconfig needs a value"),
        (
            &["--cleanup=maybe"],
            "--cleanup: \"maybe\" is not true or false",
        ),
        (&["--cleanup"], "run the cluster's own kube-proxy"),
        (&["--kubeconfig=/no/such", "--v=2"], "/no/such"),
        (&[], "--master URL"),
    ] {
        let (code, text) = run(words);
        assert!(code.is_some_and(|code| code != 0), "{words:?}");
        assert!(text.contains(said), "{words:?}: {text}");
    }
    assert_eq!(run(&["--init-only"]).0, Some(0));
    let version = command(&world).arg("--version").output().expect("run it");
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("pathproof "));
}

/// The flags as `--help` prints them, without their explanations.
fn usages(page: &str) -> Vec<String> {
    let flags = page.lines().filter(|line| {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        indent <= 6 && text.starts_with('-')
    });
    flags
        .map(|line| {
            let start = line.find("--").unwrap_or(0);
            let end = line[start..].find("  ").map_or(line.len(), |at| start + at);
            line[..end].to_owned()
        })
        .collect()
}

/// Flags of this kube-proxy that the agent does not have, or has with another type.
pub(crate) fn other_flags(proxy: &Path) -> Vec<String> {
    let page = Command::new(proxy).arg("--help").output();
    let page = page.expect("run kube-proxy").stdout;
    let ours: Vec<String> = FLAGS.iter().map(|flag| flag.usage()).collect();
    let mut theirs = usages(&String::from_utf8_lossy(&page).replace(" version[=true]", ""));
    theirs.retain(|usage| !ours.contains(usage));
    theirs
}

/// The agent's table of flags must match the real kube-proxy's. So a new flag is noticed.
#[test]
fn the_flags_are_those_of_the_real_kube_proxy() {
    let programs = needs!(Servers::needed());
    let run = |words: &[&str]| {
        let output = Command::new(&programs.proxy).args(words).output();
        output.expect("run kube-proxy")
    };
    let page = run(&["--help"]);
    // kube-proxy also shows that the value of `--version` is optional.
    let theirs = usages(&String::from_utf8_lossy(&page.stdout))
        .into_iter()
        .map(|usage| usage.replace(" version[=true]", ""));
    let theirs: Vec<String> = theirs.collect();
    let shown = FLAGS.iter().filter(|flag| !flag.is_hidden());
    let ours: Vec<String> = shown.map(|flag| flag.usage()).collect();
    assert_eq!(ours, theirs);
    assert_eq!(usages(&pathproof_kube_proxy_compat::help()), ours);
    for flag in FLAGS.iter().filter(|flag| flag.is_hidden()) {
        let said = format!("--{}=0", flag.name);
        assert!(run(&[&said, "--version"]).status.success(), "{said}");
    }
    // Like kube-proxy, accept underscores, and refuse unknown flags.
    assert!(run(&["--healthz_port=0", "--version"]).status.success());
    assert!(!run(&["--nonsense=0", "--version"]).status.success());
    assert!(!run(&["-kubeconfig=/k", "--version"]).status.success());
}
