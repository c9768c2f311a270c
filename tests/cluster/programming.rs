//! Time from a change of endpoints to the first connections that follow it, with a real kube-proxy. The
//! agent's metrics, a packet capture and kube-proxy's metrics are compared.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use node_tests::capture::{Capture, Direction, Frame};
use node_tests::http;
use node_tests::manifests::Endpoint;
use node_tests::prelude::*;

use crate::scene::{PATIENCE, PORT, Scene};

/// Environment variable for the number of changes to measure; `cargo xtask bench programming` sets more.
const CHANGES: &str = "PATHPROOF_CHANGES";
/// Changes per swap: one endpoint is added and one removed, in each of two families.
const PER_SWAP: usize = 4;
/// Pause between swaps. A removed endpoint returns after two swaps, so its last connection must be recorded
/// by then.
const PAUSE: Duration = Duration::from_millis(3_500);
/// Time for which kube-proxy is frozen at every second swap.
const LATE: Duration = Duration::from_millis(600);
/// Connections per second of each client, so that each endpoint gets one every 25 ms.
const RATE: f64 = 60.0;
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices";

struct Change {
    change: &'static str,
    address: IpAddr,
    triggered: i128,
}

/// Times at which SYNs left for a pod's server, in nanoseconds of `CLOCK_REALTIME`.
type Sent = BTreeMap<IpAddr, Vec<i128>>;

#[test]
fn changes_are_measured_as_they_are_on_the_wire() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    for family in Family::ALL {
        let to = SocketAddr::new(scene.manifests.service("web").cluster_ip(family), 80);
        for pod in ["client-1", "client-2"] {
            let plan = Plan::from_pod(&scene.world, scene.world.pod(pod), to).rate(RATE);
            scene.clients.push(plan.start().expect("a client"));
        }
    }
    let changes = std::env::var(CHANGES).map_or(16, |text| text.parse().expect(CHANGES));
    let mut capture = Capture::start(&scene.world.node);
    let mut sent = Sent::new();
    watch(&mut capture, &mut sent, PAUSE);
    let before = times(&scene, "added");
    let made = swaps(&scene, changes / PER_SWAP, |pause| {
        watch(&mut capture, &mut sent, pause);
    });
    assert_eq!(capture.missed(), 0, "frames were lost");
    assert_eq!(before, (0.0, 0.0), "the first endpoints are no changes");

    println!("| change | changes | agent, mean | capture, mean | ratio |");
    for change in ["added", "removed"] {
        let of_kind = made.iter().filter(|made| made.change == change);
        let wire: Vec<f64> = of_kind
            .map(|change| on_the_wire(change, &made, &sent))
            .collect();
        let expected = wire.len() as f64;
        let all = until(PATIENCE, || {
            Some(times(&scene, change)).filter(|(_, count)| *count >= expected)
        });
        let (sum, count) = all.unwrap_or_else(|| panic!("{change}: {}", measured(&scene)));
        assert_eq!(count, expected, "{change}");
        let truth: f64 = wire.iter().sum();
        let (mean, true_mean, ratio) = (sum / count, truth / count, sum / truth);
        println!("| {change} | {count} | {mean:.4} s | {true_mean:.4} s | {ratio:.3} |");
        assert!((0.95..=1.05).contains(&ratio), "{change}: {ratio}");
    }
    if let Some(theirs) = kube_proxy_mean(&scene) {
        println!("| kube-proxy's own figure | | {theirs:.4} s | | |");
    }
}

/// Swaps endpoints of web, one after another. `pass` is called to let the given time pass.
fn swaps(scene: &Scene, count: usize, mut pass: impl FnMut(Duration)) -> Vec<Change> {
    let mut inside = VecDeque::from(["web-1", "web-2", "web-3"]);
    let mut outside = VecDeque::from(["spare", "api-1"]);
    let mut made = Vec::new();
    for number in 0..count {
        // Delay kube-proxy at every second swap.
        let is_late = number % 2 == 1;
        if is_late {
            scene.proxy().freeze();
        }
        let (comes, goes) = (outside.pop_front(), inside.pop_front());
        let (comes, goes) = (comes.expect("one outside"), goes.expect("one inside"));
        inside.push_back(comes);
        outside.push_back(goes);
        let now = jiff::Timestamp::now();
        for (at, suffix) in ["v4", "v6"].into_iter().enumerate() {
            let endpoint = |pod: &str| Endpoint::from(scene.world.pod(pod));
            let body = slice(inside.iter().map(|pod| endpoint(pod)), at, &now);
            let path = format!("{SLICES}/web-{suffix}");
            scene.api.patch(&path, &body).expect("change a slice");
            for (change, pod) in [("added", comes), ("removed", goes)] {
                made.push(Change {
                    change,
                    address: endpoint(pod).addresses[at],
                    triggered: now.as_nanosecond(),
                });
            }
        }
        if is_late {
            pass(LATE);
            scene.proxy().thaw();
        }
        pass(PAUSE);
    }
    pass(2 * PAUSE);
    made
}

fn slice(endpoints: impl Iterator<Item = Endpoint>, at: usize, now: &jiff::Timestamp) -> Value {
    let endpoint = |endpoint: Endpoint| {
        json!({
            "addresses": [endpoint.addresses[at]],
            "nodeName": endpoint.node,
            "conditions": { "ready": true, "serving": true, "terminating": false },
        })
    };
    json!({
        "metadata": { "annotations": {
            "endpoints.kubernetes.io/last-change-trigger-time": now.to_string(),
        } },
        "endpoints": endpoints.map(endpoint).collect::<Vec<_>>(),
    })
}

/// Records the SYNs that leave for pods' servers during `time`.
fn watch(capture: &mut Capture, sent: &mut Sent, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        capture.drain();
        for frame in capture.frames.drain(..).filter(Frame::is_syn) {
            if let (Some([_, (address, PORT)]), Direction::Out) = (frame.ends(), frame.direction) {
                sent.entry(address).or_default().push(frame.at);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Seconds from a change's trigger to the first SYN to an added endpoint, or to the last SYN to a removed
/// one.
fn on_the_wire(change: &Change, all: &[Change], sent: &Sent) -> f64 {
    let later = |at: &&i128| **at >= change.triggered;
    let mut sent = sent[&change.address].iter().filter(later);
    let at = if change.change == "added" {
        sent.next()
    } else {
        let mut next = all.iter().filter(|other| other.address == change.address);
        let next = next.find(|other| other.triggered > change.triggered);
        let until = next.map_or(i128::MAX, |next| next.triggered);
        sent.take_while(|at| **at < until).last()
    };
    at.map_or(0.0, |at| (at - change.triggered) as f64 / 1e9)
}

/// Sum and count of the agent's times for this kind of change, measured from the trigger.
fn times(scene: &Scene, change: &str) -> (f64, f64) {
    let text = scene.agent().metrics().expect("metrics");
    let of = |part: &str| {
        let labels = format!("{{change=\"{change}\",since=\"trigger\"}}");
        let name = format!("pathproof_network_programming_seconds_{part}{labels} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0.0, |number| number.parse().expect("a number"))
    };
    (of("sum"), of("count"))
}

/// Mean of kube-proxy's histogram, in seconds.
fn kube_proxy_mean(scene: &Scene) -> Option<f64> {
    let at = SocketAddr::from(([127, 0, 0, 1], 10_249));
    let answer = (scene.world.node).run(|| http::get(at, "/metrics", Duration::from_secs(2)));
    let text = answer.ok()?.body;
    let of = |part: &str| -> f64 {
        let name = format!("kubeproxy_network_programming_duration_seconds_{part}");
        let lines = text.lines().filter(|line| line.starts_with(&name));
        let numbers = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        numbers.sum()
    };
    Some(of("sum") / of("count")).filter(|mean| mean.is_finite())
}

/// The agent's metrics of programming times, for the message of a failed test.
fn measured(scene: &Scene) -> String {
    let text = scene.agent().metrics().expect("metrics");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("pathproof_network_programming"));
    lines.collect::<Vec<_>>().join("\n")
}
