//! Whether the node forwards the data of real connections, by family.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::family::{SERVICES_KEPT, SOURCES_KEPT};
use crate::evidence::LostData;

/// Data of the connections that the eBPF programs watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLedger {
    /// Arrival of the last connection with data both ways, by source class.
    answered: [Option<Mono>; SOURCE_CLASSES],
    /// Clients that exchanged data both ways, the latest last. Nobody can forge that: an endpoint answers
    /// data only to a client that received its SYN-ACK.
    clients: Vec<IpAddr>,
    /// Connections whose data was not forwarded since data last went both ways, by source class.
    lost: [Option<DataLoss>; SOURCE_CLASSES],
}

/// Maximum number of clients that are remembered.
const CLIENTS_KEPT: usize = 128;

/// A run of connections whose data was not forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLoss {
    /// Arrival of the first one.
    pub since: Mono,
    /// Arrival of the last one.
    pub last: Mono,
    pub connections: u32,
    /// Services that they dialled, by label (`namespace/name:port`).
    pub labels: BTreeSet<String>,
    /// Known clients: those that exchanged data both ways before.
    pub clients: BTreeSet<IpAddr>,
    /// Number of connections of known clients.
    pub of_known: u32,
}

impl DataLedger {
    /// Records that data went both ways on a connection that arrived at `at`. With two proxies (`mixed`)
    /// this refutes only losses of the same class of clients.
    pub(crate) fn answer(&mut self, class: SourceClass, (at, client): (Mono, IpAddr), mixed: bool) {
        let last = &mut self.answered[class as usize];
        *last = (*last).max(Some(at));
        for (other, lost) in SourceClass::ALL.into_iter().zip(&mut self.lost) {
            lost.take_if(|lost| lost.since <= at && (other == class || !mixed));
        }
        crate::keep_latest(&mut self.clients, client, CLIENTS_KEPT);
    }

    /// Records that the data of a connection was not forwarded. This counts only if data of this source class
    /// went both ways before: otherwise a program may forward all data past the hooks. A loss that comes more
    /// than `pause` after the previous one starts a new run ([`DataLoss`]).
    pub(crate) fn lose(
        &mut self,
        lost: &LostData,
        info: &ServiceInfo,
        (pause, mixed): (Duration, bool),
    ) {
        let at = lost.arrived;
        let Some(worked) = self.answered[lost.class as usize] else {
            return;
        };
        let last = match mixed {
            true => worked,
            false => self.latest().map_or(worked, |(_, last)| last),
        };
        if last >= at {
            return;
        }
        let is_known = self.clients.contains(&lost.client);
        let run = &mut self.lost[lost.class as usize];
        run.take_if(|run| at.since(run.last) > pause);
        let run = run.get_or_insert_with(|| DataLoss {
            since: at,
            ..DataLoss::default()
        });
        run.since = run.since.min(at);
        run.last = run.last.max(at);
        run.connections = run.connections.saturating_add(1);
        if run.labels.len() < SERVICES_KEPT {
            run.labels.insert(info.label());
        }
        if is_known {
            run.of_known = run.of_known.saturating_add(1);
        }
        if is_known && run.clients.len() < SOURCES_KEPT {
            run.clients.insert(lost.client);
        }
    }

    /// The run of losses of a class of clients.
    pub fn lost(&self, class: SourceClass) -> Option<&DataLoss> {
        self.lost[class as usize].as_ref()
    }

    /// Ends all runs, because data may have gone unseen.
    pub(crate) fn forget_lost(&mut self) {
        self.lost = Default::default();
    }

    /// Class and arrival of the last connection of any client with data both ways.
    pub fn latest(&self) -> Option<(SourceClass, Mono)> {
        let all = SourceClass::ALL.into_iter().zip(self.answered);
        all.filter_map(|(class, at)| Some((class, at?)))
            .max_by_key(|(_, at)| *at)
    }

    /// Class and arrival of the last connection of a client outside with data both ways.
    pub fn latest_outside(&self) -> Option<(SourceClass, Mono)> {
        let class = SourceClass::External;
        Some((class, self.answered[class as usize]?))
    }
}
