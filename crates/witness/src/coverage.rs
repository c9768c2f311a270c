//! The observer's coverage: what is missing, what is suspended, and why. A blind observer is never
//! a fault of the node.

use std::time::Duration;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::Missing;
use pathproof_facts::limits::CATCH_UP;
use pathproof_facts::time::Mono;
use pathproof_wire::evidence::{FAULTS, Fault};
use serde::{Deserialize, Serialize};

use crate::evidence::{CoverageLoss, ObserverHealth};

/// Time after programs were loaded or exchanged in which connections may be observed only in part.
const SETTLING: Duration = Duration::from_secs(2);
/// Time for which connections that were not followed are reported.
const RECENT: Duration = Duration::from_secs(10);
/// Time for which a client retransmits a SYN (tcp_syn_retries 6). For this long, first and repeated
/// SYNs cannot be distinguished.
const RETRIES: Duration = Duration::from_secs(130);

/// The observer's hooks at the node's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Interfaces that should be observed.
    pub devices: Vec<Hook>,
    /// Number of interfaces that the configuration excludes, or whose headers the observer cannot parse.
    pub left_out: u64,
    /// Number of pods' interfaces that are not observed because of other programs' qdiscs.
    pub unseen: u64,
    /// Number of `unseen` interfaces that are new and will be observed in a moment.
    pub new: u64,
    /// Why BPF links or maps are no longer pinned.
    pub not_pinned: Option<String>,
}

impl Hooks {
    /// Names of the interfaces with default routes.
    pub fn uplinks(&self) -> impl Iterator<Item = &str> {
        let uplinks = self.devices.iter().filter(|hook| hook.uplink);
        uplinks.map(|hook| hook.device.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    pub device: String,
    /// Whether a default route uses the interface.
    pub uplink: bool,
    /// Whether programs are attached in both directions.
    pub attached: bool,
    /// Whether no other program is known to run before the observer's.
    pub first: bool,
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverStart {
    pub blind: Option<String>,
    /// Why BPF links and maps cannot be pinned.
    pub no_pins: Option<String>,
    /// The observer continues with a former agent's maps: it missed nothing between the two agents.
    pub continues: bool,
}

/// The state from which coverage is computed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Coverage {
    observer: ObserverStart,
    pub hooks: Hooks,
    settling_until: Option<Mono>,
    uncertain_until: Option<Mono>,
    source: Source,
    pending_full: Recent,
    over_budget: Recent,
    #[serde(skip_serializing_if = "Option::is_none", rename = "unknown_claims")]
    unknown_frontends: Option<String>,
    /// Why the last sample could not be read.
    unread: Option<String>,
}

/// Whether the source of the cluster view reports current changes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
enum Source {
    #[default]
    Live,
    Silent,
    /// Live again since this time.
    Back(Mono),
}

/// A counter whose growth is reported only while it is recent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recent {
    last: Option<u64>,
    missed: u64,
    until: Option<Mono>,
}

impl Recent {
    fn note(&mut self, count: u64, now: Mono) {
        if self.until.is_some_and(|until| now >= until) {
            (self.missed, self.until) = (0, None);
        }
        let grown = count.saturating_sub(self.last.unwrap_or(count));
        self.last = Some(count);
        if grown > 0 {
            self.missed = self.missed.saturating_add(grown);
            self.until = Some(now.plus(RECENT));
        }
    }

    fn missed(&self) -> Option<u64> {
        self.until.map(|_| self.missed)
    }
}

impl Coverage {
    pub fn new(observer: ObserverStart, now: Mono) -> Self {
        Self {
            observer,
            settling_until: Some(now.plus(SETTLING)),
            ..Self::default()
        }
    }

    /// Records that programs were loaded or exchanged.
    pub fn settle(&mut self, now: Mono) {
        self.settling_until = Some(now.plus(SETTLING));
    }

    pub fn source(&mut self, is_silent: bool, now: Mono) {
        self.source = match (is_silent, self.source) {
            (true, _) => Source::Silent,
            (false, Source::Silent) => Source::Back(now),
            (false, before) => before,
        };
    }

    /// Records the Service with unknown frontends, if any: it may get the connections of any other Service.
    pub fn unknown_frontends(&mut self, service: Option<&ObjectName>) {
        self.unknown_frontends = service.map(ToString::to_string);
    }

    /// Whether endpoints may have changed without a report.
    fn is_behind(&self, now: Mono) -> bool {
        match self.source {
            Source::Live => false,
            Source::Silent => true,
            Source::Back(since) => now.since(since) < CATCH_UP,
        }
    }

    /// Records a sample: the fault counts of the eBPF programs, and the number of connections that were
    /// evicted too early.
    pub fn read(&mut self, faults: &[u64; FAULTS], forgotten_early: usize, now: Mono) {
        self.unread = None;
        let count = |fault: Fault| faults[fault as usize];
        self.pending_full.note(count(Fault::PendingFull), now);
        self.over_budget.note(count(Fault::OverBudget), now);
        if forgotten_early > 0 {
            self.uncertain_until = Some(now.plus(RETRIES));
        }
    }

    /// Records that sampling failed. Returns whether the reason is new.
    pub fn unread(&mut self, why: &str) -> bool {
        self.unread.replace(why.to_owned()).as_deref() != Some(why)
    }

    pub fn health(&self, missing: Missing, now: Mono) -> ObserverHealth {
        let mut reasons = Vec::new();
        let (attached, wanted) = self.devices(&mut reasons);
        let ObserverStart { blind, no_pins, .. } = &self.observer;
        reasons.extend(blind.clone().map(|why| CoverageLoss::NotLoaded { why }));
        let no_pins = no_pins.as_ref().or(self.hooks.not_pinned.as_ref());
        reasons.extend(no_pins.cloned().map(|why| CoverageLoss::NoPins { why }));
        reasons.extend(self.unread.clone().map(|why| CoverageLoss::NotRead { why }));
        let left_out = self.hooks.left_out;
        if left_out > 0 {
            reasons.push(CoverageLoss::LeftOut { devices: left_out });
        }
        reasons.extend(absent(missing));
        let lasts = |until: Option<Mono>| until.is_some_and(|until| now < until);
        let settling = lasts(self.settling_until);
        let uncertain = lasts(self.uncertain_until);
        let behind = self.is_behind(now);
        reasons.extend(settling.then_some(CoverageLoss::Settling));
        reasons.extend(uncertain.then_some(CoverageLoss::FirstSynUncertain));
        reasons.extend(behind.then_some(CoverageLoss::SourceSilent));
        let unknown = self.unknown_frontends.clone();
        reasons.extend(unknown.map(|service| CoverageLoss::FrontendsUnknown { service }));
        let full = self.pending_full.missed();
        reasons.extend(full.map(|missed| CoverageLoss::PendingFull { missed }));
        let over = self.over_budget.missed();
        reasons.extend(over.map(|missed| CoverageLoss::OverBudget { missed }));
        let unseen = self.hooks.unseen > 0;
        ObserverHealth {
            attached,
            wanted,
            reasons,
            // Connections that were not followed may have succeeded. If an uplink or a pod's interface is
            // unobserved, a connection that leaves by it to a silent endpoint looks lost.
            lost_suspended: settling || full.is_some() || self.no_uplink().is_some() || unseen,
            refused_suspended: unseen,
            // Connections look misrouted if their endpoint is unknown to the observer: the map had no room
            // for it, or only kube-proxy has received it.
            misrouted_suspended: settling
                || uncertain
                || behind
                || self.unknown_frontends.is_some()
                || missing.endpoints > 0,
        }
    }

    fn devices(&self, reasons: &mut Vec<CoverageLoss>) -> (u32, u32) {
        let devices = &self.hooks.devices;
        for hook in devices {
            let device = hook.device.clone();
            if !hook.attached {
                let why = hook.problem.clone().unwrap_or_default();
                reasons.push(CoverageLoss::Detached { device, why });
            } else if !hook.first {
                reasons.push(CoverageLoss::NotFirst { device });
            }
        }
        let attached = devices.iter().filter(|hook| hook.attached).count();
        (attached as u32, devices.len() as u32)
    }

    /// Why connections from outside may be unobserved. A loss of coverage that affects only pods' interfaces
    /// or the outcome of connections does not matter here.
    pub fn hides_outside(&self, health: &ObserverHealth, synced: bool) -> Option<String> {
        if !synced && !self.observer.continues {
            return Some("the cluster view is not complete yet".to_owned());
        }
        if let Some(missed) = health.reasons.iter().find(|loss| hides(loss)) {
            return Some(missed.to_string());
        }
        match health.attached {
            0 => Some("no interface is observed".to_owned()),
            _ => self.no_uplink(),
        }
    }

    /// Whether connections of pods or of clients outside may be unobserved. New interfaces of pods, which
    /// will be observed in a moment, do not matter.
    pub fn hides_clients(&self) -> bool {
        self.no_uplink().is_some() || self.hooks.unseen > self.hooks.new
    }

    /// Why there is no observer at all.
    pub fn blindness(&self) -> Option<String> {
        let why = self.observer.blind.as_ref()?;
        Some(format!("the observer is not loaded into the kernel: {why}"))
    }

    /// Why an uplink is not observed, or may be among the excluded devices.
    fn no_uplink(&self) -> Option<String> {
        let mut uplinks = self.hooks.devices.iter().filter(|hook| hook.uplink);
        if uplinks.clone().next().is_none() && self.hooks.left_out > 0 {
            return Some(
                "no interface with a default route is observed, and some interfaces are excluded"
                    .to_owned(),
            );
        }
        let detached = uplinks.find(|hook| !hook.attached)?;
        Some(format!("{} is not observed", detached.device))
    }
}

/// Whether connections from outside may be unobserved because of this loss of coverage. A source over its
/// budget is still observed, up to its budget.
fn hides(loss: &CoverageLoss) -> bool {
    matches!(
        loss,
        CoverageLoss::FrontendsFull { .. }
            | CoverageLoss::ServicesFull { .. }
            | CoverageLoss::PendingFull { .. }
    )
}

fn absent(missing: Missing) -> impl Iterator<Item = CoverageLoss> {
    let some = |missing: u64| (missing > 0).then_some(missing);
    let frontends = some(missing.frontends);
    let endpoints = some(missing.endpoints);
    let sources = some(missing.sources);
    let services = some(missing.services);
    let losses = [
        frontends.map(|missing| CoverageLoss::FrontendsFull { missing }),
        endpoints.map(|missing| CoverageLoss::EndpointsFull { missing }),
        sources.map(|missing| CoverageLoss::SourcesFull { missing }),
        services.map(|missing| CoverageLoss::ServicesFull { missing }),
    ];
    losses.into_iter().flatten()
}

#[cfg(test)]
mod tests;
