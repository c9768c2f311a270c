//! Tests with real sockets and raw bytes, as an unauthenticated client may send them.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;

use axum::routing::any;
use pathproof_shared::bind_address::BindAddress;
use rstest::rstest;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::http::bind;

mod bursts;
mod ends;
mod forms;
mod parts;
mod proxied;

struct Server {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

impl Server {
    async fn start(limits: Limits, allow: &[&str]) -> Self {
        let router = Router::new().route("/healthz", any(|| async { "sound" }));
        Self::serving(router, limits, allow).await
    }

    async fn serving(router: Router, limits: Limits, allow: &[&str]) -> Self {
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = bind::listen("--x", BindAddress::One(loopback)).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Metrics::new();
        let rules = Rules {
            listener: Listener::Healthz,
            allow: AllowList::new(allow.iter().map(|range| range.parse().unwrap())),
            proxied: true,
            limits,
            metrics: Arc::clone(&metrics),
        };
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(serve(listener, router, rules, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            metrics,
            stop,
            done,
        }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    async fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The write may fail: a server that has read enough closes the connection while the client still
        // writes.
        let _ = stream.write_all(bytes).await;
        stream.rest().await
    }

    fn counted(&self, event: &str) -> u64 {
        let line =
            format!("pathproof_http_connections_total{{listener=\"healthz\",event=\"{event}\"}} ");
        let page = self.metrics.encode();
        page.lines()
            .find_map(|l| l.strip_prefix(&line))
            .map_or(0, |count| count.parse().unwrap())
    }

    async fn finish(self) {
        let _ = self.stop.send(());
        self.done.await.unwrap();
        let page = self.metrics.encode();
        let open = "pathproof_http_open_connections{listener=\"healthz\"} 0\n";
        assert!(page.contains(open), "{page}");
    }
}

struct Client(TcpStream);

impl Client {
    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns zero at the end of the stream.
    async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.0.readable().await?;
            match self.0.try_read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Reads until the server closes or resets the connection, and returns the bytes before. A close with
    /// unread input causes a reset.
    async fn rest(&mut self) -> String {
        let (mut seen, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = self.read(&mut some).await {
            seen.extend_from_slice(&some[..read]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Reads like [`Self::rest`], and returns whether the server reset the connection.
    async fn ends_by_reset(&mut self) -> bool {
        loop {
            match self.read(&mut [0; 4096]).await {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Sends a request and reads one answer, to the end of its body.
    async fn ask(&mut self, request: &str) -> String {
        self.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"sound") {
            let mut byte = [0];
            assert_eq!(self.read(&mut byte).await.unwrap(), 1, "closed early");
            seen.push(byte[0]);
        }
        String::from_utf8(seen).unwrap()
    }
}

const GET: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

fn brief() -> Limits {
    let brief = Duration::from_millis(50);
    Limits {
        waiting_time: brief,
        talking_time: brief,
        ..Limits::default()
    }
}

#[rstest]
#[case::get(
    "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "200 OK",
    true
)]
#[case::old("GET /healthz HTTP/1.0\r\n\r\n", "200 OK", true)]
#[case::head(
    "HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "200 OK",
    false
)]
#[case::post(
    "POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
    "200 OK",
    true
)]
#[case::absolute(
    "GET http://x/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "200 OK",
    true
)]
#[case::garbage("\x16\x03\x01\x02\r\n\r\n", "400 Bad Request", false)]
#[case::no_request("nonsense\r\n\r\n", "400 Bad Request", false)]
#[tokio::test]
async fn one_request(#[case] bytes: &str, #[case] status: &str, #[case] body: bool) {
    let server = Server::start(Limits::default(), &[]).await;
    let said = server.say(bytes.as_bytes()).await;
    let first = said.lines().next().unwrap_or_default();
    assert!(first.ends_with(status), "{said}");
    assert_eq!(said.ends_with("\r\n\r\nsound"), body, "{said}");
    if status.starts_with("200") {
        assert!(said.contains("\r\nContent-Length: 5\r\n"), "{said}");
        assert!(said.contains("\r\nDate: "), "{said}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_body_that_never_comes_is_not_waited_for() {
    let server = Server::start(Limits::default(), &[]).await;
    let mut stream = server.connect().await;
    let request = "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    stream.ask(request).await;
    assert_eq!(
        stream.rest().await,
        "",
        "the connection is closed after the answer"
    );
    server.finish().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_further_requests() {
    let server = Server::start(Limits::default(), &[]).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        assert!(
            !stream
                .ask(GET)
                .await
                .to_lowercase()
                .contains("connection: close")
        );
    }
    let both = format!("{GET}{GET}");
    stream.ask(&both).await;
    stream.ask("").await;
    assert_eq!(server.counted("accepted"), 1);
    drop(stream);
    server.finish().await;
}

#[rstest]
#[case::silent("")]
#[case::half("GET /healthz HT")]
#[tokio::test]
async fn a_slow_header_is_cut_off(#[case] bytes: &str) {
    let server = Server::start(brief(), &[]).await;
    assert_eq!(server.say(bytes.as_bytes()).await, "");
    assert_eq!(server.counted("timed_out"), 1);
    server.finish().await;
}

#[tokio::test]
async fn a_slow_long_header_is_cut_off() {
    let limits = Limits {
        talking_time: brief().talking_time,
        ..Limits::default()
    };
    let server = Server::start(limits, &[]).await;
    let begun = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(2048));
    assert_eq!(server.say(begun.as_bytes()).await, "");
    assert_eq!(server.counted("timed_out"), 1);
    server.finish().await;
}

#[tokio::test]
async fn a_half_closed_client_without_a_request_is_closed() {
    let server = Server::start(Limits::default(), &[]).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /healthz HT").await.unwrap();
    let socket = socket2::SockRef::from(&stream.0);
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.rest().await, "");
    assert_eq!(server.counted("timed_out"), 0);
    server.finish().await;
}

/// The limit `talking` closes only connections with a complete request, and these have none yet.
#[tokio::test]
async fn connections_in_the_middle_of_a_header_are_kept() {
    let limits = Limits {
        talking: 1,
        ..Limits::default()
    };
    let server = Server::start(limits, &[]).await;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut slow = server.connect().await;
        slow.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        crowd.push(slow);
    }
    server.connect().await.ask(GET).await;
    for mut slow in crowd {
        slow.ask("Host: x\r\nConnection: close\r\n\r\n").await;
    }
    server.finish().await;
}

#[tokio::test]
async fn dripping_bytes_buys_no_time() {
    let server = Server::start(brief(), &[]).await;
    let mut stream = server.connect().await;
    // The loop ends when the server closes the connection, although each byte arrives well within the
    // timeout.
    while stream.write_all(b"G").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.counted("timed_out"), 1);
    server.finish().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Server::start(brief(), &[]).await;
    let mut stream = server.connect().await;
    stream.ask(GET).await;
    assert!(!stream.ends_by_reset().await, "its client has read all");
    assert_eq!(server.counted("timed_out"), 1);
    server.finish().await;
}

#[tokio::test]
async fn a_newcomer_is_served_however_many_there_are() {
    let server = Server::start(
        Limits {
            waiting: 8,
            ..Limits::default()
        },
        &[],
    )
    .await;
    let mut crowd = Vec::new();
    for _ in 0..40 {
        crowd.push(server.connect().await);
    }
    let mut newcomer = server.connect().await;
    newcomer.ask(GET).await;
    assert_eq!(crowd[0].rest().await, "", "the first has made room");
    assert_eq!(server.counted("evicted"), 41 - 8);
    assert_eq!(server.counted("accepted"), 41);
    // The remaining connections have not started a request, so nothing is in progress.
    server.finish().await;
}

/// Runs in a child process: RLIMIT_NOFILE applies to the whole process.
#[test]
fn the_oldest_makes_room_when_files_run_out() {
    const ALONE: &str = "PATHPROOF_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let own = std::thread::current().name().unwrap().to_owned();
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let alone = alone.args(["--exact", &own]).env(ALONE, "1").output();
        let alone = alone.unwrap();
        assert!(alone.status.success(), "{alone:?}");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = Server::start(Limits::default(), &[]).await;
        let mut crowd = Vec::new();
        for _ in 0..3 {
            crowd.push(server.connect().await);
        }
        while server.counted("accepted") < 3 {
            tokio::task::yield_now().await;
        }
        let newcomer = tokio::net::TcpSocket::new_v4().unwrap();
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let limit = libc::rlimit {
            rlim_cur: next as u64,
            rlim_max: next as u64,
        };
        // SAFETY: the pointer is to a local that outlives the call, which only reads it.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(limited, 0);
        let mut newcomer = Client(newcomer.connect(server.address).await.unwrap());
        let served = tokio::time::timeout(Duration::from_secs(10), newcomer.ask(GET));
        served.await.expect("a newcomer is accepted");
        assert_eq!(crowd[0].rest().await, "");
        // crowd[1] may be closed too. After the newcomer, the server calls accept(2) once more with no
        // descriptor left. The kernel reserves a descriptor before it checks the queue, so the call fails
        // with EMFILE although no connection is waiting.
        crowd[2].ask(GET).await;
    });
}

#[tokio::test]
async fn the_least_recently_used_active_connection_makes_room() {
    let limits = Limits {
        talking: 2,
        ..Limits::default()
    };
    let server = Server::start(limits, &[]).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.ask(GET).await;
    second.ask(GET).await;
    first.ask(GET).await;
    let mut third = server.connect().await;
    third.ask(GET).await;
    assert_eq!(second.rest().await, "");
    first.ask(GET).await;
    assert_eq!(server.counted("evicted"), 1);
    drop((first, third));
    server.finish().await;
}

#[rstest]
#[case(&["127.0.0.0/8"], true)]
#[case(&["::ffff:127.0.0.1/128"], true)]
#[case(&["10.0.0.0/8", "::1/128"], false)]
#[case(&["::/0"], false)]
#[tokio::test]
async fn denied_clients_are_not_read(#[case] allow: &[&str], #[case] welcome: bool) {
    let server = Server::start(Limits::default(), allow).await;
    let said = server.say(b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(said.contains("200 OK"), welcome, "{said}");
    assert_eq!(server.counted("denied"), u64::from(!welcome));
    server.finish().await;
}

#[tokio::test]
async fn a_request_under_way_is_finished() {
    let (entered, mut is_entered) = tokio::sync::mpsc::channel(1);
    let (release, released) = watch::channel(false);
    let slow = move || {
        let (entered, mut released) = (entered.clone(), released.clone());
        async move {
            entered.send(()).await.unwrap();
            released.wait_for(|released| *released).await.unwrap();
            "sound"
        }
    };
    let router = Router::new().route("/healthz", any(slow));
    let server = Server::serving(router, Limits::default(), &[]).await;
    let mut idle = server.connect().await;
    let mut stream = server.connect().await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    is_entered.recv().await.unwrap();
    let Server {
        stop,
        done,
        address,
        ..
    } = server;
    stop.send(()).unwrap();
    assert_eq!(idle.rest().await, "");
    release.send(true).unwrap();
    assert!(stream.rest().await.ends_with("sound"));
    done.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_cut_off() {
    let router = Router::new().route("/healthz", any(|| async { "x".repeat(64 << 20) }));
    let server = Server::serving(router, brief(), &[]).await;
    let mut stream = server.connect().await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    while server.counted("timed_out") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(stream.ends_by_reset().await);
    server.finish().await;
}

#[tokio::test]
async fn an_active_client_is_kept() {
    let server = Server::start(brief(), &[]).await;
    let mut stream = server.connect().await;
    for _ in 0..15 {
        stream.ask(GET).await;
        tokio::time::sleep(brief().talking_time / 5).await;
    }
    assert_eq!(server.counted("timed_out"), 0);
    drop(stream);
    server.finish().await;
}

#[tokio::test]
async fn queued_clients_of_a_closing_listener_are_answered() {
    let server = Server::start(Limits::default(), &[]).await;
    let Server {
        address,
        stop,
        done,
        ..
    } = server;
    // Blocking calls, so that the server cannot accept these connections meanwhile.
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let queue: Vec<std::net::TcpStream> = (0..20).map(connect).collect();
    stop.send(()).unwrap();
    for stream in queue {
        stream.set_nonblocking(true).unwrap();
        let mut client = Client(TcpStream::from_std(stream).unwrap());
        client.ask(GET).await;
    }
    done.await.unwrap();
}
