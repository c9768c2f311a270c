//! Memory and listeners of an agent that serves many health check node ports.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use node_tests::manifests::Manifests;
use node_tests::prelude::*;
use node_tests::world::Agent;
use node_tests::{http, usage};

const SERVICES: u16 = 1_000;
const FIRST: u16 = 30_000;
/// Number of starts. Only the agent with the least memory counts, because the allocator's overhead varies.
const STARTS: usize = 3;
const MAY_COST: u64 = 1024 * 1024;

/// Writes a Node, and Services with externalTrafficPolicy Local, with or without a health check node port.
fn write(world: &World, name: &str, port: fn(u16) -> Option<u16>) -> PathBuf {
    let dir = world.dir().join(name);
    Manifests::write_to(dir.clone(), Vec::new()).expect("a Node");
    let mut text = String::new();
    for index in 0..SERVICES {
        let [high, low] = (index + 10).to_be_bytes();
        let (v4, node_port) = (format!("10.96.{high}.{low}"), FIRST + SERVICES + index);
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: service-{index}\n  namespace: demo\n\
             spec:\n  type: LoadBalancer\n  clusterIP: {v4}\n  clusterIPs:\n  - {v4}\n  ipFamilies:\n  - IPv4\n  \
             externalTrafficPolicy: Local\n  ports:\n  - name: http\n    port: 80\n    protocol: TCP\n    \
             targetPort: 8080\n    nodePort: {node_port}\n"
        );
        if let Some(port) = port(index) {
            let _ = writeln!(text, "  healthCheckNodePort: {port}");
        }
    }
    fs::write(dir.join("services.yaml"), text).expect("Services");
    dir
}

/// Bytes of the agent's memory and maps together, and the number of listening sockets in its network
/// namespace.
fn weigh(agent: &Agent) -> (u64, usize) {
    let maps = usage::maps_kib(agent.pid()).expect("its maps");
    let memory = usage::memory(agent.pid()).expect("its memory");
    let bytes = (memory.anonymous_kib + maps) * 1024;
    let listening = |file: &str| {
        let file = format!("/proc/{}/net/{file}", agent.pid());
        let text = fs::read_to_string(&file).expect("sockets");
        let state = |line: &str| line.split_whitespace().nth(3) == Some("0A");
        text.lines().filter(|line| state(line)).count()
    };
    (bytes, listening("tcp") + listening("tcp6"))
}

/// Starts an agent [`STARTS`] times, and returns the figures of the smallest one.
fn least(world: &World, manifests: &Path, settled: impl Fn() -> bool) -> (u64, usize) {
    let weights = (0..STARTS).map(|_| {
        let agent = world.spawn_agent(&agent_binary().expect("a binary"), manifests, &[]);
        let mut agent = agent.expect("an agent");
        agent.wait_ready(PATIENCE).expect("a ready agent");
        assert!(until(PATIENCE, || settled().then_some(())).is_some());
        let weight = weigh(&agent);
        println!("{} KiB, {} listeners", weight.0 / 1024, weight.1);
        agent.terminate().expect("it ends");
        weight
    });
    weights.min().expect("some")
}

#[test]
fn a_thousand_health_check_node_ports_cost_little_and_take_no_listener_each() {
    let world = World::builder().build().expect("a world");
    let without = write(&world, "without", |_| None);
    let with = write(&world, "with", |index| Some(FIRST + index));
    let address = world.node_address(Family::V4);
    let named = |index: u16| {
        let to = SocketAddr::new(address, FIRST + index);
        let answer = http::get(to, "/", Duration::from_secs(1)).ok();
        answer.is_some_and(|answer| answer.body.contains(&format!("\"service-{index}\"\n")))
    };
    let all = || world.outside.run(|| (0..SERVICES).all(named));
    let (base, listeners) = least(&world, &without, || true);
    let (bytes, with_ports) = least(&world, &with, all);
    let cost = bytes.saturating_sub(base);
    println!("{SERVICES} ports: {} KiB", cost / 1024);
    assert!(cost <= MAY_COST, "{cost} bytes");
    assert_eq!(with_ports, listeners);
}
