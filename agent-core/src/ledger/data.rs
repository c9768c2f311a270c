//! Whether the node forwards the data of real connections, by family.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::family::{SERVICES_KEPT, SOURCES_KEPT};
use crate::evidence::{LostData, ServiceInfo};
use crate::time::Mono;

/// Data of connections, as far as it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataLedger {
    /// Arrival of the last connection of which data went both ways, by source class.
    answered: [Option<Mono>; SOURCE_CLASSES],
    /// Connections whose data was not forwarded, since data last went both ways.
    pub(crate) lost: Option<DataLoss>,
}

/// A run of connections whose data was not forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataLoss {
    /// Arrival of the first one.
    pub(crate) since: Mono,
    /// Arrival of the last one.
    pub(crate) last: Mono,
    pub(crate) connections: u32,
    /// Services that they dialled, by label (`namespace/name:port`).
    pub(crate) labels: BTreeSet<String>,
    pub(crate) clients: BTreeSet<IpAddr>,
    /// Whether pods were among the clients, and whether clients outside were.
    pub(crate) of_pods: bool,
    pub(crate) of_outsiders: bool,
}

impl DataLedger {
    /// Data of a connection that had arrived then went both ways.
    pub(crate) fn answer(&mut self, class: SourceClass, at: Mono) {
        let last = &mut self.answered[class as usize];
        *last = (*last).max(Some(at));
        self.lost.take_if(|lost| lost.since <= at);
    }

    /// The data of a connection was not forwarded. It counts only if that of such clients once was: a program that
    /// forwards data past the hooks hides all of it. A run with nothing in it for longer than `pause` is over.
    pub(crate) fn lose(&mut self, lost: &LostData, info: &ServiceInfo, pause: Duration) {
        let at = lost.arrived;
        let worked = self.answered[lost.class as usize];
        if worked.is_none_or(|last| last >= at) || self.last_answered() >= Some(at) {
            return;
        }
        self.lost.take_if(|run| at.since(run.last) > pause);
        let run = self.lost.get_or_insert_with(|| DataLoss {
            since: at,
            ..DataLoss::default()
        });
        run.since = run.since.min(at);
        run.last = run.last.max(at);
        run.connections = run.connections.saturating_add(1);
        if run.labels.len() < SERVICES_KEPT {
            run.labels.insert(info.label());
        }
        if run.clients.len() < SOURCES_KEPT {
            run.clients.insert(lost.client);
        }
        match lost.class {
            SourceClass::Pod => run.of_pods = true,
            SourceClass::External => run.of_outsiders = true,
            SourceClass::Host => {}
        }
    }

    /// Ends the run: data may have gone unseen.
    pub(crate) fn forget_lost(&mut self) {
        self.lost = None;
    }

    /// Arrival of the last connection of any client of which data went both ways.
    pub(crate) fn last_answered(&self) -> Option<Mono> {
        self.answered.into_iter().max().flatten()
    }

    /// The same, with the class of its client.
    pub(crate) fn latest(&self) -> Option<(SourceClass, Mono)> {
        let all = SourceClass::ALL.into_iter().zip(self.answered);
        all.filter_map(|(class, at)| Some((class, at?)))
            .max_by_key(|(_, at)| *at)
    }

    /// Whether nothing is known.
    pub(crate) fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}
