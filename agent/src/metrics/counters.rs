//! Metrics that are counted as events occur, in the library's counters and histograms.

use pathproof_facts::trace::Lane;
use pathproof_facts::{named, names};
use pathproof_judge::answer::Endpoint;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::Metrics;

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// Buckets in seconds. Proxies follow within tenths of a second, or at their next sync. The last bound is the
/// lag at which the verdict counts rules as stale.
const LAGS: [f64; 6] = [0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

named! {
    pub enum Listener {
        Healthz = "healthz",
        /// /metrics, /verdict, /agent/*.
        Admin = "admin",
        /// Health check node ports of Services.
        Service = "service",
    }
}

named! {
    /// Fate of a connection, independent of its requests.
    pub enum Turned {
        Accepted = "accepted",
        /// The source is not allowed.
        Denied = "denied",
        /// The connection was closed to make room for a new one.
        Evicted = "evicted",
        TimedOut = "timed_out",
    }
}

named! {
    pub enum Published {
        Condition = "condition",
        Event = "event",
    }
}

named! {
    pub enum WriteResult {
        Ok = "ok",
        /// Rights are missing (403).
        Forbidden = "forbidden",
        /// The object does not exist (404).
        NotFound = "not_found",
        /// Another client wrote at the same time (409).
        Conflict = "conflict",
        /// The API server is busy (429).
        Throttled = "throttled",
        /// The API server refused it for another reason (4xx).
        Rejected = "rejected",
        /// The API server failed (5xx).
        ServerError = "server_error",
        /// There was no connection.
        Unreachable = "unreachable",
        /// No answer came in time.
        Timeout = "timeout",
    }
}

/// Events since the agent started, in the library's counters, gauges and histograms.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) probes: Counters<4>,
    pub(super) void_probes: Counters<1>,
    /// Times until the rules followed a move of the sentinel's endpoint.
    pub(super) rotations: Histogram,
    pub(super) answers: Counters<2>,
    /// Answers of /healthz and /livez, under kube-proxy's metric names.
    pub(super) as_kube_proxy: [Counters<1>; 2],
    pub(super) open: Family<Labels<1>, Gauge>,
    pub(super) turned: Counters<2>,
    pub(super) writes: Counters<2>,
}

impl Default for Counted {
    fn default() -> Self {
        let new = Self {
            probes: Family::default(),
            void_probes: Family::default(),
            rotations: Histogram::new(LAGS),
            answers: Family::default(),
            as_kube_proxy: Default::default(),
            open: Family::default(),
            turned: Family::default(),
            writes: Family::default(),
        };
        // Create the counters at zero, because a rate needs a first value.
        for (check, code) in ANSWERS {
            new.answer(check, code).inc_by(0);
        }
        // Services' health check node ports start without series, because not every node has them.
        for listener in [Listener::Healthz, Listener::Admin] {
            new.gauge(listener).set(0);
            new.event(listener, Turned::Accepted).inc_by(0);
        }
        new
    }
}

/// Checks and status codes on the health port.
const ANSWERS: [(&str, &str); 5] = [
    ("healthz", "200"),
    ("healthz", "503"),
    ("livez", "200"),
    ("livez", "503"),
    ("other", "404"),
];

impl Counted {
    fn answer(&self, check: &'static str, code: &'static str) -> Counter {
        let labels = [("check", check), ("code", code)];
        self.answers.get_or_create_owned(&labels)
    }

    fn gauge(&self, listener: Listener) -> Gauge {
        let labels = [("listener", listener.name())];
        self.open.get_or_create_owned(&labels)
    }

    fn event(&self, listener: Listener, turned: Turned) -> Counter {
        let labels = [("listener", listener.name()), ("event", turned.name())];
        self.turned.get_or_create_owned(&labels)
    }

    fn write(&self, kind: Published, result: WriteResult) -> Counter {
        let labels = [("kind", kind.name()), ("result", result.name())];
        self.writes.get_or_create_owned(&labels)
    }

    pub(super) fn probe(&self, lane: Lane, outcome: &'static str) {
        let family = ("family", names::of_family(lane.family));
        if outcome == "void" {
            self.void_probes.get_or_create(&[family]).inc();
            return;
        }
        let labels = [
            family,
            ("path", lane.path.name()),
            ("transport", lane.transport.name()),
            ("outcome", outcome),
        ];
        self.probes.get_or_create(&labels).inc();
    }
}

impl Metrics {
    /// Counts an answer on the health port; `None` is an unknown path, or a request that is refused or answered
    /// whatever its path.
    pub fn answered(&self, endpoint: Option<Endpoint>, status: u16) {
        let code = if status == 200 { "200" } else { "503" };
        let [healthz, livez] = &self.counted.as_kube_proxy;
        let (check, code, own) = match endpoint {
            Some(Endpoint::Healthz) => ("healthz", code, Some(healthz)),
            Some(Endpoint::Livez) => ("livez", code, Some(livez)),
            None => ("other", code_of_other(status), None),
        };
        self.counted.answer(check, code).inc();
        if let Some(own) = own.and_then(|own| own.get(&[("code", code)])) {
            own.inc();
        }
    }

    /// Counts an answer on a Service's health check node port.
    pub fn answered_of_service(&self, status: u16) {
        let (check, code) = match status {
            200 => ("service", "200"),
            503 => ("service", "503"),
            _ => ("other", "404"),
        };
        self.counted.answer(check, code).inc();
    }

    /// From now on, also counts answers under kube-proxy's metric names.
    pub fn as_kube_proxy(&self) {
        for counters in &self.counted.as_kube_proxy {
            for code in ["200", "503"] {
                drop(counters.get_or_create(&[("code", code)]));
            }
        }
    }

    pub fn turned(&self, listener: Listener, turned: Turned) {
        self.counted.event(listener, turned).inc();
    }

    /// Counts a connection as open until the result is dropped.
    pub fn opened(&self, listener: Listener) -> Open {
        let gauge = self.counted.gauge(listener);
        gauge.inc();
        Open(gauge)
    }

    /// Counts successful writes of this kind from zero; a failure appears when it first occurs.
    pub fn expect_writes(&self, kind: Published) {
        self.counted.write(kind, WriteResult::Ok).inc_by(0);
    }

    pub fn wrote(&self, kind: Published, result: WriteResult) {
        self.counted.write(kind, result).inc();
    }

    #[cfg(test)]
    pub(crate) fn writes(&self, kind: Published, result: WriteResult) -> u64 {
        self.counted.write(kind, result).get()
    }
}

fn code_of_other(status: u16) -> &'static str {
    match status {
        200 => "200",
        400 => "400",
        417 => "417",
        _ => "404",
    }
}

#[derive(Debug)]
pub struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
