//! Helm 3 and Helm 4 upgrade a release while the rotator moves the sentinel. Helm 4 applies on the server, which
//! refuses to change fields of another manager.

use node_tests::cluster::{ControlPlane, Process, base};
use node_tests::deploy::{Tool, said};
use node_tests::manifests::SENTINEL_SLICES;
use node_tests::prelude::*;

use crate::scene::PATIENCE;
use crate::shipped::Cluster;

const MANAGER: &str = "pathproof-rotator";
const AGENT: &str = "/apis/apps/v1/namespaces/pathproof/daemonsets/pathproof-agent";
/// Upgrades of a release: the Helm and its options.
type Upgrades = &'static [(Tool, &'static [&'static str])];
const OF_HELM_3: Upgrades = &[
    (Tool::Helm, &[]),
    (Tool::Helm4, &[]),
    (Tool::Helm4, &["--server-side=true", "--force-conflicts"]),
];
const OF_HELM_4: Upgrades = &[(Tool::Helm4, &[])];

#[test]
fn each_helm_upgrades_while_the_rotator_moves_the_sentinel() {
    let cluster = needs!(Cluster::start());
    needs!(Tool::Helm4.installed());
    for (installer, upgrades) in [(Tool::Helm, OF_HELM_3), (Tool::Helm4, OF_HELM_4)] {
        cluster.helm_of(installer, "install", &[]);
        let mut rotator = rotator(&cluster);
        for (count, (helm, options)) in upgrades.iter().enumerate() {
            let before = moved(&cluster, &rotator);
            let dwell = format!("agent.flapDwell={}s", 11 + count);
            let words = [&["--set", dwell.as_str()][..], *options].concat();
            cluster.helm_of(*helm, "upgrade", &words);
            let agent = cluster.api.get(AGENT).expect("the agent").to_string();
            let option = format!("--flap-dwell={}s", 11 + count);
            assert!(agent.contains(&option), "{agent}");
            let after = generation(&cluster).expect("the slice");
            assert!(after >= before, "{helm:?} {options:?}: {before} to {after}");
        }
        assert_conflict(&cluster);
        // A rotator that is killed keeps its Lease, and the next one would pause the rotation.
        rotator.terminate(PATIENCE).expect("the rotator ends");
        cluster.helm_of(Tool::Helm4, "uninstall", &[]);
    }
}

/// A rotator with the rights that the chart gives it.
fn rotator(cluster: &Cluster) -> Process {
    let server = ControlPlane::address();
    let (control, world) = (&cluster.control, &cluster.world);
    let config = control.account_kubeconfig(world, server, base::ROTATOR);
    let mut command = world.worker.command(agent_binary().expect("a binary"));
    command
        .args(["rotate", "--interval", "10", "--kubeconfig"])
        .arg(config.expect("a kubeconfig"));
    Process::start(command, "rotator", world.dir()).expect("a rotator")
}

/// Port of the sentinel's endpoint. The rotator must own all fields that somebody has set in the slice.
fn generation(cluster: &Cluster) -> Option<u64> {
    let slice = cluster.api.get(base::SLICE).ok()?;
    let owners = slice["metadata"]["managedFields"].as_array()?;
    for owner in owners {
        assert_eq!(owner["manager"], MANAGER, "{slice:#}");
    }
    slice["ports"][0]["port"].as_u64()
}

/// Waits until the rotator has moved the sentinel once more. Returns the new port.
fn moved(cluster: &Cluster, rotator: &Process) -> u64 {
    let before = until(PATIENCE, || generation(cluster));
    let before = before.unwrap_or_else(|| panic!("no slice: {}", rotator.log()));
    let moved = until(PATIENCE, || {
        generation(cluster).filter(|now| *now != before)
    });
    moved.unwrap_or_else(|| panic!("never moved: {}", rotator.log()))
}

/// The upgrades above show something only if the API server refuses a manifest with the slices, and names the
/// rotator.
fn assert_conflict(cluster: &Cluster) {
    let file = cluster.world.dir().join("slices.yaml");
    std::fs::write(&file, SENTINEL_SLICES).expect("write the slices");
    let mut apply = cluster.command(Tool::Kubectl);
    apply.args(["apply", "--server-side", "--field-manager=helm", "-f"]);
    let error = said(apply.arg(&file)).expect_err("a conflict");
    let error = format!("{error:#}");
    assert!(
        error.contains(MANAGER) && error.contains(".ports"),
        "{error}"
    );
}
