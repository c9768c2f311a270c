//! kube-proxy restarts in another mode while users connect. It first removes the other mode's rules. It
//! writes its own only after it has listed the cluster. In between no user is served, so if this takes long
//! the agent answers 503. The test prints the times, and asserts that the last answer is 200 and that the log
//! names both modes.

use std::net::TcpStream;

use node_tests::prelude::*;
use node_tests::watch::Poll;

use crate::scene::Scene;

/// Time after which earlier failures no longer count.
const CALM: Duration = Duration::from_secs(12);

#[test]
fn kube_proxy_changes_its_mode() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    scene.traffic();
    for (mode, before) in [
        (Mode::Iptables, Mode::Nftables),
        (Mode::Nftables, Mode::Iptables),
    ] {
        thread::sleep(CALM);
        change(&mut scene, mode);
        let nobody = "nobody that is known";
        let label = |mode: Mode| format!("kube-proxy ({})", mode.name());
        let log = scene.agent().log();
        let has = |now: &str, before: &str| log.contains(&format!("IPv4: {now}; before: {before}"));
        let (now, before) = (label(mode), label(before));
        let is_logged = has(&now, &before) || has(nobody, &before) && has(&now, nobody);
        assert!(is_logged, "{now}, before {before}: {log}");
    }
}

/// Changes the mode, and prints when users were served and what /healthz answered.
fn change(scene: &mut Scene, mode: Mode) {
    let target = scene.inside("web", Family::V4);
    let dial = move || {
        let at = Instant::now();
        let dialled = TcpStream::connect_timeout(&target, Duration::from_millis(100));
        Some((at, if dialled.is_ok() { "served" } else { "lost" }))
    };
    let client = &scene.world.pod("client-1").ns;
    let users = Poll::start(client, "users", Duration::from_millis(20), dial).expect("a client");
    let watch = scene.watch_healthy();
    let start = Instant::now();
    drop(scene.proxy.take());
    scene.mode = mode;
    scene.start_proxy();
    scene.wait_proven();
    thread::sleep(CALM);
    let (_, users) = users.end();
    let answers = watch.changes().into_iter();
    let answers: Vec<_> = answers
        .map(|change| (change.at, change.codes.healthz))
        .collect();
    println!("to {}, in seconds:", mode.name());
    println!("  users: {}", row(start, &users));
    println!("  healthz: {}", row(start, &answers));
    let last = answers.last().expect("an answer");
    assert_eq!(last.1, 200, "{}", row(start, &answers));
}

fn row<T: ToString>(start: Instant, changes: &[(Instant, T)]) -> String {
    let later = changes.iter().filter(|(at, _)| *at > start);
    let changes =
        later.map(|(at, is)| format!("{:.2} {}", (*at - start).as_secs_f64(), is.to_string()));
    changes.collect::<Vec<_>>().join(", ")
}
