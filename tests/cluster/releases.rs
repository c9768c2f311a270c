//! The agent beside kube-proxies of other releases than the API server's: answers, the table of faults,
//! shared ports and flags. docs/health-endpoints.md lists the differences between releases.
//! `cargo xtask test --proxies` runs these tests.

use node_tests::built::versions::{KUBE_PROXY_1_28, KUBE_PROXY_1_32, KUBE_PROXY_1_37, Release};
use node_tests::cluster::{KUBE_PROXY_HEALTHZ_PORT, Servers};
use node_tests::prelude::*;

use crate::faults::{Fault, hold_lock, leave, run_table};
use crate::health_ports::agree_at_ports;
use crate::kube_proxy_compat::other_flags;
use crate::parity::{Shape, shape};
use crate::scene::{NODE, PATIENCE, Scene};
use crate::takeover::share_the_port;

/// The flag that enables a feature of 1.28 which is alpha and off by default.
const GATE: &str = "--feature-gates=KubeProxyDrainingTerminatingNodes=true";

fn programs(release: Release) -> Needed<Servers> {
    skip::needed(Servers::beside(release))
}

fn bare(release: Release, mode: Mode) -> Needed<Scene> {
    Scene::bare_with(mode, programs(release))
}

fn both(scene: &Scene, path: &str) -> (Shape, Shape) {
    let (theirs, ours) = scene.ask(path);
    println!("{path}: {} {}", theirs.status, theirs.body);
    (shape(&theirs), shape(&ours))
}

/// kube-proxy's body in releases that do not report each family. `T` and `G` are placeholders of times in two forms.
fn old_body(eligible: Option<bool>) -> String {
    let times = r#"{"lastUpdated": "G","currentTime": "G""#;
    match eligible {
        Some(eligible) => format!(r#"{times}, "nodeEligible": {eligible}}}"#),
        None => format!("{times}}}"),
    }
}

/// kube-proxy's body in newer releases. The agent's body has this form beside every release.
fn body(eligible: Option<bool>, healthy: bool) -> String {
    let eligible = eligible.map(|eligible| format!(r#""nodeEligible":{eligible},"#));
    let (eligible, family) = (
        eligible.unwrap_or_default(),
        format!(r#"{{"lastUpdated":"T","healthy":{healthy}}}"#),
    );
    format!(
        r#"{{"lastUpdated":"T","currentTime":"T",{eligible}"healthy":{healthy},"status":{{"IPv4":{family},"IPv6":{family}}}}}"#
    )
}

/// Asserts the answers of kube-proxy and agent: the status of /healthz by each one's view of the node's
/// eligibility, different bodies, and equal headers. /livez does not depend on eligibility, and answers to
/// other paths are equal.
fn differ(scene: &Scene, what: &str, theirs: bool, ours: bool) {
    let status = |eligible: bool| if eligible { 200 } else { 503 };
    let seen = until(PATIENCE, || {
        let (of_proxy, of_agent) = scene.ask("/healthz");
        (of_proxy.status == status(theirs) && of_agent.status == status(ours)).then_some(())
    });
    println!("{what}");
    let (of_proxy, of_agent) = both(scene, "/healthz");
    assert!(seen.is_some(), "{what}: {of_proxy:?}, {of_agent:?}");
    assert_eq!(of_proxy.body, old_body(Some(theirs)), "{what}");
    assert_eq!(of_agent.body, body(Some(ours), true), "{what}");
    assert_eq!(of_proxy.headers, of_agent.headers, "{what}");
    let (of_proxy, of_agent) = both(scene, "/livez");
    assert_eq!((of_proxy.status, of_agent.status), (200, 200), "{what}");
    assert_eq!(of_proxy.body, old_body(None), "{what}");
    assert_eq!(of_agent.body, body(None, true), "{what}");
    assert_eq!(of_proxy.headers, of_agent.headers, "{what}");
    for path in ["/healthz/", "/", "/metrics"] {
        let (of_proxy, of_agent) = both(scene, path);
        assert_eq!(of_proxy, of_agent, "{what}: {path}");
    }
}

/// Answers of a node that is being removed, and of one that is not. `heeds`: whether this kube-proxy's
/// /healthz depends on the removal.
#[rstest]
#[case::v1_28(KUBE_PROXY_1_28, Mode::Iptables, &[], false)]
#[case::v1_28_with_the_gate(KUBE_PROXY_1_28, Mode::Iptables, &[GATE], true)]
#[case::v1_32(KUBE_PROXY_1_32, Mode::Nftables, &[], true)]
#[case::v1_37(KUBE_PROXY_1_37, Mode::Nftables, &[], true)]
fn answers_beside(
    #[case] release: Release,
    #[case] mode: Mode,
    #[case] options: &[&str],
    #[case] heeds: bool,
) {
    let mut scene = needs!(bare(release, mode));
    drop(scene.proxy.take());
    scene.start_proxy_at(KUBE_PROXY_HEALTHZ_PORT, options);
    scene.start_agent(&[]);
    scene.wait_proven();
    let expect = |scene: &Scene, what: &str, eligible: bool| {
        // Wait, so that a wrong reaction of a release that should ignore the change would be noticed.
        thread::sleep(Duration::from_secs(1));
        match release {
            KUBE_PROXY_1_37 => scene.agree(what, if eligible { 200 } else { 503 }),
            _ => differ(scene, what, eligible || !heeds, eligible),
        }
    };
    expect(&scene, "sound", true);
    scene.taint(&["example.com/other"]);
    expect(&scene, "another taint", true);
    scene.taint(&[AUTOSCALER_TAINT]);
    expect(&scene, "tainted", false);
    scene.taint(&[]);
    expect(&scene, "untainted", true);
    let held = json!({ "metadata": { "finalizers": ["example.com/drain"] } });
    scene.api.patch(NODE, &held).expect("hold the Node");
    expect(&scene, "a finalizer alone", true);
    scene.api.delete(NODE).expect("delete the Node");
    expect(&scene, "deleted and held", false);
}

#[rstest]
#[case::v1_28_iptables(KUBE_PROXY_1_28, Mode::Iptables)]
#[case::v1_32_iptables(KUBE_PROXY_1_32, Mode::Iptables)]
#[case::v1_32_nftables(KUBE_PROXY_1_32, Mode::Nftables)]
#[case::v1_37_iptables(KUBE_PROXY_1_37, Mode::Iptables)]
#[case::v1_37_nftables(KUBE_PROXY_1_37, Mode::Nftables)]
fn faults_show_beside(#[case] release: Release, #[case] mode: Mode) {
    let mut scene = needs!(bare(release, mode));
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    let title = format!("kube-proxy {}, {}", release.version, mode.name());
    run_table(&title, &mut scene, &Fault::ALL);
}

/// kube-proxy itself answers 503 if it cannot write rules for a minute.
#[rstest]
#[case::v1_28(KUBE_PROXY_1_28)]
#[case::v1_32(KUBE_PROXY_1_32)]
#[case::v1_37(KUBE_PROXY_1_37)]
fn an_overdue_sync_beside(#[case] release: Release) {
    let mode = Mode::IptablesLegacy;
    let mut scene = needs!(bare(release, mode));
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    scene.traffic();
    let (ours, theirs) = (scene.watch_healthy(), scene.watch_proxy());
    hold_lock(&mut scene);
    leave(&mut scene);
    let is_503 = |codes: node_tests::watch::Codes| codes.healthz == 503 && codes.livez == 503;
    ours.wait(PATIENCE, is_503).expect("ours: 503");
    theirs
        .wait(2 * PATIENCE, is_503)
        .expect("kube-proxy's: 503");
    for (path, eligible) in [("/healthz", Some(true)), ("/livez", None)] {
        let (of_proxy, of_agent) = both(&scene, path);
        assert_eq!((of_proxy.status, of_agent.status), (503, 503));
        let wanted = match release {
            KUBE_PROXY_1_37 => body(eligible, false),
            _ => old_body(eligible),
        };
        assert_eq!(of_proxy.body, wanted, "{path}");
        assert_eq!(of_agent.body, body(eligible, false), "{path}");
    }
}

/// At port 10256 outside clients get the agent's answer, and the node itself gets kube-proxy's.
#[rstest]
#[case::v1_28(KUBE_PROXY_1_28, Mode::Iptables)]
#[case::v1_32(KUBE_PROXY_1_32, Mode::Nftables)]
#[case::v1_37(KUBE_PROXY_1_37, Mode::Nftables)]
fn the_port_is_shared_with(#[case] release: Release, #[case] mode: Mode) {
    let scene = needs!(bare(release, mode));
    share_the_port(scene);
}

#[rstest]
#[case::v1_28(KUBE_PROXY_1_28, Mode::Iptables)]
#[case::v1_32(KUBE_PROXY_1_32, Mode::Nftables)]
#[case::v1_37(KUBE_PROXY_1_37, Mode::Nftables)]
fn health_check_node_ports_agree_with(#[case] release: Release, #[case] mode: Mode) {
    let scene = needs!(bare(release, mode));
    agree_at_ports(scene);
}

/// Flags that only another release has, or has with another type. The agent accepts them and lists them in
/// the log, because clusters may still set removed flags.
#[rstest]
#[case::v1_28(KUBE_PROXY_1_28, &["      --proxy-port-range port-range"])]
#[case::v1_32(KUBE_PROXY_1_32, &[])]
#[case::v1_37(KUBE_PROXY_1_37, &[])]
fn flags_are_known_of(#[case] release: Release, #[case] others: &[&str]) {
    let programs = needs!(programs(release));
    assert_eq!(other_flags(&programs.proxy), others);
}
