//! A thread that runs until its value is dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::world::Namespace;

/// The thread. Dropping it sets its stop flag and waits for its end.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread in the current namespace. `work` must return soon after its argument becomes true.
    pub fn here(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let thread = Self::start(|work| Ok(thread::spawn(work)), work);
        thread.expect("a thread")
    }

    pub fn within(
        ns: &Namespace,
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(|work| ns.spawn(name, work), work)
    }

    fn start(
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = Some(spawn(Box::new(move || work(&seen)))?);
        Ok(Self { stop, thread })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
