//! The sentence about established connections whose data is not forwarded.

use super::{Words, from_clients, listed};
use crate::verdict::finding::Evidence;

impl Words<'_> {
    pub(super) fn data(&self) -> String {
        let Evidence::Data {
            services,
            since,
            clients,
            connections,
            last_success,
            lacking,
        } = &self.finding.evidence
        else {
            return String::new();
        };
        let success = match last_success {
            Some(at) => format!("data last went both ways {} ago", self.ago(*at)),
            None => "data went both ways on no other".to_owned(),
        };
        let lacking = lacking.map(|lacking| format!("; not confirmed: {}", self.lacking(lacking)));
        format!(
            "connections are made, but their data is not forwarded ({connections} {}to {} in the last {}); \
             {success}{}",
            from_clients(clients),
            listed(services),
            self.ago(*since),
            lacking.unwrap_or_default()
        )
    }
}
