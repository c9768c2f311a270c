//! Connections: accepts them, limits them, times them out, and hands their requests to a router.
//!
//! A health port is open to strangers, and must answer a load balancer within its second whatever
//! they do. So a connection is never waited for: each has [`Limits`] on the time it may take, a
//! newcomer is always accepted, and where there are too many the one that was used least lately
//! makes room.

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
use crate::metrics::{Metrics, Turned};

mod crowd;
mod progress;

pub use crate::metrics::Listener;
use crowd::{Crowd, Place};
use progress::{Progress, Watched};

/// What a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One more, and the one used least lately is closed.
    pub connections: usize,
    /// Connections at a time up to which one is kept for further requests. Beyond, each is closed
    /// after its answer: a connection that has asked once holds a buffer, one that waits to ask
    /// does not.
    pub kept: usize,
    /// From accept to the end of the first request's header, and from the first byte of a later
    /// request to the end of its header.
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
            connections: 16_384,
            kept: 1_024,
            header_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(60),
            answer_time: Duration::from_secs(30),
            header_size: 16 * 1024,
        }
    }
}

impl Limits {
    /// As many connections as this number of open files has room for beside the agent's own.
    pub fn within(self, open_files: u64) -> Self {
        let room = usize::try_from(open_files)
            .unwrap_or(usize::MAX)
            .saturating_sub(OWN_FILES);
        let connections = self.connections.min(room).max(16);
        Self {
            connections,
            kept: self.kept.min(connections),
            ..self
        }
    }
}

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

/// Serves until `shutdown` completes; then accepts no more, lets requests that are under way
/// finish, and returns.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    rules: Rules,
    shutdown: impl Future<Output = ()>,
) {
    let crowd = Crowd::new(rules.limits.connections);
    let (stop, stopped) = watch::channel(false);
    let shared = Arc::new(Shared {
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
                shared.welcome(stream, peer, &crowd);
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
                recover(&error, &crowd).await;
            }
        }
    }
    drop(listener);
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

async fn recover(error: &io::Error, crowd: &Arc<Crowd>) {
    // Anything else concerns the one connection that was not accepted, which is gone.
    if is_exhaustion(error) {
        crowd.close_one();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the connections of one listener have in common.
struct Shared {
    router: Router,
    rules: Rules,
    stopped: watch::Receiver<bool>,
}

impl Shared {
    fn welcome(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, crowd: &Arc<Crowd>) {
        let stats = self.rules.metrics.http();
        if !self.rules.allow.allows(peer.ip()) {
            // Dropped unread.
            stats.turned(self.rules.listener, Turned::Denied);
            return;
        }
        let (place, made_room) = crowd.enter();
        if made_room {
            stats.turned(self.rules.listener, Turned::Evicted);
        }
        stats.turned(self.rules.listener, Turned::Accepted);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let listener = shared.rules.listener;
            let _open = shared.rules.metrics.http().opened(listener);
            shared.attend(stream, place).await;
        });
    }

    /// One connection, from accept to close.
    async fn attend(&self, stream: TcpStream, mut place: Place) {
        let limits = &self.rules.limits;
        let deadline = Instant::now() + limits.header_time;
        let mut stopped = self.stopped.clone();
        // A connection costs a buffer only once it has something to say.
        tokio::select! {
            readable = stream.readable() => if readable.is_err() { return },
            () = tokio::time::sleep_until(deadline) => return self.timed_out(),
            () = place.taken() => return,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
        // Answers are one write each; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        self.converse(stream, place, stopped, deadline).await;
    }

    async fn converse(
        &self,
        stream: TcpStream,
        mut place: Place,
        mut stopped: watch::Receiver<bool>,
        deadline: Instant,
    ) {
        let limits = self.rules.limits;
        let progress = Arc::new(Progress::default());
        let service = {
            let (router, progress) = (self.router.clone(), Arc::clone(&progress));
            let visit = place.visit();
            hyper::service::service_fn(move |request: Request<Incoming>| {
                progress.asked();
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
            if !leaving && stopping.as_mut().poll(cx).is_ready() {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            if connection.as_mut().poll(cx).is_ready() || place.poll_taken(cx).is_ready() {
                return Poll::Ready(true);
            }
            if let Some(allowed) = progress.next_allowance(&limits) {
                timer.restart(allowed);
            }
            timer.poll(cx).map(|()| false)
        });
        if !on_time.await {
            self.timed_out();
        }
    }

    fn timed_out(&self) {
        self.rules
            .metrics
            .http()
            .turned(self.rules.listener, Turned::TimedOut);
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
