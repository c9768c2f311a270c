//! Counts open connections outside of the main loop: a large table takes longer to read than the
//! loop may block.

use pathproof_judge::drain::{OpenConnections, Outsiders};
use tokio::sync::mpsc;

use crate::datapath::flows;

/// A count, or the reason why there is none.
pub(super) type Counted = Result<OpenConnections, String>;

/// The node requests one count at a time.
pub(super) struct OpenCount {
    sender: mpsc::Sender<Counted>,
    pub(super) counted: Option<mpsc::Receiver<Counted>>,
}

impl Default for OpenCount {
    fn default() -> Self {
        let (sender, counted) = mpsc::channel(1);
        Self {
            sender,
            counted: Some(counted),
        }
    }
}

impl OpenCount {
    pub(super) fn begin(&self, outsiders: Outsiders) {
        let sender = self.sender.clone();
        tokio::task::spawn_blocking(move || {
            // The main loop may have ended.
            let _ = sender.blocking_send(flows::count(&outsiders));
        });
    }
}
