//! A thread that works until it is dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::world::Namespace;

/// The thread. Dropped, it is told to stop, and waited for.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts one here. `work` returns soon after its argument is true.
    pub fn here(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let (stop, work) = stoppable(work);
        let thread = Some(thread::spawn(work));
        Self { stop, thread }
    }

    /// Starts one in a namespace.
    pub fn within(
        ns: &Namespace,
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, work) = stoppable(work);
        let thread = Some(ns.spawn(name, work)?);
        Ok(Self { stop, thread })
    }
}

/// Several of them. Dropped, all are told to stop before the first one is waited for.
#[derive(Debug)]
pub struct Workers(pub Vec<Worker>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.0 {
            worker.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// `work` with what tells it to stop.
fn stoppable(
    work: impl FnOnce(&AtomicBool) + Send + 'static,
) -> (Arc<AtomicBool>, impl FnOnce() + Send + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    (stop, move || work(&seen))
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
