//! The connections of a listener, in the order of their last use, so that a newcomer can be given
//! the place of the one that was used least lately.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// All open connections of a listener.
#[derive(Debug)]
pub(super) struct Crowd {
    limit: usize,
    order: Mutex<Order>,
}

/// By stamp; the lowest was used least lately.
#[derive(Debug, Default)]
struct Order {
    next: u64,
    /// Dropping a sender takes the place away.
    by_use: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Crowd {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            order: Mutex::default(),
        })
    }

    /// A place for a newcomer, and whether another lost its own for it.
    pub(super) fn enter(self: &Arc<Self>) -> (Place, bool) {
        let (keep, taken) = oneshot::channel();
        let mut order = self.lock();
        let made_room = order.by_use.len() >= self.limit && order.by_use.pop_first().is_some();
        let stamp = order.stamp();
        order.by_use.insert(stamp, keep);
        drop(order);
        let visit = Visit {
            crowd: Arc::clone(self),
            stamp: Arc::new(AtomicU64::new(stamp)),
        };
        (Place { visit, taken }, made_room)
    }

    /// Takes the place of the one used least lately.
    pub(super) fn close_one(&self) {
        self.lock().by_use.pop_first();
    }

    /// A holder that panicked left the order as it was: every change is one call.
    fn lock(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    visit: Visit,
    taken: oneshot::Receiver<()>,
}

impl Place {
    /// Completes when the place is taken away.
    pub(super) async fn taken(&mut self) {
        std::future::poll_fn(|cx| self.poll_taken(cx)).await;
    }

    /// As [`taken`](Self::taken).
    pub(super) fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.taken).poll(cx).map(drop)
    }

    /// What a request uses to say that the connection is in use.
    pub(super) fn visit(&self) -> Visit {
        self.visit.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut order = self.visit.crowd.lock();
        order.by_use.remove(&self.visit.stamp.load(Relaxed));
    }
}

/// Notes the use of a connection.
#[derive(Debug, Clone)]
pub(super) struct Visit {
    crowd: Arc<Crowd>,
    /// Written under the lock of the order only.
    stamp: Arc<AtomicU64>,
}

impl Visit {
    /// The connection was used now. How many there are.
    pub(super) fn note(&self) -> usize {
        let mut order = self.crowd.lock();
        if let Some(keep) = order.by_use.remove(&self.stamp.load(Relaxed)) {
            let stamp = order.stamp();
            self.stamp.store(stamp, Relaxed);
            order.by_use.insert(stamp, keep);
        }
        order.by_use.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn is_taken(place: &mut Place) -> bool {
        place
            .poll_taken(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn the_least_lately_used_makes_room() {
        let crowd = Crowd::new(2);
        let (mut first, _) = crowd.enter();
        let (mut second, _) = crowd.enter();
        assert_eq!(first.visit().note(), 2);
        let (mut third, made_room) = crowd.enter();
        assert!(made_room);
        assert!(is_taken(&mut second));
        assert!(!is_taken(&mut first) && !is_taken(&mut third));
        drop(second);
        assert_eq!(third.visit().note(), 2);
    }

    #[test]
    fn a_place_is_given_back() {
        let crowd = Crowd::new(1);
        drop(crowd.enter());
        assert!(!crowd.enter().1);
    }
}
