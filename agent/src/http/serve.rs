//! Accepts connections, limits their number and their time, and passes their requests to a router.
//!
//! A health port is open to unauthenticated clients. It must answer a load balancer within a second, in
//! little memory, no matter what else is connected. So [`Limits`] apply to the time and number of
//! connections. A new connection is always accepted; if there are too many, the least recently used one is
//! closed.
//!
//! Until the header of the first request is complete, its bytes stay in the socket and the connection gets
//! no buffer. So each of thousands of silent or slow connections costs the process a few hundred bytes.
//! They are not closed early, because their clients would reconnect at once and compete with the load
//! balancers' probes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{self, BorrowedFd};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{MsgFlags, recv};
use pathproof_facts::node_context::address;
use pathproof_facts::time::Mono;
use pathproof_wire::steer::Dialled;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use super::limits::Limits;
use super::proxied::{Header, LONGEST, header};
use super::{AllowList, closing, go};
use crate::clock;
pub use crate::metrics::Listener;
use crate::metrics::{Metrics, Turned};

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Maximum size of a request's header. hyper may exceed it by its last read, and accepts 100 fields.
const HEADER_SIZE: usize = 16 * 1024;

/// Maximum bytes of an incomplete first header that stay in the socket. A longer header is read without
/// waiting for its end.
const PEEKED: usize = 1024;

/// Maximum fields of a first header that stays in the socket. A header with more is read at once.
const HEADERS: usize = 32;

/// Maximum number of requests that a connection may send in one second. The answer to the next one closes it.
const BURST: u32 = 16;

/// After the listener closes, a connection without a request stays open this long: its client may be about to
/// send one.
const LAST_REQUESTS: Duration = Duration::from_millis(500);

/// A closing listener's queue counts as empty if no connection arrived for this long.
const QUEUE_GAP: Duration = Duration::from_millis(1);

/// Maximum connections accepted from the queue before the listener closes, more than the queue holds.
const LAST_ACCEPTED: usize = 8_192;

#[derive(Debug, Clone)]
pub struct Rules {
    pub listener: Listener,
    pub allow: AllowList,
    /// Whether a PROXY protocol header may precede the first request.
    pub proxied: bool,
    pub limits: Limits,
    pub metrics: Arc<Metrics>,
}

/// Serves until `shutdown` completes. Then it accepts only the connections in the listener's queue,
/// lets requests in progress finish, and returns.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    rules: Rules,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(false);
    let shared = Arc::new(Shared {
        waiting: LruConnections::new(rules.limits.waiting),
        talking: LruConnections::new(rules.limits.talking),
        router,
        rules,
        stopped,
    });
    let mut shutdown = pin!(shutdown);
    let mut complained = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                complained = false;
                shared.admit(stream, peer);
            }
            Err(error) if is_exhaustion(&error) => {
                if !complained {
                    complained = true;
                    tracing::warn!(
                        %error,
                        listener = shared.rules.listener.name(),
                        "connections cannot be accepted; closing the oldest idle one"
                    );
                }
                shared.waiting.lock().by_use.pop_first();
                sleep(Duration::from_millis(20)).await;
            }
            // Pause instead of spinning: every accept may fail, if the listener was shut down or a policy
            // forbids it.
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
    // Accept the queued connections: their handshakes are complete, and closing the listener would reset
    // them.
    for _ in 0..LAST_ACCEPTED {
        match timeout(QUEUE_GAP, listener.accept()).await {
            Ok(Ok((stream, peer))) => shared.admit(stream, peer),
            Ok(Err(error)) if !is_exhaustion(&error) => {}
            _ => break,
        }
    }
    drop(listener);
    // Fails only if no connection is left.
    let _ = stop.send(true);
    // Each connection holds the receiver inside `shared` until it ends, so `closed` waits for all of them.
    drop(shared);
    stop.closed().await;
}

/// Whether descriptors or memory ran out, in this process or in the system.
fn is_exhaustion(error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| exhausted.contains(&code))
}

struct Shared {
    router: Router,
    rules: Rules,
    stopped: watch::Receiver<bool>,
    waiting: Arc<LruConnections>,
    talking: Arc<LruConnections>,
}

impl Shared {
    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if !self.rules.allow.allows(peer.ip()) {
            // Returning drops the connection unread.
            closing::reset(&stream);
            self.note(Turned::Denied);
            return;
        }
        self.note(Turned::Accepted);
        let entered = self.enter(&self.waiting);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _open = shared.rules.metrics.opened(shared.rules.listener);
            if let Some(before) = shared.wait(&stream, peer, entered).await
                && discard(&stream, before)
            {
                // Boxed, so that a waiting connection does not reserve memory for this future.
                Box::pin(shared.answer_requests(stream, peer)).await;
            }
        });
    }

    fn enter(&self, connections: &Arc<LruConnections>) -> (Arc<LruEntry>, oneshot::Receiver<()>) {
        let (entry, revoked, made_room) = connections.enter();
        if made_room {
            self.note(Turned::Evicted);
        }
        (entry, revoked)
    }

    fn note(&self, event: Turned) {
        self.rules.metrics.turned(self.rules.listener, event);
    }

    /// Waits for the first request. Returns the length of the PROXY protocol header before it; `None` ends the
    /// connection.
    async fn wait(
        &self,
        stream: &TcpStream,
        peer: SocketAddr,
        (_entry, revoked): (Arc<LruEntry>, oneshot::Receiver<()>),
    ) -> Option<usize> {
        let mut stopped = self.stopped.clone();
        let last_requests = async {
            let _ = stopped.wait_for(|stopped| *stopped).await;
            sleep(LAST_REQUESTS).await;
        };
        tokio::select! {
            asked = first_request(stream, self.rules.proxied) => asked.ok(),
            _ = revoked => {
                closing::reset(stream);
                None
            }
            () = last_requests => None,
            () = sleep(spread(self.rules.limits.waiting_time, peer.port())) => {
                self.note(Turned::TimedOut);
                closing::reset(stream);
                None
            }
        }
    }

    async fn answer_requests(&self, stream: TcpStream, peer: SocketAddr) {
        let (entry, mut revoked) = self.enter(&self.talking);
        let visit = Arc::clone(&entry);
        let (router, metrics) = (self.router.clone(), Arc::clone(&self.rules.metrics));
        let is_health = self.rules.listener == Listener::Healthz;
        let dialled = stream.local_addr().ok().map(|at| Dialled {
            source: address(&peer.ip()),
            destination: address(&at.ip()),
            port: at.port().into(),
        });
        let burst = Arc::new(Burst::default());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            visit.use_now();
            if let Some(dialled) = dialled {
                request.extensions_mut().insert(dialled);
            }
            let refused = go::before_handlers(&request);
            if let Some(answer) = refused.as_ref().filter(|_| is_health) {
                metrics.answered(None, answer.status().as_u16());
            }
            let (routed, turn) = (router.clone(), burst.count(clock::mono()));
            async move {
                if turn > 1 {
                    // Other connections come between the requests of one that sends many at once.
                    tokio::task::yield_now().await;
                }
                let mut answer = match refused {
                    Some(answer) => answer,
                    None => {
                        let answer = routed.oneshot(request.map(Body::new)).await?;
                        go::with_date(answer, clock::wall())
                    }
                };
                if turn > BURST {
                    answer.headers_mut().insert(CONNECTION, CLOSE);
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let mut http = http1::Builder::new();
        // A timeout applies to the whole connection, because hyper's covers only headers.
        http.header_read_timeout(None)
            .max_buf_size(HEADER_SIZE)
            // As Go writes header names, because some clients compare them case-sensitively.
            .title_case_headers(true);
        let descriptor = fd::AsRawFd::as_raw_fd(&stream);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        // SAFETY: `connection` keeps the descriptor open, and is dropped later.
        let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let mut stopped = self.stopped.clone();
        let mut leaving = false;
        let mut last_use = entry.stamp.load(Relaxed);
        loop {
            tokio::select! {
                // Poll the connection first: `graceful_shutdown` closes one that hyper has not read yet,
                // without an answer.
                biased;
                _ = connection.as_mut() => return,
                // An answer that was sent since must reach its client.
                _ = &mut revoked => {
                    if !entry.used_late.load(Relaxed) {
                        closing::reset(&socket);
                    }
                    return;
                }
                _ = stopped.wait_for(|stopped| *stopped), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = sleep(self.rules.limits.talking_time) => {
                    let before = std::mem::replace(&mut last_use, entry.stamp.load(Relaxed));
                    if before == last_use {
                        if closing::is_unread(&socket) {
                            closing::reset(&socket);
                        }
                        return self.note(Turned::TimedOut);
                    }
                }
            }
        }
    }
}

/// Counts a connection's requests by seconds.
#[derive(Debug, Default)]
struct Burst {
    second: AtomicU64,
    requests: AtomicU32,
}

impl Burst {
    /// Number of requests of this second, with this one. hyper answers a connection's requests one by one, so
    /// no two calls run at once.
    fn count(&self, now: Mono) -> u32 {
        let second = now.0 / 1_000_000_000;
        if self.second.swap(second, Relaxed) != second {
            self.requests.store(0, Relaxed);
        }
        self.requests.fetch_add(1, Relaxed) + 1
    }
}

/// Connections of a listener, ordered by last use. At the limit, a new connection replaces the least
/// recently used one.
#[derive(Debug)]
struct LruConnections {
    limit: usize,
    order: Mutex<Order>,
}

/// Places by stamp; the lowest is the least recently used one.
#[derive(Debug, Default)]
struct Order {
    next: u64,
    /// Dropping a sender revokes its entry, which closes the connection.
    by_use: BTreeMap<u64, oneshot::Sender<()>>,
}

impl LruConnections {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            order: Mutex::default(),
        })
    }

    /// Enters a new connection. Returns its entry, a receiver that completes when the entry is
    /// revoked, and whether another connection had to leave.
    fn enter(self: &Arc<Self>) -> (Arc<LruEntry>, oneshot::Receiver<()>, bool) {
        let (keep, revoked) = oneshot::channel();
        let mut order = self.lock();
        let made_room = order.by_use.len() >= self.limit && order.by_use.pop_first().is_some();
        let entry = LruEntry {
            connections: Arc::clone(self),
            stamp: AtomicU64::new(order.insert(keep)),
            used_late: AtomicBool::new(false),
        };
        (Arc::new(entry), revoked, made_room)
    }

    /// Ignores poisoning: every change is one call, so a panic leaves the order intact.
    fn lock(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn insert(&mut self, keep: oneshot::Sender<()>) -> u64 {
        self.next += 1;
        self.by_use.insert(self.next, keep);
        self.next
    }
}

/// A connection's entry, removed on drop.
#[derive(Debug)]
struct LruEntry {
    connections: Arc<LruConnections>,
    /// Stamp of the last use, written only under the lock of the order.
    stamp: AtomicU64,
    /// Whether a request came after the entry was revoked.
    used_late: AtomicBool,
}

impl LruEntry {
    fn use_now(&self) {
        let mut order = self.connections.lock();
        match order.by_use.remove(&self.stamp.load(Relaxed)) {
            Some(keep) => self.stamp.store(order.insert(keep), Relaxed),
            None => self.used_late.store(true, Relaxed),
        }
    }
}

impl Drop for LruEntry {
    fn drop(&mut self) {
        let mut order = self.connections.lock();
        order.by_use.remove(&self.stamp.load(Relaxed));
    }
}

/// Completes when hyper can read the first request, with the length of the PROXY protocol header before it. An
/// error ends the connection.
async fn first_request(stream: &TcpStream, proxied: bool) -> io::Result<usize> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        match stream.try_io(Interest::READABLE, || peek(stream, proxied)) {
            // The client closed its side without a request.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if ready.is_read_closed() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            result => return result,
        }
    }
}

/// Peeks at the bytes in the socket. Returns `WouldBlock` if more bytes must arrive first.
fn peek(stream: &TcpStream, proxied: bool) -> io::Result<usize> {
    let mut peeked = [0; PEEKED + LONGEST];
    let descriptor = fd::AsRawFd::as_raw_fd(stream);
    let length = recv(descriptor, &mut peeked, MsgFlags::MSG_PEEK)?;
    let seen = &peeked[..length];
    let before = match header(seen) {
        _ if seen.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
        Header::Partial if proxied => return Err(io::ErrorKind::WouldBlock.into()),
        Header::Whole(length) if proxied => length,
        _ => 0,
    };
    match is_ready(&seen[before..], seen.len()) {
        true => Ok(before),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Reads and drops bytes that were peeked. Returns whether they were there.
fn discard(stream: &TcpStream, bytes: usize) -> bool {
    let mut header = [0; LONGEST];
    let mut read = || stream.try_read(&mut header[..bytes]).ok();
    bytes == 0 || read() == Some(bytes)
}

/// Whether hyper is to read the header that begins with the bytes `seen`: it is complete, invalid or long. `held`
/// is the number of bytes in the socket, including those before the header. From [`PEEKED`] bytes on there is no
/// further wait, because the socket may have no room for more. Of an invalid header, hyper reports what is wrong.
fn is_ready(seen: &[u8], held: usize) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let parsed = httparse::Request::new(&mut headers).parse(seen);
    held >= PEEKED || !matches!(parsed, Ok(httparse::Status::Partial))
}

/// Derives a timeout between half and all of `longest` from the client's port, so that clients that
/// connected together are not closed, and do not reconnect, together.
fn spread(longest: Duration, port: u16) -> Duration {
    longest - longest / 2 * u32::from(port % 64) / 64
}

#[cfg(test)]
mod tests;
