//! Counts open connections outside of the main loop: a large table takes longer to read than the
//! loop may block.

use pathproof_judge::drain::{OpenConnections, Outsiders};
use tokio::sync::mpsc;

use crate::datapath::flows;

/// A count, or the reason why there is none.
pub(super) type Counted = Result<OpenConnections, String>;

/// Sends the count to `counts`. The node requests one count at a time.
pub(super) fn begin(counts: &mpsc::Sender<Counted>, outsiders: Outsiders) {
    let counts = counts.clone();
    tokio::task::spawn_blocking(move || {
        // The main loop may have ended.
        let _ = counts.blocking_send(flows::count(&outsiders));
    });
}
