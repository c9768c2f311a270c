//! How far a connection is: in a request's header, in an answer, or between the two. Told from
//! its reads and writes, since hyper does not say.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Limits;

/// What the connection's own task notes and asks; atomic only because the task may move between
/// threads.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes came since the last header was complete.
    heard: AtomicBool,
    /// A request waits for its answer.
    asking: AtomicBool,
    /// The peer does not take what is written.
    blocked: AtomicBool,
    /// Requests so far; wraps.
    requests: AtomicU32,
    /// The phase and the request of the last allowance.
    allowed: AtomicU8,
    allowed_request: AtomicU32,
}

/// Where in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Header = 0,
    Answer = 1,
    Idle = 2,
}

impl Progress {
    /// A request's header is complete.
    pub(super) fn asked(&self) {
        self.heard.store(false, Relaxed);
        self.asking.store(true, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    /// Its answer is known, and about to be written.
    pub(super) fn decided(&self) {
        self.asking.store(false, Relaxed);
    }

    /// The time allowed from now on, if the phase has changed since the last call.
    pub(super) fn next_allowance(&self, limits: &Limits) -> Option<Duration> {
        let phase = self.phase();
        let request = self.requests.load(Relaxed);
        let same_phase = self.allowed.swap(phase as u8, Relaxed) == phase as u8;
        let same_request = self.allowed_request.swap(request, Relaxed) == request;
        if same_phase && same_request {
            return None;
        }
        Some(match phase {
            Phase::Header => limits.header_time,
            Phase::Answer => limits.answer_time,
            Phase::Idle => limits.idle_time,
        })
    }

    fn phase(&self) -> Phase {
        if self.asking.load(Relaxed) || self.blocked.load(Relaxed) {
            Phase::Answer
        } else if self.heard.load(Relaxed) || self.requests.load(Relaxed) == 0 {
            Phase::Header
        } else {
            Phase::Idle
        }
    }
}

/// A stream whose reads and writes are noted.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    progress: Arc<Progress>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, progress: Arc<Progress>) -> Self {
        Self { stream, progress }
    }

    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.progress.blocked.store(result.is_pending(), Relaxed);
        result
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.progress.heard.store(true, Relaxed);
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_time_once() {
        let limits = Limits::default();
        let progress = Progress::default();
        // The first header's time runs since accept: no new allowance.
        assert_eq!(progress.next_allowance(&limits), None);
        progress.heard.store(true, Relaxed);
        assert_eq!(progress.next_allowance(&limits), None);
        progress.asked();
        assert_eq!(progress.next_allowance(&limits), Some(limits.answer_time));
        assert_eq!(progress.next_allowance(&limits), None);
        progress.decided();
        assert_eq!(progress.next_allowance(&limits), Some(limits.idle_time));
        // A slow second header is not idle.
        progress.heard.store(true, Relaxed);
        assert_eq!(progress.next_allowance(&limits), Some(limits.header_time));
        assert_eq!(progress.next_allowance(&limits), None);
        progress.asked();
        progress.decided();
        assert_eq!(progress.next_allowance(&limits), Some(limits.idle_time));
        // A whole request between two looks renews the idle time.
        progress.asked();
        progress.decided();
        assert_eq!(progress.next_allowance(&limits), Some(limits.idle_time));
        progress.blocked.store(true, Relaxed);
        assert_eq!(progress.next_allowance(&limits), Some(limits.answer_time));
    }
}
