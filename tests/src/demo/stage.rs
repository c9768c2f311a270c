//! The demo's world, its Services with servers and clients; and how it is left up.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::signals;
use super::timeline::{Style, Timeline, span};
use crate::manifests::Manifests;
use crate::process::Process;
use crate::rules::{Backend, Rules};
use crate::scene::{self, Scene};
use crate::traffic::{Client, Tally};
use crate::world::World;

/// Name of a kept world.
pub(super) const KEPT: &str = "pp-demo";

/// The world, Services and servers, without rules, agent and traffic.
pub(super) fn build(keep: bool) -> Result<Scene> {
    let mut pods = scene::pods();
    if keep {
        pods = pods.named(KEPT);
    }
    let world = pods.build().context(
        "create the namespaces (`cargo xtask demo --remove` removes those that were kept)",
    )?;
    furnish(world, "manifests")
}

/// Writes the Services into a folder of the world's, and starts their servers.
fn furnish(world: World, folder: &str) -> Result<Scene> {
    let manifests = Manifests::write_to(world.dir().join(folder), scene::services(&world))?;
    let mut scene = Scene {
        clients: Vec::new(),
        servers: BTreeMap::new(),
        agent: None,
        rules: Rules::new(&world, Backend::Nftables, manifests.dir()),
        manifests,
        world,
    };
    scene.serve_all();
    Ok(scene)
}

/// Leaves the world, the agent and, by another process, servers and clients up.
pub(super) fn keep(mut scene: Scene, binary: &Path, timeline: &mut Timeline) -> Result<()> {
    let dir = scene.world.dir().to_owned();
    let scripts = scene.rules.scripts()?.into_iter().map(|(_, text)| text);
    fs::write(dir.join("services.nft"), scripts.collect::<String>())?;
    // The other process serves at the same addresses.
    scene.servers.clear();
    let mut command = scene.world.node.command(std::env::current_exe()?);
    command.arg("--tend");
    Process::start_lasting(command, "clients", &dir)?.leave();
    scene.take_agent().leave();
    scene.world.keep();
    how_to_play(timeline, &dir.display().to_string(), binary);
    Ok(())
}

/// Servers and clients of a kept world, until a signal.
pub(super) fn tend() -> Result<()> {
    // The folder that agent and rules read may have changed since.
    let mut scene = furnish(scene::pods().named(KEPT).attach()?, "tended")?;
    scene.traffic();
    let mut before = Tally::default();
    while !signals::interrupted() {
        thread::sleep(Duration::from_secs(1));
        let now: Tally = scene.clients.iter().map(Client::tally).sum();
        let second = now - before;
        before = now;
        println!(
            "last second: {} answered, {} refused, {} timed out, {} otherwise failed",
            second.ok, second.refused, second.timeouts, second.other
        );
    }
    Ok(())
}

fn how_to_play(timeline: &mut Timeline, dir: &str, binary: &Path) {
    timeline.title("The namespaces still exist. As root, in any terminal:");
    let node = format!("ip netns exec {KEPT}-node");
    let text = format!(
        "   ask it    ip netns exec {KEPT}-outside curl -si http://192.0.2.10:10256/healthz
   read it   {node} {} status
   break it  {node} nft flush chain ip kube-proxy services
             {node} nft flush chain ip6 kube-proxy services
   mend it   {node} nft -f {dir}/services.nft
   taint it  edit {dir}/manifests/node.yaml (spec.taints)
   clients   tail -f {dir}/clients.log
   agent     tail -f {dir}/agent.log
   remove    cargo xtask demo --remove",
        binary.display()
    );
    for line in text.lines() {
        let (what, how) = line.split_at("   break it  ".len());
        timeline.print(vec![span(Style::ACT, what), span(Style::PLAIN, how)]);
    }
}
