//! Sentences about the criterion that keeps failed connections from accusing the node.

use pathproof_facts::time::HumanDuration;

use super::Words;
use crate::verdict::finding::MissingCriterion;

impl Words<'_> {
    pub(super) fn lacking(&self, lacking: MissingCriterion) -> String {
        let limits = self.limits;
        match lacking {
            MissingCriterion::Services => {
                format!("fewer than {} Services failed", limits.broken_services)
            }
            MissingCriterion::Endpoints => format!(
                "these Services have fewer than {} endpoints together",
                limits.broken_endpoints
            ),
            MissingCriterion::Pod => "only clients outside the node failed, and a firewall or a \
                                      NetworkPolicy may deny these connections"
                .to_owned(),
            MissingCriterion::New => "no failed Service worked before".to_owned(),
            MissingCriterion::Referee => {
                "the sentinel's probes pass, so a NetworkPolicy may deny these \
                                 connections"
                    .to_owned()
            }
            MissingCriterion::Filtered => "the sentinel's probes and these connections did not begin to \
                                           fail at the same time, so a filter on the sentinel's addresses and \
                                           a NetworkPolicy may explain them"
                .to_owned(),
            MissingCriterion::SentinelConflict => {
                "another Service uses the address that the sentinel's probes dial, so a fault \
                 cannot be told from a NetworkPolicy"
                    .to_owned()
            }
            MissingCriterion::Unprobed => {
                "no probe takes the way of pods' connections on this node, and a \
                               NetworkPolicy may deny these"
                    .to_owned()
            }
            MissingCriterion::Namespaces => {
                "all failed Services are in one namespace, and other namespaces have traffic"
                    .to_owned()
            }
            MissingCriterion::Sources => {
                format!("fewer than {} clients were affected", limits.broken_sources)
            }
            MissingCriterion::Time => format!(
                "they have failed for less than {}",
                HumanDuration(limits.broken_after)
            ),
        }
    }
}
