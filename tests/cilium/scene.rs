//! A node whose Services the real Cilium translates: control plane, Cilium, Services with servers, and
//! pathproof's agent with the rights of deploy/base.
//!
//! - web: load balancer, endpoints web-1, web-2 (local) and web-3 (remote)
//! - api: node port 30081, endpoint api-1 (local)
//! - far: node port 30082, endpoint web-3 (remote)
//!
//! client-1, client-2 and spare are local pods without a Service.

use std::ops::{Deref, DerefMut};

use node_tests::built::versions::{CILIUM, CILIUM_1_15, Release};
use node_tests::cgroup::Cgroup;
pub(crate) use node_tests::cluster::PATIENCE;
use node_tests::cluster::{self, ControlPlane, PORT, Servers};
use node_tests::prelude::*;
pub(crate) use node_tests::scene::assert_never_503;
use node_tests::traffic::Tally;
use node_tests::world::write_script;

use crate::cilium::{Cilium, Programs};

/// Node ports of api and far.
const API: u16 = 30_081;
const FAR: u16 = 30_082;

/// How the translation is divided between Cilium and kube-proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxySetup {
    release: Release,
    options: &'static str,
    /// Whether kube-proxy runs in addition to Cilium.
    has_proxy: bool,
}

/// Cilium replaces kube-proxy, with Cilium's defaults: connections of pods are translated when their sockets
/// connect.
pub(crate) const REPLACING: ProxySetup = ProxySetup {
    release: CILIUM,
    options: "--kube-proxy-replacement=true",
    has_proxy: false,
};
/// Cilium replaces kube-proxy, but connections of pods are translated at the pods' interfaces.
pub(crate) const HOST_SOCKETS: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-sock-hostns-only=true",
    ..REPLACING
};
/// [`HOST_SOCKETS`] with filters of clsact, as on Linux before 6.6.
pub(crate) const CLSACT: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-sock-hostns-only=true --enable-tcx=false",
    ..REPLACING
};
/// [`HOST_SOCKETS`] with VXLAN between nodes.
pub(crate) const TUNNEL: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-sock-hostns-only=true --routing-mode=tunnel \
              --tunnel-protocol=vxlan",
    ..REPLACING
};
/// Cilium replaces kube-proxy, and other nodes answer outside clients directly (DSR).
pub(crate) const DIRECT_RETURN: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-mode=dsr",
    ..REPLACING
};
/// Cilium replaces kube-proxy, and XDP translates connections from outside.
pub(crate) const XDP: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-acceleration=native",
    ..REPLACING
};
/// Cilium replaces kube-proxy, and also translates at the sentinel's interfaces.
pub(crate) const MANAGING: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=true --bpf-lb-external-clusterip=true \
              --devices=pathproof-c0,pathproof-s0",
    ..REPLACING
};
/// Cilium serves pods, and kube-proxy all other clients.
pub(crate) const MIXED: ProxySetup = ProxySetup {
    options: "--kube-proxy-replacement=false",
    has_proxy: true,
    ..REPLACING
};
/// [`REPLACING`] with the older release.
pub(crate) const OLD: ProxySetup = ProxySetup {
    release: CILIUM_1_15,
    ..REPLACING
};
/// [`MIXED`] with the older release.
pub(crate) const OLD_MIXED: ProxySetup = ProxySetup {
    release: CILIUM_1_15,
    ..MIXED
};

impl ProxySetup {
    pub(crate) fn has_xdp(self) -> bool {
        self.options.contains("--bpf-lb-acceleration=native")
    }

    /// Paths on which the observer can see connections to Services.
    pub(crate) fn seen(self) -> impl Iterator<Item = &'static str> {
        let are_sockets_translated = !self.has_proxy && !self.options.contains("hostns-only");
        let pods = (!are_sockets_translated).then_some("pod");
        let outside = (!self.has_xdp()).then_some("external");
        pods.into_iter().chain(outside)
    }

    /// Whether the report describes this setup, with the proxy of each path.
    pub(crate) fn is_recognised(self, report: &Value) -> bool {
        let datapath = &report["datapath"];
        let accelerated = datapath["accelerated"].as_array();
        let has_xdp = accelerated.is_some_and(|devices| !devices.is_empty());
        let (replacement, outside) = match self.has_proxy {
            true => ("no", "kube_proxy_nftables"),
            false => ("yes", "cilium"),
        };
        let owned = |path: &Value| match path["path"] == "pod" {
            true => path["owners"] == json!(["cilium"]),
            false => path["owners"] == json!([outside]),
        };
        let paths = datapath["paths"].as_array();
        datapath["cilium"]["replacement"] == replacement
            && has_xdp == self.has_xdp()
            && paths.is_some_and(|paths| !paths.is_empty() && paths.iter().all(owned))
    }

    fn has_direct_return(self) -> bool {
        self.options.contains("--bpf-lb-mode=dsr")
    }
}

pub(crate) struct Scene {
    pub(crate) cilium: Cilium,
    base: cluster::Scene,
    setup: ProxySetup,
}

impl Drop for Scene {
    /// Ends clients and agent before Cilium, because they are in Cilium's cgroup.
    fn drop(&mut self) {
        self.base.clients.clear();
        self.base.agent = None;
    }
}

impl Deref for Scene {
    type Target = cluster::Scene;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.base
    }
}

impl Scene {
    /// A cluster with Services and Cilium, without pathproof.
    pub(crate) fn bare(setup: ProxySetup) -> Needed<Self> {
        let mut scene = Self::before_cilium(setup)?;
        scene.restart_cilium();
        scene.wait_served();
        Ok(scene)
    }

    /// A cluster with Services, in which Cilium does not run yet.
    pub(crate) fn before_cilium(setup: ProxySetup) -> Needed<Self> {
        skip::root()?;
        let servers = Servers::needed()?;
        let programs = skip::needed(Programs::find(setup.release))?;
        let cgroup = Cgroup::of_threads()?;
        let world = World::builder().masquerade_egress(false);
        let base = cluster::Scene::new(world, servers, Mode::Nftables, services);
        let cilium = Cilium::new(&base.world, &base.api, programs, cgroup);
        let cilium = cilium.expect("Cilium's mounts and kinds of objects");
        let mut scene = Self {
            cilium,
            base,
            setup,
        };
        if setup.has_proxy {
            scene.start_proxy_by(ControlPlane::address());
        }
        if setup.has_direct_return() {
            scene.return_directly();
        }
        Ok(scene)
    }

    /// Makes the other node answer outside clients with the dialled node port as the source, as its Cilium
    /// would.
    fn return_directly(&self) {
        for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            let pod = self.world.pod("web-3").address(family);
            let client = self.world.outside_client(0, family);
            let node = self.world.node_address(family);
            let table = format!(
                "table {word} dsr {{ chain out {{ type filter hook postrouting priority 300; \
                 {word} saddr {pod} {word} daddr {client} tcp sport {PORT} \
                 {word} saddr set {node} tcp sport set {FAR}; }}\n}}\n"
            );
            self.world.worker.nft(&table).expect("direct return");
        }
    }

    /// [`Self::bare`] with pathproof, without traffic. Waits until the node is proven in both families.
    pub(crate) fn proven(setup: ProxySetup) -> Needed<Self> {
        let mut scene = Self::bare(setup)?;
        scene.start_agent(&[]);
        scene.wait_for("proven", 200, PATIENCE);
        Ok(scene)
    }

    /// Waits until all clients succeed, because Cilium reports ready before it has compiled its programs.
    pub(crate) fn wait_served(&self) {
        for plan in self.plans() {
            let mut skip = 0;
            let mut last = None;
            let served = until(PATIENCE, || {
                skip += 1;
                last = plan.once(skip).err();
                last.is_none().then_some(())
            });
            assert!(
                served.is_some(),
                "{} to {}: {last:?}",
                plan.name,
                plan.target
            );
        }
    }

    /// Replaces Cilium's agent by a new one with the same state.
    pub(crate) fn restart_cilium(&mut self) {
        let config = self.control.admin_kubeconfig();
        let (world, options) = (&self.base.world, self.setup.options);
        let started = self.cilium.start(world, &config, options);
        started.expect("Cilium's agent");
    }

    /// Restarts Cilium's agent with the options of another setup, and waits until traffic is served.
    pub(crate) fn restart_cilium_as(&mut self, setup: ProxySetup) {
        self.setup = setup;
        self.restart_cilium();
        self.wait_served();
    }

    /// Starts pathproof as in its pod, in a cgroup below Cilium's and with four capabilities. Waits until it
    /// is ready.
    pub(crate) fn start_agent(&mut self, extra: &[&str]) {
        let binary = agent_binary().expect("the agent's binary");
        let (cgroup, agent) = (self.cilium.cgroup.path().display(), binary.display());
        let text = format!(
            "#!/bin/sh\nset -e\necho $$ > {cgroup}/cgroup.procs\n\
             exec setpriv --no-new-privs --inh-caps -all \
             --bounding-set -all,+bpf,+net_admin,+perfmon,+net_raw {agent} \"$@\"\n"
        );
        let wrapped = self.world.dir().join("in-cgroup");
        write_script(&wrapped, &text).expect("write a script");
        self.start_as_agent(&wrapped, extra);
    }

    /// In both families, two pods dial web and api, and an outside client dials the node port of api. With
    /// direct return, another outside client dials the node port of far. Pods are in cgroups below Cilium's.
    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let threads = self.cilium.cgroup.path().join("cgroup.threads");
        for family in Family::ALL {
            for service in ["web", "api"] {
                for pod in ["client-1", "client-2"] {
                    let target = self.inside(service, family);
                    let mut plan = Plan::from_pod(&self.world, self.world.pod(pod), target);
                    plan.ns = plan.ns.in_cgroup(&threads);
                    plans.push(plan);
                }
            }
            plans.push(self.outside_plan(API, family));
            if self.setup.has_direct_return() {
                plans.push(self.outside_plan(FAR, family));
            }
        }
        plans
    }

    pub(crate) fn outside_traffic(&mut self) {
        for family in Family::ALL {
            let plan = self.outside_plan(API, family);
            self.run(plan.rate(7.0));
        }
    }

    pub(crate) fn traffic(&mut self) {
        for plan in self.plans() {
            self.run(plan.rate(7.0));
        }
    }

    /// Tally of new outside clients during this time.
    pub(crate) fn outside_felt(&self, time: Duration) -> Tally {
        // Wait, so that earlier connections end.
        thread::sleep(Duration::from_secs(1));
        let clients = Family::ALL.map(|family| {
            let plan = self.outside_plan(API, family).rate(7.0);
            plan.start().expect("a client")
        });
        thread::sleep(time);
        clients.into_iter().map(Client::finish).sum()
    }

    pub(crate) fn delete_rules(&self) {
        let tables = "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n";
        self.world.node.nft(tables).expect("delete");
    }

    /// Waits until this path has this state in both families.
    pub(crate) fn wait_path(&self, path: &str, state: &str) {
        self.wait(&format!("{path} {state}"), |report| {
            let is = |family| path_of(report, family, path) == state;
            Family::ALL.into_iter().all(is)
        });
    }

    pub(crate) fn felt(&self) -> Tally {
        self.clients.iter().map(Client::tally).sum()
    }

    /// Starts to poll /healthz and /livez from outside, and waits until both are 200.
    pub(crate) fn watch(&self) -> Watch {
        let watch = self.base.watch();
        self.answers(&watch, 200, Instant::now());
        watch
    }

    /// Waits until /healthz and /livez both have this code. Returns the time since `start`.
    pub(crate) fn answers(&self, watch: &Watch, code: u16, start: Instant) -> Duration {
        let answered = watch.wait(PATIENCE, |codes| [codes.healthz, codes.livez] == [code; 2]);
        let at = answered.unwrap_or_else(|error| {
            let (felt, status) = (self.felt(), self.status());
            panic!("never {code}: {error:#}; felt: {felt:?}; {status}")
        });
        at.saturating_duration_since(start)
    }

    pub(crate) fn assert_cause(&self, cause: &str) {
        let report = self.report();
        assert_eq!(report["verdict"]["cause"], cause, "{}", self.status());
    }

    pub(crate) fn status(&self) -> String {
        let output = self.agent().command(&["status"]).output();
        String::from_utf8_lossy(&output.expect("run the agent").stdout).into_owned()
    }
}

fn services(world: &World) -> Vec<Service> {
    let far = Service::new("far", 2, [world.pod("web-3")]).node_port(FAR);
    let mut all = cluster::services(world);
    all.push(far);
    all
}
