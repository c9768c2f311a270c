//! `pathproof check` without an agent: runs the agent's parts for a few seconds, without listeners,
//! pins and state. Then it removes everything.

use std::time::Duration;

use pathproof_facts::limits::Limits;
use pathproof_node::Condition;
use pathproof_report::Report;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::agent::Agent;
use super::probing::Probing;
use super::{AppError, Inputs, follow, load};
use crate::config::Config;
use crate::datapath::devices::Device;
use crate::lifecycle::Shutdown;
use crate::metrics::Metrics;
use crate::sentinel::kernel::is_written_to;

/// Timeout for reading the cluster view and creating the devices.
const SETUP: Duration = Duration::from_secs(10);

/// Probes for `time`.
///
/// # Errors
/// The reason why it could not probe. In any case, nothing is left behind.
pub async fn check(config: Config, time: Duration) -> Result<(Report, Duration), AppError> {
    let mut shutdown = Shutdown::listen()?;
    let (probing, inbox) = (config.sentinel.clone())
        .map(|sentinel| Probing::new(sentinel, None))
        .unzip();
    let (updates, _) = follow(&config).await?;
    let mut inputs = Inputs::new(updates, inbox, mpsc::channel(1).1).await?;
    let interfaces = inputs.interfaces();
    let [device, _] = (probing.as_ref()).map_or_else(Default::default, Probing::far_ends);
    let is_used = |found: &Device| found.name == device && is_written_to(found.index);
    if interfaces.devices.iter().any(is_used) {
        return Err(format!(
            "another process sends probes through {device}: an agent runs on this node; give its \
             admin port with --admin-address, or stop that agent"
        )
        .into());
    }
    let loaded = load(&config)?;
    let mut agent = Agent::new(config, loaded, probing, Limits::one_shot(), Metrics::new());
    agent.follow_interfaces(interfaces);
    let begun = tokio::select! {
        signal = shutdown.requested() => Err(format!(
            "stopped by {signal} before there was a result; all interfaces and programs were \
             removed"
        )),
        begun = turn(&mut agent, &mut inputs, time) => Ok(begun),
    };
    // Read and judge the latest evidence too.
    agent.sample();
    let report = agent.output.report.borrow().clone();
    agent.end(false).await;
    let time = begun?.map_or(Duration::ZERO, |begun| begun.elapsed());
    let report = report.as_deref().cloned().ok_or("there is no verdict")?;
    Ok((report, time))
}

/// Runs the agent's loop until the time is up, or no probe can be expected. Returns when probing began, if it
/// did.
async fn turn(agent: &mut Agent, inputs: &mut Inputs, time: Duration) -> Option<Instant> {
    let mut begun = None;
    let mut end = Instant::now() + SETUP;
    while tokio::time::timeout_at(end, inputs.turn(agent))
        .await
        .is_ok()
    {
        match agent.node.sentinel().map(|sentinel| sentinel.condition()) {
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
