//! While the agent runs, the file system of its pins is unmounted or covered by another one, or the folder is
//! removed. Links stay attached as long as the agent has them open. The agent continues to observe, reports
//! that a restart would leave a gap, and pins the same links again as soon as it can.

use std::path::PathBuf;
use std::process::Command;

use aya::programs::TcAttachType;
use node_tests::prelude::*;
use node_tests::process::Process;
use pathproof_wire::abi::ABI_VERSION;

use crate::agent_kernel::programs_at;

/// Longer than two intervals between checks of the hooks.
const TWO_CHECKS: Duration = Duration::from_secs(11);
const DEVICE: &str = "veth-client-1";

/// A process with its own mount namespace and BPF file system. Both end with the process.
struct Mounts(Process);

impl Mounts {
    fn new(scene: &Scene) -> Self {
        let up = scene.world.dir().join("mounted");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg(format!(
            "umount -l /sys/fs/bpf; mount -t bpf bpf /sys/fs/bpf && touch {} && exec sleep infinity",
            up.display()
        ));
        let mut process = Process::start(command, "mounts", scene.world.dir()).expect("mounts");
        let mounted = process.wait("a file system", PATIENCE, || up.exists());
        mounted.expect("a BPF file system");
        Self(process)
    }

    fn command(&self) -> String {
        format!("nsenter --target {} --mount", self.0.pid())
    }

    fn run(&self, command: &str) -> bool {
        let line = format!("{} {command}", self.command());
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).status().expect("run").success()
    }

    fn agent(&self, scene: &Scene) -> PathBuf {
        let agent = agent_binary().expect("the agent's binary");
        scene.wrapped(&self.command(), &agent)
    }
}

fn start(scene: &mut Scene, mounts: &Mounts) {
    scene.spawn_binary(mounts.agent(scene), &[]);
    let agent = scene.agent.as_mut().expect("just started");
    agent.wait_ready(PATIENCE).expect("a ready agent");
}

/// Makes a proven node whose agent has a separate mount namespace.
fn scene() -> (Scene, Mounts) {
    let mut scene = Scene::bare(Backend::Nftables);
    let mounts = Mounts::new(&scene);
    start(&mut scene, &mounts);
    scene.traffic();
    scene.wait_proven();
    assert!(is_pinned(&scene, &mounts), "pinned at the start");
    (scene, mounts)
}

fn is_pinned(scene: &Scene, mounts: &Mounts) -> bool {
    let index = scene.world.node.ifindex(DEVICE).expect("a device");
    let folder = scene.world.pin_dir().join(format!("v{ABI_VERSION}"));
    let mut pins = ["maps/PROOFS".to_owned()]
        .into_iter()
        .chain(["ingress", "egress"].map(|hook| format!("links/{index}-{hook}")));
    pins.all(|pin| mounts.run(&format!("test -e {}", folder.join(pin).display())))
}

/// Asserts that the agent observes everything, by the same links as at its start.
fn stays_sound(scene: &Scene) {
    throughout(TWO_CHECKS, || {
        let report = scene.report();
        let coverage = &report["verdict"]["coverage"];
        let count = |name: &str| coverage[name].as_u64().unwrap_or_default();
        let is_attached = count("wanted") > 1 && count("attached") == count("wanted");
        let is_proven = report["verdict"]["state"] == "proven";
        assert!(is_attached && is_proven, "{:#}", report["verdict"]);
    });
    assert_eq!(repairs(scene), 0, "the same links all the time");
}

/// Asserts that the programs outlive the agent, and that the next agent continues to use the same links.
fn outlives_the_agent(scene: &mut Scene, mounts: &Mounts) {
    scene.take_agent().kill().expect("kill");
    let programs = programs_at(&scene.world.node, DEVICE, TcAttachType::Ingress);
    assert_eq!(programs.len(), 1, "{programs:?}");
    start(scene, mounts);
    scene.wait_proven();
    let programs = programs_at(&scene.world.node, DEVICE, TcAttachType::Ingress);
    assert_eq!(programs.len(), 1, "{programs:?}");
    assert_eq!(repairs(scene), 0);
}

/// `harm` and `remedy` are commands in the agent's mount namespace. Without a remedy, the agent repairs the
/// harm by itself.
#[rstest]
#[case::unmounted("umount /sys/fs/bpf", Some("mount -t bpf bpf /sys/fs/bpf"))]
#[case::covered_by_another_kind("mount -t tmpfs none /sys/fs/bpf", Some("umount /sys/fs/bpf"))]
#[case::folder_removed("rm -r PINS", None)]
fn links_are_kept_and_pinned_again(#[case] harm: &str, #[case] remedy: Option<&str>) {
    let (mut scene, mounts) = scene();
    let watch = scene.watch();
    let harm = harm.replace("PINS", &scene.world.pin_dir().to_string_lossy());
    assert!(mounts.run(&harm), "{harm}");
    assert!(!is_pinned(&scene, &mounts), "{harm}");
    if let Some(remedy) = remedy {
        scene.wait("reported", |report| lacks(report, "no_pins"));
        stays_sound(&scene);
        assert!(mounts.run(remedy), "{remedy}");
    }
    eventually("pinned again", || is_pinned(&scene, &mounts));
    scene.wait("reported no more", |report| !lacks(report, "no_pins"));
    stays_sound(&scene);
    assert_never_503(&watch);
    outlives_the_agent(&mut scene, &mounts);
}

/// The folder of links is read-only; existing pins stay. The agent must not attempt to pin the new link again
/// and again: each attempt would detach the link and attach it at the next check.
#[test]
fn a_link_that_cannot_be_pinned_stays_attached() {
    let (scene, mounts) = scene();
    let is_pinned = || {
        let index = scene.world.node.ifindex("late").expect("a device");
        let links = scene.world.pin_dir().join(format!("v{ABI_VERSION}/links"));
        mounts.run(&format!("test -e {}/{index}-ingress", links.display()))
    };
    assert!(mounts.run("mount -o remount,ro /sys/fs/bpf"));
    let node = &scene.world.node;
    node.ip("link add late type veth peer name later")
        .expect("a device");
    node.ip("link set late up").expect("up");
    scene.wait("reported", |report| lacks(report, "no_pins"));
    stays_sound(&scene);
    assert!(!is_pinned());
    assert!(mounts.run("mount -o remount,rw /sys/fs/bpf"));
    eventually("pinned", is_pinned);
    scene.wait("reported no more", |report| !lacks(report, "no_pins"));
    stays_sound(&scene);
}

/// The agent pins in the file system that is visible. When it is unmounted, the pins of the first one are in
/// use again.
#[test]
fn another_file_system_covers_the_first() {
    let (mut scene, mounts) = scene();
    let watch = scene.watch();
    assert!(mounts.run("mount -t bpf bpf /sys/fs/bpf"));
    assert!(!is_pinned(&scene, &mounts), "an empty one");
    eventually("pinned again", || is_pinned(&scene, &mounts));
    stays_sound(&scene);
    assert!(mounts.run("umount /sys/fs/bpf"));
    stays_sound(&scene);
    assert!(!lacks(&scene.report(), "no_pins"), "the first ones count");
    assert_never_503(&watch);
    outlives_the_agent(&mut scene, &mounts);
}
