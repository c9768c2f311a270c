//! How far a lane's last probe came, stage by stage.

use std::time::Duration;

use crate::cause::ProbeCause;
use crate::trace::ProbePath;
use crate::verdict::LaneView;

/// How far a probe came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It was sent.
    Sent,
    /// It came into the node.
    Arrived,
    /// It left for the echo, translated.
    Translated,
    /// It reached the echo.
    Echoed,
    /// The answer came into the node.
    Returned,
    /// The answer reached the client.
    Collected,
    /// Data went the same way there and back.
    Data,
    /// The echo saw another source than the client's.
    Masqueraded,
}

impl Stage {
    /// As metrics call it, where they have it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Sent => "sent",
            Stage::Arrived => "arrived",
            Stage::Translated => "translated",
            Stage::Echoed => "echoed",
            Stage::Returned => "returned",
            Stage::Collected => "collected",
            Stage::Data => "data",
            Stage::Masqueraded => "masqueraded",
        }
    }
}

/// A stage that a lane's last probe reached, or the first that it did not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub stage: Stage,
    /// Whether it was reached.
    pub reached: bool,
    /// Time since sending, where a stamp was made.
    pub after: Option<Duration>,
}

/// How far the last probe of a lane that does not pass came; empty where that is not known.
pub fn steps(lane: &LaneView) -> Vec<Step> {
    let (path, cause, delays) = (lane.path, lane.cause, &lane.delays);
    let mut stages = vec![
        (Stage::Arrived, delays.arrived),
        (Stage::Translated, delays.translated),
        (Stage::Echoed, delays.echoed),
        (Stage::Returned, delays.returned),
        (Stage::Collected, delays.collected),
    ];
    if path == ProbePath::Host {
        stages.remove(0);
    }
    let last = stages.iter().rposition(|(_, delay)| delay.is_some());
    // Nothing was sent since the agent began, or nothing is known of it.
    if cause.is_none() || last.is_none() && (lane.failed == 0 || path != ProbePath::Host) {
        return Vec::new();
    }
    let mut steps = vec![Step {
        stage: Stage::Sent,
        reached: true,
        after: None,
    }];
    let reached = last.map_or(0, |last| last + 1);
    let mut after = 0;
    for (stage, delay) in &stages[..reached] {
        after += delay.unwrap_or_default();
        steps.push(Step {
            stage: *stage,
            reached: true,
            after: delay.map(|_| Duration::from_nanos(after)),
        });
    }
    let missing = match (stages.get(reached), cause) {
        (Some((stage, _)), _) => Some(*stage),
        (None, Some(ProbeCause::NotMasqueraded)) => Some(Stage::Masqueraded),
        (None, Some(ProbeCause::NoData)) => Some(Stage::Data),
        (None, _) => None,
    };
    steps.extend(missing.map(|stage| Step {
        stage,
        reached: false,
        after: None,
    }));
    steps
}

/// Where and by what a step was seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The interface at which it was seen, or should have been.
    pub device: Option<&'a str>,
    /// Interfaces with a default route.
    pub uplinks: &'a [&'a str],
}

/// A step of a lane's last probe, in words.
pub fn step(lane: &LaneView, step: &Step, seen: Seen<'_>) -> String {
    match step.reached {
        true => reached(step.stage, lane.path, seen.device),
        false => missed(step.stage, lane.cause, seen),
    }
}

fn at(preposition: &str, device: Option<&str>) -> String {
    device.map_or_else(String::new, |device| format!(" {preposition} {device}"))
}

fn reached(stage: Stage, path: ProbePath, device: Option<&str>) -> String {
    match stage {
        Stage::Sent if path == ProbePath::Host => "dialled by the node itself".to_owned(),
        Stage::Sent => format!("written{}", at("to", device)),
        Stage::Arrived => format!("came into the node{}", at("at", device)),
        Stage::Translated => format!("left for the endpoint{}, translated", at("by", device)),
        Stage::Echoed => format!("reached the echo{} and was answered", at("at", device)),
        Stage::Returned => format!("the answer came into the node{}", at("at", device)),
        Stage::Collected if path == ProbePath::Host => "the answer reached the node".to_owned(),
        Stage::Collected => format!("the answer reached the client{}", at("at", device)),
        Stage::Data => "data went there and back".to_owned(),
        Stage::Masqueraded => "the echo saw another source than the client's".to_owned(),
    }
}

fn missed(stage: Stage, cause: Option<ProbeCause>, seen: Seen<'_>) -> String {
    let device = seen.device;
    match stage {
        Stage::Translated => not_translated(cause, seen),
        Stage::Sent | Stage::Arrived => format!("did not come into the node{}", at("at", device)),
        Stage::Echoed => format!("did not reach the echo{}", at("at", device)),
        Stage::Returned => format!("no answer came into the node{}", at("at", device)),
        Stage::Collected => format!("the answer did not reach the client{}", at("at", device)),
        Stage::Data => "data sent behind the handshake did not come back".to_owned(),
        Stage::Masqueraded => "the echo saw the client's own address".to_owned(),
    }
}

/// It came in and did not leave for the endpoint: what was seen of it instead.
fn not_translated(cause: Option<ProbeCause>, seen: Seen<'_>) -> String {
    let by = at("by", seen.device);
    match cause {
        Some(ProbeCause::Leaked) => {
            let uplink = match seen.uplinks {
                [] => "an uplink".to_owned(),
                [one] => (*one).to_owned(),
                several => format!("an uplink ({})", several.join(", ")),
            };
            format!("left by {uplink} untranslated")
        }
        Some(ProbeCause::Refused) => "was refused by the node itself, by RST".to_owned(),
        Some(ProbeCause::Unreachable) => "was refused by an ICMP error".to_owned(),
        Some(ProbeCause::Misrouted) => "was sent to an address that is no endpoint".to_owned(),
        Some(ProbeCause::Stale) => "was sent to an endpoint that has left".to_owned(),
        Some(ProbeCause::ForwardingOff) => {
            format!("did not leave{by}, and the kernel does not forward")
        }
        _ => format!("did not leave{by}, and was not seen again"),
    }
}

#[cfg(test)]
mod tests {
    use agent_common::service::Family;
    use rstest::rstest;

    use super::*;
    use crate::report::sample::probed;

    #[rstest]
    #[case(0, ProbeCause::Leaked, "sent arrived !translated")]
    #[case(
        0,
        ProbeCause::AnswerLost,
        "sent arrived translated echoed returned !collected"
    )]
    #[case(
        0,
        ProbeCause::NoData,
        "sent arrived translated echoed returned collected !data"
    )]
    #[case(
        1,
        ProbeCause::NotMasqueraded,
        "sent arrived translated echoed returned collected !masqueraded"
    )]
    #[case(2, ProbeCause::Leaked, "sent !translated")]
    #[case(
        2,
        ProbeCause::AnswerLost,
        "sent translated echoed returned !collected"
    )]
    fn chains(#[case] index: usize, #[case] cause: ProbeCause, #[case] expected: &str) {
        let mut lane = probed::passing(Family::V4).remove(index);
        probed::fail(&mut lane, cause, 4);
        let said: Vec<String> = steps(&lane)
            .iter()
            .map(|step| match step.reached {
                true => step.stage.name().to_owned(),
                false => format!("!{}", step.stage.name()),
            })
            .collect();
        assert_eq!(said.join(" "), expected);
    }

    #[test]
    fn nothing_is_made_up() {
        let passing = probed::passing(Family::V4).remove(0);
        assert!(steps(&passing).is_empty());
        // A confirmed run that an agent before saw.
        let mut restored = passing.clone();
        probed::fail(&mut restored, ProbeCause::Leaked, 9);
        restored.delays = Default::default();
        assert!(steps(&restored).is_empty());
    }
}
