//! The conntrack table. Its limit applies to the whole machine, so the test that fills it runs only in a
//! virtual machine.

use std::fs;
use std::net::{TcpListener, TcpStream};

use node_tests::prelude::*;

/// Environment variable that allows tests to change the whole machine.
const OWN_MACHINE: &str = "PATHPROOF_TEST_OWN_CLOCK";
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Number of established connections, whose entries the kernel does not evict.
const HELD: usize = 200;
/// Number of free entries, for which all other connections compete.
const FREE: u64 = 4;
const NO_LABELS: [&str; 0] = [];

#[test]
fn the_table_of_connections_is_read() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let shown = |metric_name: &str| metric(&scene.metrics(), metric_name, &NO_LABELS);
    eventually("entries", || shown("pathproof_conntrack_entries") > 0);
    assert_eq!(shown("pathproof_conntrack_limit"), read(LIMIT));
    assert_eq!(shown("pathproof_conntrack_full_drops_total"), 0);
}

#[test]
fn a_full_conntrack_table_is_named_and_stays_503_until_there_is_room() {
    needs!(skip::own_machine(OWN_MACHINE));
    let scene = Scene::idle(Backend::Nftables, &[]);
    leave_out_agent(&scene);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    let held = hold(&scene);
    thread::sleep(scaled(settled()));
    assert_never_503(&watch);
    let shown = |name: &str| metric(&scene.metrics(), name, &NO_LABELS);
    let probes = shown("pathproof_conntrack_entries").saturating_sub(HELD as u64);
    println!("{probes} entries beside those that are held");

    let limit = Limit::set(HELD as u64 + FREE);
    let mut report = scene.report();
    let named = until(PATIENCE, || {
        report = scene.agent().verdict().ok()?;
        (report["verdict"]["cause"] == "conntrack_full").then_some(())
    });
    assert!(named.is_some(), "never named: {:#}", report["verdict"]);
    let at = |value: &serde_json::Value| value.as_u64().expect("a time");
    let family = &report["verdict"]["families"][0];
    let after = at(&report["verdict"]["at"]) - at(&family["failing_since"]);
    let after = Duration::from_nanos(after);
    println!("named {after:?} after the first probe that was lost");
    assert!(after <= scaled(Duration::from_secs(2)), "{after:?}");

    wait_answers(&watch, 503);
    let passed = || passes(&scene.report());
    let before = passed();
    throughout(scaled(Duration::from_secs(10)), || {
        let codes = watch.now();
        assert_ne!((codes.healthz, codes.livez), (200, 200), "it flaps");
    });
    println!("{} probes found room meanwhile", passed() - before);
    let dropped = shown("pathproof_conntrack_full_drops_total");
    assert!(dropped > 0, "no drops are shown");

    drop(limit);
    wait_answers(&watch, 200);
    drop(held);
}

/// Number of probes that passed on all lanes together.
fn passes(report: &serde_json::Value) -> u64 {
    let families = Family::ALL.iter().map(|family| family_of(report, *family));
    let lanes = families.flat_map(|family| family["lanes"].as_array().cloned().unwrap_or_default());
    lanes.filter_map(|lane| lane["passed"].as_u64()).sum()
}

/// Exempts the agent's ports from conntrack, so that requests to them need no entry.
fn leave_out_agent(scene: &Scene) {
    let rules = |hook: &str| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority raw;\n\
             tcp dport {{ 10256, 19256 }} notrack\n\
             tcp sport {{ 10256, 19256 }} notrack\n}}\n"
        )
    };
    let table = format!(
        "table inet asked {{\n{}{}}}\n",
        rules("prerouting"),
        rules("output")
    );
    scene.nft(&table);
}

/// Opens connections from one pod to another through the node.
fn hold(scene: &Scene) -> Vec<(TcpStream, TcpStream)> {
    let (from, to) = (scene.world.pod("client-1"), scene.world.pod("client-2"));
    let address = SocketAddr::new(to.address(Family::V4), 7_000);
    let listener = to.ns.run(|| TcpListener::bind(address));
    let listener = listener.expect("listen");
    let connect = || {
        let near = from.ns.run(|| TcpStream::connect(address));
        let (far, _) = listener.accept().expect("accept");
        (near.expect("connect"), far)
    };
    (0..HELD).map(|_| connect()).collect()
}

fn read(path: &str) -> u64 {
    let text = fs::read_to_string(path).expect(path);
    text.trim().parse().expect(path)
}

/// Sets the machine's limit. Dropping it restores the old value.
struct Limit {
    before: u64,
}

impl Limit {
    fn set(limit: u64) -> Self {
        let before = read(LIMIT);
        fs::write(LIMIT, limit.to_string()).expect(LIMIT);
        Self { before }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        fs::write(LIMIT, self.before.to_string()).expect(LIMIT);
    }
}
