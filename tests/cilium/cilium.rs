//! The real Cilium agent on the node of a world, where it compiles and attaches its programs. There is no
//! operator.
//!
//! Its mount namespace outlives the agent, as on a real node. bpffs and /sys are private, and a cgroup of the
//! test replaces the root of all cgroups. Files of the world cover the two global kernel settings that
//! Cilium writes. The test adds the world's pods through Cilium's API, as its CNI plugin does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aya::maps::{self, HashMap, MapData};
use node_tests::built;
use node_tests::built::versions::{CILIUM_1_15, Release};
use node_tests::cgroup::Cgroup;
use node_tests::cluster::{Api, put_file};
use node_tests::prelude::*;
use node_tests::process::{Process, path_with};
use node_tests::world::layout::{CLUSTER_CIDRS, UPLINK};
use node_tests::world::{self, Pod, write_script};

/// Time for Cilium to compile its programs for the first time, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Modules that Cilium 1.15 needs for IPv6. It exits if the kernel does not list them. On a kernel without
/// modules, which has these built in or translates their rules to nftables, the test provides such a list.
const MODULES: &str = "ip6_tables ip6table_mangle ip6table_raw ip6table_filter";

/// Paths of Cilium's binary, of the sources of its eBPF programs, and of the compiler.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    release: Release,
    folder: PathBuf,
    clang: PathBuf,
}

impl Programs {
    pub(crate) fn find(release: Release) -> Result<Self> {
        let folder = built::folder(release.folder, release.version);
        if release == CILIUM_1_15 {
            // Cilium 1.15 runs bpftool to detect the kernel's features.
            world::tool("bpftool").context("bpftool (Debian's package bpftool)")?;
        }
        let clang = ["clang-22", "clang"].into_iter().find_map(world::tool);
        let clang = clang.context("clang (Debian's package clang-22)")?;
        ensure!(
            folder.join("daemon").is_file(),
            "Cilium {} (run `cargo xtask setup-cluster --cilium`)",
            release.version
        );
        Ok(Self {
            release,
            folder,
            clang,
        })
    }

    fn is_old(&self) -> bool {
        self.release == CILIUM_1_15
    }
}

/// Cilium on a node. It ends when dropped. Its mounts, with its programs in bpffs, outlive its agent.
#[derive(Debug)]
pub(crate) struct Cilium {
    agent: Option<Process>,
    /// A process that keeps the mount namespace alive.
    keeper: Process,
    dir: PathBuf,
    programs: Programs,
    /// Replaces the root of all cgroups. Dropped last, because only an empty cgroup can be removed.
    pub(crate) cgroup: Cgroup,
}

impl Cilium {
    /// Prepares the mounts, and the custom resource definitions that Cilium's operator would create. Does not
    /// start the agent.
    pub(crate) fn new(
        world: &World,
        api: &Api,
        programs: Programs,
        cgroup: Cgroup,
    ) -> Result<Self> {
        for version in ["crds/v2", "crds/v2alpha1"] {
            for entry in fs::read_dir(programs.folder.join(version))? {
                let file = entry?.path();
                if file.extension() == Some("yaml".as_ref()) {
                    put_file(api, &file)?;
                }
            }
        }
        let dir = world.dir().join("cilium");
        for folder in ["run/cgroupv2", "lib", "bin"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        symlink(programs.folder.join("bpf"), dir.join("lib/bpf"))?;
        // Cilium 1.15 treats warnings as errors, and this newer compiler has more warnings. It also reads
        // uninitialised variables, for which this compiler emits code that the kernel refuses.
        let flags = match programs.is_old() {
            true => " -w -ftrivial-auto-var-init=zero",
            false => "",
        };
        let clang = programs.clang.display();
        let compiler = format!("#!/bin/sh\nexec {clang} \"$@\"{flags}\n");
        write_script(&dir.join("bin/clang"), &compiler)?;
        let mut command = world.node.command("unshare");
        command
            .args(["--mount", "--propagation", "private"])
            .args(["sh", "-c", include_str!("cilium/mounts.sh"), "mounts"])
            .args([dir.as_path(), cgroup.path()])
            .args(MODULES.split(' ').filter(|_| programs.is_old()));
        let mut keeper = Process::start(command, "cilium-mounts", &dir)?;
        let made = dir.join("made");
        keeper.wait("mounts", PATIENCE, || made.exists())?;
        Ok(Self {
            agent: None,
            keeper,
            dir,
            programs,
            cgroup,
        })
    }

    /// Replaces the running agent by a new one, and waits until it is ready and has the pods. `options` are
    /// added to the options that every agent gets.
    pub(crate) fn start(&mut self, world: &World, kubeconfig: &str, options: &str) -> Result<()> {
        self.agent = None;
        let dir = self.dir.display().to_string();
        fs::write(self.dir.join("kubeconfig"), kubeconfig)?;
        let bin = self.dir.join("bin");
        // If a folder of links covers /proc, add a link for this process.
        let script = format!("[ ! -d {dir}/proc ] || ln -s {dir}/proc/$$ /proc/$$; exec \"$@\"");
        let mut command = world.node.command("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid()))
            .args(["sh", "-c", &script, "start"])
            .arg(self.programs.folder.join("daemon"))
            .args(always(&dir).split_whitespace())
            .args(
                (!self.programs.is_old())
                    .then(|| format!("--shell-sock-path={dir}/run/shell.sock")),
            )
            .args(options.split_whitespace())
            .env("K8S_NODE_NAME", &world.node_name)
            .env("PATH", path_with([bin]))
            .env("XTABLES_LOCKFILE", self.dir.join("run/xtables.lock"));
        let agent = Process::start(command, "cilium-agent", &self.dir)?;
        let socket = self.dir.join("run/cilium.sock");
        self.agent.insert(agent).wait("ready", PATIENCE, || {
            let health = request(&socket, "GET", "/v1/healthz", "");
            health.is_ok_and(|health| health["cilium"]["state"] == "Ok")
        })?;
        // Ignore the error: a new agent already has the pods of the previous one.
        for pod in world.pods().filter(|pod| pod.place != Place::Remote) {
            match take(&socket, world, pod) {
                Err(error) if error.to_string().contains("already exists") => {}
                taken => taken.with_context(|| format!("Cilium takes {}", pod.name))?,
            }
        }
        Ok(())
    }

    pub(crate) fn signal(&self, number: i32) {
        let agent = self.agent.as_ref();
        agent.expect("Cilium's agent runs").signal(number);
    }

    /// Removes all frontends from Cilium's tables. Returns a function that restores them.
    pub(crate) fn empty_tables(&self) -> Result<impl FnOnce() + use<>> {
        let pins = self.pins().join("tc/globals");
        let fill_v4 = empty::<12>(&pins.join("cilium_lb4_services_v2"))?;
        let fill_v6 = empty::<24>(&pins.join("cilium_lb6_services_v2"))?;
        Ok(|| {
            fill_v4();
            fill_v6();
        })
    }

    /// Detaches Cilium's ingress program from the uplink.
    pub(crate) fn detach_from_uplink(&self, world: &World) -> Result<()> {
        let links = format!("cilium/devices/{UPLINK}/links/cil_from_netdev");
        let pin = self.pins().join(links);
        if pin.exists() {
            return Ok(fs::remove_file(pin)?);
        }
        // Without the link, the program is attached as a filter of clsact.
        let filter = format!("filter del dev {UPLINK} ingress pref 1\n");
        world.node.tc_batch(&filter)
    }

    pub(crate) fn detach_from_sockets(&self) -> Result<()> {
        let links = self.pins().join("cilium/socketlb/links/cgroup");
        for program in ["cil_sock4_connect", "cil_sock6_connect"] {
            fs::remove_file(links.join(program)).context(program)?;
        }
        Ok(())
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/sys/fs/bpf", self.keeper.pid()))
    }
}

/// Removes all entries from a map with keys of this size. Returns a function that restores them.
fn empty<const KEY: usize>(pin: &Path) -> Result<impl FnOnce() + use<KEY>> {
    let map = maps::Map::HashMap(MapData::from_pin(pin)?);
    let mut map: HashMap<MapData, [u8; KEY], [u8; 12]> = map.try_into()?;
    let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
    for (key, _) in &entries {
        map.remove(key)?;
    }
    Ok(move || {
        for (key, value) in entries {
            map.insert(key, value, 0).expect("put an entry back");
        }
    })
}

/// Options that every agent gets, with its files in `dir`. Envoy, Hubble and health checks between nodes are
/// off, because no test needs them.
fn always(dir: &str) -> String {
    let (v4, v6) = CLUSTER_CIDRS;
    format!(
        "--k8s-kubeconfig-path={dir}/kubeconfig --state-dir={dir}/run --lib-dir={dir}/lib \
         --socket-path={dir}/run/cilium.sock --cgroup-root={dir}/run/cgroupv2 --bpf-root=/sys/fs/bpf \
         --devices={UPLINK} --ipam=kubernetes --enable-ipv4=true --enable-ipv6=true \
         --routing-mode=native --ipv4-native-routing-cidr={v4} --ipv6-native-routing-cidr={v6} \
         --identity-allocation-mode=crd --enable-monitor=false --enable-l7-proxy=false \
         --enable-hubble=false --enable-health-checking=false --enable-endpoint-health-checking=false"
    )
}

/// Adds a pod as Cilium's CNI plugin does, and waits until Cilium's programs are attached to its device.
fn take(socket: &Path, world: &World, pod: &Pod) -> Result<()> {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let (inside, host) = pod.link();
    let endpoint = json!({
        "addressing": { "ipv4": pod.v4, "ipv6": pod.v6 },
        "container-id": pod.name,
        "container-interface-name": "eth0",
        "host-mac": mac(host),
        "mac": mac(inside),
        "interface-index": world.node.ifindex(&pod.device)?,
        "interface-name": pod.device,
        "labels": [format!("unspec:app={}", pod.name)],
        "state": "waiting-for-identity",
        "sync-build-endpoint": true,
    });
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.name);
    request(socket, "PUT", &path, &endpoint.to_string())?;
    // Turn off the reverse path filter: from now on Cilium's route to all its pods leads through its
    // programs, so a pod's packets arrive from another device than the one in this route.
    let filter = format!("net/ipv4/conf/{}/rp_filter", pod.device);
    world.node.sysctl(&filter, "0")?;
    // Use `flush`, which also succeeds if the route is missing. That happened once on a busy machine.
    let (v4, v6) = (pod.v4, pod.v6);
    world.node.ip(&format!("route flush exact {v4}/32"))?;
    world.node.ip(&format!("-6 route flush exact {v6}/128"))?;
    Ok(())
}

fn request(socket: &Path, method: &str, path: &str, body: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: cilium\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path}: {status}: {body}");
    Ok(serde_json::from_str(body).unwrap_or(Value::Null))
}
