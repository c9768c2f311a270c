//! `cargo xtask bench boot`: a node that has just booted, with the agent there before kube-proxy: from
//! the moment its Services work, as a pod feels it, to 200 of /healthz. The peer is kube-proxy's own
//! health server, which does not wait for that moment. A 200 of pathproof's that came too early is a
//! missed promise.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use node_tests::cluster::{
    ControlPlane, KUBE_PROXY_HEALTHZ_PORT, KubeProxy, Mode, namespace, put_file,
};
use node_tests::detect::{Figure, ms};
use node_tests::http;
use node_tests::manifests::{Manifests, Service};
use node_tests::promises::{Missed, head};
use node_tests::traffic::Server;
use node_tests::wait::until;
use node_tests::watch::Poll;
use node_tests::world::{Family, HEALTHZ_PORT};

use crate::site::Site;

/// From the first working connection to 200, design's promise for p99.
const PROMISED: Duration = Duration::from_secs(2);
/// Far longer than a boot takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two questions to everyone.
const EVERY: Duration = Duration::from_millis(5);
/// Patience for a question: one to a Service without rules is never answered.
const ANSWERED: Duration = Duration::from_millis(100);
/// The server's port.
const PORT: u16 = 8080;

/// Of all boots in one mode, from the moment the Services worked.
#[derive(Default)]
struct Seen {
    healthy: Figure,
    /// Answers of 200 before that moment.
    too_early: usize,
}

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
        let mut seen = <[Seen; 2]>::default();
        for number in 1..=boots {
            let told = boot(&site, mode, &mut seen)?;
            println!("{name} {number:>3}/{boots}  {told}");
        }
        let columns = Figure::COLUMNS;
        head(&format!("mode | /healthz of | 200 too early | {columns}"));
        for (who, seen) in ["pathproof", "kube-proxy"].into_iter().zip(&seen) {
            let row = seen.healthy.row(PROMISED);
            println!("| {name} | {who} | {} | {row} |", seen.too_early);
        }
        let [ours, _] = seen;
        let is_met = ours.healthy.keeps(PROMISED) && ours.too_early == 0;
        let what = format!("pathproof's 200 with kube-proxy in {name} mode");
        missed.judge(what, is_met);
    }
    Ok(())
}

/// One boot: the agent first, which knows nothing of before, then kube-proxy.
fn boot(site: &Site, mode: Mode, seen: &mut [Seen; 2]) -> Result<String> {
    forget(site)?;
    // Two minutes after the machine's own boot nothing proven is Unknown: 503, too, that way.
    let agent = site.agent(&["--unknown-policy", "closed"])?;
    let ours = health(site, HEALTHZ_PORT)?;
    let theirs = health(site, KUBE_PROXY_HEALTHZ_PORT)?;
    let services = Family::ALL.map(|family| service(site, family));
    until(PATIENCE, || (ours.now() == Some(503)).then_some(())).with_context(|| {
        format!(
            "503 before kube-proxy runs; the agent said:\n{}",
            agent.log()
        )
    })?;

    let start = Instant::now();
    let config = site.control.proxy_kubeconfig(ControlPlane::address());
    let _proxy = KubeProxy::spawn(
        &site.world,
        &site.servers,
        mode,
        &config,
        KUBE_PROXY_HEALTHZ_PORT,
        &[],
    )?;
    let mut works = start;
    for service in services {
        let first = service?.first(start, PATIENCE, |answered| *answered);
        works = works.max(first.context("Services never worked")?);
    }
    let mut times = Vec::new();
    for (health, seen) in [ours, theirs].iter().zip(seen) {
        let at = health.first(start, PATIENCE, |status| *status == 200);
        seen.too_early += usize::from(at.is_some_and(|at| at < works));
        let time = at.map(|at| at.saturating_duration_since(works));
        seen.healthy.note(time);
        times.push(ms(time));
    }
    agent.terminate()?;
    Ok(format!(
        "Services worked {} ms after the start of kube-proxy; 200 of both after {} ms",
        (works - start).as_millis(),
        times.join(" and ")
    ))
}

/// Removes rules and the agent's state, as a reboot does.
fn forget(site: &Site) -> Result<()> {
    let world = &site.world;
    let mut clean = world.node.command(&site.servers.proxy);
    clean.env("XTABLES_LOCKFILE", world.dir().join("xtables.lock"));
    let status = clean.arg("--cleanup").output()?.status;
    ensure!(status.success(), "kube-proxy --cleanup ended with {status}");
    let state = world.dir().join("state");
    if state.exists() {
        fs::remove_dir_all(state)?;
    }
    Ok(())
}

/// Whether new connections of a pod to the Service are answered.
fn service(site: &Site, family: Family) -> Result<Poll<bool>> {
    let service = site.manifests.service("web");
    let target = SocketAddr::new(service.cluster_ip(family), service.port);
    Poll::start(&site.world.pod("client").ns, "dialler", EVERY, move || {
        let answered = TcpStream::connect_timeout(&target, ANSWERED).is_ok();
        Some((Instant::now(), answered))
    })
}

/// Status of /healthz; an answer that did not come is left out.
fn health(site: &Site, port: u16) -> Result<Poll<u16>> {
    let address = SocketAddr::new(site.world.node_address(Family::V4), port);
    Poll::start(&site.world.outside, "health", EVERY, move || {
        let answer = http::get(address, "/healthz", ANSWERED).ok()?;
        Some((Instant::now(), answer.status))
    })
}
