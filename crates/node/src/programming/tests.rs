use pathproof_facts::directory::ServiceInfo;
use pathproof_wire::evidence::OUTCOMES;
use pathproof_wire::service::{EndpointValue, Family, SourceClass};
use rstest::rstest;

use super::*;

const WEB: u32 = 7;
const START: Mono = Mono(100_000_000_000);

/// A Service port: its number of endpoints, and whether it is the sentinel's.
struct Endpoints(u32, bool);

impl Directory for Endpoints {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        (id == WEB).then(|| ServiceInfo {
            port: "http".into(),
            endpoints: self.0,
            sentinel: self.1,
            ..ServiceInfo::plain("shop", "web", Family::V4)
        })
    }
}

fn web() -> ObjectName {
    ObjectName::new("shop", "web")
}

fn key(last: u8) -> EndpointKey {
    let mut address = [0; 16];
    address[15] = last;
    EndpointKey {
        service: WEB,
        address,
        port: [31, 144],
        padding: [0; 2],
    }
}

fn added(last: u8) -> MapChange {
    MapChange::PutEndpoint {
        key: key(last),
        value: EndpointValue::default(),
    }
}

fn removed(last: u8) -> MapChange {
    MapChange::RetireEndpoint {
        key: key(last),
        value: EndpointValue {
            flags: endpoint_flag::LEFT,
        },
    }
}

fn after(ms: u64) -> Mono {
    START.plus(Duration::from_millis(ms))
}

/// Forwarded connections of the Service port.
fn sent(count: u32) -> [CountDelta; 1] {
    let mut counts = [0; OUTCOMES];
    counts[Outcome::Forwarded as usize] = count;
    [CountDelta {
        service: WEB,
        class: SourceClass::Pod,
        counts,
        lost: 0,
    }]
}

/// Follows a plan at START for a Service that then has three endpoints.
fn begun(plan: &[MapChange], delivery: Option<u64>) -> Programming {
    let mut programming = Programming::default();
    let delivery = delivery.map(|ms| (web(), Duration::from_millis(ms)));
    let deliveries = delivery.into_iter().collect();
    programming.follow(plan, &deliveries, &Endpoints(3, false), START);
    programming
}

/// Latency from the receipt, in milliseconds, of the only change that is over.
fn measured(programming: &mut Programming) -> Option<u128> {
    let done = programming.take_done();
    assert_eq!(done.len(), 1, "{done:?}");
    done[0]
        .latency
        .map(|latency| latency.since_receipt.as_millis())
}

#[test]
fn an_added_endpoint_is_measured_at_its_first_connection() {
    let mut web = begun(&[added(1)], Some(700));
    assert_eq!(web.news(), Some(vec![key(1)]));
    web.read(&sent(20), &[], &Endpoints(3, false), after(250));
    assert_eq!(web.take_done(), []);
    let met = [(key(1), after(300))];
    web.read(&sent(20), &met, &Endpoints(3, false), after(500));
    let latency = Latency {
        since_receipt: Duration::from_millis(300),
        since_trigger: Some(Duration::from_secs(1)),
    };
    let expected = Programmed {
        change: EndpointChange::Added,
        latency: Some(latency),
    };
    assert_eq!(web.take_done(), [expected]);
    assert_eq!(web.news(), Some(vec![]), "nothing is read any more");
    assert_eq!(web.news(), None);
}

/// If connections are seconds apart, the first one shows when it came, not when the rules were written.
#[rstest]
#[case::one_endpoint_a_connection_in_seven_seconds(1, 1, 7_000, None)]
#[case::three_endpoints_ten_a_second(3, 3, 300, None)]
#[case::three_endpoints_a_hundred_a_second(3, 40, 400, Some(400))]
#[case::late_and_ten_a_second(3, 70, 7_000, Some(7_000))]
fn sparse_connections_measure_nothing(
    #[case] endpoints: u32,
    #[case] connections: u32,
    #[case] ms: u64,
    #[case] expected: Option<u128>,
) {
    let mut web = begun(&[added(1)], None);
    let met = [(key(1), after(ms))];
    let endpoints = Endpoints(endpoints, false);
    web.read(&sent(connections), &met, &endpoints, after(ms));
    assert_eq!(measured(&mut web), expected);
}

#[test]
fn a_removed_endpoint_is_measured_at_its_last_connection() {
    let mut web = begun(&[removed(1)], None);
    let endpoints = Endpoints(2, false);
    for (read, met) in [(500, 400), (1_000, 900), (1_500, 1_100), (5_900, 1_100)] {
        web.read(&sent(100), &[(key(1), after(met))], &endpoints, after(read));
        assert_eq!(web.take_done(), [], "after {read} ms");
    }
    web.read(
        &sent(100),
        &[(key(1), after(1_100))],
        &endpoints,
        after(6_200),
    );
    assert_eq!(measured(&mut web), Some(1_100));
}

/// Connections went on, but none to the endpoint: the rules were updated before this node received the
/// change.
#[rstest]
#[case::busy(1_000, Some(0))]
#[case::idle(0, None)]
#[case::sparse(30, None)]
fn a_removed_endpoint_that_is_never_met(#[case] connections: u32, #[case] expected: Option<u128>) {
    let mut web = begun(&[removed(1)], None);
    web.read(&sent(connections), &[], &Endpoints(2, false), after(5_000));
    assert_eq!(measured(&mut web), expected);
}

#[test]
fn what_nobody_dials_is_abandoned() {
    let mut web = begun(&[added(1)], None);
    web.read(&sent(5_000), &[], &Endpoints(3, false), after(59_000));
    assert_eq!(web.take_done(), []);
    web.read(&[], &[], &Endpoints(3, false), after(60_000));
    assert_eq!(measured(&mut web), None);
}

#[test]
fn a_change_that_is_replaced_is_not_measured() {
    let mut web = begun(&[added(1)], None);
    let plan = [removed(1)];
    web.follow(&plan, &BTreeMap::new(), &Endpoints(3, false), after(100));
    assert_eq!(measured(&mut web), None);
    let deleted = [MapChange::DeleteEndpoint { key: key(1) }];
    web.follow(&deleted, &BTreeMap::new(), &Endpoints(3, false), after(200));
    assert_eq!(measured(&mut web), None);
    assert_eq!(web.news(), Some(vec![]));
}

#[test]
fn no_more_than_so_many_are_waited_for() {
    let keys = (0..=u16::MAX).take(WAITED_FOR + 3);
    let plan: Vec<MapChange> = keys
        .map(|number| {
            let mut key = key(1);
            key.port = number.to_be_bytes();
            MapChange::PutEndpoint {
                key,
                value: EndpointValue::default(),
            }
        })
        .collect();
    let mut web = begun(&plan, None);
    assert_eq!(web.news().map(|keys| keys.len()), Some(WAITED_FOR));
    assert_eq!(web.take_done().len(), 3);
}

/// Probes measure the sentinel's endpoint, which moves regularly; UDP has no first connection.
#[test]
fn the_sentinel_and_datagrams_are_left_out() {
    let mut programming = Programming::default();
    let sentinel = Endpoints(1, true);
    programming.follow(&[added(1)], &BTreeMap::new(), &sentinel, START);
    let datagrams = MapChange::PutEndpoint {
        key: key(1),
        value: EndpointValue {
            flags: endpoint_flag::UDP,
        },
    };
    let web = Endpoints(1, false);
    programming.follow(&[datagrams], &BTreeMap::new(), &web, START);
    assert_eq!(programming.news(), None);
}
