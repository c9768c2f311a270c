//! What the listeners count, without a lock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use agent_core::answer::Endpoint;

/// A listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// /healthz and /livez.
    Healthz,
    /// /metrics, /verdict, /agent/*.
    Admin,
}

impl Listener {
    pub(super) const ALL: [Listener; 2] = [Listener::Healthz, Listener::Admin];

    /// Name in metrics and log.
    pub fn name(self) -> &'static str {
        match self {
            Listener::Healthz => "healthz",
            Listener::Admin => "admin",
        }
    }
}

/// What became of a connection, apart from its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// It was accepted.
    Accepted,
    /// Its source is not allowed.
    Denied,
    /// It made room for a newcomer.
    Evicted,
    /// It took too long.
    TimedOut,
}

impl Turned {
    pub(super) const ALL: [Turned; 4] = [
        Turned::Accepted,
        Turned::Denied,
        Turned::Evicted,
        Turned::TimedOut,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Turned::Accepted => "accepted",
            Turned::Denied => "denied",
            Turned::Evicted => "evicted",
            Turned::TimedOut => "timed_out",
        }
    }
}

/// Endpoints and codes that the health port answers.
pub(super) const ANSWERS: [(&str, &str); 5] = [
    ("healthz", "200"),
    ("healthz", "503"),
    ("livez", "200"),
    ("livez", "503"),
    ("other", "404"),
];

/// Counters of the listeners.
#[derive(Debug, Default)]
pub struct HttpStats {
    pub(super) answers: [AtomicU64; ANSWERS.len()],
    pub(super) open: [AtomicI64; 2],
    pub(super) turned: [[AtomicU64; 4]; 2],
    as_kube_proxy: AtomicBool,
}

impl HttpStats {
    /// A request to the health port was answered; `None` is a path that it does not know.
    pub fn answered(&self, endpoint: Option<Endpoint>, status: u16) {
        let sick = usize::from(status != 200);
        let slot = match endpoint {
            Some(Endpoint::Healthz) => sick,
            Some(Endpoint::Livez) => 2 + sick,
            None => 4,
        };
        self.answers[slot].fetch_add(1, Relaxed);
    }

    /// Answers are shown under kube-proxy's names as well, from now on.
    pub fn as_kube_proxy(&self) {
        self.as_kube_proxy.store(true, Relaxed);
    }

    pub(super) fn is_as_kube_proxy(&self) -> bool {
        self.as_kube_proxy.load(Relaxed)
    }

    /// What became of a connection.
    pub fn turned(&self, listener: Listener, turned: Turned) {
        self.turned[listener as usize][turned as usize].fetch_add(1, Relaxed);
    }

    /// A connection is open until the result is dropped.
    pub fn opened(&self, listener: Listener) -> Open<'_> {
        let gauge = &self.open[listener as usize];
        gauge.fetch_add(1, Relaxed);
        Open(gauge)
    }

    /// Open connections of a listener.
    pub fn open(&self, listener: Listener) -> i64 {
        self.open[listener as usize].load(Relaxed)
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Open<'a>(&'a AtomicI64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
