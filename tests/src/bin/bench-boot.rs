//! `cargo xtask bench boot`: a node that has just booted, with the agent there before kube-proxy: from
//! the moment its Services work, as a pod feels it, to 200 of /healthz. The peer is kube-proxy's own
//! health server, which does not wait for that moment. Exits 1 if pathproof's promise is not met, or
//! one of its 200 came too early.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::cluster::{
    ControlPlane, KUBE_PROXY_HEALTHZ_PORT, KubeProxy, Mode, Servers, base, install,
};
use node_tests::detect::Figure;
use node_tests::http;
use node_tests::manifests::{Manifests, Service};
use node_tests::promises::Missed;
use node_tests::traffic::Server;
use node_tests::wait::until;
use node_tests::watch::Poll;
use node_tests::world::{Agent, Family, HEALTHZ_PORT, Namespace, World, agent_binary};

/// From the first working connection to 200, design's promise for p99.
const PROMISED: Duration = Duration::from_secs(2);
/// Far longer than a boot takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often everyone is asked.
const EVERY: Duration = Duration::from_millis(5);
/// How long a question may take: one to a Service without rules is never answered.
const ANSWERED: Duration = Duration::from_millis(100);
/// The server's port.
const PORT: u16 = 8080;

/// Time from the datapath's first sync to 200 of /healthz, with a real kube-proxy
#[derive(Parser)]
struct Args {
    /// Boots in each mode of kube-proxy
    #[arg(long, default_value_t = 20)]
    boots: usize,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// The cluster that the node joins. Dropped in this order.
struct Site {
    _server: Server,
    control: ControlPlane,
    manifests: Manifests,
    world: World,
}

/// Of all boots in one mode, from the moment the Services worked.
#[derive(Default)]
struct Times {
    ours: Figure,
    theirs: Figure,
    /// Answers of 200 before that moment.
    too_early: [usize; 2],
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let binary = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let servers = Servers::find()?;
    let site = build(&servers)?;
    let mut rows = Vec::new();
    let mut missed = Missed::default();
    for mode in Mode::ALL {
        let mut times = Times::default();
        for number in 1..=args.boots {
            let told = site.boot(&binary, &servers, mode, &mut times)?;
            println!("{} {number:>3}/{}  {told}", mode.name(), args.boots);
        }
        let mut row = |who: &str, figure: &Figure, early: usize| {
            let row = figure.row(PROMISED);
            rows.push(format!("| {} | {who} | {early} | {row} |", mode.name()));
        };
        row("pathproof", &times.ours, times.too_early[0]);
        row("kube-proxy", &times.theirs, times.too_early[1]);
        let what = format!("pathproof's 200 with kube-proxy in {} mode", mode.name());
        let is_met = times.ours.keeps(PROMISED) && times.too_early[0] == 0;
        missed.judge(what, is_met);
    }
    println!(
        "\n| mode | /healthz of | 200 too early | n | median | p99 | max | never | unit | promise | met | p99 over promise |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---|---:|---|---:|");
    for row in rows {
        println!("{row}");
    }
    Ok(missed.close())
}

fn build(servers: &Servers) -> Result<Site> {
    let world = World::builder().pods(&["web", "client"]).build()?;
    let web = Service::new("web", 0, vec![world.pod("web")]);
    let manifests = Manifests::write(&world, vec![web])?;
    let control = ControlPlane::start(&world, servers)?;
    install(&control.api()?, &manifests)?;
    let server = Server::start(world.pod("web"), PORT)?;
    Ok(Site {
        _server: server,
        control,
        manifests,
        world,
    })
}

impl Site {
    /// One boot: the agent first, which knows nothing of before, then kube-proxy.
    fn boot(
        &self,
        binary: &Path,
        servers: &Servers,
        mode: Mode,
        times: &mut Times,
    ) -> Result<String> {
        self.forget(servers)?;
        let agent = self.agent(binary)?;
        let node = self.world.node_address(Family::V4);
        let outside = &self.world.outside;
        let ours = health(outside, "ours", SocketAddr::new(node, HEALTHZ_PORT))?;
        let theirs = health(
            outside,
            "theirs",
            SocketAddr::new(node, KUBE_PROXY_HEALTHZ_PORT),
        )?;
        let pods = Family::ALL.map(|family| self.dialler(family));
        until(PATIENCE, || (ours.now() == Some(503)).then_some(())).with_context(|| {
            format!(
                "503 before kube-proxy runs; the agent said:\n{}",
                agent.log()
            )
        })?;

        let start = Instant::now();
        let config = self.control.proxy_kubeconfig(ControlPlane::address());
        let proxy = KubeProxy::spawn(
            &self.world,
            servers,
            mode,
            &config,
            KUBE_PROXY_HEALTHZ_PORT,
            &[],
        )?;
        let mut works = start;
        for pod in pods {
            let first = pod?.first(start, PATIENCE, |answered| *answered == 1);
            works = works.max(first.context("Services never worked")?);
        }
        let since = |series: &Poll<u64>, figure: &mut Figure, early: &mut usize| {
            let at = series.first(start, PATIENCE, |status| *status == 200);
            *early += usize::from(at.is_some_and(|at| at < works));
            let time = at.map(|at| at.saturating_duration_since(works));
            figure.note(time);
            time.map_or_else(
                || "never".to_owned(),
                |time| format!("{} ms", time.as_millis()),
            )
        };
        let [our_early, their_early] = &mut times.too_early;
        let ours = since(&ours, &mut times.ours, our_early);
        let theirs = since(&theirs, &mut times.theirs, their_early);
        drop(proxy);
        agent.terminate()?;
        Ok(format!(
            "Services worked {} ms after the start of kube-proxy; pathproof's 200 {ours} later, kube-proxy's {theirs}",
            (works - start).as_millis()
        ))
    }

    /// What a reboot takes away: rules, and what the agent remembers.
    fn forget(&self, servers: &Servers) -> Result<()> {
        let mut clean = self.world.node.command(&servers.proxy);
        let lock = self.world.dir().join("xtables.lock");
        let status = clean
            .arg("--cleanup")
            .env("XTABLES_LOCKFILE", lock)
            .output()?
            .status;
        anyhow::ensure!(status.success(), "kube-proxy --cleanup ended with {status}");
        match fs::remove_dir_all(self.world.dir().join("state")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn agent(&self, binary: &Path) -> Result<Agent> {
        let server = ControlPlane::address();
        let file = self
            .control
            .account_kubeconfig(&self.world, server, base::AGENT)?;
        let file = file.to_str().context("a path in UTF-8")?;
        // Two minutes after the machine's own boot nothing proven is Unknown: 503, too, that way.
        let closed = ["--unknown-policy", "closed"];
        let options = ["--kubeconfig", file, "--log-filter", "warn"];
        let options = [&options[..], &closed].concat();
        self.world.spawn_agent(binary, self.world.dir(), &options)
    }

    /// Whether new connections of a pod to the Service are answered.
    fn dialler(&self, family: Family) -> Result<Poll<u64>> {
        let service = self.manifests.service("web");
        let target = SocketAddr::new(service.cluster_ip(family), service.port);
        let pod = &self.world.pod("client").ns;
        Poll::start(pod, "dialler", EVERY, move || {
            let answered = TcpStream::connect_timeout(&target, ANSWERED).is_ok();
            Some((Instant::now(), u64::from(answered)))
        })
    }
}

/// Status of /healthz; an answer that did not come is left out.
fn health(from: &Namespace, name: &str, address: SocketAddr) -> Result<Poll<u64>> {
    Poll::start(from, name, EVERY, move || {
        let answer = http::get(address, "/healthz", ANSWERED).ok()?;
        Some((Instant::now(), u64::from(answer.status)))
    })
}
