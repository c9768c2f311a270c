//! Log lines for what the node noticed.

use pathproof_node::effect::Notice;

pub(super) fn log(notice: &Notice) {
    match notice {
        Notice::Lane(_) => tracing::debug!("{notice}"),
        Notice::SentinelOn | Notice::Awaited(_) | Notice::Topology(_) => {
            tracing::info!("{notice}")
        }
        _ => tracing::warn!("{notice}"),
    }
}
