//! Progress of a lane's last probe, stage by stage.

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::named;
use pathproof_facts::trace::ProbePath;

use super::texts;
use crate::verdict::LaneView;

named! {
    pub enum ShownStage {
        Sent = "sent",
        /// The probe entered the node.
        Arrived = "arrived",
        /// The translated probe left for the echo.
        Translated = "translated",
        /// The probe reached the echo.
        Echoed = "echoed",
        /// The answer entered the node.
        Returned = "returned",
        /// The answer reached the client.
        Collected = "collected",
        /// Data reached the echo and came back.
        Data = "data",
        /// The echo received another source address than the client's.
        Masqueraded = "masqueraded",
    }
}

/// A stage that a lane's last probe reached, or the first one that it did not reach.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    pub stage: ShownStage,
    pub reached: bool,
    /// Nanoseconds since the probe was sent, if the stage has a time stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// The interface of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub sentence: String,
}

/// Names of the interfaces on a probe's path.
#[derive(Clone, Debug, Default)]
pub struct Interfaces<'a> {
    /// The sentinel's interfaces, in the order in which a probe passes them.
    pub sentinel: Option<[&'a str; 4]>,
    /// Interfaces with a default route.
    pub uplinks: Vec<&'a str>,
}

/// Steps of the last probe of a lane that does not pass; empty if unknown.
pub fn steps(lane: &LaneView, interfaces: &Interfaces<'_>) -> Vec<Step> {
    let delays = &lane.delays;
    let mut stages = vec![
        (ShownStage::Arrived, delays.arrived),
        (ShownStage::Translated, delays.translated),
        (ShownStage::Echoed, delays.echoed),
        (ShownStage::Returned, delays.returned),
        (ShownStage::Collected, delays.collected),
    ];
    if lane.path == ProbePath::Host {
        stages.remove(0);
    }
    let last = stages.iter().rposition(|(_, delay)| delay.is_some());
    // Nothing was sent since the agent started, or nothing is known about it.
    let unknown = last.is_none() && (lane.failed == 0 || lane.path != ProbePath::Host);
    let Some(cause) = lane.cause.filter(|_| !unknown) else {
        return Vec::new();
    };
    let reached = last.map_or(0, |last| last + 1);
    let missing = match (stages.get(reached), cause) {
        (Some((stage, _)), _) => Some(*stage),
        (None, ProbeCause::NotMasqueraded) => Some(ShownStage::Masqueraded),
        (None, ProbeCause::NoData) => Some(ShownStage::Data),
        (None, _) => None,
    };
    let step = |stage: ShownStage, reached: bool, after_ns: Option<u64>| {
        let (index, came) = words(stage, lane.path);
        let device = interfaces
            .sentinel
            .zip(index)
            .map(|(names, index)| names[index]);
        let at = device.map_or(String::new(), |device| format!(" at {device}"));
        let sentence = match reached {
            true => came.replace("{at}", &at),
            false => missed(stage, cause, &at, &interfaces.uplinks),
        };
        Step {
            stage,
            reached,
            after_ns,
            device: device.map(str::to_owned),
            sentence,
        }
    };
    let mut steps = vec![step(ShownStage::Sent, true, None)];
    let mut after = 0;
    for (stage, delay) in &stages[..reached] {
        after += delay.unwrap_or_default();
        steps.push(step(*stage, true, delay.map(|_| after)));
    }
    steps.extend(missing.map(|stage| step(stage, false, None)));
    steps
}

/// Index of a stage's interface, and the sentence for a probe that reached the stage.
fn words(stage: ShownStage, path: ProbePath) -> (Option<usize>, &'static str) {
    let host = path == ProbePath::Host;
    match stage {
        ShownStage::Sent if host => (None, "dialled by the node itself"),
        ShownStage::Sent => (Some(0), "sent{at}"),
        ShownStage::Arrived => (Some(1), "entered the node{at}"),
        ShownStage::Translated => (Some(2), "left for the endpoint{at}, translated"),
        ShownStage::Echoed => (Some(3), "reached the echo{at} and was answered"),
        ShownStage::Returned => (Some(2), "the answer entered the node{at}"),
        ShownStage::Collected => ((!host).then_some(0), "the answer was received{at}"),
        ShownStage::Data => (None, "data came back"),
        ShownStage::Masqueraded => (Some(3), "the echo saw an address of the node{at}"),
    }
}

/// The sentence for a probe that did not reach this stage.
fn missed(stage: ShownStage, cause: ProbeCause, at: &str, uplinks: &[&str]) -> String {
    let name = match (stage, cause) {
        (ShownStage::Translated, ProbeCause::Leaked) if !uplinks.is_empty() => {
            return format!("left untranslated through {}", uplinks.join(" or "));
        }
        (ShownStage::Translated, cause) => cause.name(),
        (stage, _) => stage.name(),
    };
    match texts::all("missed", name).next() {
        Some(text) => text.to_owned(),
        None => format!("not observed{at}"),
    }
}
