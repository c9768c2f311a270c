//! How far a lane's last probe came, stage by stage.

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
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    pub stage: Stage,
    pub reached: bool,
    /// Nanoseconds since sending, where a stamp was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// The interface at which it was seen, or should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub sentence: String,
}

/// Names of the interfaces that a probe meets.
#[derive(Clone, Debug, Default)]
pub struct Interfaces<'a> {
    /// The sentinel's, in the order in which a probe meets them.
    pub sentinel: Option<[&'a str; 4]>,
    /// Those with a default route.
    pub uplinks: Vec<&'a str>,
}

/// How far the last probe of a lane that does not pass came; empty where that is not known.
pub fn steps(lane: &LaneView, interfaces: &Interfaces<'_>) -> Vec<Step> {
    let delays = &lane.delays;
    let mut stages = vec![
        (Stage::Arrived, delays.arrived),
        (Stage::Translated, delays.translated),
        (Stage::Echoed, delays.echoed),
        (Stage::Returned, delays.returned),
        (Stage::Collected, delays.collected),
    ];
    if lane.path == ProbePath::Host {
        stages.remove(0);
    }
    let last = stages.iter().rposition(|(_, delay)| delay.is_some());
    // Nothing was sent since the agent began, or nothing is known of it.
    let unknown = last.is_none() && (lane.failed == 0 || lane.path != ProbePath::Host);
    let Some(cause) = lane.cause.filter(|_| !unknown) else {
        return Vec::new();
    };
    let reached = last.map_or(0, |last| last + 1);
    let missing = match (stages.get(reached), cause) {
        (Some((stage, _)), _) => Some(*stage),
        (None, ProbeCause::NotMasqueraded) => Some(Stage::Masqueraded),
        (None, ProbeCause::NoData) => Some(Stage::Data),
        (None, _) => None,
    };
    let step = |stage: Stage, reached: bool, after_ns: Option<u64>| {
        let device = device(stage, lane.path, interfaces);
        let sentence = match reached {
            true => self::reached(stage, lane.path, device),
            false => missed(stage, cause, device, &interfaces.uplinks),
        };
        Step {
            stage,
            reached,
            after_ns,
            device: device.map(str::to_owned),
            sentence,
        }
    };
    let mut steps = vec![step(Stage::Sent, true, None)];
    let mut after = 0;
    for (stage, delay) in &stages[..reached] {
        after += delay.unwrap_or_default();
        steps.push(step(*stage, true, delay.map(|_| after)));
    }
    steps.extend(missing.map(|stage| step(stage, false, None)));
    steps
}

fn device<'a>(stage: Stage, path: ProbePath, of: &Interfaces<'a>) -> Option<&'a str> {
    let index = match stage {
        Stage::Sent | Stage::Arrived | Stage::Collected if path == ProbePath::Host => return None,
        Stage::Sent | Stage::Collected => 0,
        Stage::Arrived => 1,
        Stage::Translated | Stage::Returned => 2,
        Stage::Echoed | Stage::Masqueraded => 3,
        Stage::Data => return None,
    };
    of.sentinel.map(|names| names[index])
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
        _ => format!("the answer reached the client{}", at("at", device)),
    }
}

fn missed(stage: Stage, cause: ProbeCause, device: Option<&str>, uplinks: &[&str]) -> String {
    match stage {
        Stage::Translated => not_translated(cause, device, uplinks),
        Stage::Sent | Stage::Arrived => format!("did not come into the node{}", at("at", device)),
        Stage::Echoed => format!("did not reach the echo{}", at("at", device)),
        Stage::Returned => format!("no answer came into the node{}", at("at", device)),
        Stage::Collected => format!("the answer did not reach the client{}", at("at", device)),
        Stage::Data => "data sent behind the handshake did not come back".to_owned(),
        Stage::Masqueraded => "the echo saw the client's own address".to_owned(),
    }
}

/// It came in and did not leave for the endpoint: what was seen of it instead.
fn not_translated(cause: ProbeCause, device: Option<&str>, uplinks: &[&str]) -> String {
    let by = at("by", device);
    match (cause, uplinks) {
        (ProbeCause::Leaked, []) => "left by an uplink untranslated".to_owned(),
        (ProbeCause::Leaked, uplinks) => format!("left by {} untranslated", uplinks.join(" or ")),
        (ProbeCause::Refused, _) => "was refused by the node itself, by RST".to_owned(),
        (ProbeCause::Unreachable, _) => "was refused by an ICMP error".to_owned(),
        (ProbeCause::Misrouted, _) => "was sent to an address that is no endpoint".to_owned(),
        (ProbeCause::Stale, _) => "was sent to an endpoint that has left".to_owned(),
        (ProbeCause::ForwardingOff, _) => {
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
        let said: Vec<String> = steps(&lane, &Interfaces::default())
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
        assert!(steps(&passing, &Interfaces::default()).is_empty());
        // A confirmed run that an agent before saw.
        let mut restored = passing.clone();
        probed::fail(&mut restored, ProbeCause::Leaked, 9);
        restored.delays = Default::default();
        assert!(steps(&restored, &Interfaces::default()).is_empty());
    }
}
