//! The real Cilium on the node of a world: its agent, which compiles and attaches its own programs,
//! without an operator.
//!
//! Its mount namespace outlives the agent, as a node's does: bpffs and /sys are private, a cgroup of the
//! test's stands for the root of all cgroups, and files of the world's cover the two settings of the
//! whole kernel that Cilium writes. Its API takes pods of the world, as its CNI plugin would hand them.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::bpf::Map;
use crate::built;
use crate::built::versions::{CILIUM, CILIUM_1_15, Release};
use crate::cgroup::Cgroup;
use crate::cluster::{Api, Process, create, documents};
use crate::world::layout::{CLUSTER_CIDRS, UPLINK};
use crate::world::{self, Place, Pod, World, write_script};

/// Time for Cilium to compile its programs for the first time, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Settings of the whole kernel that it writes (`pkg/datapath/loader/base.go`).
const GLOBAL_SETTINGS: [&str; 2] = ["kernel/unprivileged_bpf_disabled", "kernel/timer_migration"];

/// Modules without which 1.15 does without IPv6. A kernel without modules has them, or a translation of
/// them to nftables, built in.
const MODULES: &str = "ip6_tables ip6table_mangle ip6table_raw ip6table_filter";

/// Paths of its program, of the sources of its eBPF programs, and of the compiler.
#[derive(Clone, Debug)]
pub struct Programs {
    release: Release,
    folder: PathBuf,
    clang: PathBuf,
}

impl Programs {
    /// The programs; nothing, loudly, where something is missing. `PATHPROOF_CILIUM` names another folder
    /// of the newer release alone.
    pub fn or_skip(test: &str, release: Release) -> Option<Self> {
        let elsewhere = std::env::var_os("PATHPROOF_CILIUM").filter(|_| release == CILIUM);
        let built = built::folder(release.folder, release.version);
        let folder = elsewhere.map_or(built, PathBuf::from);
        let clang = ["clang-22", "clang"].into_iter().find_map(world::tool);
        // 1.15 asks it what the kernel can do.
        if release == CILIUM_1_15 && world::tool("bpftool").is_none() {
            eprintln!("SKIPPED: {test} needs bpftool (Debian's package bpftool)");
            return None;
        }
        match clang {
            Some(clang) if folder.join("daemon").is_file() => Some(Self {
                release,
                folder,
                clang,
            }),
            Some(_) => {
                eprintln!(
                    "SKIPPED: {test} needs Cilium {} (run `cargo xtask setup-cluster --cilium`)",
                    release.version
                );
                None
            }
            None => {
                eprintln!("SKIPPED: {test} needs clang (Debian's package clang-22)");
                None
            }
        }
    }

    /// Brings the kinds of objects that Cilium waits for, which its operator would bring.
    pub fn install(&self, api: &Api) -> Result<()> {
        let folders = ["v2", "v2alpha1"].map(|version| self.folder.join("crds").join(version));
        let files = folders
            .map(fs::read_dir)
            .into_iter()
            .collect::<std::io::Result<Vec<_>>>()?;
        for entry in files.into_iter().flatten() {
            let file = entry?.path();
            if file.extension().is_none_or(|kind| kind != "yaml") {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            for object in documents(&text)? {
                create(api, object).with_context(|| format!("of {}", file.display()))?;
            }
        }
        Ok(())
    }
}

/// Mounts of Cilium on a node, with its programs in bpffs. They outlive its agent.
#[derive(Debug)]
pub struct CiliumMounts {
    /// Keeps the mount namespace.
    keeper: Process,
    dir: PathBuf,
}

impl CiliumMounts {
    /// Makes them.
    pub fn new(world: &World, cgroup: &Cgroup) -> Result<Self> {
        let dir = world.dir().join("cilium");
        for folder in ["run/cgroupv2", "lib", "bin"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let file = dir.join("mounts");
        write_script(&file, &mounts(cgroup, &dir)?)?;
        let mut command = world.node.command("unshare");
        command
            .args(["--mount", "--propagation", "private"])
            .arg(file);
        let mut keeper = Process::start(command, "cilium-mounts", &dir)?;
        let made = dir.join("made");
        keeper.wait("mounts", PATIENCE, || made.exists())?;
        Ok(Self { keeper, dir })
    }

    /// Its tables of frontends, IPv4's and IPv6's.
    pub fn frontends(&self) -> Result<[Map; 2]> {
        let pins = self.pins().join("tc/globals");
        Ok([
            Map::pinned(&pins.join("cilium_lb4_services_v2"))?,
            Map::pinned(&pins.join("cilium_lb6_services_v2"))?,
        ])
    }

    /// Detaches its program of what comes in by the uplink.
    pub fn detach_from_uplink(&self, world: &World) -> Result<()> {
        let links = format!("cilium/devices/{UPLINK}/links/cil_from_netdev");
        let pin = self.pins().join(links);
        if pin.exists() {
            return fs::remove_file(&pin).with_context(|| format!("remove {}", pin.display()));
        }
        // A filter of clsact.
        world
            .node
            .tc_batch(&format!("filter del dev {UPLINK} ingress pref 1\n"))
    }

    /// Its bpffs, which nobody else has.
    fn pins(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/sys/fs/bpf", self.keeper.pid()))
    }

    fn namespace(&self) -> String {
        format!("--mount=/proc/{}/ns/mnt", self.keeper.pid())
    }
}

/// Cilium's agent; ends when dropped. Its programs stay.
#[derive(Debug)]
pub struct CiliumAgent {
    process: Process,
    dir: PathBuf,
}

impl CiliumAgent {
    /// Starts it and waits until it is ready. `options` come after the ones that are always given.
    pub fn start(
        world: &World,
        programs: &Programs,
        mounts: &CiliumMounts,
        kubeconfig: &str,
        options: &[&str],
    ) -> Result<Self> {
        let dir = mounts.dir.clone();
        fs::write(dir.join("kubeconfig"), kubeconfig)?;
        let file = dir.join("start");
        write_script(&file, &script(programs, &dir, options)?)?;
        let mut command = world.node.command("nsenter");
        command.env("K8S_NODE_NAME", world.node_name());
        command.arg(mounts.namespace()).arg(file);
        let process = Process::start(command, "cilium-agent", &dir)?;
        let mut agent = Self { process, dir };
        let socket = agent.socket();
        agent.process.wait("ready", PATIENCE, || {
            let health = request(&socket, "GET", "/v1/healthz", &Value::Null);
            health.is_ok_and(|health| health["cilium"]["state"] == "Ok")
        })?;
        Ok(agent)
    }

    /// Stops it where it is.
    pub fn freeze(&self) {
        self.process.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.signal(libc::SIGCONT);
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("run/cilium.sock")
    }

    /// Hands pods to it, as its CNI plugin does, and waits until their programs are attached. Pods that it
    /// remembers of an agent before it are its own already.
    pub fn adopt<'a>(&self, world: &World, pods: impl Iterator<Item = &'a Pod>) -> Result<()> {
        for pod in pods.filter(|pod| pod.place != Place::Remote) {
            match self.take(world, pod) {
                Err(error) if error.to_string().contains("already exists") => {}
                taken => taken.with_context(|| format!("Cilium takes {}", pod.name))?,
            }
        }
        Ok(())
    }

    fn take(&self, world: &World, pod: &Pod) -> Result<()> {
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
        request(&self.socket(), "PUT", &path, &endpoint)?;
        // From here on its own route leads to all its pods, through its own programs. What comes from a pod
        // comes by another device than that route names.
        let filter = format!("net/ipv4/conf/{}/rp_filter", pod.device);
        world.node.sysctl(&filter, "0")?;
        // `flush` succeeds where no route is left: one was missing once on a busy machine.
        let (v4, v6) = (pod.v4, pod.v6);
        world.node.ip(&format!("route flush exact {v4}/32"))?;
        world.node.ip(&format!("-6 route flush exact {v6}/128"))?;
        Ok(())
    }
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// A script that makes the mounts and keeps them until it is ended.
fn mounts(cgroup: &Cgroup, dir: &Path) -> Result<String> {
    let mut text = String::from("#!/bin/sh\nset -eu\n");
    for setting in GLOBAL_SETTINGS {
        let copy = dir.join(setting.replace('/', "-"));
        fs::write(&copy, "0\n")?;
        // Not every kernel has them.
        writeln!(
            text,
            "[ ! -e /proc/sys/{setting} ] || mount --bind {} /proc/sys/{setting}",
            copy.display()
        )?;
    }
    let (cgroup, dir) = (cgroup.path().display(), dir.display());
    writeln!(
        text,
        "mount --bind {cgroup} {dir}/run/cgroupv2\n\
         umount --recursive --lazy /sys\n\
         mount -t sysfs sysfs /sys\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         touch {dir}/made\n\
         exec sleep infinity"
    )?;
    Ok(text)
}

fn script(programs: &Programs, dir: &Path, options: &[&str]) -> Result<String> {
    let (run, lib, bin) = (dir.join("run"), dir.join("lib"), dir.join("bin"));
    let (run, lib, bin) = (run.display(), lib.display(), bin.display());
    let (folder, clang) = (programs.folder.display(), programs.clang.display());
    let is_old = programs.release == CILIUM_1_15;
    // It wants no warnings, and this compiler has more than the one of its time. It reads variables that were
    // not set, for which this compiler emits code that the kernel refuses.
    let flags = if is_old {
        " -w -ftrivial-auto-var-init=zero"
    } else {
        ""
    };
    let compiler = format!("#!/bin/sh\nexec {clang} \"$@\"{flags}\n");
    write_script(&dir.join("bin/clang"), &compiler)?;
    let modules = if is_old {
        list_modules(&dir.join("proc"))
    } else {
        String::new()
    };
    let mut text = format!(
        "#!/bin/sh\nset -eu\n{modules}\
         ln -sfn {folder}/bpf {lib}/bpf\n\
         export PATH={bin}:$PATH XTABLES_LOCKFILE={run}/xtables.lock\n\
         exec {folder}/daemon \\\n"
    );
    let (v4, v6) = CLUSTER_CIDRS;
    let run = run.to_string();
    let always = [
        (
            "k8s-kubeconfig-path",
            dir.join("kubeconfig").display().to_string(),
        ),
        ("state-dir", run.clone()),
        ("socket-path", format!("{run}/cilium.sock")),
        ("enable-monitor", "false".to_owned()),
        ("lib-dir", lib.to_string()),
        ("bpf-root", "/sys/fs/bpf".to_owned()),
        ("cgroup-root", format!("{run}/cgroupv2")),
        ("devices", UPLINK.to_owned()),
        ("ipam", "kubernetes".to_owned()),
        ("enable-ipv4", "true".to_owned()),
        ("enable-ipv6", "true".to_owned()),
        ("routing-mode", "native".to_owned()),
        ("ipv4-native-routing-cidr", v4.to_owned()),
        ("ipv6-native-routing-cidr", v6.to_owned()),
        ("identity-allocation-mode", "crd".to_owned()),
        // No Envoy, no relay and no health checks between nodes: nothing here asks for them.
        ("enable-l7-proxy", "false".to_owned()),
        ("enable-hubble", "false".to_owned()),
        ("enable-health-checking", "false".to_owned()),
        ("enable-endpoint-health-checking", "false".to_owned()),
    ];
    let shell = ("shell-sock-path", format!("{run}/shell.sock"));
    let newer = if is_old { None } else { Some(shell) };
    for (option, value) in always.into_iter().chain(newer) {
        writeln!(text, "  --{option}={value} \\")?;
    }
    writeln!(text, "  {}", options.join(" "))?;
    Ok(text)
}

/// Commands that make /proc/modules where the kernel has no modules: 1.15 ends without that file. Nothing can
/// be added to /proc itself, so a folder of links covers it, with one for the agent's process.
fn list_modules(proc: &Path) -> String {
    let proc = proc.display();
    format!(
        "if [ ! -e /proc/modules ]; then\n\
         mkdir {proc}\n\
         mount --rbind /proc {proc}\n\
         mount -t tmpfs tmpfs /proc\n\
         ln -s {proc}/[a-z]* /proc/\n\
         for module in {MODULES}; do echo $module 1 0 - Live 0x0; done > /proc/modules\n\
         fi\n\
         [ ! -d {proc} ] || ln -s {proc}/$$ /proc/$$\n"
    )
}

/// One request to its API.
fn request(socket: &Path, method: &str, path: &str, body: &Value) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
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
    if !status.starts_with('2') {
        bail!("{method} {path}: {status}: {body}");
    }
    Ok(serde_json::from_str(body).unwrap_or(Value::Null))
}
