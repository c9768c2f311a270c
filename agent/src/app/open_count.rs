//! Counts open connections beside the main loop: a large table takes longer to read than the loop may stand
//! still.

use agent_core::drain::{OpenConnections, Outsiders};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::datapath::flows;

/// A count, or the reason why there is none.
pub(super) type Counted = Result<OpenConnections, String>;

/// One count at a time.
pub(super) struct OpenCount {
    sender: mpsc::Sender<Counted>,
    /// Taken by the main loop.
    pub(super) counted: Option<mpsc::Receiver<Counted>>,
    task: Option<JoinHandle<()>>,
}

impl Default for OpenCount {
    fn default() -> Self {
        let (sender, counted) = mpsc::channel(1);
        Self {
            sender,
            counted: Some(counted),
            task: None,
        }
    }
}

impl OpenCount {
    /// Begins a count, unless one is under way.
    pub(super) fn begin(&mut self, outsiders: Outsiders) {
        if self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let sender = self.sender.clone();
        self.task = Some(tokio::task::spawn_blocking(move || {
            // The main loop may have ended.
            let _ = sender.blocking_send(flows::count(&outsiders));
        }));
    }
}
