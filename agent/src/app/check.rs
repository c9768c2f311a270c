//! `pathproof check` without an agent: the agent's own parts, without listeners, pins and state,
//! for a few seconds; then everything is removed.

use std::fs;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::agent::Agent;
use super::probing::Probing;
use super::turn::{Input, Inputs};
use super::{AppError, Shutdown, load, source};
use crate::config::Config;
use crate::datapath::devices::Interfaces;
use crate::metrics::Metrics;
use agent_core::limits::Limits;
use agent_core::node::Condition;
use agent_core::report::Report;

/// The cluster view is read and devices are made within this, or never.
const SETUP: Duration = Duration::from_secs(10);

/// Why nothing was checked.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A part could not be had.
    #[error(transparent)]
    App(#[from] AppError),
    /// An agent that was not asked runs beside.
    #[error(
        "another process sends probes through {device}: an agent runs on this node; give its admin port with --admin-address, or end it"
    )]
    InUse {
        /// The sentinel's interface.
        device: String,
    },
    /// A signal came.
    #[error("ended by {signal} before anything was known; nothing is left behind")]
    Interrupted {
        /// Its name.
        signal: &'static str,
    },
    /// There was no report.
    #[error("nothing was judged")]
    Nothing,
}

impl CheckError {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::App(error) if error.is_permission())
    }
}

/// Probes for so long.
///
/// # Errors
/// What kept it from probing. Whatever happens, nothing is left behind.
pub async fn check(config: Config, time: Duration) -> Result<(Report, Duration), CheckError> {
    let mut shutdown = Shutdown::listen()?;
    let (probing, inbox) = (config.sentinel.clone())
        .map(|of| Probing::new(of, None))
        .unzip();
    let (updates, _) = source::follow(&config).await?;
    let mut inputs = Inputs::new(updates, inbox, mpsc::channel(1).1)
        .await
        .map_err(AppError::from)?;
    let interfaces = inputs.devices.borrow().clone();
    let beside = (probing.as_ref()).and_then(|probing| in_use(probing, &interfaces));
    if let Some(device) = beside {
        return Err(CheckError::InUse { device });
    }
    let loaded = load(&config)?;
    let (mut agent, published) =
        Agent::new(config, loaded, probing, Limits::one_shot(), Metrics::new());
    let begun = tokio::select! {
        signal = shutdown.requested() => Err(CheckError::Interrupted { signal }),
        begun = turn(&mut agent, &mut inputs, time) => Ok(begun),
    };
    // What came last counts, and is judged.
    agent.take(Input::Sample);
    let report = published.report.borrow().clone();
    agent.end(false).await;
    let begun = begun?;
    let report = report.as_deref().cloned().ok_or(CheckError::Nothing)?;
    Ok((
        report,
        begun.map_or(Duration::ZERO, |begun| begun.elapsed()),
    ))
}

/// The agent's loop until the time is up, or there is nothing to wait for. Returns when the first
/// probe was to be sent.
async fn turn(agent: &mut Agent, inputs: &mut Inputs, time: Duration) -> Option<Instant> {
    let mut begun = None;
    let mut end = Instant::now() + SETUP;
    loop {
        let Ok(input) = tokio::time::timeout_at(end, inputs.next()).await else {
            return begun;
        };
        if let Some(pause) = agent.take(input) {
            inputs.sample.reset_after(pause);
        }
        let condition = agent.node.sentinel().map(|of| of.condition());
        match condition {
            Some(Condition::Probing) if begun.is_none() => {
                begun = Some(Instant::now());
                end = Instant::now() + time;
            }
            Some(Condition::Probing | Condition::Settling) => {}
            _ if agent.view_synced() => return begun,
            _ => {}
        }
    }
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
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"0000") && words.get(4) == Some(&&*index)
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
