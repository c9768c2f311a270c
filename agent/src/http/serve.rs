//! Accepts connections, limits their number and their time, and passes their requests to a router.
//!
//! A health port is open to unauthenticated clients. It must answer a load balancer within a second, in
//! little memory, no matter what else is connected. So each connection has time [`Limits`], a new one is
//! always accepted, and beyond a number the least recently used one is closed.
//!
//! Bytes before the end of the first request stay in the socket: thousands of silent or slow connections
//! cost a few hundred bytes each. They are kept, because a client that is closed returns at once and
//! competes with the probes. Only the few connections with a complete request get a buffer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use super::health::{Dialled, Peer};
use super::proxied::{Header, LONGEST, header};
use super::{AllowList, go};
use crate::clock;
pub use crate::metrics::Listener;
use crate::metrics::{Metrics, Turned};

/// Maximum size of a request's header on most connections.
const HEADER_SIZE: usize = 16 * 1024;

/// Connections of a listener that may have longer headers, if the first one does not end in the bytes
/// that stay in the socket.
const LONG: usize = 32;

/// Maximum size of a header on those, which hyper may exceed by its last read, and maximum number of its
/// fields. kube-proxy reads 1 MiB and any number.
const LONG_HEADER: (usize, usize) = (64 * 1024, 1_000);

/// Maximum bytes of a first header that stay in the socket; a longer header is read.
const LYING: usize = 1024;

/// Maximum header fields of a request that stays in the socket; one with more is read.
const HEADERS: usize = 32;

/// Grace period for connections without a request once the listener closes: their client may be
/// about to send one.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A closing listener's queue counts as empty if no connection arrived for this long.
const QUEUE_GAP: Duration = Duration::from_millis(1);

/// Maximum connections accepted after the listener closes, more than its queue holds.
const LAST_ACCEPTED: usize = 8_192;

/// Files that the agent itself may open: maps, links, devices, the manifests.
const OWN_FILES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum connections without a request so far; beyond it the oldest is closed. Each takes 4
    /// KiB, most of it in the kernel, which counts for the container.
    pub waiting: usize,
    /// Maximum connections that sent a request and so hold a buffer; beyond it the least recently
    /// used one is closed.
    pub talking: usize,
    /// Time from accept to the first request; some connections get only half of it. It is long,
    /// because a waiting connection costs little and a client that is closed comes back.
    pub waiting_time: Duration,
    /// A connection without a further request is closed after this time, or up to twice as long. Its
    /// client is idle, does not read its answer, or does not complete the next header.
    pub talking_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 10_240,
            talking: 512,
            waiting_time: Duration::from_secs(60),
            // Neither equal to the usual 30 s between two scrapes, nor a fraction of them.
            talking_time: Duration::from_secs(45),
        }
    }
}

impl Limits {
    /// Reduces the limits to what fits into this number of open files beside the agent's.
    pub fn within(self, open_files: u64) -> Self {
        let room = usize::try_from(open_files).unwrap_or(usize::MAX);
        let room = room.saturating_sub(OWN_FILES).max(32);
        let talking = self.talking.min(room / 2);
        Self {
            waiting: self.waiting.min(room - talking),
            talking,
            ..self
        }
    }
}

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
        long: Semaphore::new(LONG),
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
                shared.welcome(stream, peer);
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
            // One connection failed and is gone, or every accept fails at once (the listener was shut
            // down, or a policy forbids it): do not spin.
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
    // Queued connections have completed their handshakes: closing the listener would reset them.
    for _ in 0..LAST_ACCEPTED {
        match timeout(QUEUE_GAP, listener.accept()).await {
            Ok(Ok((stream, peer))) => shared.welcome(stream, peer),
            Ok(Err(error)) if !is_exhaustion(&error) => {}
            _ => break,
        }
    }
    drop(listener);
    // Fails only if no connection is left.
    let _ = stop.send(true);
    // Each connection holds the receiver inside `shared` until it ends.
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

/// State that the connections of one listener share.
struct Shared {
    router: Router,
    rules: Rules,
    stopped: watch::Receiver<bool>,
    waiting: Arc<LruConnections>,
    talking: Arc<LruConnections>,
    /// Places of connections with long headers.
    long: Semaphore,
}

impl Shared {
    fn welcome(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if !self.rules.allow.allows(peer.ip()) {
            // Dropped unread.
            self.note(Turned::Denied);
            return;
        }
        self.note(Turned::Accepted);
        let entered = self.enter(&self.waiting);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _open = shared.rules.metrics.http().opened(shared.rules.listener);
            if let Some(begun) = shared.wait(&stream, peer, entered).await
                && pass_over(&stream, begun.before).is_ok()
            {
                // Boxed, so that a waiting connection does not reserve memory for it.
                Box::pin(shared.converse(stream, peer, begun.is_long)).await;
            }
        });
    }

    fn enter(&self, crowd: &Arc<LruConnections>) -> (Arc<Place>, oneshot::Receiver<()>) {
        let (place, taken, made_room) = crowd.enter();
        if made_room {
            self.note(Turned::Evicted);
        }
        (place, taken)
    }

    fn note(&self, turned: Turned) {
        let http = self.rules.metrics.http();
        http.turned(self.rules.listener, turned);
    }

    /// Waits for the first request; `None` ends the connection.
    async fn wait(
        &self,
        stream: &TcpStream,
        peer: SocketAddr,
        (_place, taken): (Arc<Place>, oneshot::Receiver<()>),
    ) -> Option<Begun> {
        let mut stopped = self.stopped.clone();
        let last_words = async {
            let _ = stopped.wait_for(|stopped| *stopped).await;
            sleep(LAST_WORDS).await;
        };
        tokio::select! {
            asked = something_to_answer(stream, self.rules.proxied) => asked.ok(),
            _ = taken => None,
            () = last_words => None,
            () = sleep(spread(self.rules.limits.waiting_time, peer.port())) => {
                self.note(Turned::TimedOut);
                None
            }
        }
    }

    async fn converse(&self, stream: TcpStream, peer: SocketAddr, is_long: bool) {
        // Every answer is one write; waiting for more data would only delay it.
        let _ = stream.set_nodelay(true);
        let (place, mut taken) = self.enter(&self.talking);
        let visit = Arc::clone(&place);
        let router = self.router.clone();
        let dialled = stream.local_addr().ok().map(Dialled);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            visit.use_now();
            request.extensions_mut().insert(Peer(peer.ip()));
            if let Some(dialled) = dialled {
                request.extensions_mut().insert(dialled);
            }
            let refused = go::before_handlers(&request);
            let routed = router.clone();
            async move {
                Ok::<_, Infallible>(match refused {
                    Some(answer) => answer,
                    None => {
                        let answer = routed.oneshot(request.map(Body::new)).await?;
                        go::in_order(answer, clock::wall())
                    }
                })
            }
        });
        let long = is_long.then(|| self.long.try_acquire().ok()).flatten();
        let http = http(long.is_some());
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let mut stopped = self.stopped.clone();
        let mut leaving = false;
        let mut last_use = place.stamp.load(Relaxed);
        loop {
            tokio::select! {
                // First: on shutdown, hyper ends a connection that it has not read yet without an answer.
                biased;
                _ = connection.as_mut() => return,
                _ = &mut taken => return,
                _ = stopped.wait_for(|stopped| *stopped), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = sleep(self.rules.limits.talking_time) => {
                    let before = std::mem::replace(&mut last_use, place.stamp.load(Relaxed));
                    if before == last_use {
                        return self.note(Turned::TimedOut);
                    }
                }
            }
        }
    }
}

/// hyper's settings for a connection.
fn http(is_long: bool) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Timed by `converse`: hyper's timer covers only headers.
    http.header_read_timeout(None)
        .max_buf_size(HEADER_SIZE)
        // As Go writes them, for clients that compare names by case.
        .title_case_headers(true);
    if is_long {
        let (size, fields) = LONG_HEADER;
        http.max_buf_size(size).max_headers(fields);
    }
    http
}

/// Connections of a listener by last use: a new one replaces the least recently used one.
#[derive(Debug)]
struct LruConnections {
    limit: usize,
    order: Mutex<Order>,
}

/// Places by stamp; the lowest is the least recently used one.
#[derive(Debug, Default)]
struct Order {
    next: u64,
    /// Dropping a sender revokes the place.
    by_use: BTreeMap<u64, oneshot::Sender<()>>,
}

impl LruConnections {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            order: Mutex::default(),
        })
    }

    /// Enters a new connection. Returns its place, a receiver that completes when the place is
    /// revoked, and whether another connection had to leave.
    fn enter(self: &Arc<Self>) -> (Arc<Place>, oneshot::Receiver<()>, bool) {
        let (keep, taken) = oneshot::channel();
        let mut order = self.lock();
        let made_room = order.by_use.len() >= self.limit && order.by_use.pop_first().is_some();
        let place = Place {
            crowd: Arc::clone(self),
            stamp: AtomicU64::new(order.insert(keep)),
        };
        (Arc::new(place), taken, made_room)
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

/// A connection's place, released on drop.
#[derive(Debug)]
struct Place {
    crowd: Arc<LruConnections>,
    /// Stamp of the last use, written only under the lock of the order.
    stamp: AtomicU64,
}

impl Place {
    fn use_now(&self) {
        let mut order = self.crowd.lock();
        if let Some(keep) = order.by_use.remove(&self.stamp.load(Relaxed)) {
            self.stamp.store(order.insert(keep), Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut order = self.crowd.lock();
        order.by_use.remove(&self.stamp.load(Relaxed));
    }
}

/// A connection whose first request has begun.
struct Begun {
    /// Bytes before the request.
    before: usize,
    /// The header does not end in the bytes that were seen.
    is_long: bool,
}

/// Completes when there is a request to answer. An error ends the connection.
async fn something_to_answer(stream: &TcpStream, proxied: bool) -> io::Result<Begun> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        match stream.try_io(Interest::READABLE, || look(stream, proxied)) {
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

/// Returns `WouldBlock` until there are more bytes.
fn look(stream: &TcpStream, proxied: bool) -> io::Result<Begun> {
    let mut lying = [MaybeUninit::uninit(); LYING + LONGEST];
    let seen = SockRef::from(stream).peek(&mut lying)?;
    // SAFETY: the kernel has written that many bytes.
    let seen = unsafe { lying[..seen].assume_init_ref() };
    let before = match header(seen) {
        _ if seen.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
        Header::Partial if proxied => return Err(io::ErrorKind::WouldBlock.into()),
        Header::Whole(length) if proxied => length,
        _ => 0,
    };
    match &seen[before..] {
        [] => Err(io::ErrorKind::WouldBlock.into()),
        request => match is_long(request, seen.len()) {
            Some(is_long) => Ok(Begun { before, is_long }),
            None => Err(io::ErrorKind::WouldBlock.into()),
        },
    }
}

/// Reads and drops bytes that were peeked.
fn pass_over(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let mut header = [0; LONGEST];
    match bytes {
        0 => Ok(()),
        bytes => match stream.try_read(&mut header[..bytes])? == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        },
    }
}

/// Whether the header, which is read now, is longer than these bytes; `None` to wait for more. `held` bytes are
/// in the socket, with those before the header: it may have no room for more. Of a header that cannot become
/// valid, hyper reports what is wrong.
fn is_long(seen: &[u8], held: usize) -> Option<bool> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    match httparse::Request::new(&mut headers).parse(seen) {
        Ok(httparse::Status::Complete(_)) => Some(false),
        Ok(httparse::Status::Partial) if held < LYING => None,
        _ => Some(true),
    }
}

/// Spreads a timeout between half and all of `longest`, by the client's port. Clients that
/// connected together are then not closed together, and do not return together.
fn spread(longest: Duration, port: u16) -> Duration {
    longest - longest / 2 * u32::from(port % 64) / 64
}

#[cfg(test)]
mod tests;
