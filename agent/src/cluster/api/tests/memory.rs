//! Memory of the view and its plan, with 10,000 Services beside tenants that create as much as they can.

use std::process::Command;
use std::{env, fs};

use pathproof_facts::time::Mono;
use pathproof_facts::view::ClusterView;
use pathproof_plan::{Installed, MapChange, Planner};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::super::wire::object;
use crate::cluster::facts::Kind;
use crate::cluster::store::{Event, Store};

/// Environment variable that is set in the separate process in which memory is measured.
const ALONE: &str = "PATHPROOF_TEST_ALONE";
const NAME: &str =
    "cluster::api::tests::memory::the_worst_tenants_leave_the_agent_within_its_limit";
/// The memory limit of deploy/base (128 MiB), minus the memory of an agent without Services (16) and of full
/// maps (46).
const LIMIT_KIB: u64 = 66 << 10;

#[test]
fn the_worst_tenants_leave_the_agent_within_its_limit() {
    if env::var_os(ALONE).is_some() {
        return measure();
    }
    let this = env::current_exe().unwrap();
    let mut command = Command::new(this);
    command
        .args(["--exact", NAME, "--nocapture"])
        .env(ALONE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("KiB"), "nothing was measured: {text}");
}

fn measure() {
    let before = status_kib("RssAnon");
    let mut store = Store::new("here");
    for kind in Kind::ALL {
        store.take(Event::ListBegins(kind));
    }
    let mut take = |kind, value: &Value| {
        let raw = to_raw_value(value).unwrap();
        store.take(object(kind, &raw).0);
    };
    honest(&mut take);
    tenants(&mut take);
    for kind in Kind::ALL {
        store.take(Event::ListEnds(kind));
    }
    let mut view = ClusterView::new();
    let mut planner = Planner::new();
    let update = store.update().unwrap();
    let problems = update.problems.len();
    view.apply(update.changes);
    let plan = planner.adopt(&view, Installed::default(), Mono(1));
    let put = plan
        .iter()
        .filter(|change| matches!(change, MapChange::PutEndpoint { .. }));
    let put = put.count();
    drop(plan);
    // Subtract file pages, because their number depends on who read the file before.
    let peak = status_kib("VmHWM").saturating_sub(status_kib("RssFile") + before);
    let (held, unjudged) = (view.service_count(), planner.unjudged());
    println!(
        "{peak} KiB at the peak, {held} Services, {put} endpoints, {problems} problems, {unjudged:?}"
    );
    assert!(peak < LIMIT_KIB, "{peak} KiB");
    assert!(held > 10_000 && problems > 0 && unjudged.service > 0 && unjudged.namespace > 0);
    assert!((0..10_000).all(|index| {
        view.state(&name(index))
            .is_some_and(|state| state.slices.len() == 1)
    }));
    assert_eq!(
        planner.missing(),
        pathproof_facts::directory::Missing::default()
    );
    let problems = planner.quota_problems();
    assert!(
        !problems
            .iter()
            .any(|problem| problem.starts_with("Service team-")),
        "{problems:?}"
    );
}

/// 10,000 Services in 40 namespaces, with ten endpoints each.
fn honest(take: &mut impl FnMut(Kind, &Value)) {
    for index in 0..10_000_usize {
        let name = name(index);
        let ports = json!([{"name": "http", "port": 80}]);
        service(take, (&name.namespace, &name.name), index, ports, vec![]);
        slice(
            take,
            (&name.namespace, &name.name),
            &name.name,
            &["http".to_owned()],
            10,
        );
    }
}

fn name(index: usize) -> pathproof_facts::cluster::ObjectName {
    let namespace = format!("team-{:02}", index % 40);
    pathproof_facts::cluster::ObjectName::new(&namespace, &format!("service-{index:05}"))
}

/// Each tenant creates one kind of object in large numbers or sizes.
fn tenants(take: &mut impl FnMut(Kind, &Value)) {
    for index in 0..50_000 {
        let name = format!("s{index}");
        service(take, ("crowd", &name), index, json!([{"port": 80}]), vec![]);
    }
    for index in 0..40 {
        let names: Vec<String> = (0..1_000)
            .map(|port| format!("{index}-{port:-<58}"))
            .collect();
        let port = |at: usize| json!({"name": names[at], "port": at + 1});
        let ports: Vec<Value> = (0..1_000).map(port).collect();
        let name = format!("s{index}");
        service(take, ("ports", &name), index, ports.into(), vec![]);
        slice(take, ("ports", &name), &name, &names, 65);
    }
    for index in 0..12 {
        let ips = (0..50_000_u32).map(|ip| std::net::Ipv4Addr::from(0xC612_0000 + ip).to_string());
        let ports = json!([{"port": 80}]);
        service(
            take,
            ("ips", &format!("s{index}")),
            index,
            ports,
            ips.collect(),
        );
    }
    for index in 0..250 {
        let (name, owner) = (format!("s{index}"), format!("s{}", index % 3));
        if index < 3 {
            service(
                take,
                ("pods", &owner),
                index,
                json!([{"name": "http", "port": 80}]),
                vec![],
            );
        }
        slice(take, ("pods", &name), &owner, &["http".to_owned()], 1_000);
    }
}

fn service(
    take: &mut impl FnMut(Kind, &Value),
    (namespace, name): (&str, &str),
    index: usize,
    ports: Value,
    external_ips: Vec<String>,
) {
    let cluster_ip = std::net::Ipv4Addr::from(0x0A60_0001 + index as u32);
    let spec = json!({"clusterIP": cluster_ip, "ports": ports, "externalIPs": external_ips});
    let metadata = json!({"namespace": namespace, "name": name});
    take(Kind::Service, &json!({"metadata": metadata, "spec": spec}));
}

fn slice(
    take: &mut impl FnMut(Kind, &Value),
    (namespace, name): (&str, &str),
    service: &str,
    ports: &[String],
    endpoints: u32,
) {
    let port = |(at, name): (usize, &String)| json!({"name": name, "port": 8_080 + at});
    let ports: Vec<Value> = ports.iter().enumerate().map(port).collect();
    let endpoint = |last: u32| json!({"addresses": [std::net::Ipv4Addr::from(0x0AF4_0000 + last)]});
    let endpoints: Vec<Value> = (0..endpoints).map(endpoint).collect();
    let labels = json!({"kubernetes.io/service-name": service});
    let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
    let value = json!({
        "metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    });
    take(Kind::Slice, &value);
}

/// A memory figure of this process.
fn status_kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
