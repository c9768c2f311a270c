//! The script of the demo: its actions, the expected results, and their time limits.

use std::fs;

use anyhow::{Context, Result};

use super::teller::Teller;
use super::timeline::{ACT, DIM, NOTE, Timeline, paint};
use crate::deploy::said;
use crate::pod_probe::{self, Placed, Probes};
use crate::prelude::*;
use crate::tunnels::{path, tunnels};

/// Additional options of the agent. With the default hold-down (`--flap-dwell`) the demo would mostly wait.
const OPTIONS: [&str; 2] = ["--flap-dwell", "1s"];
/// The pod probe's index in the address plan, and its pods.
const PROBE_INDEX: u8 = 4;
const PROBED: [Placed; 2] = [("client-1", None), ("web-3", None)];
const SKETCH: &str = "\
\x20          outside clients ── router ──┬── eth0 NODE ──┬─ veth ─ web-1 web-2 spare api-1, clients
           203.0.113.11..   192.0.2.1  │   192.0.2.10  └─ cni0 ─ db-1 db-2
                                       └── another node ─ veth ─ web-3 api-2";

/// Runs the whole script. Returns whether all expected results came.
pub(super) fn play(timeline: &mut Timeline) -> Result<bool> {
    timeline.title("pathproof: is this node really routing Service traffic, right now?");
    let scene = built(timeline);
    let mut play = Play {
        tell: Teller::new(&scene.world, timeline)?,
        scene,
    };
    play.comes_up()?;
    play.flushed()?;
    play.forwarding_off()?;
    play.overlay_dead()?;
    play.dropped()?;
    play.swapped()?;
    play.tainted()?;
    play.killed()?;
    let Play { tell, scene, .. } = play;
    let is_met = tell.finish();
    drop(scene);
    timeline.tell(
        NOTE,
        "the world is removed: no namespace, program or file is left; docs/quickstart.md continues \
         in a cluster",
    );
    Ok(is_met)
}

/// Builds the world with its rules, and prints its sketch to the timeline.
fn built(timeline: &mut Timeline) -> Scene {
    let start = Instant::now();
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let (pods, time) = (scene.world.pods().count(), start.elapsed().as_millis());
    let text = format!(
        "a node, {pods} pods, another node and outside clients as namespaces, in {time} ms"
    );
    timeline.tell(ACT, &text);
    timeline.print(&paint(DIM, SKETCH));
    let text = "Service NAT: real nftables rules from the same YAML as the agent's; no traffic yet";
    timeline.tell(ACT, text);
    scene
}

struct Play<'a> {
    // Fields are dropped in this order: observers and clients, then the world.
    tell: Teller<'a>,
    scene: Scene,
}

impl Play<'_> {
    /// Expects 200 and proven after a repair.
    fn mended(&mut self, what: &'static str, limit: f64) -> Result<()> {
        let wanted = (what, "200 again", limit);
        self.tell.expect(wanted, |view| view.has(200, "proven"))
    }

    fn comes_up(&mut self) -> Result<()> {
        self.tell.act(
            "start the agent: it observes every interface, and probes its own Service, the \
             sentinel, through the node's rules, because the node is idle",
        );
        // The demo ends if this kernel refuses the agent.
        self.scene.spawn(&OPTIONS);
        let agent = self.scene.agent.as_mut().context("just started")?;
        agent.wait_ready(Duration::from_secs(10))?;
        let wanted = ("agent started, idle node", "proven, /healthz 200", 10.0);
        self.tell.expect(wanted, |view| view.has(200, "proven"))?;
        // Failures of a new sentinel do not count at first: its rules may lag.
        self.tell.note(
            "wait 10 s: failing probes of a new sentinel do not count yet, because its rules may \
             lag",
        );
        self.tell.linger(10)
    }

    fn flushed(&mut self) -> Result<()> {
        self.tell.fault(
            "flush the Service chain (nft flush chain ip kube-proxy services): the datapath is \
             gone, all processes still run, and there is no traffic",
        );
        self.scene.rules.flush_services()?;
        let wanted = ("idle: Service chain flushed", "503 with the cause", 1.5);
        self.tell.expect(wanted, |view| view.has(503, "broken"))?;
        let failing = jiff::Timestamp::now();
        self.tell.act("put the rules back");
        self.scene.rules.install()?;
        self.mended("rules repaired", 3.0)?;
        // Formatted as in a load balancer's log.
        self.explained(&failing.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// Runs `pathproof why` after the repair, to explain the 503 at this time.
    fn explained(&mut self, time: &str) -> Result<()> {
        self.tell.act(&format!(
            "the node works again; explain the 503 afterwards: pathproof why --at {time}"
        ));
        let agent = self.scene.agent();
        let state = self.scene.world.dir().join("state");
        let folder = state.to_string_lossy();
        let why = said(&mut agent.command(&["why", "--at", time, "--state-dir", &folder]))?;
        let page: Vec<&str> = why.split("\n\n").take(2).collect();
        self.tell.timeline.quote(&page.join("\n"));
        let files = fs::read_dir(state.join("recordings")).context("find the recordings")?;
        let file = files.flatten().map(|file| file.path()).max();
        let file = file.context("a recording")?;
        let replay = said(&mut agent.command(&["replay", &file.to_string_lossy()]))?;
        self.tell
            .act("pathproof replay judges the recorded events again");
        let last = replay.lines().next_back().unwrap_or_default();
        self.tell.timeline.quote(last);
        let row = ("past 503", "explained, same verdicts replayed");
        let seen = match why.contains("leaked") {
            true => replay.lines().next().unwrap_or_default(),
            false => "no leak in `pathproof why`",
        };
        self.tell.add_row(row, why.contains("leaked"), seen);
        self.tell.linger(1)
    }

    fn forwarding_off(&mut self) -> Result<()> {
        self.tell.fault(
            "sysctl net.ipv4.ip_forward=0 and the same for IPv6: the rules are intact, and nothing \
             is forwarded",
        );
        self.scene.world.set_forwarding(false)?;
        let wanted = ("idle: forwarding off", "503, names it", 1.5);
        self.tell
            .expect(wanted, |view| view.names(503, "forwarding_off"))?;
        self.tell.act("forwarding on again");
        self.scene.world.set_forwarding(true)?;
        self.tell.note(
            "broken twice within 30 s: the 503 lasts a little longer each time (from 10 s on; here \
             from 1 s on), so that load balancers don't flap",
        );
        self.mended("forwarding on", 6.0)
    }

    /// A fault of the overlay. Only the pod probe sends traffic.
    fn overlay_dead(&mut self) -> Result<()> {
        self.tell.act(
            "a VXLAN overlay to the other node, and `pathproof echo` in a pod on each: small pods \
             that connect to their own Service",
        );
        let scene = &mut self.scene;
        tunnels(&scene.world)?;
        let service = pod_probe::service(&scene.world, PROBE_INDEX, &PROBED);
        scene.manifests.add(service)?;
        scene.rules.install()?;
        let probes = Probes::start(&scene.world, &agent_binary()?, PROBE_INDEX, &PROBED)?;
        self.tell.linger(6)?;
        self.tell.fault(
            "the other node's firewall drops UDP port 8472: the rules are intact, packets leave, \
             and nothing comes back",
        );
        scene.world.worker.nft(&path("input", ""))?;
        let wanted = ("idle: overlay dead", "degraded, names it, 200", 15.0);
        self.tell
            .expect(wanted, |view| view.names(200, "overlay"))?;
        self.tell.act("port 8472 open again");
        scene.world.worker.nft("delete table inet path")?;
        let wanted = ("overlay repaired", "proven", 10.0);
        self.tell.expect(wanted, |view| view.has(200, "proven"))?;
        drop(probes);
        scene.manifests.remove("pathproof-echo")?;
        scene.rules.install()
    }

    fn dropped(&mut self) -> Result<()> {
        self.tell.fault("a firewall drops all forwarded packets");
        self.scene.world.block_forwarding(true)?;
        let wanted = ("idle: FORWARD drops", "suspect, still 200", 2.0);
        self.tell.expect(wanted, |view| view.has(200, "suspect"))?;
        self.tell.note(
            "a filter on the probes' own addresses would look the same: not a reason for 503 yet",
        );
        self.tell.linger(1)?;
        self.tell.act(
            "remove the firewall rule, and start clients: 20 connections a second to each of web, \
             api and db, in IPv4 and in IPv6, from pods and from outside",
        );
        self.scene.world.block_forwarding(false)?;
        self.scene.traffic();
        self.tell.clients.append(&mut self.scene.clients);
        self.tell.linger(3)?;
        self.tell
            .fault("the firewall drops everything again, and connections that worked are lost");
        self.scene.world.block_forwarding(true)?;
        let wanted = ("busy: FORWARD drops", "broken, 503", 4.0);
        self.tell.expect(wanted, |view| view.has(503, "broken"))?;
        self.tell.act("remove the firewall rule");
        self.scene.world.block_forwarding(false)?;
        self.mended("filter removed", 8.0)?;
        self.tell.linger(1)
    }

    fn swapped(&mut self) -> Result<()> {
        self.tell.fault(
            "pod web-2 is replaced by the pod spare in the API, but not in the rules, which still \
             send a third of web's connections to web-2",
        );
        let spare = self.scene.world.pod("spare");
        self.scene.manifests.swap_endpoint("web", "web-2", spare)?;
        self.scene.servers.remove("web-2");
        let wanted = (
            "endpoint swapped, rules not",
            "degraded, names demo/web, still 200",
            10.0,
        );
        self.tell.expect(wanted, |view| {
            view.has(200, "degraded") && blames(&view.verdict.0, "demo/web")
        })?;
        self.tell.note(
            "one failing Service is not a reason to remove the node; rules that lag for 15 s are",
        );
        let wanted = ("rules 15 s behind", "stale, 503", 22.0);
        self.tell.expect(wanted, |view| view.has(503, "stale"))?;
        self.tell.act("update the rules");
        self.scene.rules.install()?;
        self.mended("rules repaired", 18.0)
    }

    fn tainted(&mut self) -> Result<()> {
        self.tell.act(
            "the cluster autoscaler marks the node for removal (taint \
             ToBeDeletedByClusterAutoscaler)",
        );
        self.scene.manifests.taint(AUTOSCALER_TAINT)?;
        let wanted = ("node tainted", "/healthz 503, /livez 200", 0.2);
        self.tell.expect(wanted, |view| {
            (view.codes.healthz, view.codes.livez) == (503, 200)
        })?;
        self.tell.act("remove the taint");
        self.scene.manifests.untaint()?;
        self.mended("taint removed", 1.0)
    }

    fn killed(&mut self) -> Result<()> {
        self.tell.fault("kill -9 the agent");
        self.scene.take_agent().kill()?;
        self.tell.linger(2)?;
        self.tell.unharmed(("agent killed", "clients unaffected"));
        let pins = self.scene.world.pin_dir();
        let seen = match pins.exists() {
            true => "in the kernel",
            false => "the folder of the pins is gone",
        };
        let row = ("agent killed", "its programs stay");
        self.tell.add_row(row, pins.exists(), seen);
        self.tell
            .act("start it again: it takes over programs, counts and verdict");
        self.scene.spawn(&OPTIONS);
        let wanted = ("agent restarted", "200 again", 3.0);
        self.tell.expect(wanted, |view| view.is(200))?;
        let row = ("agent restarted", "200 from its first answer");
        self.tell.never(row, |codes| codes.healthz == 503);
        Ok(())
    }
}
