//! `pathproof check` without an agent: the agent's own parts, without listeners, pins and state,
//! for a few seconds; then everything is removed.

use std::fs;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::agent::Agent;
use super::probing::Probing;
use super::{AppError, Inputs, follow, load};
use crate::config::Config;
use crate::datapath::devices::Interfaces;
use crate::lifecycle::Shutdown;
use crate::metrics::Metrics;
use agent_core::limits::Limits;
use agent_core::node::Condition;
use agent_core::report::Report;

/// The cluster view is read and devices are made within this, or never.
const SETUP: Duration = Duration::from_secs(10);

/// Probes for so long.
///
/// # Errors
/// What kept it from probing. Whatever happens, nothing is left behind.
pub async fn check(config: Config, time: Duration) -> Result<(Report, Duration), AppError> {
    let mut shutdown = Shutdown::listen()?;
    let (probing, inbox) = (config.sentinel.clone())
        .map(|of| Probing::new(of, None))
        .unzip();
    let (updates, _) = follow(&config).await?;
    let mut inputs = Inputs::new(updates, inbox, mpsc::channel(1).1).await?;
    let interfaces = inputs.interfaces();
    let beside = probing
        .as_ref()
        .and_then(|probing| in_use(probing, &interfaces));
    if let Some(device) = beside {
        return Err(format!(
            "another process sends probes through {device}: an agent runs on this node; give its \
             admin port with --admin-address, or end it"
        )
        .into());
    }
    let loaded = load(&config)?;
    let mut agent = Agent::new(config, loaded, probing, Limits::one_shot(), Metrics::new());
    agent.follow_interfaces(interfaces);
    let begun = tokio::select! {
        signal = shutdown.requested() => Err(format!(
            "ended by {signal} before anything was known; nothing is left behind"
        )),
        begun = turn(&mut agent, &mut inputs, time) => Ok(begun),
    };
    // What came last counts, and is judged.
    agent.sample();
    let report = agent.report.borrow().clone();
    agent.end(false).await;
    let time = begun?.map_or(Duration::ZERO, |begun| begun.elapsed());
    let report = report.as_deref().cloned().ok_or("nothing was judged")?;
    Ok((report, time))
}

/// The agent's loop until the time is up, or there is nothing to wait for. Returns when the first
/// probe was to be sent.
async fn turn(agent: &mut Agent, inputs: &mut Inputs, time: Duration) -> Option<Instant> {
    let mut begun = None;
    let mut end = Instant::now() + SETUP;
    while tokio::time::timeout_at(end, inputs.turn(agent))
        .await
        .is_ok()
    {
        match agent.node.sentinel().map(|of| of.condition()) {
            Some(Condition::Probing) if begun.is_none() => {
                begun = Some(Instant::now());
                end = Instant::now() + time;
            }
            Some(Condition::Probing | Condition::Settling) => {}
            _ if agent.node.view().is_synced() => break,
            _ => {}
        }
    }
    begun
}

/// The sentinel's client end, where a process other than this one writes probes to it: its packet
/// socket receives nothing, so its protocol is 0. A capture's is not.
fn in_use(probing: &Probing, interfaces: &Interfaces) -> Option<String> {
    let [name, _] = probing.far_ends();
    let found = interfaces
        .devices
        .iter()
        .find(|device| device.name == name)?;
    let sockets = fs::read_to_string("/proc/net/packet").ok()?;
    is_written_to(&sockets, found.index).then_some(name)
}

/// Columns of /proc/net/packet: sk RefCnt Type Proto Iface R Rmem User Inode.
fn is_written_to(sockets: &str, index: u32) -> bool {
    let index = index.to_string();
    sockets.lines().skip(1).any(|line| {
        let words = line.split_whitespace().skip(3).take(2);
        words.eq(["0000", index.as_str()])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probers_are_told_from_captures() {
        let sockets = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
000000001d2a5a7f 3      3    0000   12    1 0      0      4711
000000001d2a5a80 3      3    0003   13    1 0      0      4712
";
        assert!(is_written_to(sockets, 12));
        assert!(!is_written_to(sockets, 13));
        assert!(!is_written_to(sockets, 1));
    }
}
