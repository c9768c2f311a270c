//! Puts the report and the metrics' snapshot together from what the main loop knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_common::evidence::Fault;

use super::agent::Agent;
use crate::datapath::ABI;
use crate::datapath::attach::{Attachment, Mechanism};
use crate::metrics::Snapshot;
use crate::publish::Publishing;
use agent_core::effect::Answers;
use agent_core::evidence::Directory as _;
use agent_core::report::publish::PublishReport;
use agent_core::report::udp::UDP_SHOWN;
use agent_core::report::{
    AgentInfo, AnswerReport, Answers as AnswersReport, Attached, BUSIEST_SHOWN, ClusterReport,
    DeviceReport, ExpectationReport, Report, SCHEMA, SentinelReport, SightingReport,
};
use agent_core::time::Wall;
use agent_core::verdict::Verdict;

impl Agent {
    /// The document behind `/verdict`.
    pub(super) fn assemble(&self, verdict: Verdict, answers: &Answers) -> Report {
        let (services, services_omitted) =
            self.metrics
                .services(self.node.planner(), &verdict.services, BUSIEST_SHOWN);
        Report {
            schema: SCHEMA,
            node: self.config.node_name.to_string(),
            node_uid: self.node.uid(),
            written: timestamp(self.node.judge().anchor.wall_of(verdict.at)),
            agent: AgentInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                abi: ABI,
                started: timestamp(self.output.started),
                enforcement: self.config.enforcement,
                unknown_policy: self.config.unknown_policy,
            },
            hardening: self.output.hardening.clone(),
            answers: AnswersReport {
                healthz: AnswerReport::from(&answers.healthz),
                livez: AnswerReport::from(&answers.livez),
            },
            port: (self.succeeded.port.as_ref())
                .map_or_else(Default::default, |port| port.borrow().clone()),
            sentinel: self.sentinel_report(),
            services,
            services_omitted,
            udp: self.metrics.udp(self.node.planner(), UDP_SHOWN),
            sightings: self.sighting_reports(),
            devices: self.device_reports(),
            datapath: self.node.judge().shape.clone(),
            expectations: self.expectation_report(),
            cluster: self.cluster_report(),
            publish: self.publish_report(),
            faults: self.fault_counts(),
            drain: self.node.drain().clone(),
            verdict,
        }
    }

    /// Name of a Service as reports show it.
    pub(super) fn service_name(&self, id: u32) -> String {
        match self.node.planner().service(id) {
            Some(info) if info.port.is_empty() => info.name.to_string(),
            Some(info) => format!("{}:{}", info.name, info.port),
            None => format!("service id {id}"),
        }
    }

    /// What metrics show beside the report.
    pub(super) fn snapshot(&self, report: Arc<Report>) -> Snapshot {
        let observer = self.observer.as_ref();
        Snapshot {
            report,
            delays: observer
                .and_then(|observer| observer.sampler.delays().ok())
                .unwrap_or_default(),
            reattached: observer.map_or(0, |observer| observer.repairs()),
            anomalies: self.output.anomalies,
            view_changes: self.node.view_state().changes,
        }
    }

    fn sentinel_report(&self) -> SentinelReport {
        match &self.probing {
            Some(probing) => probing.report(&self.node),
            None => SentinelReport::disabled(),
        }
    }

    fn sighting_reports(&self) -> Vec<SightingReport> {
        let device = |index| {
            let name = self
                .observer
                .as_ref()
                .and_then(|observer| observer.device_name(index));
            name.map_or_else(|| format!("interface {index}"), str::to_owned)
        };
        self.node
            .judge()
            .sightings
            .iter()
            .map(|sighting| {
                let service = self.service_name(sighting.service);
                SightingReport::new(sighting, service, device(sighting.device))
            })
            .collect()
    }

    fn device_reports(&self) -> Vec<DeviceReport> {
        self.observer
            .iter()
            .flat_map(|observer| observer.attachments())
            .map(device)
            .collect()
    }

    fn expectation_report(&self) -> ExpectationReport {
        let missing = self.node.planner().missing();
        ExpectationReport {
            services: self.node.view().service_count() as u64,
            frontends: self.node.planner().frontend_count() as u64,
            endpoints: self.node.planner().endpoint_count(),
            missing: missing.frontends + missing.endpoints + missing.sources + missing.services,
        }
    }

    fn cluster_report(&self) -> ClusterReport {
        let conflicts = self.node.planner().conflicts().take(20).map(|conflict| {
            format!(
                "{} and {} claim the same frontend; the first is expected to be served",
                conflict.holder, conflict.claimant
            )
        });
        ClusterReport {
            source: self.config.source.to_string(),
            synced: self.node.view().is_synced(),
            changed: self.node.view_state().changed,
            problems: self
                .node
                .view_state()
                .problems
                .iter()
                .cloned()
                .chain(conflicts)
                .collect(),
            ignored: self.node.view_state().ignored,
        }
    }

    fn publish_report(&self) -> PublishReport {
        let publishing = self.output.publishing.as_ref();
        publishing.map(Publishing::report).unwrap_or_default()
    }

    fn fault_counts(&self) -> BTreeMap<String, u64> {
        let Some(faults) = &self.output.faults else {
            return BTreeMap::new();
        };
        let named = |fault: &Fault| (fault.name().to_owned(), faults[*fault as usize]);
        Fault::ALL.iter().map(named).collect()
    }
}

fn device(attachment: &Attachment) -> DeviceReport {
    DeviceReport {
        name: attachment.device.name.clone(),
        index: attachment.device.index,
        attached: match attachment.mechanism() {
            Some(Mechanism::Tcx) => Attached::Tcx,
            Some(Mechanism::Clsact) => Attached::Clsact,
            None => Attached::None,
        },
        ingress_head: attachment.first[0],
        egress_head: attachment.first[1],
        uplink: attachment.device.uplink,
        problem: attachment.problem.clone(),
    }
}

fn timestamp(wall: Wall) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(wall.0)).unwrap_or_default()
}
