//! Lag of the datapath behind the API, as this node received it.
//!
//! The rotator regularly moves the sentinel's endpoint to another port: its *generation*. A probe *meets* a
//! generation if it reaches the echo at that port. Every node records when it received a generation
//! (`Freshness::want`), and which one its probes meet (`Freshness::see`). Lateness counts from the oldest
//! generation that was received and not met, so that later generations do not reduce the lateness of a
//! stuck datapath.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Mono;

/// The first generation, which also follows [`LAST_GENERATION`].
pub const FIRST_GENERATION: u16 = 20_001;
/// The last generation. At one every 15 s the numbers repeat after 4 hours and 10 minutes.
pub const LAST_GENERATION: u16 = 20_999;
const GENERATIONS: u16 = LAST_GENERATION - FIRST_GENERATION + 1;

/// Whether a port is a generation. A sentinel with any other port was altered.
pub fn is_generation(port: u16) -> bool {
    (FIRST_GENERATION..=LAST_GENERATION).contains(&port)
}

/// The next generation; the first one if `port` is not a generation.
pub fn next_generation(port: u16) -> u16 {
    match port {
        FIRST_GENERATION..LAST_GENERATION => port + 1,
        _ => FIRST_GENERATION,
    }
}

/// Whether `one` comes after `other`. The numbers repeat, so the direction with fewer steps decides.
fn is_ahead(one: u16, other: u16) -> bool {
    if !is_generation(one) || !is_generation(other) {
        return false;
    }
    let steps = (one + GENERATIONS - other) % GENERATIONS;
    (1..=GENERATIONS / 2).contains(&steps)
}

/// The later of two generations.
pub fn newer_generation(one: u16, other: u16) -> u16 {
    match is_ahead(other, one) {
        true => other,
        false => one,
    }
}

/// Maximum number of unmet generations that are remembered: eight minutes at one every 15 s. A
/// further one replaces the second oldest, because lateness counts from the oldest.
const PENDING: usize = 32;
/// Maximum number of received generations that are remembered. A probe that meets one of them does not show
/// that the datapath is ahead of this node.
const KNOWN: usize = 16;

/// The generations on one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freshness {
    /// Generations that were received and not met, oldest first.
    pending: VecDeque<Received>,
    /// Number of generations received since the last one was met.
    passed: u16,
    /// The last ones received, newest last.
    known: VecDeque<u16>,
    /// Generation that the last passing probe met, and when.
    seen: Option<(u16, Mono)>,
    lag: Option<Duration>,
    /// When this node received the newest generation that was met.
    #[serde(skip_serializing_if = "Option::is_none")]
    followed: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Received {
    generation: u16,
    at: Mono,
}

impl Freshness {
    /// Records the API's generation, received at `at`; an unchanged one has no effect. `gap` is the
    /// maximum age of a passing probe that still shows which generation is on the wire.
    pub fn want(&mut self, generation: u16, at: Mono, gap: Duration) {
        if self.wanted() == Some(generation) {
            return;
        }
        if self.known.len() == KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(generation);
        self.passed = self.passed.saturating_add(1);
        // The datapath received this generation before this node did.
        if let Some((seen, when)) = self.seen
            && seen == generation
            && at.since(when) <= gap
            && !self.has_come_round()
        {
            self.met_all();
            (self.lag, self.followed) = (Some(Duration::ZERO), Some(at));
            return;
        }
        if self.pending.len() == PENDING {
            self.pending.remove(1);
        }
        self.pending.push_back(Received { generation, at });
    }

    /// Records that a passing probe met this generation at `at`. Returns the measured lag: the time from
    /// the receipt of a generation to the first probe that met it. It is too large by at most the time
    /// since the previous probe. If that time is longer than `gap`, nothing is measured.
    pub fn see(&mut self, generation: u16, at: Mono, gap: Duration) -> Option<Duration> {
        let before = self.seen.replace((generation, at));
        let is_same = before.is_some_and(|(seen, _)| seen == generation);
        if is_same && self.has_come_round() {
            return None;
        }
        let met = |received: &Received| received.generation == generation;
        if let Some(place) = self.pending.iter().rposition(met) {
            let received = self.pending.drain(..=place).next_back()?;
            self.followed = Some(received.at);
            self.passed = u16::try_from(self.pending.len()).unwrap_or(u16::MAX);
            // If the previous probe met the same generation, this one is not the first: nothing is
            // measured.
            let (_, before) = before.filter(|(seen, _)| *seen != generation)?;
            if at.since(before) > gap {
                return None;
            }
            self.lag = Some(at.since(received.at));
            return self.lag;
        }
        if !is_same
            && !self.known.contains(&generation)
            && self
                .wanted()
                .is_some_and(|wanted| is_ahead(generation, wanted))
        {
            // The datapath is ahead of this node, so it has applied everything pending.
            self.met_all();
            self.followed = Some(at);
        }
        None
    }

    fn met_all(&mut self) {
        self.pending.clear();
        self.passed = 0;
    }

    /// Whether more than half of all generations were received since the last one was met. In that case, an
    /// unchanged generation on the wire can equal the wanted one only because the numbers repeat.
    fn has_come_round(&self) -> bool {
        !self.pending.is_empty() && self.passed > GENERATIONS / 2
    }

    /// The newest generation that this node received from the API.
    pub fn wanted(&self) -> Option<u16> {
        self.known.back().copied()
    }

    /// When the oldest generation that no probe has met was received.
    pub fn unmet_since(&self) -> Option<Mono> {
        self.pending.front().map(|received| received.at)
    }

    pub fn followed(&self) -> Option<Mono> {
        self.followed
    }

    pub fn lag(&self) -> Option<Duration> {
        self.lag
    }

    /// Excludes the time from `away` to `now`: an unmet generation counts as received that much later,
    /// or at `now` if it was received after `away`.
    pub fn excuse(&mut self, away: Mono, now: Mono) {
        for received in &mut self.pending {
            let counted = away.max(received.at);
            received.at = received.at.plus(now.since(counted));
        }
    }
}

/// Recent lags of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lags(VecDeque<Duration>);

/// Number of lags that are kept: about ten rotations, each measured on every path.
const LAGS: usize = 32;
/// Minimum number of measurements for a usual lag.
const LAGS_LEAST: usize = 3;

impl Lags {
    pub fn add(&mut self, lag: Duration) {
        if self.0.len() == LAGS {
            self.0.pop_front();
        }
        self.0.push_back(lag);
    }

    /// The median: one long lag is not usual.
    pub fn usual(&self) -> Option<Duration> {
        if self.0.len() < LAGS_LEAST {
            return None;
        }
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const GAP: Duration = Duration::from_secs(1);
    const FIRST: u16 = FIRST_GENERATION;

    fn ms(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// A lane whose rules have followed the first generation; the last probe met it at 1 s.
    fn followed() -> Freshness {
        let mut lane = Freshness::default();
        lane.want(FIRST, ms(0), GAP);
        for at in (200..=1_000).step_by(400) {
            assert_eq!(lane.see(FIRST, ms(at), GAP), None, "it was there before us");
        }
        assert_eq!((lane.unmet_since(), lane.lag()), (None, None));
        lane
    }

    #[rstest]
    #[case(FIRST, 20_002)]
    #[case(20_998, 20_999)]
    #[case(LAST_GENERATION, FIRST)]
    #[case(9_001, FIRST)]
    #[case(u16::MAX, FIRST)]
    fn generations_come_round(#[case] port: u16, #[case] next: u16) {
        assert_eq!(next_generation(port), next);
        assert!(is_generation(next));
    }

    #[test]
    fn the_lag_is_from_receipt_to_the_first_probe_that_meets_it() {
        let mut lane = followed();
        lane.want(20_002, ms(1_100), GAP);
        assert_eq!(lane.see(FIRST, ms(1_150), GAP), None);
        assert_eq!(lane.see(FIRST, ms(1_250), GAP), None);
        assert_eq!(lane.unmet_since(), Some(ms(1_100)));
        let lag = Duration::from_millis(250);
        assert_eq!(lane.see(20_002, ms(1_350), GAP), Some(lag));
        assert_eq!(lane.see(20_002, ms(1_450), GAP), None, "measured once");
        assert_eq!((lane.unmet_since(), lane.lag()), (None, Some(lag)));
    }

    #[test]
    fn lateness_counts_from_the_oldest_that_is_unmet() {
        let mut lane = followed();
        for (step, generation) in (20_002..20_005).enumerate() {
            lane.want(generation, ms(2_000 + 60_000 * step as u64), GAP);
            lane.see(FIRST, ms(2_400 + 60_000 * step as u64), GAP);
        }
        assert_eq!(lane.unmet_since(), Some(ms(2_000)));
        // The rules reach the second generation: only the third is unmet.
        lane.see(20_003, ms(122_800), GAP);
        assert_eq!(lane.unmet_since(), Some(ms(122_000)));
        lane.see(20_004, ms(123_200), GAP);
        assert_eq!(lane.lag(), Some(Duration::from_millis(1_200)));
    }

    #[test]
    fn a_datapath_that_stands_still_for_hours_is_late_since_the_first() {
        let mut lane = followed();
        for minute in 0..600_u64 {
            let generation = FIRST + 1 + u16::try_from(minute).unwrap();
            lane.want(generation, ms(2_000 + 60_000 * minute), GAP);
            lane.see(FIRST, ms(2_400 + 60_000 * minute), GAP);
        }
        assert_eq!(lane.unmet_since(), Some(ms(2_000)));
        assert!(lane.pending.len() <= PENDING);
    }

    // At one rotation every 15 s the numbers repeat every four hours. A stuck datapath stays late when the
    // wanted number equals the one on the wire again.
    #[rstest]
    #[case::probed_throughout(400)]
    #[case::not_probed_when_they_came_round(20_000)]
    fn generations_that_come_round_do_not_excuse_a_datapath_that_stands_still(#[case] last: u64) {
        let mut lane = followed();
        let mut generation = FIRST;
        for turn in 0..1_500 {
            generation = next_generation(generation);
            let at = 2_000 + 15_000 * turn;
            lane.want(generation, ms(at), GAP);
            lane.see(FIRST, ms(at + 100), GAP);
            lane.see(FIRST, ms(at + 15_000 - last.min(14_800)), GAP);
            assert_eq!(lane.unmet_since(), Some(ms(2_000)), "turn {turn}");
        }
        // At last the datapath follows.
        let at = 2_000 + 15_000 * 1_500;
        lane.see(FIRST, ms(at), GAP);
        lane.see(generation, ms(at + 100), GAP);
        assert_eq!((lane.unmet_since(), lane.passed), (None, 0));
    }

    #[test]
    fn nothing_is_measured_across_a_gap() {
        let mut lane = followed();
        lane.want(20_002, ms(1_100), GAP);
        // The agent was stopped, or the path failed, so it is unknown when the rules followed.
        assert_eq!(lane.see(20_002, ms(9_000), GAP), None);
        assert_eq!((lane.unmet_since(), lane.lag()), (None, None));
    }

    #[test]
    fn a_datapath_that_received_it_first_does_not_lag() {
        let mut lane = followed();
        lane.see(20_002, ms(1_400), GAP);
        lane.want(20_002, ms(1_500), GAP);
        assert_eq!(
            (lane.unmet_since(), lane.lag()),
            (None, Some(Duration::ZERO))
        );
    }

    // This node's watch hangs while the proxy's does not.
    #[test]
    fn a_datapath_ahead_of_this_node_is_not_late() {
        let mut lane = followed();
        lane.want(20_002, ms(1_100), GAP);
        lane.see(20_003, ms(1_400), GAP);
        assert_eq!(lane.unmet_since(), None);
        lane.want(20_003, ms(9_000), GAP);
        lane.see(20_003, ms(9_200), GAP);
        assert_eq!(lane.unmet_since(), None);
        assert_eq!(lane.lag(), None, "seen before it was received");
    }

    // The shipped manifest, which has the first generation, was applied again.
    #[test]
    fn a_step_back_is_a_generation_like_any_other() {
        let mut lane = Freshness::default();
        lane.want(20_300, ms(0), GAP);
        lane.see(20_300, ms(200), GAP);
        lane.want(FIRST, ms(1_000), GAP);
        lane.see(20_300, ms(1_100), GAP);
        assert_eq!(lane.unmet_since(), Some(ms(1_000)));
        lane.see(FIRST, ms(1_200), GAP);
        assert_eq!(lane.lag(), Some(Duration::from_millis(200)));
    }

    // A fresh agent on a node whose proxy has long been hanging.
    #[test]
    fn an_older_generation_that_was_never_received_is_late() {
        let mut lane = Freshness::default();
        lane.want(20_300, ms(1_000), GAP);
        for at in (1_100..100_000).step_by(400) {
            assert_eq!(lane.see(20_100, ms(at), GAP), None);
        }
        assert_eq!(lane.unmet_since(), Some(ms(1_000)));
    }

    #[test]
    fn excused_time_is_not_lateness() {
        let mut lane = followed();
        lane.want(20_002, ms(2_000), GAP);
        lane.excuse(ms(3_000), ms(63_000));
        assert_eq!(lane.unmet_since(), Some(ms(62_000)));
        // A generation that was received within the excused time does not count as received in the future.
        lane.excuse(ms(10_000), ms(70_000));
        assert_eq!(lane.unmet_since(), Some(ms(70_000)));
    }

    #[test]
    fn the_usual_lag_is_the_median() {
        let mut lags = Lags::default();
        for lag in [200, 90_000] {
            lags.add(Duration::from_millis(lag));
            assert_eq!(lags.usual(), None, "too few to say");
        }
        lags.add(Duration::from_millis(300));
        assert_eq!(lags.usual(), Some(Duration::from_millis(300)));
        for _ in 0..100 {
            lags.add(Duration::from_millis(500));
        }
        assert_eq!(lags.0.len(), LAGS);
        assert_eq!(lags.usual(), Some(Duration::from_millis(500)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Want(u16),
        See(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let generation = FIRST_GENERATION..FIRST_GENERATION + 8;
        prop_oneof![
            generation.clone().prop_map(Step::Want),
            generation.prop_map(Step::See)
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_the_wanted_one_on_the_wire_is_not_late(
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let mut lane = Freshness::default();
            let mut at = 0;
            for step in steps {
                at += 300;
                match step {
                    Step::Want(generation) => lane.want(generation, ms(at), GAP),
                    Step::See(generation) => {
                        let lag = lane.see(generation, ms(at), GAP);
                        prop_assert!(lag.is_none_or(|lag| lag <= Duration::from_millis(at)));
                    }
                }
                prop_assert!(lane.unmet_since().is_none_or(|since| since <= ms(at)));
                if let Some(wanted) = lane.wanted() {
                    let mut met = lane.clone();
                    met.see(wanted, ms(at + 1), GAP);
                    prop_assert_eq!(met.unmet_since(), None);
                }
            }
        }
    }
}
