//! Arbitrary bytes from clients of the two ports, over real loopback sockets. The ports only return
//! complete answers of known kinds, and the next client gets a normal answer.
//!
//! The first byte selects the port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pathproof::http::AllowList;
use pathproof::http::admin::{self, AdminState};
use pathproof::http::health::{self, CurrentAnswers, HealthState};
use pathproof::http::limits::Limits;
use pathproof::http::serve::{Listener, Rules, serve};
use pathproof::lifecycle::stall::Stall;
use pathproof::lifecycle::{Heartbeat, Readiness};
use pathproof::metrics::Metrics;
use pathproof_facts::time::{Mono, Wall};
use pathproof_judge::answer::{Answer, UnknownPolicy};
use pathproof_node::effect::Answers;
use pathproof_report::Report;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

/// Maximum time of a conversation, longer than any answer takes. It is only reached if the server forgets a
/// connection.
const HANGS: Duration = Duration::from_secs(60);

/// Status codes of the ports. hyper sends 100 to clients with `Expect: 100-continue`.
const STATUSES: [u16; 11] = [100, 200, 400, 404, 405, 414, 417, 421, 431, 503, 505];

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((port, request)) = bytes.split_first() else {
        return false;
    };
    SERVERS.with(|servers| {
        let port = &servers.ports[usize::from(port & 1)];
        servers.runtime.block_on(async {
            let answered = answers(&port.converse(request).await);
            let calm = port.converse(CALM).await;
            assert!(calm.ends_with(&port.calm), "{}", calm.escape_ascii());
            answered > 0
        })
    })
}

const CALM: &[u8] = b"GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n\
    GET /never HTTP/1.1\r\n\r\n";

thread_local! {
    static SERVERS: Servers = Servers::start();
}

/// Both ports, served while this thread waits for an answer.
struct Servers {
    runtime: Runtime,
    ports: [Port; 2],
}

struct Port {
    address: SocketAddr,
    calm: Vec<u8>,
    _published: Published,
}

/// Senders, kept because receivers would otherwise report the agent's end.
enum Published {
    Answers {
        _sender: watch::Sender<Arc<Answers>>,
    },
    Report {
        _sender: watch::Sender<Option<Arc<Report>>>,
    },
}

impl Servers {
    fn start() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let ports = runtime.block_on(async { [health_port().await, admin_port().await] });
        Self { runtime, ports }
    }
}

async fn health_port() -> Port {
    let answer = |status| Answer {
        status,
        healthy: true,
        node_eligible: None,
        families: Vec::new(),
        would_fail: false,
    };
    let (healthz, livez) = (answer(503), answer(200));
    let now = || Wall(1_795_266_000_250_000_000);
    let calm = livez.body(now(), now()).into_bytes();
    let (sender, answers) = watch::channel(Arc::new(Answers {
        healthz,
        livez,
        audit: None,
        held: None,
        leaving_held: None,
        services_held: None,
        broken_services: Arc::default(),
    }));
    let metrics = Metrics::new();
    let state = HealthState {
        answers: CurrentAnswers {
            published: answers,
            policy: UnknownPolicy::Open,
            stall: Stall::new(Heartbeat::new(0), Mono(0)),
            mono: || Mono(0),
        },
        now,
        metrics: Arc::clone(&metrics),
        loopback: false,
    };
    let address = listen(Listener::Healthz, health::router(state), metrics).await;
    Port {
        address,
        calm,
        _published: Published::Answers { _sender: sender },
    }
}

async fn admin_port() -> Port {
    let (sender, report) = watch::channel(None);
    let metrics = Metrics::new();
    let state = AdminState {
        report,
        episodes: watch::channel("".into()).1,
        metrics: Arc::clone(&metrics),
        readiness: Readiness::default(),
        heartbeat: Heartbeat::new(0),
        recordings: tokio::sync::mpsc::channel(1).0,
        state_dir: None,
        now: || Mono(0),
    };
    let address = listen(Listener::Admin, admin::router(state), metrics).await;
    Port {
        address,
        // The admin port has no page `/livez`.
        calm: b"404 page not found\n".to_vec(),
        _published: Published::Report { _sender: sender },
    }
}

async fn listen(name: Listener, router: axum::Router, metrics: Arc<Metrics>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a port of the loopback device");
    let address = listener.local_addr().expect("an address");
    let rules = Rules {
        listener: name,
        allow: AllowList::default(),
        proxied: matches!(name, Listener::Healthz),
        limits: Limits::default(),
        metrics,
    };
    tokio::spawn(serve(listener, router, rules, std::future::pending()));
    address
}

impl Port {
    /// Sends all bytes, then reads to the end.
    async fn converse(&self, said: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.expect("a listener");
        let mut heard = Vec::new();
        let conversation = async {
            // The port may stop reading and reset the connection. Bytes received before that count.
            let _ = stream.write_all(said).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut heard).await;
        };
        let over = timeout(HANGS, conversation).await.is_ok();
        assert!(over, "no end of {}", said.escape_ascii());
        heard
    }
}

/// Number of answers. Asserts that there is nothing else.
fn answers(mut heard: &[u8]) -> usize {
    let mut answers = 0;
    while !heard.is_empty() {
        let shown = || heard.escape_ascii();
        let end = heard.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no end of a header: {}", shown()));
        let head = std::str::from_utf8(&heard[..end]).expect("a header is text");
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|digits| digits.parse::<u16>().ok());
        let known = status.is_some_and(|status| STATUSES.contains(&status));
        assert!(known, "{status:?}: {}", shown());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse().ok())?
        });
        heard = &heard[end + 4..];
        // The answer to HEAD has a length, but no body.
        if !heard.is_empty() && !heard.starts_with(b"HTTP/1.") {
            let body = heard.split_at_checked(length.unwrap_or_default());
            heard = body.expect("a body is whole").1;
        }
        answers += 1;
    }
    answers
}
