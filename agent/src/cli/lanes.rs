//! Lanes of the sentinel in words: what they are called, and how far a probe came.

use std::time::Duration;

use super::paper::{Ink, Paper};
use agent_core::cause::ProbeCause;
use agent_core::time::Spoken;
use agent_core::trace::{ProbePath, Transport};
use agent_core::verdict::{LaneState, LaneView, StageDelays};

/// `off-cluster`.
pub(super) fn path(path: ProbePath) -> &'static str {
    match path {
        ProbePath::Pod => "pod",
        ProbePath::OffCluster => "off-cluster",
        ProbePath::NodePort => "node port",
        ProbePath::Host => "host",
    }
}

/// `IPv4 node port udp`.
pub(super) fn lane(family: &str, of: ProbePath, transport: Transport) -> String {
    format!("{family} {} {}", path(of), transport.name())
}

/// `never worked`.
pub(super) fn state(state: LaneState) -> &'static str {
    match state {
        LaneState::Passing => "passing",
        LaneState::Failing => "failing",
        LaneState::Void => "says nothing",
        LaneState::NeverWorked => "never worked",
        LaneState::Off => "not probed",
    }
}

/// Whether a lane's failures are told with those of another, the TCP lane of the same path: the
/// observer follows TCP alone, so of UDP it cannot tell a leak from a loss.
pub(super) fn is_explained(
    transport: Transport,
    cause: Option<ProbeCause>,
    tcp: Option<ProbeCause>,
) -> bool {
    let clear = |cause: Option<ProbeCause>| cause.is_some_and(ProbeCause::is_unambiguous);
    transport == Transport::Udp && cause.is_some() && !clear(cause) && clear(tcp)
}

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
pub(super) struct Step {
    pub(super) stage: Stage,
    pub(super) reached: bool,
    /// Time since sending, where a stamp was made.
    pub(super) after: Option<Duration>,
}

/// How far the last probe of a lane that does not pass came; empty where that is not known.
pub(super) fn steps(lane: &LaneView) -> Vec<Step> {
    steps_of(lane.path, lane.cause, &lane.delays, lane.failed)
}

/// The same of its parts; `failed` is how many probes of it failed.
pub(super) fn steps_of(
    path: ProbePath,
    cause: Option<ProbeCause>,
    delays: &StageDelays,
    failed: u64,
) -> Vec<Step> {
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
    if cause.is_none() || last.is_none() && (failed == 0 || path != ProbePath::Host) {
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

/// `sent ✔ arrived ✔ translated ✘ `.
pub(super) fn chain(paper: &mut Paper, steps: &[Step]) {
    for step in steps {
        let (mark, ink) = match step.reached {
            true => ("✔", Ink::Good),
            false => ("✘", Ink::Bad),
        };
        paper
            .put(Ink::Faint, step.stage.name())
            .put(Ink::Plain, " ")
            .put(ink, mark)
            .put(Ink::Plain, " ");
    }
}

/// Times of a probe are often less than a millisecond.
pub(super) fn fine(time: Duration) -> String {
    match time.as_micros() {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => Spoken(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use agent_common::service::Family;

    use super::*;
    use agent_core::report::sample::probed;
    use rstest::rstest;

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
        probed::fail(&mut lane, Family::V4, cause, 4, "");
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
        probed::fail(&mut restored, Family::V4, ProbeCause::Leaked, 9, "");
        restored.delays = Default::default();
        assert!(steps(&restored).is_empty());
    }

    #[test]
    fn times() {
        assert_eq!(fine(Duration::from_nanos(118_400)), "118 µs");
        assert_eq!(fine(Duration::from_micros(1_250)), "1.2 ms");
        assert_eq!(fine(Duration::from_millis(42)), "42 ms");
    }
}
