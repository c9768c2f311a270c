//! Services' health check node ports that the agent answers, and those of them that their owner refuses.

use std::sync::Arc;

use pathproof_facts::names;
use pathproof_judge::health_ports::PortTable;
use pathproof_judge::health_ports::owner::{OwnerRefusals, PortKey};
use pathproof_wire::service::Family;
use tokio::sync::watch;

use crate::config::PortRange;
use crate::datapath::steer::ServicePorts;

/// Maximum number of refusals in the report.
const REFUSED_SHOWN: usize = 20;

/// Services' health check node ports that are steered to the agent, within the allowed range.
pub(crate) struct SteeredServices {
    pub(super) ports: ServicePorts,
    pub(crate) range: PortRange,
    /// Services by port, for the listener that answers.
    pub(crate) table: watch::Sender<Arc<PortTable>>,
    /// Ports that answer 503 because their owner does not answer 200.
    pub(crate) refusals: watch::Sender<Arc<OwnerRefusals>>,
}

impl SteeredServices {
    /// The first [`Self::refusals`], a phrase each, and the number of the others if there are any.
    pub(crate) fn refused(&self) -> (Vec<String>, Option<u64>) {
        let (table, refusals) = (self.table.borrow(), self.refusals.borrow());
        let mut named = refusals.iter().filter_map(|((family, port), refusal)| {
            Some((&table.get(port)?.service, *family, port, refusal))
        });
        let shown = named.by_ref().take(REFUSED_SHOWN);
        let shown = shown.map(|(service, family, port, refusal)| {
            let family = names::of_family(family);
            format!("{service}, {family} port {port}: {refusal}")
        });
        let shown = shown.collect();
        (shown, Some(named.count() as u64).filter(|more| *more > 0))
    }

    pub(crate) fn follow(&mut self, table: &Arc<PortTable>) {
        // Publish first: a steered connection must find its Service.
        self.table.send_replace(Arc::clone(table));
        if let Err(error) = self.ports.set(steered(table, &self.range)) {
            tracing::warn!(%error, "health check node ports cannot be steered: the node's proxy \
                                    answers them");
        }
    }
}

/// Ports in the range, each with the families in which its Service is served.
pub(crate) fn steered(table: &PortTable, range: &PortRange) -> impl Iterator<Item = PortKey> {
    let allowed = table.iter().filter(move |(port, _)| range.contains(port));
    allowed.flat_map(|(port, served_port)| {
        let families = Family::ALL.into_iter();
        let served = families.filter(|family| served_port.local[*family as usize].is_some());
        served.map(|family| (family, *port))
    })
}
