//! A real Prometheus scrapes a fleet of real agents while faults occur and end. Then every expression of the
//! Grafana dashboard is evaluated over that time.

mod check;

use std::time::SystemTime;

use check::evaluate;
use node_tests::dashboard::Dashboard;
use node_tests::deploy::Tool;
use node_tests::prelude::*;
use node_tests::prometheus::{Prometheus, Span};

/// Expressions that may have no data. The agents read the cluster from a folder, so they write to no API
/// server, and packets that the programs cannot parse occur by chance.
const RIGHTLY_EMPTY: [&str; 2] = [
    "Writes to the API server that failed, A",
    "Faults of the eBPF programs, A",
];

/// Names of the nodes. [`play`] delays the rules of the first node and breaks the second.
const NODES: [&str; 2] = ["worker-1", "worker-2"];

/// A running fleet. Its fields are dropped in this order.
struct Fleet {
    prometheus: Prometheus,
    /// Clients that poll the nodes like load balancers.
    _watches: Vec<Watch>,
    nodes: Vec<Scene>,
    began: SystemTime,
}

impl Fleet {
    /// Starts healthy nodes with a sentinel and traffic. The second one excludes an interface from
    /// observation.
    fn start() -> Needed<Self> {
        Tool::Prometheus.installed()?;
        let mut nodes: Vec<_> = NODES.map(|_| Scene::bare(Backend::Nftables)).into();
        let names = NODES.into_iter().zip(&nodes);
        let targets: Vec<_> = names
            .map(|(name, scene)| (name, &scene.world.node))
            .collect();
        let dir = nodes[0].world.dir().join("prometheus");
        let prometheus = Prometheus::start(&nodes[0].world.outside, &dir, &targets);
        let prometheus = prometheus.expect("start Prometheus");
        let began = SystemTime::now();
        for (number, scene) in nodes.iter_mut().enumerate() {
            scene.add_sentinel(&Sentinel::default());
            scene.start(match number {
                1 => &["--interface-exclude", "veth-spare"],
                _ => &[],
            });
            scene.traffic();
        }
        for scene in &nodes {
            scene.wait_probed();
        }
        // Wait for the first scrapes, because rates need one from before the faults.
        eventually("every node is scraped", || {
            let scraped = prometheus.label_values("node", "pathproof_build_info");
            scraped.is_ok_and(|names| names.len() == NODES.len())
        });
        Ok(Self {
            prometheus,
            _watches: nodes.iter().map(Scene::watch).collect(),
            nodes,
            began,
        })
    }

    fn flush(&self, node: usize) {
        self.nodes[node].rules.flush_services().expect("flush");
    }

    fn mend(&self, node: usize) {
        self.nodes[node].rules.install().expect("install");
    }

    fn move_to(&self, node: usize, generation: u16) {
        let sentinel = Sentinel {
            generation,
            ..Sentinel::default()
        };
        let manifests = &self.nodes[node].manifests;
        manifests.put_sentinel(&sentinel).expect("the sentinel");
    }

    /// Replaces the only endpoint of db, but not in the rules. The old pod's server ends: if it still
    /// answered, no client would fail.
    fn swap_db(&mut self, node: usize, from: &str, to: &str) {
        let scene = &mut self.nodes[node];
        scene.servers.remove(from);
        scene.swap_endpoint("db", from, to);
    }

    /// Time range from the first scrape until now.
    fn span(&self) -> Span {
        let unix = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            since.expect("a clock after 1970").as_secs_f64().floor()
        };
        let (start, end) = (unix(self.began), unix(SystemTime::now()));
        let step = ((end - start) / 240.0).ceil().max(1.0);
        Span { start, end, step }
    }
}

/// Injects faults. The first node's rules follow the API late. The second node's rules keep a removed
/// endpoint, and are then flushed.
fn play(fleet: &mut Fleet) {
    fleet.move_to(0, 20_002);
    fleet.nodes[0].wait("the rules are late", |report| {
        lane_of(report, Family::V4, "host", "tcp")["late"].is_u64()
    });
    fleet.mend(0);
    fleet.swap_db(1, "db-1", "db-2");
    fleet.nodes[1].serve("db-2");
    fleet.nodes[1].wait("db blamed", |report| {
        report["verdict"]["state"] == "degraded"
    });
    fleet.mend(1);
    fleet.flush(1);
    fleet.nodes[1].wait("broken", |report| report["verdict"]["state"] == "broken");
    fleet.nodes[0]
        .manifests
        .taint(AUTOSCALER_TAINT)
        .expect("taint");
    thread::sleep(Duration::from_secs(8));
}

/// Evaluates the dashboard for the second node over the fleet's lifetime. Returns expressions that
/// unexpectedly have no data, and problems.
fn over(fleet: &Fleet, dashboard: &Dashboard) -> (Vec<String>, Vec<String>) {
    let span = fleet.span();
    let expressions = dashboard.expressions(&fleet.prometheus, NODES[1], span, 1.0);
    let expressions = expressions.expect("variables");
    let evaluated = evaluate(&fleet.prometheus, &expressions, span);
    let (mut empty, problems) = evaluated.expect("an answer");
    empty.retain(|place| !RIGHTLY_EMPTY.contains(&place.as_str()));
    (empty, problems)
}

#[test]
fn the_dashboard_shows_a_fleet_with_faults() {
    let mut fleet = needs!(Fleet::start());
    play(&mut fleet);
    let dashboard = Dashboard::read().expect("the dashboard");
    let (empty, problems) = over(&fleet, &dashboard);
    assert_eq!(problems, [""; 0]);
    assert_eq!(empty, [""; 0], "these gave nothing");
    misspelt(&fleet, &dashboard);
}

/// The positive control: the checks find a misspelt metric, even if `or vector(0)` follows it.
fn misspelt(fleet: &Fleet, dashboard: &Dashboard) {
    let text = dashboard.0.to_string();
    for (right, wrong, blamed) in [
        (
            "pathproof_would_fail{",
            "pathproof_wouldfail{",
            "Would fail, A",
        ),
        ("pathproof_cause{", "pathproof_causes{", "Causes, A"),
    ] {
        let text = text.replace(right, wrong);
        let copy = Dashboard(serde_json::from_str(&text).expect("still JSON"));
        let (_, problems) = over(fleet, &copy);
        let expected = format!(
            "{blamed}: there is no metric {}",
            wrong.trim_end_matches('{')
        );
        assert!(problems.contains(&expected), "{expected}: {problems:?}");
    }
    // A misspelt label is not reported as a wrong name, but its panel is found to be empty.
    let text = text.replace("state=\\\"degraded\\\"", "stat=\\\"degraded\\\"");
    let text = text.replace(
        "by (loss) (pathproof_coverage_loss{",
        "by (loss) (pathproof_coverage_loss{los=\\\"x\\\",",
    );
    let copy = Dashboard(serde_json::from_str(&text).expect("still JSON"));
    let (empty, problems) = over(fleet, &copy);
    assert_eq!(problems, [""; 0]);
    assert_eq!(empty, ["Nodes with partial coverage, A"]);
    // Invalid PromQL is reported with Prometheus' error.
    let text = dashboard
        .0
        .to_string()
        .replacen("max by (cluster", "max by cluster", 1);
    let copy = Dashboard(serde_json::from_str(&text).expect("still JSON"));
    let (_, problems) = over(fleet, &copy);
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("parse error")),
        "{problems:?}"
    );
}
