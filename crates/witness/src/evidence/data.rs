//! Connections whose data the node did not forward.
//!
//! A handshake shows that a connection was translated and forwarded. But later packets may still be
//! dropped, by a rule for what conntrack calls invalid or by an inline filter. The programs watch the first
//! data of a few connections at a time.

use std::net::IpAddr;

use pathproof_facts::time::Mono;
use pathproof_wire::evidence::Pending;
use pathproof_wire::service::{SourceClass, frontend_flag};
use pathproof_wire::transition::is_data_lost;
use serde::{Deserialize, Serialize};

use super::ip_of;

/// An answered connection whose first data was seen three times and was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostData {
    pub arrived: Mono,
    /// Id of the Service port and family.
    pub service: u32,
    pub class: SourceClass,
    pub client: IpAddr,
}

impl LostData {
    /// The lost data of a connection, if any. Call this just before the entry is forgotten, because until
    /// then the data may still be forwarded.
    pub fn of(pending: &Pending) -> Option<Self> {
        let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
        (is_data_lost(pending.state) && !is_probe).then(|| Self {
            arrived: Mono(pending.arrived_ns),
            service: pending.service,
            class: SourceClass::from_index(pending.class.into()),
            client: ip_of(&pending.client),
        })
    }
}
