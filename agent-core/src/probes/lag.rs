//! How far the datapath lags behind the API, as the sentinel's generations show it.

use std::time::Duration;

use agent_common::probe::Stage;
use agent_common::service::Family;

use super::{SentinelLedger, lanes_of, place};
use crate::cluster::NodeFacts;
use crate::freshness::Lags;
use crate::time::Mono;
use crate::trace::{Lane, ProbeTrace, Transport};

impl SentinelLedger {
    /// The cluster view says that the sentinel's endpoint for this transport is at this port, as
    /// received at `now`. To be called whenever the view changed and the sentinel is as pathproof
    /// made it, after [`view_changed`](Self::view_changed); the same again changes nothing.
    pub fn want(&mut self, family: Family, transport: Transport, generation: u16, now: Mono) {
        let gap = self.limits.probe_gap;
        for lane in lanes_of(family).filter(|lane| lane.transport == transport) {
            self.lanes[place(lane)].freshness.want(generation, now, gap);
        }
    }

    /// The source of the cluster view went away, or was not heard yet after a restart: what the
    /// datapath may have missed meanwhile, with the same API server gone, does not make it late.
    pub fn source_away(&mut self, now: Mono) {
        self.away.get_or_insert(now);
    }

    /// The source of the cluster view is back. The time that it was away counts for nothing.
    pub fn source_back(&mut self, now: Mono) {
        let Some(away) = self.away.take() else { return };
        for lane in &mut self.lanes {
            lane.freshness.excuse(away, now);
        }
    }

    /// Whether whoever writes this node's rules can hear of changes: the source of the view is there,
    /// and the control plane hears the kubelet, which reaches it by the way that kube-proxy takes.
    /// The agent, which goes past that way, may hear of changes when they cannot.
    pub fn follow_source(&mut self, is_silent: bool, node: Option<&NodeFacts>, now: Mono) {
        if is_silent || node.is_some_and(|node| node.unheard) {
            self.source_away(now);
        } else {
            self.source_back(now);
        }
    }

    /// What the probe that was taken in last measured, if it was the first to meet a generation:
    /// how long after its receipt.
    pub fn measured(&self) -> Option<Duration> {
        self.measured
    }

    /// How far this node's datapath usually lags behind the API: the median of the last measures of
    /// the family that lags more. Nothing before a few were taken.
    pub fn usual_lag(&self) -> Option<Duration> {
        self.lags.iter().filter_map(Lags::usual).max()
    }

    /// A probe came through: which generation it met, and when it left for it.
    pub(super) fn measure(&mut self, trace: &ProbeTrace) {
        let Some(generation) = trace.generation else {
            return;
        };
        let stamps = match trace.lane.transport {
            Transport::Tcp => &trace.handshake,
            Transport::Udp => &trace.data,
        };
        let at = stamps[Stage::Translated as usize].unwrap_or(trace.sent);
        let lane = &mut self.lanes[place(trace.lane)];
        self.measured = lane.freshness.see(generation, at, self.limits.probe_gap);
        if let Some(lag) = self.measured
            && trace.lane.transport == Transport::Tcp
        {
            self.lags[trace.lane.family as usize].add(lag);
        }
    }

    /// For how long a lane's generation has been behind what this node received; nothing where it
    /// is not. Only time in which the source of the view was there counts.
    pub(crate) fn lateness(&self, lane: Lane, now: Mono) -> Option<Duration> {
        let since = self.lane(lane).freshness.unmet_since()?;
        Some(self.away.map_or(now, |away| away.min(now)).since(since))
    }
}
