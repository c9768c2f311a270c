//! A small world for tests: named Services, scripted samples, and a clock that is a number.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pathproof_facts::cause::{Failure, State, Why};
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::{CountDelta, FailedConnection, ObserverHealth, Sample};
use pathproof_witness::ledger::Ledger;

use crate::eligibility::Eligibility;
use crate::verdict::{Inputs, Verdict, verdict};

/// Test time 0 in ms after boot.
const EPOCH_MS: u64 = 1_000_000;

/// Time on the test's clock, in ms.
pub(super) fn ms(ms: u64) -> Mono {
    Mono((EPOCH_MS + ms) * 1_000_000)
}

/// Services by id: (namespace, name, port, family, endpoints).
pub(super) struct Names(pub(super) Vec<(ObjectName, &'static str, Family, u32)>);

impl Names {
    /// IDs 0 to 3 are web:http, api, web:metrics and db over IPv4. All have two endpoints except db, which
    /// has one. 9 is the sentinel; IDs from 10 on are the same over IPv6.
    pub(super) fn standard() -> Self {
        let of = |name: &str, port, family, endpoints| {
            (ObjectName::new("default", name), port, family, endpoints)
        };
        let mut all = Vec::new();
        for family in Family::ALL {
            all.push(of("web", "http", family, 2));
            all.push(of("api", "", family, 2));
            all.push(of("web", "metrics", family, 2));
            all.push(of("db", "", family, 1));
            let cart = ObjectName::new("shop", "cart");
            all.push((cart, "", family, 1));
            for _ in 5..8 {
                all.push(of("spare", "", family, 1));
            }
            let echo = ObjectName::new("pathproof", "pathproof-echo");
            all.push((echo, "", family, 4));
            all.push(of("sentinel", "", family, 1));
        }
        Self(all)
    }
}

impl Directory for Names {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        let (name, port, family, endpoints) = self.0.get(id as usize)?;
        Some(ServiceInfo {
            port: (*port).into(),
            endpoints: *endpoints,
            sentinel: &*name.name == "sentinel",
            echo: &*name.name == "pathproof-echo",
            on_host: &*name.name == "spare",
            since: Some(if id == CART { ms(0) } else { Mono(0) }),
            ..ServiceInfo::plain(&name.namespace, &name.name, *family)
        })
    }
}

pub(super) const WEB: u32 = 0;
/// A Service whose endpoints are the node itself.
pub(super) const ON_HOST: u32 = 5;
pub(super) const API: u32 = 1;
pub(super) const WEB_METRICS: u32 = 2;
/// db, which has one endpoint.
pub(super) const DB: u32 = 3;
/// shop/cart, which has one endpoint, is new at test time 0, and is the only Service in its namespace.
pub(super) const CART: u32 = 4;
/// The pod probe's Service.
pub(super) const ECHO: u32 = 8;
pub(super) const SENTINEL: u32 = 9;
/// Offset from an ID to the same Service over IPv6.
pub(super) const V6: u32 = 10;

/// A ledger with scripted input.
#[derive(Clone)]
pub(super) struct World {
    pub(super) ledger: Ledger,
    pub(super) inputs: Inputs,
    pub(super) next: Sample,
    /// Whether pathproof's devices are sound whenever they are checked.
    pub(super) sound: bool,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            ledger: Ledger::new(Limits::default()),
            inputs: Inputs {
                eligibility: Eligibility::Eligible,
                view_synced: true,
                families: [true, false],
                sentinel_exists: false,
                booted: Mono(0),
                pods_expected: [false; 2],
                network: None,
                uplinks: vec!["eth0".to_owned()],
                usual_lag: None,
                counted: Default::default(),
                clients_unseen: false,
            },
            next: Sample {
                observer: attached(),
                ..Sample::default()
            },
            sound: true,
        };
        world.all_worked().look(0);
        world
    }

    /// Every Service of the first namespace worked for pods before.
    pub(super) fn all_worked(&mut self) -> &mut Self {
        for service in [WEB, API, WEB_METRICS, DB] {
            self.worked(service).worked(service + V6);
        }
        self
    }

    /// Connections of pods to a Service succeeded long ago.
    pub(super) fn worked(&mut self, service: u32) -> &mut Self {
        let info = Names::standard().service(service).unwrap();
        self.ledger.seen_working(&info, false);
        self
    }

    /// Connections from outside to a Service succeeded long ago.
    pub(super) fn worked_outside(&mut self, service: u32) -> &mut Self {
        let info = Names::standard().service(service).unwrap();
        self.ledger.seen_working(&info, true);
        self
    }

    /// Users dial a Service, with any outcome.
    pub(super) fn dial(&mut self, service: u32, class: SourceClass, at: u64) {
        let mut counts = [0; OUTCOMES];
        counts[Outcome::Arrived as usize] = 1;
        let delta = CountDelta {
            service,
            class,
            counts,
            lost: 0,
        };
        let ledger = &mut self.ledger;
        ledger.note_users(&[delta], &Names::standard(), ms(at));
    }

    pub(super) fn prove(&mut self, service: u32, class: SourceClass, at: u64) -> &mut Self {
        let family = usize::from(service >= V6);
        self.next.last_proofs[family][class as usize] = Some(ms(at));
        let counts = [
            (Outcome::Arrived, 1),
            (Outcome::Forwarded, 1),
            (Outcome::Proven, 1),
        ];
        self.count(service, class, &counts, 0)
    }

    /// A connection fails and is reported with its addresses.
    pub(super) fn fail(
        &mut self,
        service: u32,
        class: SourceClass,
        client: u8,
        failure: Failure,
        at: u64,
    ) -> &mut Self {
        self.sight(failed_connection(service, class, client, failure, at));
        self.fail_unseen(service, class, failure)
    }

    /// A connection fails and is only counted.
    pub(super) fn fail_unseen(
        &mut self,
        service: u32,
        class: SourceClass,
        failure: Failure,
    ) -> &mut Self {
        let outcome = match failure {
            Failure::Refused => Outcome::Refused,
            Failure::Leaked => Outcome::Leaked,
            Failure::Misrouted => Outcome::Misrouted,
            Failure::Stale => Outcome::Stale,
            Failure::AnswerNotDelivered => Outcome::AnswerNotDelivered,
            Failure::Lost => return self.count(service, class, &[(Outcome::Arrived, 1)], 1),
        };
        self.count(service, class, &[(Outcome::Arrived, 1), (outcome, 1)], 0)
    }

    /// A new connection of a client to an endpoint that had left `age` ms before.
    pub(super) fn stale(
        &mut self,
        service: u32,
        class: SourceClass,
        client: u8,
        age: u64,
        at: u64,
    ) -> &mut Self {
        self.sight(to_left(service, class, client, age, at));
        self.fail_unseen(service, class, Failure::Stale)
    }

    /// An endpoint that left is dialled by its own address.
    pub(super) fn dialled_itself(
        &mut self,
        service: u32,
        class: SourceClass,
        client: u8,
        age: u64,
        at: u64,
    ) -> &mut Self {
        let seen = to_left(service, class, client, age, at);
        self.sight(FailedConnection {
            frontend: seen.destination.expect("a destination"),
            ..seen
        })
    }

    /// A connection from outside is forwarded and not answered.
    pub(super) fn unanswered(&mut self) -> &mut Self {
        self.next.unanswered = [1, 0];
        self
    }

    pub(super) fn sight(&mut self, failed_connection: FailedConnection) -> &mut Self {
        self.next.failed_connections.push(failed_connection);
        self
    }

    pub(super) fn count(
        &mut self,
        service: u32,
        class: SourceClass,
        outcomes: &[(Outcome, u32)],
        lost: u32,
    ) -> &mut Self {
        let mut counts = [0; OUTCOMES];
        for (outcome, n) in outcomes {
            counts[*outcome as usize] = *n;
        }
        self.next.counts.push(CountDelta {
            service,
            class,
            counts,
            lost,
        });
        self
    }

    /// The agent takes a sample with everything scripted since the last one.
    pub(super) fn look(&mut self, at: u64) -> &mut Self {
        self.next.at = ms(at);
        self.ledger.absorb(&self.next, &Names::standard());
        if self.sound {
            self.ledger.sentinel.looked(ms(at));
        }
        self.next.unanswered = [0; 2];
        self.next.counts.clear();
        self.next.failed_connections.clear();
        self
    }

    /// Samples every 250 ms from `from` to `to`.
    pub(super) fn idle(&mut self, from: u64, to: u64) -> &mut Self {
        for at in (from..=to).step_by(250) {
            self.look(at);
        }
        self
    }

    /// Checks for every verdict that JSON preserves it and that it has a sentence.
    pub(super) fn verdict(&self, now: u64) -> Verdict {
        let verdict = verdict(&self.ledger, &self.inputs, ms(now));
        let json = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
        assert!(verdict.reason().len() > 20, "{verdict:?}");
        verdict
    }
}

/// Asserts that the reason contains these words.
#[track_caller]
pub(super) fn says(verdict: &Verdict, words: &str) {
    let reason = verdict.reason();
    assert!(reason.contains(words), "{reason}");
}

/// Asserts that the reason ends with these words.
#[track_caller]
pub(super) fn ends(verdict: &Verdict, words: &str) {
    let reason = verdict.reason();
    assert!(reason.ends_with(words), "{reason}");
}

pub(super) fn unknown(verdict: &Verdict) -> Option<Why> {
    verdict.why.filter(|_| verdict.state == State::Unknown)
}

pub(super) fn attached() -> ObserverHealth {
    ObserverHealth {
        attached: 3,
        wanted: 3,
        ..ObserverHealth::default()
    }
}

/// A connection to an endpoint that left `age` ms earlier.
fn to_left(service: u32, class: SourceClass, client: u8, age: u64, at: u64) -> FailedConnection {
    FailedConnection {
        left_since: Some(Mono(ms(at).0.saturating_sub(age * 1_000_000))),
        destination: Some(SocketAddr::from(([10, 244, 0, 5], 8080))),
        ..failed_connection(service, class, client, Failure::Stale, at)
    }
}

pub(super) fn failed_connection(
    service: u32,
    class: SourceClass,
    client: u8,
    failure: Failure,
    at: u64,
) -> FailedConnection {
    let lag = if failure == Failure::Lost { 1_000 } else { 0 };
    FailedConnection {
        at: ms(at),
        arrived: Mono(ms(at).0 - lag * 1_000_000),
        service,
        class,
        failure,
        client: IpAddr::V4(Ipv4Addr::new(10, 244, 1, client)),
        client_port: 0,
        frontend: SocketAddr::from(([10, 96, 0, 1], 80)),
        destination: None,
        device: 2,
        misdelivered: false,
        icmp: false,
        answer_lost: false,
        left_since: None,
    }
}
