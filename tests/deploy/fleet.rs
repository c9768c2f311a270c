//! Nodes as Prometheus sees them, written as the input of `promtool test rules`. Everything is well
//! until a test says otherwise.

use std::collections::BTreeMap;

use serde_json::{Value, json};

const STATES: [&str; 7] = [
    "broken", "stale", "degraded", "suspect", "proven", "starting", "unknown",
];
/// A sample every half minute, for an hour, in promtool's notation.
pub(crate) const ALWAYS_0: &str = "0x120";
pub(crate) const ALWAYS_1: &str = "1x120";
/// 0 for ten minutes, then 1.
pub(crate) const FROM_MINUTE_10: &str = "0x19 1x100";
/// 1 for ten minutes, then 0.
pub(crate) const UNTIL_MINUTE_10: &str = "1x19 0x100";

/// Series and their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet(BTreeMap<String, String>);

impl Fleet {
    /// So many nodes, `node-1` and on, all of them well.
    pub(crate) fn healthy(nodes: usize) -> Self {
        let mut fleet = Self::default();
        for node in 1..=nodes {
            fleet.add_agent(&format!("node-{node}"), "");
        }
        fleet
    }

    /// An agent that says that its node is well. Two on one node are told apart by `pod`.
    pub(crate) fn add_agent(&mut self, node: &str, pod: &str) {
        let labels = format!("job=\"pathproof\",node=\"{node}\",pod=\"agent-{node}{pod}\"");
        self.put("kube_node_info", &node_info(node, "Debian"), ALWAYS_1);
        self.put("up", &labels, ALWAYS_1);
        self.put("pathproof_node_eligible", &labels, ALWAYS_1);
        let livez = format!("{labels},endpoint=\"livez\"");
        self.put("pathproof_would_fail", &livez, ALWAYS_0);
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
            self.put("pathproof_rotation_lag_seconds_count", &labels, "0+0.5x120");
        }
    }

    /// A node that kube-state-metrics knows, without an agent.
    pub(crate) fn add_bare_node(&mut self, node: &str, image: &str) {
        self.put("kube_node_info", &node_info(node, image), ALWAYS_1);
    }

    /// From minute 10 on, or until then, a family of a node is in another state than proven.
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

    /// Other values for what was there: each series of this metric that has all these labels.
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

    /// A series of one agent that is not always there.
    pub(crate) fn put(&mut self, metric: &str, labels: &str, values: &str) {
        self.0
            .insert(format!("{metric}{{{labels}}}"), values.to_owned());
    }

    /// Nothing more is heard of these series.
    pub(crate) fn remove(&mut self, metric: &str, label: &str) {
        self.0.retain(|series, _| {
            !(series.starts_with(&format!("{metric}{{")) && series.contains(label))
        });
    }

    /// A file for promtool: at these minutes exactly these alerts fire, each with how often.
    pub(crate) fn test(&self, rules: &str, expected: &[(&str, &[Firing])]) -> Value {
        let series: Vec<Value> = self
            .0
            .iter()
            .map(|(series, values)| json!({ "series": series, "values": values }))
            .collect();
        let at = |(minute, firing): &(&str, &[Firing])| {
            json!({
                "expr": "count by (alertname, node, severity) (ALERTS{alertstate=\"firing\"})",
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

/// An alert that fires.
#[derive(Clone, Debug)]
pub(crate) struct Firing {
    pub(crate) alert: &'static str,
    pub(crate) severity: &'static str,
    /// Empty where the alert is about no node.
    pub(crate) node: String,
    /// Of how many series: one for each family.
    pub(crate) times: u32,
}

impl Firing {
    /// On a node.
    pub(crate) fn on(alert: &'static str, severity: &'static str, node: &str) -> Self {
        Self {
            alert,
            severity,
            node: node.to_owned(),
            times: 1,
        }
    }

    fn sample(&self) -> Value {
        let Self {
            alert,
            severity,
            node,
            times,
        } = self;
        let node = match node.as_str() {
            "" => String::new(),
            name => format!("node=\"{name}\","),
        };
        json!({
            "labels": format!("{{alertname=\"{alert}\",{node}severity=\"{severity}\"}}"),
            "value": times,
        })
    }
}

fn node_info(node: &str, image: &str) -> String {
    format!("node=\"{node}\",os_image=\"{image}\"")
}
