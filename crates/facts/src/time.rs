//! Times as plain numbers. Nothing here reads a clock: callers pass `now`.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `CLOCK_MONOTONIC` in nanoseconds, the kernel's `bpf_ktime_get_ns`. It continues across a
/// restart of the agent but not of the node, and setting the wall clock does not change it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mono(pub u64);

impl Mono {
    /// Time since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub fn plus(self, span: Duration) -> Mono {
        Mono(self.0.saturating_add(nanos(span)))
    }

    /// `self` minus `span`, at least zero.
    pub fn minus(self, span: Duration) -> Mono {
        Mono(self.0.saturating_sub(nanos(span)))
    }
}

/// `first`, doubled this number of times, but at most `longest`.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(times))
        .min(longest)
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration as nanoseconds, for `#[serde(with)]`.
pub mod ns {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(span: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(super::nanos(*span))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_nanos)
    }
}

/// Wall-clock time: nanoseconds since 1970-01-01T00:00:00Z. Responses and logs use it, judgements do not.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Wall(pub i64);

impl Wall {
    /// `None` if the time does not fit into 64 bits.
    pub fn of(time: Timestamp) -> Option<Self> {
        i64::try_from(time.as_nanosecond()).ok().map(Self)
    }

    /// Parses RFC 3339.
    pub fn parse(text: &str) -> Option<Self> {
        Self::of(text.parse().ok()?)
    }

    /// Cannot fail: every `i64` of nanoseconds is between the years 1677 and 2262, which jiff supports.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_nanosecond(self.0.into()).unwrap_or_default()
    }
}

impl fmt::Display for Wall {
    /// Like Go's `time.RFC3339Nano` in UTC: without trailing zeros of the fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

/// Go's output for the zero time.
pub const GO_ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// One instant on both clocks. Keep it until the wall clock is set ([`Anchor::is_off`]): the clocks are
/// read one after the other, so each new pair shifts translated times a little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    pub mono: Mono,
    pub wall: Wall,
}

impl Anchor {
    /// Wall-clock time of `at`, in the past or future.
    pub fn wall_of(&self, at: Mono) -> Wall {
        let offset = i128::from(at.0) - i128::from(self.mono.0);
        let wall = i128::from(self.wall.0) + offset;
        Wall(i64::try_from(wall).unwrap_or(if wall < 0 { i64::MIN } else { i64::MAX }))
    }

    /// Whether the clocks differ by more than a second from this pair: the wall clock was set since, or the
    /// machine slept, which stops the monotonic clock.
    pub fn is_off(&self, mono: Mono, wall: Wall) -> bool {
        self.wall_of(mono).0.abs_diff(wall.0) > 1_000_000_000
    }
}

/// A duration for a sentence: `320 ms`, `3.2 s`, `45 s`, `3 min`, `2.5 h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0..1_000 => write!(f, "{ms} ms"),
            1_000..10_000 if ms % 1_000 >= 100 => {
                write!(f, "{}.{} s", ms / 1_000, ms % 1_000 / 100)
            }
            1_000..120_000 => write!(f, "{} s", ms / 1_000),
            120_000..7_200_000 => write!(f, "{} min", ms / 60_000),
            _ => write!(f, "{} h", ms / 3_600_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn since_never_goes_below_zero() {
        assert_eq!(Mono(5).since(Mono(2)), Duration::from_nanos(3));
        assert_eq!(Mono(2).since(Mono(5)), Duration::ZERO);
        assert_eq!(Mono(2).minus(Duration::from_secs(1)), Mono(0));
        assert_eq!(Mono(u64::MAX).plus(Duration::MAX), Mono(u64::MAX));
    }

    // Go 1.24: time.Unix(0, n).UTC().Format(time.RFC3339Nano)
    #[rstest]
    #[case(0, "1970-01-01T00:00:00Z")]
    #[case(1_795_305_600_000_000_000, "2026-11-22T00:00:00Z")]
    #[case(1_795_305_600_100_000_000, "2026-11-22T00:00:00.1Z")]
    #[case(1_795_305_600_123_456_000, "2026-11-22T00:00:00.123456Z")]
    #[case(1_795_305_600_000_000_001, "2026-11-22T00:00:00.000000001Z")]
    #[case(1_795_305_600_123_456_780, "2026-11-22T00:00:00.12345678Z")]
    fn wall_prints_as_go_does(#[case] ns: i64, #[case] expected: &str) {
        assert_eq!(Wall(ns).to_string(), expected);
    }

    #[test]
    fn an_anchor_translates_both_ways() {
        let anchor = Anchor {
            mono: Mono(1_000),
            wall: Wall(50_000),
        };
        assert_eq!(anchor.wall_of(Mono(1_500)), Wall(50_500));
        assert_eq!(anchor.wall_of(Mono(400)), Wall(49_400));
        assert_eq!(anchor.wall_of(Mono(u64::MAX)), Wall(i64::MAX));
    }

    #[rstest]
    #[case::slewed(60, 60_900, false)]
    #[case::forward(60, 62_000, true)]
    #[case::back(60, 58_000, true)]
    fn a_clock_that_is_set_is_noticed(
        #[case] after_s: u64,
        #[case] shows_ms: i64,
        #[case] expected: bool,
    ) {
        let anchor = Anchor {
            mono: Mono(7_000_000_000),
            wall: Wall(1_795_305_600_000_000_000),
        };
        let mono = anchor.mono.plus(Duration::from_secs(after_s));
        let wall = Wall(anchor.wall.0 + shows_ms * 1_000_000);
        assert_eq!(anchor.is_off(mono, wall), expected);
    }

    #[rstest]
    #[case(0, "0 ms")]
    #[case(320, "320 ms")]
    #[case(1_000, "1 s")]
    #[case(3_250, "3.2 s")]
    #[case(9_050, "9 s")]
    #[case(45_900, "45 s")]
    #[case(119_000, "119 s")]
    #[case(180_000, "3 min")]
    #[case(7_300_000, "2 h")]
    fn durations_are_spoken(#[case] ms: u64, #[case] expected: &str) {
        assert_eq!(
            HumanDuration(Duration::from_millis(ms)).to_string(),
            expected
        );
    }
}
