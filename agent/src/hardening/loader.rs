//! The one thread that may load programs into the kernel: it does one piece of work, and ends.

use std::io;
use std::sync::mpsc;

use thiserror::Error;
use tokio::sync::oneshot;

use super::files;

type Job = Box<dyn FnOnce() + Send>;

/// The work was not done.
#[derive(Debug, Error)]
#[error(
    "the thread that loads programs into the kernel ended early: this is a defect in pathproof"
)]
pub struct LoaderError;

/// A thread that waits for its work. Dropped, it ends without any.
pub struct Loader {
    /// Nothing where the work is done by who asks for it.
    jobs: Option<mpsc::Sender<Job>>,
}

impl Loader {
    /// Starts the thread, with the rights of this one.
    ///
    /// # Errors
    /// There can be none.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, work) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || {
                // Where the kernel has no Landlock it takes longer, and nothing else.
                let _ = files::confine_loader();
                if let Ok(job) = work.recv() {
                    job();
                }
            })?;
        Ok(Self { jobs: Some(jobs) })
    }

    /// No thread: for a process that keeps its rights.
    pub fn here() -> Self {
        Self { jobs: None }
    }

    /// Has the work done, the first and last.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoaderError> {
        let Some(jobs) = self.jobs else {
            return Ok(work());
        };
        let (done, result) = oneshot::channel();
        let job = Box::new(move || {
            // Who asked may be gone.
            let _ = done.send(work());
        });
        jobs.send(job).map_err(|_| LoaderError)?;
        result.await.map_err(|_| LoaderError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_apart_or_here() {
        let name = || std::thread::current().name().map(str::to_owned);
        let apart = Loader::start().unwrap();
        assert_eq!(apart.run(name).await.unwrap().as_deref(), Some("loader"));
        assert_eq!(Loader::here().run(name).await.unwrap(), name());
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let loader = Loader::start().unwrap();
        let result = loader.run(|| panic!("on purpose")).await;
        assert!(matches!(result, Err(LoaderError)));
    }
}
