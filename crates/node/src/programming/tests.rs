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
fn begun(plan: &[MapChange]) -> Programming {
    let mut programming = Programming::default();
    programming.follow(plan, &Endpoints(3, false), START);
    programming
}

fn seen(programming: &Programming) -> (Option<Mono>, Option<Mono>) {
    let seen = programming.seen(&Endpoints(3, false));
    (seen.followed, seen.unmet)
}

#[test]
fn an_added_endpoint_is_followed_until_its_first_connection() {
    let mut web = begun(&[added(1)]);
    assert_eq!(web.news(), Some(vec![key(1)]));
    web.read(&sent(20), &[], after(250));
    assert_eq!(seen(&web), (None, None));
    web.read(&sent(20), &[key(1)], after(500));
    assert_eq!(seen(&web), (Some(START), None));
    assert_eq!(web.news(), Some(vec![]), "nothing is read any more");
    assert_eq!(web.news(), None);
}

/// A few connections may all go to the other endpoints.
#[rstest]
#[case::few(20, None)]
#[case::seven_for_each_endpoint(21, Some(START))]
fn an_endpoint_without_its_share_of_connections_is_missed(
    #[case] connections: u32,
    #[case] unmet: Option<Mono>,
) {
    let mut web = begun(&[added(1)]);
    web.read(&sent(connections), &[], after(1_000));
    assert_eq!(seen(&web), (None, unmet));
}

#[test]
fn an_endpoint_without_connections_is_followed_for_a_minute() {
    let mut web = begun(&[added(1)]);
    web.read(&sent(5_000), &[], after(59_000));
    assert_eq!(seen(&web), (None, Some(START)));
    web.read(&[], &[], after(60_000));
    assert_eq!(seen(&web), (None, None));
}

#[rstest]
#[case::removed(removed(1))]
#[case::deleted(MapChange::DeleteEndpoint { key: key(1) })]
fn an_endpoint_that_goes_is_not_followed(#[case] change: MapChange) {
    let mut web = begun(&[added(1)]);
    web.news();
    web.follow(&[change], &Endpoints(3, false), after(100));
    assert_eq!(web.news(), Some(vec![]));
    web.read(&sent(5_000), &[], after(1_000));
    assert_eq!(seen(&web), (None, None));
}

#[test]
fn no_more_than_so_many_are_waited_for() {
    let keys = (0..=u16::MAX).take(MAX_ADDED + 3);
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
    let mut web = begun(&plan);
    assert_eq!(web.news().map(|keys| keys.len()), Some(MAX_ADDED));
}

/// Probes show the changes of the sentinel's endpoint, which moves regularly; UDP has no first connection.
#[test]
fn the_sentinel_and_datagrams_are_left_out() {
    let mut programming = Programming::default();
    let sentinel = Endpoints(1, true);
    programming.follow(&[added(1)], &sentinel, START);
    let datagrams = MapChange::PutEndpoint {
        key: key(1),
        value: EndpointValue {
            flags: endpoint_flag::UDP,
        },
    };
    programming.follow(&[datagrams], &Endpoints(1, false), START);
    assert_eq!(programming.news(), None);
}
