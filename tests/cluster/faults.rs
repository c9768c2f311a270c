//! Faults of the node's datapath: whether and after what time the agent and kube-proxy's health server report
//! them. The tests print the table. They assert that the agent answers 503, except for the fault of a single
//! Service.

use std::fmt;

use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene, wait_healthz};
use crate::{ipvs, quiet};

/// Time for which the agent's answer must not change.
const LOOK: Duration = Duration::from_secs(4);
/// Time for kube-proxy to notice the fault: twice the timeout of a request to it.
const THEIRS: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    ProxyKilled,
    ProxyKilledEndpointReplaced,
    ProxyStoppedEndpointReplaced,
    LockHeldEndpointReplaced,
    ServicesFlushed,
    TablesGone,
    EverythingWiped,
    MasqueradeFlushed,
    PodRoutesGone,
    ForwardingOff,
    ForwardDropped,
    OnlyIpv6,
    OneServiceEmptied,
}

impl Fault {
    /// Faults that can be injected in every mode.
    pub(crate) const ALL: [Self; 12] = [
        // This is the first fault, because a kube-proxy that was just restarted rewrites this chain after
        // some seconds.
        Self::MasqueradeFlushed,
        Self::ServicesFlushed,
        Self::TablesGone,
        Self::EverythingWiped,
        Self::PodRoutesGone,
        Self::ForwardingOff,
        Self::ForwardDropped,
        Self::OnlyIpv6,
        Self::OneServiceEmptied,
        Self::ProxyKilled,
        Self::ProxyKilledEndpointReplaced,
        Self::ProxyStoppedEndpointReplaced,
    ];

    fn replaces_an_endpoint(self) -> bool {
        matches!(
            self,
            Self::ProxyKilledEndpointReplaced
                | Self::ProxyStoppedEndpointReplaced
                | Self::LockHeldEndpointReplaced
        )
    }

    /// Whether load balancers must withdraw the node because of this fault.
    fn breaks_the_node(self) -> bool {
        !matches!(self, Self::ProxyKilled | Self::OneServiceEmptied)
    }

    /// Whether kube-proxy's health server stops answering because of this fault.
    fn ends_the_proxy(self) -> bool {
        matches!(
            self,
            Self::ProxyKilled
                | Self::ProxyKilledEndpointReplaced
                | Self::ProxyStoppedEndpointReplaced
        )
    }

    fn inject(self, scene: &mut Scene) {
        match self {
            Self::ProxyKilled => kill_proxy(scene),
            Self::ProxyKilledEndpointReplaced => {
                kill_proxy(scene);
                leave(scene);
            }
            Self::ProxyStoppedEndpointReplaced => {
                scene.proxy().freeze();
                leave(scene);
            }
            Self::LockHeldEndpointReplaced => {
                hold_lock(scene);
                leave(scene);
            }
            Self::ServicesFlushed => flush(scene, &["ip", "ip6"]),
            Self::OnlyIpv6 => flush(scene, &["ip6"]),
            Self::TablesGone => match scene.mode {
                Mode::Nftables => nft(
                    scene,
                    "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n",
                ),
                Mode::Iptables | Mode::IptablesLegacy => {
                    scene.proxy().iptables("-t nat -F").expect("flush nat")
                }
                Mode::Ipvs => ipvs::clear(scene),
            },
            Self::EverythingWiped => wipe(scene),
            Self::MasqueradeFlushed => {
                dial_the_other_node(scene);
                stop_masquerading(scene);
            }
            Self::PodRoutesGone => pods(scene, |name| scene.world.cut_route(name)),
            Self::ForwardingOff => scene.world.set_forwarding(false).expect("forwarding off"),
            Self::ForwardDropped => scene.world.block_forwarding(true).expect("a filter"),
            Self::OneServiceEmptied => empty_service(scene, "demo/api:http"),
        }
    }

    /// Repairs the fault, mostly by a restart of kube-proxy, which rewrites all its rules when it starts.
    fn mend(self, scene: &mut Scene) {
        if self == Self::MasqueradeFlushed {
            let usual = scene.clients.len() - Family::ALL.len();
            scene.clients.truncate(usual);
        }
        match self {
            Self::ForwardingOff => scene.world.set_forwarding(true).expect("forwarding on"),
            Self::ForwardDropped => scene.world.block_forwarding(false).expect("no filter"),
            Self::PodRoutesGone => pods(scene, |name| scene.world.mend_route(name)),
            _ => {
                kill_proxy(scene);
                if scene.mode == Mode::Nftables {
                    // Delete the tables, so that kube-proxy creates them again, whatever the fault removed
                    // from them.
                    let script = "table ip kube-proxy\ndelete table ip kube-proxy\n\
                                  table ip6 kube-proxy\ndelete table ip6 kube-proxy\n";
                    nft(scene, script);
                }
                scene.start_proxy();
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ProxyKilled => "kube-proxy killed",
            Self::ProxyKilledEndpointReplaced => "killed, and an endpoint replaced",
            Self::ProxyStoppedEndpointReplaced => "stopped, and an endpoint replaced",
            Self::LockHeldEndpointReplaced => "xtables lock held, and an endpoint replaced",
            Self::EverythingWiped => "all tables wiped",
            Self::MasqueradeFlushed => "masquerade chain flushed",
            Self::PodRoutesGone => "routes to this node's pods gone",
            Self::ServicesFlushed => "chain of all Services flushed",
            Self::TablesGone => "nat table flushed or tables deleted",
            Self::ForwardingOff => "forwarding off",
            Self::ForwardDropped => "everything forwarded is dropped",
            Self::OnlyIpv6 => "chain of all Services flushed, IPv6",
            Self::OneServiceEmptied => "one Service's chain emptied",
        })
    }
}

/// Replaces an endpoint and ends its server: while the old server answers, no user fails.
pub(crate) fn leave(scene: &mut Scene) {
    scene.replace("api", "api-1", "spare");
    scene.servers.remove("api-1");
}

fn kill_proxy(scene: &mut Scene) {
    scene.proxy = None;
}

/// Holds the xtables lock. No iptables tool can write rules until kube-proxy is killed.
pub(crate) fn hold_lock(scene: &mut Scene) {
    let proxy = scene.proxy.as_mut().expect("a kube-proxy");
    proxy.hold_lock().expect("the lock");
}

fn pods(scene: &Scene, work: impl Fn(&str) -> anyhow::Result<()>) {
    let local = scene.world.pods().filter(|pod| pod.place != Place::Remote);
    local.for_each(|pod| work(&pod.name).expect("a pod's route"));
}

/// Starts clients outside that need the masquerade rule, because one endpoint in three is on the other node.
fn dial_the_other_node(scene: &mut Scene) {
    for family in Family::ALL {
        let port = SocketAddr::new(scene.world.node_address(family), 30080);
        let plan = Plan::from_outside(&scene.world, 1, port).rate(7.0);
        scene.clients.push(plan.start().expect("a client"));
    }
}

/// Flushes the masquerade chain, as another firewall might.
fn stop_masquerading(scene: &Scene) {
    match scene.mode {
        Mode::Nftables => nft(
            scene,
            "flush chain ip kube-proxy masquerading\nflush chain ip6 kube-proxy masquerading\n",
        ),
        Mode::Iptables | Mode::IptablesLegacy | Mode::Ipvs => {
            let flush = "-t nat -F KUBE-POSTROUTING";
            scene.proxy().iptables(flush).expect("flush a chain");
        }
    }
}

/// Flushes all tables, as an administrator may do to "reset the firewall".
fn wipe(scene: &Scene) {
    match scene.mode {
        Mode::Nftables => nft(scene, "flush ruleset\n"),
        Mode::Iptables | Mode::IptablesLegacy => {
            for table in ["filter", "nat", "mangle", "raw"] {
                let flush = format!("-t {table} -F");
                scene.proxy().iptables(&flush).expect("flush a table");
            }
        }
        Mode::Ipvs => ipvs::clear(scene),
    }
}

fn nft(scene: &Scene, script: &str) {
    scene.world.node.nft(script).expect("an nft script");
}

/// Empties the chain that starts the translation, in the tables of these nft families.
pub(crate) fn flush(scene: &Scene, families: &[&str]) {
    let proxy = scene.proxy();
    for family in families {
        match proxy.mode {
            Mode::Nftables => nft(
                scene,
                &format!("flush chain {family} kube-proxy services\n"),
            ),
            Mode::Iptables | Mode::IptablesLegacy => {
                let program = if *family == "ip" {
                    "iptables"
                } else {
                    "ip6tables"
                };
                let words = "-t nat -F KUBE-SERVICES";
                proxy.run(program, words).expect("flush KUBE-SERVICES");
            }
            Mode::Ipvs if *family == "ip6" => ipvs::clear_v6(scene),
            Mode::Ipvs => ipvs::clear(scene),
        }
    }
}

/// Empties the chains of one Service port, which are found by their names in kube-proxy's rules.
fn empty_service(scene: &Scene, port: &str) {
    let proxy = scene.proxy();
    let rules = proxy.rules().expect("the rules");
    match proxy.mode {
        Mode::Nftables => {
            // The chain's name is such as "service-ABCDEFGH-demo/api/tcp/http".
            let (service, name) = port.split_once(':').expect("a port's name");
            let end = format!("-{service}/tcp/{name}");
            for family in ["ip", "ip6"] {
                let chain = rules
                    .split_whitespace()
                    .find(|word| word.starts_with("service-") && word.ends_with(&end));
                let chain = chain.expect("the Service's chain");
                nft(scene, &format!("flush chain {family} kube-proxy {chain}\n"));
            }
        }
        Mode::Iptables | Mode::IptablesLegacy => {
            let title = format!("\"{port} cluster IP\"");
            let line = rules
                .lines()
                .find(|line| line.contains(&title) && line.contains("-j KUBE-SVC-"));
            let chain = line
                .and_then(|line| line.rsplit("-j ").next())
                .expect("the Service's chain");
            let chain = chain.split(' ').next().unwrap_or(chain);
            proxy
                .iptables(&format!("-t nat -F {chain}"))
                .expect("flush it");
        }
        Mode::Ipvs => ipvs::remove_endpoint(scene, "api-1"),
    }
}

struct Row {
    fault: Fault,
    ours: Option<Duration>,
    theirs: Option<(Duration, u16)>,
    said: String,
}

fn run(scene: &mut Scene, ours: &Watch, theirs: &Watch, fault: Fault) -> Row {
    wait_healthz(theirs, 200);
    // Count changes instead of comparing times: a missing answer has the time of its request, which may
    // precede the fault.
    let known = [ours, theirs].map(|watch| watch.changes().len());
    let start = Instant::now();
    fault.inject(scene);
    let first = |watch: &Watch, known: usize, wanted: &dyn Fn(u16) -> bool| {
        let changes = watch.changes();
        let mut new = changes.iter().skip(known);
        let change = new.find(|change| wanted(change.codes.healthz))?;
        let after = change.at.saturating_duration_since(start);
        Some((after, change.codes.healthz))
    };
    if fault.breaks_the_node() {
        until(PATIENCE, || first(ours, known[0], &|code| code == 503));
        thread::sleep(THEIRS);
    } else {
        thread::sleep(LOOK);
    }
    let report = scene.agent().verdict().unwrap_or_default();
    let row = Row {
        fault,
        ours: first(ours, known[0], &|code| code == 503).map(|(time, _)| time),
        theirs: first(theirs, known[1], &|code| code != 200),
        said: words(&report),
    };
    fault.mend(scene);
    if fault.replaces_an_endpoint() {
        scene.serve("api-1");
        scene.replace("api", "spare", "api-1");
    }
    scene.wait_proven();
    row
}

fn words(report: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let families = report["verdict"]["families"].as_array();
    let family = |family: &Value| format!("{} {}", word(&family["family"]), word(&family["state"]));
    families.map_or_else(String::new, |all| {
        all.iter().map(family).collect::<Vec<_>>().join(", ")
    })
}

fn table(name: &str, mode: Mode, faults: &[Fault]) {
    let mut scene = needs!(Scene::proven(mode, &["--flap-dwell", "0"]));
    run_table(name, &mut scene, faults);
}

/// Injects the faults one after another in a proven scene, then prints and judges the table.
pub(crate) fn run_table(title: &str, scene: &mut Scene, faults: &[Fault]) {
    scene.traffic();
    thread::sleep(settled().max(quiet::asked().unwrap_or_default()));
    scene.wait_proven();
    let (ours, theirs) = (scene.watch(), scene.watch_proxy());
    let rows: Vec<Row> = faults
        .iter()
        .map(|fault| run(scene, &ours, &theirs, *fault))
        .collect();
    println!("\n| {title} | pathproof: 503 after | kube-proxy's healthz | verdict |");
    println!("|---|---|---|---|");
    for Row {
        fault,
        ours,
        theirs,
        said,
    } in &rows
    {
        let told = |time: Duration| format!("{} ms", time.as_millis());
        let ours = ours.map_or_else(|| "200".to_owned(), told);
        let theirs = match theirs {
            None => "200".to_owned(),
            Some((time, 0)) => format!("no answer after {}", told(*time)),
            Some((time, code)) => format!("{code} after {}", told(*time)),
        };
        println!("| {fault} | {ours} | {theirs} | {said} |");
    }
    for row in &rows {
        let (fault, said) = (&row.fault, &row.said);
        match row.fault.breaks_the_node() {
            true => assert!(row.ours.is_some(), "{fault}: {said}"),
            false => assert_eq!(row.ours, None, "false 503: {fault}: {said}"),
        }
        // If the fault does not end kube-proxy, accept a missing answer too: the poller counts an answer that
        // is late on a busy machine as missing.
        let theirs = row.theirs.map(|(_, code)| code);
        match row.fault.ends_the_proxy() {
            true => assert_eq!(theirs, Some(0), "{}: kube-proxy's", row.fault),
            false => assert_ne!(theirs, Some(503), "{}: kube-proxy's", row.fault),
        }
    }
}

#[test]
fn faults_show_in_nftables_mode() {
    let name = "faults_show_in_nftables_mode";
    let faults = Fault::ALL.into_iter();
    // Leave out the stopped proxy, which has the same effect as a killed one. `releases` tests both every
    // night.
    let faults = faults.filter(|fault| *fault != Fault::ProxyStoppedEndpointReplaced);
    table(name, Mode::Nftables, &faults.collect::<Vec<_>>());
}

/// Faults of the rules. All other faults are the same in each mode.
#[test]
fn faults_show_in_iptables_mode() {
    let name = "faults_show_in_iptables_mode";
    let faults = [
        Fault::MasqueradeFlushed,
        Fault::ServicesFlushed,
        Fault::TablesGone,
        Fault::EverythingWiped,
        Fault::OneServiceEmptied,
    ];
    table(name, Mode::Iptables, &faults);
}

#[test]
fn a_held_lock_shows_once_an_endpoint_is_replaced() {
    let name = "a_held_lock_shows_once_an_endpoint_is_replaced";
    let faults = [Fault::LockHeldEndpointReplaced];
    table(name, Mode::IptablesLegacy, &faults);
}
