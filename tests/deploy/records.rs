//! The recording rules record the right values, and each cluster separately.

use serde_json::{Value, json};

use crate::alerts::test_rules;
use crate::fleet::{ALWAYS_1, FROM_MINUTE_10, Fleet};

/// Asserts the labels and values of an expression at minute 20.
#[track_caller]
fn expect(fleet: &Fleet, expression: &str, expected: &[(&str, f64)]) {
    let mut test = fleet.test("rules.yaml", &[]);
    let samples: Vec<Value> = expected
        .iter()
        .map(|(labels, value)| json!({ "labels": labels, "value": value }))
        .collect();
    test["tests"][0]["promql_expr_test"] = json!([{
        "expr": expression, "eval_time": "20m", "exp_samples": samples,
    }]);
    test_rules(&test);
}

#[test]
fn the_worst_state_of_a_node_is_recorded() {
    let mut east = Fleet::healthy(2);
    east.state("node-2", "IPv6", "broken", FROM_MINUTE_10);
    let both = east
        .in_cluster("east")
        .beside(Fleet::healthy(1).in_cluster("west"));
    let of = |cluster: &str, node: &str| {
        format!(
            "cluster_node:pathproof_state:max{{cluster=\"{cluster}\",job=\"pathproof\",node=\"{node}\"}}"
        )
    };
    let labels = [
        of("east", "node-1"),
        of("east", "node-2"),
        of("west", "node-1"),
    ];
    let [sound, broken, other] = labels.each_ref().map(String::as_str);
    expect(
        &both,
        "cluster_node:pathproof_state:max",
        &[(sound, 3.0), (broken, 7.0), (other, 3.0)],
    );
}

#[test]
fn connections_are_summed_up_by_cluster_and_outcome() {
    let mut fleet = Fleet::default();
    for node in ["node-1", "node-2"] {
        for path in ["pod", "external"] {
            let labels = format!(
                "job=\"pathproof\",node=\"{node}\",family=\"IPv4\",path=\"{path}\",outcome=\"proven\""
            );
            // 60 per 30 s, so 2 per second.
            fleet.put("pathproof_connections_total", &labels, "0+60x120");
        }
    }
    fleet.put(
        "pathproof_probe_armed",
        "job=\"pathproof\",node=\"node-1\",family=\"IPv4\",path=\"host\",transport=\"tcp\"",
        ALWAYS_1,
    );
    let fleet = fleet
        .clone()
        .in_cluster("east")
        .beside(fleet.in_cluster("west"));
    let of = |cluster: &str| {
        format!(
            "cluster_outcome:pathproof_connections:rate5m{{cluster=\"{cluster}\",job=\"pathproof\",outcome=\"proven\"}}"
        )
    };
    let labels = [of("east"), of("west")];
    let [east, west] = labels.each_ref().map(String::as_str);
    let record = "cluster_outcome:pathproof_connections:rate5m";
    expect(&fleet, record, &[(east, 8.0), (west, 8.0)]);
    let armed = "sum(cluster_family_path_transport:pathproof_probe_armed:sum)";
    expect(&fleet, armed, &[("{}", 2.0)]);
}

/// Two nodes have failures of one Service.
#[test]
fn failures_of_services_are_recorded() {
    let mut fleet = Fleet::default();
    for (node, name, outcome) in [
        ("node-1", "web", "lost"),
        ("node-2", "web", "lost"),
        ("node-1", "web", "proven"),
        ("node-1", "pathproof-sentinel", "lost"),
    ] {
        let labels = format!(
            "job=\"pathproof\",node=\"{node}\",service_namespace=\"shop\",service_name=\"{name}\",\
             service_port=\"http\",family=\"IPv4\",path=\"pod\",outcome=\"{outcome}\""
        );
        fleet.put("pathproof_service_connections_total", &labels, "0+60x120");
    }
    let record = "cluster_service_outcome:pathproof_service_connections:rate5m";
    let labels = format!(
        "{record}{{job=\"pathproof\",service_namespace=\"shop\",service_name=\"web\",outcome=\"lost\"}}"
    );
    expect(&fleet, record, &[(&labels, 4.0)]);
}
