//! All listeners, on a separate thread with its own runtime.
//!
//! The main loop may wait for a second or more: for the kernel's lock of network interfaces, or for a plan of
//! ten thousand Services. A load balancer waits for an answer for one second. On a shared runtime, even one
//! with several threads, the main loop may delay answers: a worker that picks up a task while it owns the
//! driver of sockets and timers keeps the driver until that task yields (tokio issue 4730).
//!
//! Nothing here may request anything but a recording from the main loop.

use std::sync::Arc;
use std::{io, thread};

use axum::Router;
use ipnet::IpNet;
use pathproof_facts::time::HumanDuration;
use pathproof_wire::steer::ALIVE_NS;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::agent::Agent;
use crate::clock;
use crate::config::Switch;
use crate::datapath::steer::Pulse;
use crate::http::limits::Limits;
use crate::http::serve::{Rules, serve};
use crate::http::{AllowList, admin, health, service};
use crate::lifecycle::memory_limit::memory_limit;
use crate::lifecycle::raise_open_files;
use crate::lifecycle::stall::Stall;
use crate::metrics::Listener;
use crate::port::Listeners;

/// Maximum number of connections with a request on the admin port. An answer may have 1 MiB (with
/// `--service-metrics=all` 9 MiB), and a client that does not read it holds it for a minute.
const ADMIN_TALKING: usize = 8;

/// Memory that the agent may need for everything but connections (docs/internal/specification.md).
const OWN_MEMORY: u64 = 72 << 20;

/// Memory that connections may use under this limit. Operators raise the shipped limit of 128 MiB because the
/// agent needs more for a large cluster, and lower it for a small one.
fn left_for_connections(limit: u64) -> u64 {
    let own = OWN_MEMORY.max(limit / 2);
    limit.saturating_sub(own).max(limit / 4)
}

/// A listener, with the requests that it answers and the rules for its clients.
type Served = (std::net::TcpListener, Router, Rules);

pub(super) struct Serving(oneshot::Receiver<()>);

impl Serving {
    /// Starts the thread; it serves until the sender of `ended` is dropped.
    /// Meanwhile the thread records that it runs, for other threads and for the kernel.
    pub(super) async fn start(
        all: Vec<Served>,
        signs: (Stall, Option<Pulse>),
        ended: watch::Receiver<()>,
    ) -> io::Result<Self> {
        let (started, starting) = oneshot::channel();
        let (over, ends) = oneshot::channel();
        let thread = thread::Builder::new().name("answers".to_owned());
        thread.spawn(move || {
            run(all, signs, &ended, started);
            drop(over);
        })?;
        starting.await.map_err(io::Error::other)??;
        Ok(Self(ends))
    }

    /// Waits until the last request is answered.
    pub(super) async fn end(self) {
        // Nothing is sent: the sender is dropped.
        let _ = self.0.await;
    }
}

fn run(
    all: Vec<Served>,
    (stall, pulse): (Stall, Option<Pulse>),
    ended: &watch::Receiver<()>,
    started: oneshot::Sender<io::Result<()>>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    runtime.block_on(async {
        let mut served = JoinSet::new();
        for (listener, router, rules) in all {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return drop(started.send(Err(error))),
            };
            let mut ended = ended.clone();
            let end = async move { while ended.changed().await.is_ok() {} };
            served.spawn(serve(listener, router, rules, end));
        }
        // It ends with the runtime.
        tokio::spawn(beat(stall, pulse));
        // The receiver may be gone.
        let _ = started.send(Ok(()));
        served.join_all().await;
    });
}

async fn beat(stall: Stall, mut pulse: Option<Pulse>) {
    let mut failed = false;
    loop {
        let now = clock::mono();
        let beaten = pulse.as_mut().map_or(Ok(()), |pulse| pulse.beat(now));
        if let Err(error) = beaten
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!(%error, "if another process listens on the healthz port, it answers now: \
                                    the agent cannot show that it runs");
        }
        let pause = stall.run(now);
        if let Some(pause) = pause.filter(|pause| pause.as_nanos() > u128::from(ALIVE_NS)) {
            let pause = HumanDuration(pause);
            tracing::warn!(
                "the agent did not run for {pause}: load balancers got no answer, or \
                            that of another process at the healthz port"
            );
        }
        if stall.is_lost(now) {
            tracing::error!("the main loop hangs: the agent ends, so that it is started again");
            std::process::abort();
        }
        tokio::time::sleep(Pulse::INTERVAL).await;
    }
}

/// All listeners of the agent.
pub(super) fn all(
    agent: &Agent,
    listeners: Listeners,
    state: admin::AdminState,
    stall: &Stall,
) -> Vec<Served> {
    let metrics = Arc::clone(&state.metrics);
    let mut served: Vec<Served> = Vec::new();
    let proxied = agent.config.healthz.health_check_proxy_protocol == Switch::On;
    let mut serve = |which, listener, router, allow: &[Option<IpNet>], limits| {
        let Some(listener) = listener else { return };
        let rules = Rules {
            listener: which,
            allow: AllowList::new(allow.iter().flatten().copied()),
            proxied: which != Listener::Admin && proxied,
            limits,
            metrics: Arc::clone(&metrics),
        };
        served.push((listener, router, rules));
    };
    let answers = health::CurrentAnswers {
        published: agent.output.answers.subscribe(),
        policy: agent.config.healthz.unknown_policy,
        stall: stall.clone(),
        mono: clock::mono,
    };
    let router = health::router(health::HealthState {
        answers: answers.clone(),
        now: clock::wall,
        metrics: Arc::clone(&metrics),
        loopback: agent.config.drop_in,
    });
    // Raise the limit of open files, because the healthz port is open to unauthenticated clients.
    let open_files = raise_open_files();
    // Shares of the memory that is left; the rest is for the admin port.
    let left = memory_limit().map_or(u64::MAX, left_for_connections);
    let limits = Limits::default().within(open_files / 4 * 3);
    let limits = limits.within_memory(left / 4 * 3);
    let allow = &agent.config.healthz.healthz_allow_cidr;
    serve(Listener::Healthz, listeners.healthz, router, allow, limits);
    let limits = Limits::default().within(open_files / 8);
    let mut limits = limits.within_memory(left / 8);
    // Few clients use the other two ports.
    limits.waiting = limits.waiting.min(1_024);
    if let Some(steered) = &agent.health_ports {
        let router = service::router(service::ServiceState {
            answers,
            ports: steered.table.subscribe(),
            refusals: steered.refusals.subscribe(),
            metrics: Arc::clone(&metrics),
        });
        // As in kube-proxy, any client may connect: other load balancers may probe these ports.
        serve(Listener::Service, listeners.services, router, &[], limits);
    }
    limits.talking = limits.talking.min(ADMIN_TALKING);
    let allow = &agent.config.admin.admin_allow_cidr;
    let router = admin::router(state);
    serve(Listener::Admin, listeners.admin, router, allow, limits);
    served
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use axum::routing::get;
    use rstest::rstest;

    use super::*;
    use crate::lifecycle::Heartbeat;
    use crate::metrics::{Metrics, ServiceMetrics};

    #[rstest]
    #[case::as_shipped(128, 56)]
    #[case::of_a_large_cluster(256, 128)]
    #[case::low(64, 16)]
    fn memory_is_left_for_connections(#[case] limit: u64, #[case] left: u64) {
        assert_eq!(left_for_connections(limit << 20), left << 20);
    }

    /// The test's runtime has one thread, which blocks here as the main loop blocks in the kernel.
    #[tokio::test]
    async fn answers_do_not_wait_for_the_main_loop() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("no waiting");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/healthz", get(|| async { "well" }));
        let rules = Rules {
            listener: Listener::Healthz,
            allow: AllowList::new([]),
            proxied: false,
            limits: Limits::default(),
            metrics: Metrics::with(ServiceMetrics::default()),
        };
        let (ending, ended) = watch::channel(());
        let now = clock::mono();
        let stall = Stall::new(Heartbeat::new(now.0), now);
        let serving = Serving::start(vec![(listener, router, rules)], (stall, None), ended).await;
        let serving = serving.expect("a thread");
        let mut stream = TcpStream::connect(address).expect("accepted");
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).expect("a limit");
        let request = b"GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n";
        stream.write_all(request).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("well"), "{answer}");
        drop(ending);
        serving.end().await;
    }
}
