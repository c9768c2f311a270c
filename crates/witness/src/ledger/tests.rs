//! Compares the ledger with a naive recount, which keeps every failure of a run and of a Service and adds
//! them up when needed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use pathproof_facts::cause::{FAILURES, Failure};
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::SourceClass;
use proptest::prelude::*;

use super::family::SOURCES_KEPT;
use super::service::Window;
use super::*;
use crate::evidence::{CountDelta, FailedConnection, Sample};

mod model;

use model::Model;

/// Ids: three ports of two Services over IPv4, one over IPv6, and the sentinel. Higher ids are unknown.
pub(super) struct Names([(ObjectName, &'static str, Family); 5]);

const SENTINEL: u32 = 4;
const NOBODY: u32 = 5;

impl Names {
    fn new() -> Self {
        let of = |name, port, family| (ObjectName::new("default", name), port, family);
        Self([
            of("web", "http", Family::V4),
            of("web", "metrics", Family::V4),
            of("api", "", Family::V4),
            of("api", "", Family::V6),
            of("sentinel", "", Family::V4),
        ])
    }
}

impl Directory for Names {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        let (name, port, family) = self.0.get(id as usize)?;
        Some(ServiceInfo {
            port: (*port).into(),
            endpoints: 2,
            sentinel: id == SENTINEL,
            ..ServiceInfo::plain(&name.namespace, &name.name, *family)
        })
    }
}

/// Outcome of some connections of one Service between two samples.
#[derive(Clone, Debug)]
struct Event {
    service: u32,
    class: SourceClass,
    fate: Fate,
    n: u32,
}

#[derive(Clone, Debug)]
enum Fate {
    Proven,
    /// Failed connections. If one of them is reported, its client and its time before the sample in ms.
    Failed(Failure, Option<(u8, u64)>),
}

/// One sample: its distance from the last one, and the events before it.
#[derive(Clone, Debug)]
struct TestSample {
    after: u64,
    events: Vec<Event>,
    blind: bool,
    lost_suspended: bool,
    misrouted_suspended: bool,
}

fn any_event() -> impl Strategy<Value = Event> {
    let report = prop::option::of((1_u8..30, 0_u64..2_000));
    let failed = (prop::sample::select(Failure::ALL.to_vec()), report);
    let fate = prop_oneof![
        1 => Just(Fate::Proven),
        5 => failed.prop_map(|(failure, report)| Fate::Failed(failure, report)),
    ];
    let class = prop::sample::select(SourceClass::ALL.to_vec());
    (0..=NOBODY, class, fate, 1_u32..4).prop_map(|(service, class, fate, n)| Event {
        service,
        class,
        fate,
        n,
    })
}

fn any_look() -> impl Strategy<Value = TestSample> {
    let after = prop_oneof![16 => 1_u64..500, 1 => 500_u64..60_000];
    let rarely = || prop::bool::weighted(0.05);
    let events = prop::collection::vec(any_event(), 0..4);
    (after, events, rarely(), rarely(), rarely()).prop_map(
        |(after, events, blind, lost_suspended, misrouted_suspended)| TestSample {
            after,
            events,
            blind,
            lost_suspended,
            misrouted_suspended,
        },
    )
}

impl TestSample {
    /// The sample that the kernel gives at `at`. `proofs` holds its times of last proofs. The time of a proof
    /// may be reported one sample later than its count.
    fn sample(&self, at: Mono, proofs: &mut [[Option<Mono>; 3]; FAMILIES]) -> Sample {
        let mut sample = Sample {
            at,
            ..Sample::default()
        };
        sample.observer.attached = u32::from(!self.blind);
        sample.observer.lost_suspended = self.lost_suspended;
        sample.observer.misrouted_suspended = self.misrouted_suspended;
        for event in &self.events {
            event.add(&mut sample, proofs);
        }
        sample.last_proofs = *proofs;
        sample
    }
}

impl Event {
    fn add(&self, sample: &mut Sample, proofs: &mut [[Option<Mono>; 3]; FAMILIES]) {
        let mut counts = [0; OUTCOMES];
        counts[Outcome::Arrived as usize] = self.n;
        let mut lost = 0;
        match self.fate {
            Fate::Proven => {
                counts[Outcome::Proven as usize] = self.n;
                // The kernel records no times of the sentinel's proofs, and the times of a third of the
                // others come late.
                if self.service < SENTINEL && self.n < 3 {
                    let family = usize::from(self.service == 3);
                    proofs[family][self.class as usize] = Some(sample.at.minus(ms(1)));
                }
            }
            Fate::Failed(Failure::Lost, _) => lost = self.n,
            Fate::Failed(failure, _) => counts[outcome(failure) as usize] = self.n,
        }
        sample.counts.push(CountDelta {
            service: self.service,
            class: self.class,
            counts,
            lost,
        });
        if let Fate::Failed(failure, Some((client, before))) = self.fate {
            sample.failed_connections.push(self.failed_connection(
                failure,
                client,
                sample.at.minus(ms(before)),
            ));
        }
    }

    fn failed_connection(&self, failure: Failure, client: u8, at: Mono) -> FailedConnection {
        let lag = if failure == Failure::Lost { 1_000 } else { 0 };
        FailedConnection {
            at,
            arrived: at.minus(ms(lag)),
            service: self.service,
            class: self.class,
            failure,
            client: IpAddr::V4(Ipv4Addr::new(10, 244, 1, client)),
            client_port: 0,
            frontend: ([10, 96, 0, 1], 80).into(),
            destination: Some(([10, 244, 0, client], 8_080).into()),
            device: 2,
            misdelivered: failure == Failure::Misrouted && client.is_multiple_of(3),
            icmp: false,
            answer_lost: false,
            left_since: (failure == Failure::Stale).then(|| at.minus(ms(u64::from(client) * 400))),
        }
    }
}

fn outcome(failure: Failure) -> Outcome {
    match failure {
        Failure::Refused => Outcome::Refused,
        Failure::Leaked => Outcome::Leaked,
        Failure::Misrouted => Outcome::Misrouted,
        Failure::Stale => Outcome::Stale,
        Failure::AnswerNotDelivered => Outcome::AnswerNotDelivered,
        Failure::Lost => Outcome::Arrived,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Start of the tests, long after boot.
const BEGAN: Mono = Mono(1_000_000_000_000);

proptest! {
    #[test]
    fn the_ledger_equals_a_recount(
        looks in prop::collection::vec(any_look(), 1..if cfg!(miri) { 20 } else { 80 }),
    ) {
        let names = Names::new();
        let mut ledger = Ledger::new(Limits::default());
        let mut model = Model::new(Limits::default());
        let (mut at, mut proofs) = (BEGAN, Default::default());
        for look in looks {
            at = at.plus(ms(look.after));
            let sample = look.sample(at, &mut proofs);
            ledger.absorb(&sample, &names);
            model.absorb(&sample, &names);
            model.compare(&ledger);
        }
    }

    #[test]
    fn a_memory_is_read_as_it_was_written(
        looks in prop::collection::vec(any_look(), 1..if cfg!(miri) { 10 } else { 40 }),
    ) {
        let names = Names::new();
        let mut ledger = Ledger::new(Limits::default());
        let (mut at, mut proofs) = (BEGAN, Default::default());
        for look in looks {
            at = at.plus(ms(look.after));
            ledger.absorb(&look.sample(at, &mut proofs), &names);
        }
        let memory = ledger.memory();
        let text = serde_json::to_string(&memory).unwrap();
        prop_assert_eq!(&serde_json::from_str::<LedgerMemory>(&text).unwrap(), &memory);
        let heir = Ledger::restore(Limits::default(), memory, true, at);
        for family in Family::ALL {
            prop_assert_eq!(heir.family(family), ledger.family(family));
        }
        prop_assert_eq!(heir.seen(at), ledger.seen(at));
    }

    /// Compares the window with a list of all counts.
    #[test]
    fn a_window_counts_the_last_ten_seconds(
        counts in prop::collection::vec((0_u64..4_000, 0_u32..5), 0..40),
        later in 0_u64..15_000,
    ) {
        let mut window = Window::default();
        let (mut at, mut all) = (BEGAN, Vec::new());
        for (after, n) in counts {
            at = at.plus(ms(after));
            window.add(at, n);
            all.push((at, n));
        }
        let now = at.plus(ms(later));
        let second = |at: Mono| at.0 / 1_000_000_000;
        let recent = |at: Mono| second(now) - second(at) < WINDOW.as_secs();
        let naive: u32 = all.iter().filter(|(at, _)| recent(*at)).map(|(_, n)| n).sum();
        prop_assert_eq!(window.at(now), naive);
    }
}

fn s(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

#[test]
fn what_is_older_than_the_window_is_forgotten() {
    let mut window = Window::default();
    window.add(s(5), 2);
    window.add(s(5), 1);
    window.add(s(9), 1);
    assert_eq!(window.at(s(9)), 4);
    assert_eq!(window.at(s(14)), 4);
    assert_eq!(window.at(s(15)), 1);
    assert_eq!(window.at(s(19)), 0);
    window.add(s(15), 1);
    assert_eq!(window.at(s(15)), 2, "second 5 and second 15 share a place");
    assert_eq!(window.at(s(3)), 0, "the future is not counted");
}
