//! `demo --cluster`: a real one-node Kubernetes, the chart, a fault, an alert in a real Prometheus,
//! the repair and the uninstall.

mod script;
mod stage;

use anyhow::Result;

use super::summary;
use super::timeline::{Kind, Timeline};
use script::Script;
pub(super) use stage::Programs;
use stage::Stage;

/// Plays it; gives whether all of it happened.
pub(super) fn play(programs: &Programs, timeline: &mut Timeline) -> Result<bool> {
    timeline.title(
        "pathproof on a real Kubernetes node: installed, broken, alerted, repaired, removed",
    );
    let mut stage = Stage::build(programs, timeline)?;
    let rows = Script::new(&mut stage, timeline).play()?;
    let outcome = summary::tell(&rows, stage.tally(), timeline);
    drop(stage);
    timeline.tell(
        Kind::Note,
        "node removed: no process, namespace, control group, program or file is left",
    );
    Ok(outcome != summary::Outcome::Missed)
}
