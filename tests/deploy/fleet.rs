//! Series of nodes as Prometheus scrapes them, for use as input of `promtool test rules`. All nodes are
//! healthy unless a test changes them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

const STATES: [&str; 7] = [
    "broken", "stale", "degraded", "suspect", "proven", "starting", "unknown",
];
/// Reasons for which the fleet brake holds a 503 back.
const BRAKES: [&str; 6] = ["fleet", "domain", "leaving", "waiting", "uncounted", "turn"];
/// Values for an hour, one each half minute, in promtool's notation.
pub(crate) const ALWAYS_0: &str = "0x120";
pub(crate) const ALWAYS_1: &str = "1x120";
pub(crate) const FROM_MINUTE_10: &str = "0x19 1x100";
pub(crate) const UNTIL_MINUTE_10: &str = "1x19 0x100";
/// 0 for ten minutes, then 1 for twenty, then 0.
pub(crate) const MINUTES_10_TO_30: &str = "0x19 1x39 0x60";

/// Time of a rotator's last count.
pub(crate) const COUNTED: &str = "pathproof_rotator_count_timestamp_seconds";

#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet(BTreeMap<String, String>);

impl Fleet {
    pub(crate) fn healthy(nodes: usize) -> Self {
        let mut fleet = Self::default();
        for node in 1..=nodes {
            fleet.add_agent(&format!("node-{node}"), "");
        }
        fleet.add_rotators();
        fleet
    }

    /// Adds two rotators, of which the first leads.
    fn add_rotators(&mut self) {
        for pod in ["rotator-1", "rotator-2"] {
            let labels = format!("job=\"pathproof-rotator\",pod=\"{pod}\"");
            self.put("up", &labels, ALWAYS_1);
            for kind in ["lease", "slice", "count", "label"] {
                for result in ["ok", "conflict", "rejected", "unreachable"] {
                    let values = match (pod, result) {
                        ("rotator-1", "ok") => "0+2x120",
                        _ => ALWAYS_0,
                    };
                    let labels = format!("{labels},kind=\"{kind}\",result=\"{result}\"");
                    self.put("pathproof_rotator_writes_total", &labels, values);
                }
            }
        }
        let leader = "job=\"pathproof-rotator\",pod=\"rotator-1\"";
        self.put(COUNTED, leader, "0+30x120");
    }

    /// Adds an agent of a healthy node. `pod` distinguishes two agents on one node.
    pub(crate) fn add_agent(&mut self, node: &str, pod: &str) {
        let labels = format!("job=\"pathproof\",node=\"{node}\",pod=\"agent-{node}{pod}\"");
        self.put("kube_node_info", &node_info(node, "Debian"), ALWAYS_1);
        self.put("up", &labels, ALWAYS_1);
        self.put("pathproof_node_eligible", &labels, ALWAYS_1);
        let livez = format!("{labels},check=\"livez\"");
        self.put("pathproof_would_fail", &livez, ALWAYS_0);
        for reason in BRAKES {
            let reason = format!("{labels},reason=\"{reason}\"");
            self.put("pathproof_braked", &reason, ALWAYS_0);
        }
        self.put("pathproof_verdict_timestamp_seconds", &labels, "0+30x120");
        for family in ["IPv4", "IPv6"] {
            let labels = format!("{labels},family=\"{family}\"");
            for state in STATES {
                let value = if state == "proven" {
                    ALWAYS_1
                } else {
                    ALWAYS_0
                };
                self.put(
                    "pathproof_state",
                    &format!("{labels},state=\"{state}\""),
                    value,
                );
            }
            let path = format!("{labels},path=\"external\"");
            self.put("pathproof_programming_lag_seconds", &path, "0.2x120");
            self.put("pathproof_probe_armed", &path, ALWAYS_1);
        }
        self.put("pathproof_rotation_lag_seconds_count", &labels, "0+1x120");
    }

    /// Adds a node without an agent, which only kube-state-metrics reports.
    pub(crate) fn add_bare_node(&mut self, node: &str, image: &str) {
        self.put("kube_node_info", &node_info(node, image), ALWAYS_1);
    }

    /// Gives a node's family this state instead of `proven`, at the times of `values`.
    pub(crate) fn state(&mut self, node: &str, family: &str, state: &str, values: &str) {
        let proven = match values {
            FROM_MINUTE_10 => UNTIL_MINUTE_10,
            UNTIL_MINUTE_10 => FROM_MINUTE_10,
            _ => ALWAYS_0,
        };
        for (state, values) in [("proven", proven), (state, values)] {
            let parts = [
                format!("node=\"{node}\""),
                format!("family=\"{family}\""),
                format!("state=\"{state}\""),
            ];
            self.set("pathproof_state", &parts, values);
        }
    }

    pub(crate) fn broken(&mut self, node: &str, family: &str, cause: &str, values: &str) {
        self.state(node, family, "broken", values);
        let labels = format!(
            "job=\"pathproof\",node=\"{node}\",family=\"{family}\",state=\"broken\",cause=\"{cause}\""
        );
        self.put("pathproof_cause", &labels, values);
    }

    /// Adds the label `cluster` to all series, as in a Prometheus that serves several clusters.
    pub(crate) fn in_cluster(self, name: &str) -> Self {
        let named = |(series, values): (String, String)| {
            let label = format!("{{cluster=\"{name}\",");
            (series.replacen('{', &label, 1), values)
        };
        Self(self.0.into_iter().map(named).collect())
    }

    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Replaces the values of every existing series of this metric that has all these labels.
    pub(crate) fn set(&mut self, metric: &str, labels: &[impl AsRef<str>], values: &str) {
        let mut found = false;
        for (series, old) in &mut self.0 {
            let is_metric = series.starts_with(&format!("{metric}{{"));
            if is_metric && labels.iter().all(|label| series.contains(label.as_ref())) {
                values.clone_into(old);
                found = true;
            }
        }
        assert!(found, "no series of {metric}");
    }

    pub(crate) fn put(&mut self, metric: &str, labels: &str, values: &str) {
        self.0
            .insert(format!("{metric}{{{labels}}}"), values.to_owned());
    }

    pub(crate) fn remove(&mut self, metric: &str, label: &str) {
        self.0.retain(|series, _| {
            !(series.starts_with(&format!("{metric}{{")) && series.contains(label))
        });
    }

    /// A test for promtool: exactly these alerts fire at these minutes.
    pub(crate) fn test(&self, rules: &str, expected: &[(&str, &[Firing])]) -> Value {
        let series: Vec<Value> = self
            .0
            .iter()
            .map(|(series, values)| json!({ "series": series, "values": values }))
            .collect();
        let at = |(minute, firing): &(&str, &[Firing])| {
            json!({
                "expr": "count by (alertname, cause, cluster, node, severity) (ALERTS{alertstate=\"firing\"})",
                "eval_time": minute,
                "exp_samples": firing.iter().map(Firing::sample).collect::<Vec<_>>(),
            })
        };
        json!({
            "rule_files": [rules],
            "evaluation_interval": "30s",
            "tests": [{
                "interval": "30s",
                "input_series": series,
                "promql_expr_test": expected.iter().map(at).collect::<Vec<_>>(),
            }],
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Firing {
    pub(crate) alert: &'static str,
    pub(crate) severity: &'static str,
    /// Node of the alert; empty if it has none.
    pub(crate) node: String,
    /// Cluster of the alert; empty if the series have no such label.
    cluster: String,
    /// Cause of the alert; empty if it has none.
    cause: String,
    /// Number of series of the alert, usually one for each family.
    pub(crate) times: u32,
}

impl Firing {
    pub(crate) fn on(alert: &'static str, severity: &'static str, node: &str) -> Self {
        Self {
            alert,
            severity,
            node: node.to_owned(),
            cluster: String::new(),
            cause: String::new(),
            times: 1,
        }
    }

    /// An alert about all nodes or a cluster.
    pub(crate) fn of_fleet(alert: &'static str, severity: &'static str) -> Self {
        Self::on(alert, severity, "")
    }

    pub(crate) fn because(mut self, cause: &str) -> Self {
        cause.clone_into(&mut self.cause);
        self
    }

    pub(crate) fn in_cluster(mut self, name: &str) -> Self {
        name.clone_into(&mut self.cluster);
        self
    }

    fn sample(&self) -> Value {
        let labels = [
            ("alertname", self.alert),
            ("cause", &self.cause),
            ("cluster", &self.cluster),
            ("node", &self.node),
            ("severity", self.severity),
        ];
        let present = labels.iter().filter(|(_, value)| !value.is_empty());
        let text: Vec<String> = present
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect();
        json!({ "labels": format!("{{{}}}", text.join(",")), "value": self.times })
    }
}

fn node_info(node: &str, image: &str) -> String {
    format!("node=\"{node}\",os_image=\"{image}\"")
}
