//! Events in a simulated fleet.

use std::ops::Range;
use std::time::Duration;

use crate::ms;

/// Delay from a fault to the verdict, for certain and for other causes.
const CERTAIN: (Duration, Duration) = (ms(900), ms(1_400));
const UNCERTAIN: (Duration, Duration) = (ms(3_000), ms(3_500));
/// Delay from a repair to the verdict.
pub(super) const REPAIR: (Duration, Duration) = (ms(1_000), ms(1_700));

/// Nodes of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The first node.
    One,
    /// This many nodes from the first on.
    First(usize),
    /// Nodes between two shares in percent.
    Percent(u32, u32),
}

impl Whom {
    pub(super) fn of(self, nodes: usize) -> Range<usize> {
        match self {
            Self::One => 0..1,
            Self::First(number) => 0..number.min(nodes),
            Self::Percent(from, to) => {
                let at = |percent: u32| (nodes * percent as usize).div_ceil(100);
                at(from)..at(to)
            }
        }
    }
}

/// Nodes whose evidence shows a failure, rightly or wrongly. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Wave {
    /// Start after the first fault.
    pub at: u64,
    pub whom: Whom,
    /// Time within which the nodes fail one by one.
    pub spread: u64,
    /// Whether only the datapath can be the cause.
    pub certain: bool,
    /// Time from the last node's failure to the end; `None` for no end.
    pub lasts: Option<u64>,
}

impl Wave {
    /// Starts this many seconds after the first fault.
    const fn after(self, at: u64) -> Self {
        Self { at, ..self }
    }

    /// Makes the nodes fail one by one within this many seconds.
    const fn over(self, spread: u64) -> Self {
        Self { spread, ..self }
    }

    const fn lasting(self, seconds: u64) -> Self {
        let lasts = Some(seconds);
        Self { lasts, ..self }
    }

    pub(super) fn detection(&self) -> (Duration, Duration) {
        match self.certain {
            true => CERTAIN,
            false => UNCERTAIN,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotators {
    None,
    /// One rotator.
    One,
    /// The rotator is killed when the first fault begins. The next one waits for the lease to expire.
    Killed,
    /// The rotator is killed as soon as it has written its first count of nodes since the fault began. Most
    /// failing nodes are not in that count yet.
    KilledCounting,
    /// Two rotators write at the same time. The second one receives conditions late.
    Two {
        /// Delay in seconds.
        behind: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name in tables.
    pub name: &'static str,
    pub waves: &'static [Wave],
    pub rotators: Rotators,
    /// Start and end of an outage of the API server, in seconds after the first fault.
    pub away: Option<(i32, i32)>,
    /// Limit of the brake in percent; `None` turns it off.
    pub percent: Option<u32>,
    /// A failure domain that the rotator counts, such as a node pool; the other nodes are another one.
    pub pool: Option<Whom>,
    /// Time before the first fault.
    pub calm: Duration,
    /// Time after the first fault.
    pub lasts: Duration,
}

const ALL: Whom = Whom::Percent(0, 100);

/// Nodes that fail at the same time, without an end.
const fn wave(whom: Whom, certain: bool) -> Wave {
    Wave {
        at: 0,
        whom,
        spread: 0,
        certain,
        lasts: None,
    }
}

const fn scenario(name: &'static str, waves: &'static [Wave]) -> Scenario {
    Scenario {
        name,
        waves,
        rotators: Rotators::One,
        away: None,
        percent: Some(20),
        pool: None,
        calm: Duration::from_secs(150),
        lasts: Duration::from_secs(240),
    }
}

impl Scenario {
    const fn counted_by(self, rotators: Rotators) -> Self {
        Self { rotators, ..self }
    }

    const fn unbraked(self) -> Self {
        let percent = None;
        Self { percent, ..self }
    }

    const fn in_pool(self, pool: Whom) -> Self {
        let pool = Some(pool);
        Self { pool, ..self }
    }

    const fn lasting(self, seconds: u64) -> Self {
        let lasts = Duration::from_secs(seconds);
        Self { lasts, ..self }
    }

    /// Adds an outage of the API server between these times.
    const fn away(self, from: i32, to: i32) -> Self {
        let away = Some((from, to));
        let calm = Duration::from_secs(1_500);
        Self { away, calm, ..self }.lasting(1_500)
    }
}

const THREE: Whom = Whom::First(3);
const SIX: Whom = Whom::First(6);
const TWENTY: Whom = Whom::First(20);
const ZONE: Whom = Whom::Percent(0, 33);
const TENTH: Whom = Whom::Percent(0, 10);
const ONE_CERTAIN: &[Wave] = &[wave(Whom::One, true)];
const ONE_UNCERTAIN: &[Wave] = &[wave(Whom::One, false)];
const ALL_CERTAIN: &[Wave] = &[wave(ALL, true)];
const ALL_UNCERTAIN: &[Wave] = &[wave(ALL, false)];
const WITHIN_10_S: &[Wave] = &[wave(ALL, true).over(10)];
const UNCERTAIN_WITHIN_10_S: &[Wave] = &[wave(ALL, false).over(10)];
const WITHIN_60_S: &[Wave] = &[wave(ALL, true).over(60)];
const WITHIN_10_MIN: &[Wave] = &[wave(ALL, true).over(600)];
const TWO_WAVES: &[Wave] = &[
    wave(Whom::Percent(0, 15), true),
    wave(Whom::Percent(15, 100), true).after(60),
];
const TWICE: &[Wave] = &[wave(ALL, true).lasting(40), wave(ALL, true).after(60)];
const MENDED: &[Wave] = &[
    wave(TENTH, true),
    wave(Whom::Percent(10, 100), true).lasting(60),
];

/// All scenarios.
pub const SCENARIOS: [Scenario; 33] = [
    scenario("one node, certain", ONE_CERTAIN),
    scenario("one node, uncertain", ONE_UNCERTAIN),
    scenario("10 % of the nodes", &[wave(TENTH, true)]),
    scenario("60 % of the nodes", &[wave(Whom::Percent(0, 60), true)]),
    scenario("all nodes, certain", ALL_CERTAIN),
    scenario("all nodes, uncertain", ALL_UNCERTAIN),
    scenario("all nodes, certain, within 10 s", WITHIN_10_S),
    scenario("all nodes, uncertain, within 10 s", UNCERTAIN_WITHIN_10_S),
    scenario("all nodes, certain, within 60 s", WITHIN_60_S),
    scenario("all nodes, certain, within 10 min", WITHIN_10_MIN).lasting(900),
    scenario("15 %, and all others a minute later", TWO_WAVES),
    scenario("all nodes for 40 s, and again 20 s later", TWICE),
    scenario("all nodes; 90 % are mended after 60 s", MENDED),
    scenario("pool of 3, certain", &[wave(THREE, true)]).in_pool(THREE),
    scenario("pool of 6, certain", &[wave(SIX, true)]).in_pool(SIX),
    scenario("pool of 6, uncertain", &[wave(SIX, false)]).in_pool(SIX),
    scenario("pool of 6, one node, certain", ONE_CERTAIN).in_pool(SIX),
    scenario("pool of 20, certain", &[wave(TWENTY, true)]).in_pool(TWENTY),
    scenario("zone of a third, certain", &[wave(ZONE, true)]).in_pool(ZONE),
    scenario("pool of 6, certain, rotator killed", &[wave(SIX, true)])
        .in_pool(SIX)
        .counted_by(Rotators::Killed),
    scenario("all nodes, rotator killed", ALL_CERTAIN).counted_by(Rotators::Killed),
    scenario(
        "all nodes, rotator killed with its first count",
        ALL_CERTAIN,
    )
    .counted_by(Rotators::KilledCounting),
    scenario("all nodes, uncertain, rotator killed", ALL_UNCERTAIN).counted_by(Rotators::Killed),
    scenario("all nodes, two rotators, one 10 s late", ALL_CERTAIN)
        .counted_by(Rotators::Two { behind: 10 }),
    scenario("all nodes, certain, no API for 5 min", ALL_CERTAIN).away(-300, 300),
    scenario("all nodes, uncertain, no API for 5 min", ALL_UNCERTAIN).away(-300, 300),
    scenario("all nodes, certain, no API for 20 min", ALL_CERTAIN).away(-1_200, 300),
    scenario("all nodes, uncertain, no API for 20 min", ALL_UNCERTAIN).away(-1_200, 300),
    scenario(
        "all nodes, certain, no API from 4 s on for 5 min",
        ALL_CERTAIN,
    )
    .away(4, 300),
    scenario(
        "all nodes, certain, no API after a minute for 20 min",
        ALL_CERTAIN,
    )
    .away(60, 1_260),
    scenario("all nodes, certain, brake off", ALL_CERTAIN).unbraked(),
    scenario("all nodes, uncertain, brake off", ALL_UNCERTAIN).unbraked(),
    scenario("an hour without a fault", &[]).lasting(3_600),
];
