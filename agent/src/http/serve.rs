//! Connections: accepts them, limits them, times them out, and hands their requests to a router.
//!
//! A health port is open to strangers, and must answer a load balancer within its second whatever
//! they do, in little memory. So a connection is never waited for: each has [`Limits`] on the time
//! it may take, a newcomer is always accepted, and where there are too many the one that was used
//! least lately makes room. One that has not asked yet costs a few hundred bytes; only one that
//! has is given a buffer, and of those there are few.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tower::ServiceExt as _;

use super::allow::AllowList;
use super::health::Peer;
use crate::metrics::{Metrics, Turned};

mod crowd;
mod progress;
mod waiting;

pub use crate::metrics::Listener;
use crowd::{Crowd, Place};
use progress::{Progress, Watched};

/// What a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time that have asked nothing yet. One more, and the oldest is closed. Each
    /// takes 4 KiB, most of it in the kernel, which counts for the container.
    pub waiting: usize,
    /// Connections at a time that have: they hold a buffer. One more, and the one used least
    /// lately is closed.
    pub talking: usize,
    /// Of those, how many are kept for further requests. Beyond, each is closed after its answer,
    /// which clients expect, as they do not expect to be closed while they ask.
    pub kept: usize,
    /// From accept to the first request, for which half as long as this is allowed at least. Long,
    /// since to wait costs little, and who is closed comes back.
    pub waiting_time: Duration,
    /// To the end of a header that has begun to be read: a long first one, or a later one.
    pub header_time: Duration,
    /// Between requests.
    pub idle_time: Duration,
    /// From the end of a request's header until the answer is written.
    pub answer_time: Duration,
    /// Bytes of a request's header.
    pub header_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 10_240,
            talking: 512,
            kept: 256,
            waiting_time: Duration::from_secs(60),
            header_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(60),
            answer_time: Duration::from_secs(30),
            header_size: 16 * 1024,
        }
    }
}

impl Limits {
    /// For a listener that few have a reason to ask.
    pub fn of_few() -> Self {
        Self {
            waiting: 1_024,
            ..Self::default()
        }
    }

    /// As many connections as this number of open files has room for beside the agent's own.
    pub fn within(self, open_files: u64) -> Self {
        let room = usize::try_from(open_files).unwrap_or(usize::MAX);
        let room = room.saturating_sub(OWN_FILES).max(32);
        let talking = self.talking.min(room / 2);
        Self {
            waiting: self.waiting.min(room - talking),
            talking,
            kept: self.kept.min(talking / 2),
            ..self
        }
    }
}

/// How long those that asked nothing yet are heard once the listener closes: they were accepted, and
/// may be about to ask.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Connections that are accepted at most once the listener closes, more than wait in its queue.
const LAST_ACCEPTED: usize = 8_192;

/// Files that the agent may open itself: maps, links, devices, the manifests.
const OWN_FILES: usize = 512;

/// One listener's rules.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Which, for metrics and the log.
    pub listener: Listener,
    /// Who may ask.
    pub allow: AllowList,
    /// What a connection may take.
    pub limits: Limits,
    /// Where connections are counted.
    pub metrics: Arc<Metrics>,
}

/// Serves until `shutdown` completes; then accepts who waits in the listener's queue and no more,
/// lets requests that are under way finish, and returns.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    rules: Rules,
    shutdown: impl Future<Output = ()>,
) {
    let waiting = Crowd::new(rules.limits.waiting);
    let talking = Crowd::new(rules.limits.talking);
    let (stop, stopped) = watch::channel(false);
    let shared = Arc::new(Shared {
        router,
        rules,
        stopped,
        waiting,
        talking,
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
            Err(error) => {
                if !complained && is_exhaustion(&error) {
                    complained = true;
                    tracing::warn!(
                        %error,
                        listener = shared.rules.listener.name(),
                        "connections cannot be accepted; closing the one used least lately"
                    );
                }
                shared.recover(&error).await;
            }
        }
    }
    shared.welcome_the_rest(listener);
    // Only fails when no connection is left to hear it.
    let _ = stop.send(true);
    // Each connection holds the receiver inside `shared` until it ends.
    drop(shared);
    stop.closed().await;
}

/// Descriptors or memory ran out, in this process or in the system.
fn is_exhaustion(error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| exhausted.contains(&code))
}

/// What the connections of one listener have in common.
struct Shared {
    router: Router,
    rules: Rules,
    stopped: watch::Receiver<bool>,
    waiting: Arc<Crowd>,
    talking: Arc<Crowd>,
}

impl Shared {
    fn welcome(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if !self.rules.allow.allows(peer.ip()) {
            // Dropped unread.
            self.note(Turned::Denied);
            return;
        }
        self.note(Turned::Accepted);
        let place = self.place(&self.waiting);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _open = shared.rules.metrics.http().opened(shared.rules.listener);
            shared.attend(stream, peer, place).await;
        });
    }

    /// Their handshakes are complete: closing the listener would reset them.
    fn welcome_the_rest(self: &Arc<Self>, listener: TcpListener) {
        let Ok(listener) = listener.into_std() else {
            return;
        };
        for _ in 0..LAST_ACCEPTED {
            match listener.accept() {
                Ok((stream, peer)) => {
                    let stream = stream
                        .set_nonblocking(true)
                        .and_then(|()| TcpStream::from_std(stream));
                    if let Ok(stream) = stream {
                        self.welcome(stream, peer);
                    }
                }
                // Only the one that was not accepted is concerned.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => break,
            }
        }
    }

    async fn recover(&self, error: &io::Error) {
        // Anything else concerns the one connection that was not accepted, which is gone.
        if is_exhaustion(error) {
            self.waiting.close_one();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn place(&self, crowd: &Arc<Crowd>) -> Place {
        let (place, made_room) = crowd.enter();
        if made_room {
            self.note(Turned::Evicted);
        }
        place
    }

    fn note(&self, turned: Turned) {
        self.rules
            .metrics
            .http()
            .turned(self.rules.listener, turned);
    }

    /// One connection, from accept to close.
    async fn attend(&self, stream: TcpStream, peer: SocketAddr, mut place: Place) {
        let limits = &self.rules.limits;
        let mut deadline = Instant::now() + waiting::spread(limits.waiting_time, peer.port());
        let mut stopped = self.stopped.clone();
        let mut leaving = false;
        loop {
            tokio::select! {
                asked = waiting::something_to_answer(&stream) => match asked {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = tokio::time::sleep_until(deadline) => {
                    if !leaving {
                        self.note(Turned::TimedOut);
                    }
                    return;
                }
                () = place.taken() => return,
                _ = stopped.wait_for(|stopped| *stopped), if !leaving => {
                    leaving = true;
                    deadline = deadline.min(Instant::now() + LAST_WORDS);
                }
            }
        }
        drop(place);
        let deadline = deadline.min(Instant::now() + limits.header_time);
        // Answers are one write each; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        let place = self.place(&self.talking);
        // Boxed, so that one that waits does not hold the room for it.
        Box::pin(self.converse(stream, peer, place, stopped, deadline)).await;
    }

    async fn converse(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        mut place: Place,
        mut stopped: watch::Receiver<bool>,
        deadline: Instant,
    ) {
        let limits = self.rules.limits;
        let progress = Arc::new(Progress::default());
        let service = {
            let (router, progress) = (self.router.clone(), Arc::clone(&progress));
            let visit = place.visit();
            hyper::service::service_fn(move |mut request: Request<Incoming>| {
                progress.asked();
                request.extensions_mut().insert(Peer(peer.ip()));
                let crowded = visit.note() > limits.kept;
                let answer = router.clone().oneshot(request.map(Body::new));
                let progress = Arc::clone(&progress);
                async move {
                    let mut answer = answer.await?;
                    progress.decided();
                    if crowded {
                        close_after(&mut answer);
                    }
                    Ok::<_, Infallible>(answer)
                }
            })
        };
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&progress)));
        let mut connection = pin!(
            http1::Builder::new()
                // Timed by `progress` instead, which tells a slow header from an idle connection.
                .header_read_timeout(None)
                .max_buf_size(limits.header_size)
                // As Go writes them, for clients that compare names by case.
                .title_case_headers(true)
                .serve_connection(io, service)
        );
        let mut timer = Timer::new(deadline);
        let mut stopping = pin!(stopped.wait_for(|stopped| *stopped));
        let mut leaving = false;
        let on_time = poll_fn(|cx| {
            // Before it is told to end: a connection that has read nothing ends without an answer.
            if connection.as_mut().poll(cx).is_ready() || place.poll_taken(cx).is_ready() {
                return Poll::Ready(true);
            }
            if !leaving && stopping.as_mut().poll(cx).is_ready() {
                leaving = true;
                connection.as_mut().graceful_shutdown();
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
            }
            if let Some(allowed) = progress.next_allowance(&limits) {
                timer.restart(allowed);
            }
            timer.poll(cx).map(|()| false)
        });
        if !on_time.await {
            self.note(Turned::TimedOut);
        }
    }
}

fn close_after(answer: &mut Response<Body>) {
    let close = axum::http::HeaderValue::from_static("close");
    answer
        .headers_mut()
        .insert(axum::http::header::CONNECTION, close);
}

/// A deadline that moves.
struct Timer(Pin<Box<Sleep>>);

impl Timer {
    fn new(deadline: Instant) -> Self {
        Self(Box::pin(tokio::time::sleep_until(deadline)))
    }

    fn restart(&mut self, allowed: Duration) {
        self.0.as_mut().reset(Instant::now() + allowed);
    }

    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests;
