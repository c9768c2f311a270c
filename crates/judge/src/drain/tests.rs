mod words;

use std::net::IpAddr;
use std::time::Duration;

use pathproof_wire::service::mapped;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const CLIENT: Address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 7];
const PROBE: Address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 130, 211, 0, 9];

fn ms(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

fn tainted() -> Eligibility {
    Eligibility::Tainted {
        taint: "ToBeDeletedByClusterAutoscaler".to_owned(),
    }
}

fn drain() -> Drain {
    let ranges = ["130.211.0.0/22", "2600:2d00:1::/48"];
    Drain::new(ProbeRanges::new(ranges.map(|text| text.parse().unwrap())))
}

fn outside(until: u64, arrivals: &[(u64, Address)]) -> Outside {
    Outside {
        until: ms(until),
        arrivals: arrivals
            .iter()
            .map(|(at, client)| Arrival {
                at: ms(*at),
                client: *client,
            })
            .collect(),
    }
}

fn waited(seconds: u64) -> Ask {
    Ask {
        waited: Some(Duration::from_secs(seconds)),
        ..Ask::default()
    }
}

/// A node that is observed from 1 s on and leaves at 60 s.
fn leaving() -> Drain {
    let mut drain = drain();
    drain.follow(&Eligibility::Eligible, ms(900));
    drain.look(&outside(1_000, &[]), None);
    drain.look(&outside(59_900, &[(40_000, CLIENT)]), None);
    drain.follow(&tainted(), ms(60_000));
    drain
}

/// The hooks were missing for some time: connections were unobserved.
#[test]
fn quiet_time_restarts_after_a_gap_in_the_observation() {
    let mut drain = leaving();
    drain.look(&outside(68_950, &[]), None);
    drain.missed(ms(69_000));
    // The next sample starts before the hooks were attached again.
    drain.look(&outside(68_990, &[]), None);
    let now = drain.view().answer(&Ask::default(), ms(69_000));
    assert_eq!(
        (now.reason, now.quiet_for),
        (DrainReason::Waiting, Duration::ZERO)
    );
    drain.look(&outside(75_000, &[]), None);
    let quiet = drain.view().answer(&Ask::default(), ms(75_000));
    assert_eq!(quiet.quiet_for, Duration::from_secs(6));

    let mut fresh = self::drain();
    fresh.missed(ms(1_000));
    assert_eq!(fresh.view().watched, None, "the observation has not begun");
}

#[test]
fn a_node_that_does_not_leave_is_never_quiet() {
    let mut drain = drain();
    drain.follow(&Eligibility::Eligible, ms(900));
    drain.look(&outside(1_000, &[]), None);
    drain.look(&outside(900_000, &[]), None);
    let answer = drain.view().answer(&Ask::default(), ms(900_100));
    assert_eq!(answer.reason, DrainReason::NotLeaving);
    assert_eq!((answer.since, answer.quiet_for), (None, Duration::ZERO));
    drain.follow(&Eligibility::NeverSeen, ms(900_200));
    let answer = drain.view().answer(&Ask::default(), ms(900_300));
    assert_eq!(answer.reason, DrainReason::NotLeaving);
}

#[test]
fn quiet_is_counted_from_the_taint_then_from_the_last_connection() {
    let mut drain = leaving();
    let answered = |drain: &Drain, at| {
        let answer = drain.view().answer(&Ask::default(), ms(at));
        (answer.reason, answer.quiet_for.as_millis())
    };
    // 20 quiet seconds before it left say nothing about load balancers.
    drain.look(&outside(60_500, &[]), None);
    assert_eq!(answered(&drain, 60_550), (DrainReason::Waiting, 500));
    drain.look(
        &outside(69_000, &[(68_000, CLIENT), (66_000, CLIENT)]),
        None,
    );
    assert_eq!(answered(&drain, 69_050), (DrainReason::Connections, 1_000));
    assert_eq!(drain.view().connections, 2);
    drain.look(&outside(77_900, &[]), None);
    assert_eq!(answered(&drain, 78_050), (DrainReason::Connections, 9_900));
    drain.look(&outside(78_100, &[]), None);
    assert_eq!(answered(&drain, 78_150), (DrainReason::Quiet, 10_100));
    // A new connection ends the quiet time.
    drain.look(&outside(79_000, &[(78_900, CLIENT)]), None);
    assert_eq!(answered(&drain, 79_050), (DrainReason::Connections, 100));
    assert_eq!(drain.view().counted, [4, 0]);
}

#[test]
fn a_node_that_stays_after_all_begins_anew() {
    let mut drain = leaving();
    drain.look(&outside(61_000, &[(60_500, CLIENT)]), None);
    drain.follow(&Eligibility::Eligible, ms(61_000));
    assert_eq!((drain.view().since, drain.view().connections), (None, 0));
    drain.follow(&Eligibility::Deleting, ms(90_000));
    drain.follow(&tainted(), ms(95_000));
    assert_eq!(drain.view().since, Some(ms(90_000)), "it left only once");
    drain.look(
        &outside(95_000, &[(70_000, CLIENT), (94_000, CLIENT)]),
        None,
    );
    assert_eq!(
        drain.view().connections,
        1,
        "connections before the removal do not count"
    );
}

#[test]
fn probe_ranges_are_counted_apart() {
    let mut drain = leaving();
    let v6 = |text: &str| match text.parse::<IpAddr>().unwrap() {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => mapped(address.octets()),
    };
    let arrivals = [
        (69_000, PROBE),
        (69_000, v6("2600:2d00:1::7")),
        (61_000, v6("2001:db8::1")),
    ];
    drain.look(&outside(71_500, &arrivals), None);
    let view = drain.view();
    assert_eq!((view.connections, view.ignored), (1, 2));
    assert_eq!(view.counted, [1, 1]);
    let answer = view.answer(&Ask::default(), ms(71_600));
    assert_eq!(answer.reason, DrainReason::Quiet, "{answer:?}");
}

/// On a node without a taint, a hook declares the removal and how long it has waited.
#[test]
fn a_caller_may_say_that_the_node_leaves() {
    let mut drain = drain();
    drain.look(&outside(1_000, &[]), None);
    drain.look(&outside(60_000, &[(40_000, CLIENT)]), None);
    let reason = |drain: &Drain, seconds, at| drain.view().answer(&waited(seconds), ms(at)).reason;
    assert_eq!(reason(&drain, 0, 60_000), DrainReason::Waiting);
    drain.look(&outside(69_900, &[]), None);
    assert_eq!(reason(&drain, 9, 69_900), DrainReason::Waiting);
    drain.look(&outside(70_100, &[]), None);
    assert_eq!(reason(&drain, 10, 70_100), DrainReason::Quiet);
    // The earlier declaration counts.
    drain.follow(&tainted(), ms(70_200));
    let answer = drain.view().answer(&waited(10), ms(70_300));
    assert_eq!(answer.since, Some(ms(60_300)));
    let answer = drain.view().answer(&waited(0), ms(70_300));
    assert_eq!(answer.since, Some(ms(70_200)));
}

#[test]
fn unobserved_time_is_not_quiet() {
    // An agent that just started knows nothing of the time before.
    let mut fresh = drain();
    fresh.follow(&tainted(), ms(60_000));
    let asked = |drain: &Drain, at| drain.view().answer(&waited(3_600), ms(at));
    let answer = asked(&fresh, 60_100);
    assert_eq!(answer.reason, DrainReason::Blind);
    assert!(
        answer.message.contains("not counted connections yet"),
        "{answer:?}"
    );
    fresh.look(&outside(60_200, &[]), None);
    assert_eq!(asked(&fresh, 60_250).reason, DrainReason::Waiting);

    // An agent that was stopped.
    let mut stopped = leaving();
    stopped.look(&outside(75_000, &[]), None);
    assert_eq!(asked(&stopped, 79_900).reason, DrainReason::Quiet);
    let answer = asked(&stopped, 81_000);
    assert_eq!(answer.reason, DrainReason::Blind);
    assert!(answer.message.contains("6 s ago"), "{answer:?}");

    // The uplink was unobserved for a moment.
    let mut blind = leaving();
    let why = || Some("eth0 is not observed".to_owned());
    blind.look(&outside(75_000, &[]), why());
    assert_eq!(asked(&blind, 75_100).reason, DrainReason::Blind);
    blind.look(&outside(75_500, &[]), None);
    let answer = asked(&blind, 75_600);
    assert_eq!(
        (answer.reason, answer.quiet_for),
        (DrainReason::Waiting, Duration::from_millis(500))
    );
    blind.cannot_see("gone");
    assert_eq!(asked(&blind, 75_600).reason, DrainReason::Blind);
}

#[rstest]
#[case("", 10_000, None)]
#[case("quiet=30s", 30_000, None)]
#[case("quiet=1m30s&waited=2.5", 90_000, Some(2_500))]
#[case("waited=0&quiet=600", 600_000, Some(0))]
#[case("&quiet=1&", 1_000, None)]
fn valid_queries_are_parsed(#[case] query: &str, #[case] quiet: u64, #[case] waited: Option<u64>) {
    let ask = Ask {
        quiet: Duration::from_millis(quiet),
        waited: waited.map(Duration::from_millis),
    };
    assert_eq!(Ask::parse(query), Ok(ask));
    assert_eq!(Ask::parse(&ask.query()), Ok(ask));
}

#[rstest]
#[case("quiet=", "quiet time \"\"")]
#[case("quiet=0", "between 1s and 10m")]
#[case("quiet=601", "between 1s and 10m")]
#[case("quiet=-5s", "between 1s and 10m")]
#[case("quiet=inf", "between 1s and 10m")]
#[case("until=open", "\"until\" is not known")]
#[case("waited=25h", "waited \"25h\"")]
#[case("waited=NaN", "waited \"NaN\"")]
#[case("quite=10s", "\"quite\" is not known")]
fn invalid_queries_are_rejected(#[case] query: &str, #[case] expected: &str) {
    let message = Ask::parse(query).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn without_ranges_every_connection_counts() {
    assert!(!ProbeRanges::default().contains(&CLIENT));
    assert!(drain().ranges.contains(&PROBE));
}

proptest! {
    /// For all connections and request times, the answer is quiet only if the node is leaving, the
    /// whole quiet time was observed, and no new connection arrived in it.
    #[test]
    fn quiet_is_never_said_too_early(
        looks in prop::collection::vec((1u64..4_000, any::<bool>(), any::<bool>()), 1..40),
        taint in 0u64..60_000,
        quiet in 1u64..20,
    ) {
        let mut drain = drain();
        let (mut until, mut clear) = (0, None);
        let ask = Ask {
            quiet: Duration::from_secs(quiet),
            waited: None,
        };
        for (step, arrives, blind) in looks {
            let from = until;
            until += step;
            if (from..until).contains(&taint) {
                drain.follow(&tainted(), ms(taint));
            }
            let arrivals: &[(u64, Address)] = if arrives { &[(until - 1, CLIENT)] } else { &[] };
            drain.look(&outside(until, arrivals), blind.then(|| "blind".to_owned()));
            if clear.is_none() || arrives || blind {
                clear = Some(if blind { until } else { until - u64::from(arrives) });
            }
            let said = drain.view().answer(&ask, ms(until)).reason == DrainReason::Quiet;
            let since = clear.unwrap_or(until).max(taint);
            prop_assert!(!said || (taint < until && until - since >= quiet * 1_000));
        }
    }
}
