//! `cargo xtask bench boot`: time from the first working Service connection of a pod to 200 of /healthz, on a
//! node that has just booted and on which the agent starts before kube-proxy. The peer is kube-proxy's health
//! server, which does not wait for working Services. If pathproof answers 200 before Services work, the
//! promise is missed.

use std::fs;
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use node_tests::cluster::{
    ControlPlane, KUBE_PROXY_HEALTHZ_PORT, KubeProxy, PATIENCE, PORT, namespace, put_file,
};
use node_tests::detect::{Figure, health};
use node_tests::manifests::Manifests;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::watch::Poll;
use node_tests::world::HEALTHZ_PORT;

use crate::site::Site;

/// The design's promise for p99 of the time from the first working connection to 200.
const PROMISED: Duration = Duration::from_secs(2);
/// Pause between two polls of each target.
const EVERY: Duration = Duration::from_millis(5);
/// Connection timeout: a Service without rules never answers.
const ANSWERED: Duration = Duration::from_millis(100);

pub(crate) fn run(boots: usize, missed: &mut Missed) -> Result<()> {
    let mut site = Site::build()?;
    let web = Service::new("web", 0, [site.world.pod("web")]);
    site.manifests.add(web)?;
    namespace(&site.apis[0], "demo")?;
    let file = site.manifests.dir().join(Manifests::service_file("web"));
    put_file(&site.apis[0], &file)?;
    let _server = Server::start(site.world.pod("web"), PORT)?;
    for mode in Mode::ALL {
        let name = mode.name();
        // Times of pathproof and of kube-proxy, and how often each answered 200 before the Services worked.
        let mut seen = <[(Figure, usize); 2]>::default();
        for number in 1..=boots {
            boot(&site, mode, &mut seen).with_context(|| format!("{name}, boot {number}"))?;
        }
        head(&format!("/healthz of | {}", Figure::COLUMNS));
        let [(ours, early), (theirs, peers_early)] = seen;
        ours.print(&format!("{name}, pathproof"), PROMISED, missed);
        println!("| {name}, kube-proxy | {} |", theirs.row(PROMISED));
        println!("\n200 too early: {early} of pathproof, {peers_early} of kube-proxy");
        missed.record(format!("{name}, no 200 too early"), early == 0);
    }
    Ok(())
}

/// One boot: first the agent, without earlier state, then kube-proxy.
fn boot(site: &Site, mode: Mode, seen: &mut [(Figure, usize); 2]) -> Result<()> {
    forget(site)?;
    // Two minutes after the machine's boot, the state of an unproven node becomes Unknown. /healthz answers
    // 503 in this state only with `--unknown-policy closed`.
    let agent = site.agent(&["--unknown-policy", "closed"])?;
    let ours = health(&site.world, HEALTHZ_PORT, EVERY)?;
    let theirs = health(&site.world, KUBE_PROXY_HEALTHZ_PORT, EVERY)?;
    let web = site.manifests.service("web");
    let services = Family::ALL.map(|family| {
        let target = SocketAddr::new(web.cluster_ip(family), web.port);
        dial(site, target, EVERY, ANSWERED)
    });
    let closed = until(PATIENCE, || (ours.now() == Some(503)).then_some(()));
    closed.with_context(|| format!("no 503 before kube-proxy runs:\n{}", agent.log()))?;

    let start = Instant::now();
    let config = site.control.proxy_kubeconfig(ControlPlane::address());
    let (world, port) = (&site.world, KUBE_PROXY_HEALTHZ_PORT);
    let _proxy = KubeProxy::spawn(world, &site.servers, mode, &config, port, &[])?;
    let mut works = start;
    for service in services {
        let first = service?.first(start, PATIENCE, |answered| *answered);
        works = works.max(first.context("Services never worked")?);
    }
    for (health, (figure, early)) in [ours, theirs].iter().zip(seen) {
        let at = health.first(start, PATIENCE, |status| *status == 200);
        *early += usize::from(at.is_some_and(|at| at < works));
        figure.note(at.map(|at| at.saturating_duration_since(works)));
    }
    agent.terminate().map(drop)
}

/// Removes rules and the agent's state, as a reboot does.
fn forget(site: &Site) -> Result<()> {
    let world = &site.world;
    let mut clean = world.node.command(&site.servers.proxy);
    clean.env("XTABLES_LOCKFILE", world.dir().join("xtables.lock"));
    let status = clean.arg("--cleanup").output()?.status;
    ensure!(status.success(), "kube-proxy --cleanup ended with {status}");
    // Before the first boot the folder does not exist.
    let _ = fs::remove_dir_all(world.dir().join("state"));
    Ok(())
}

/// Polls a connection from a pod. Each result is true if the connection was accepted in time.
pub(crate) fn dial(
    site: &Site,
    target: SocketAddr,
    every: Duration,
    patience: Duration,
) -> Result<Poll<bool>> {
    Poll::start(&site.world.pod("client").ns, "dialler", every, move || {
        let answered = TcpStream::connect_timeout(&target, patience).is_ok();
        Some((Instant::now(), answered))
    })
}
