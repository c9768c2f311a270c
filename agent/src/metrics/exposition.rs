//! Writes a scrape: joins the definitions with the current values of the report and the kernel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::{fmt, fs};

use pathproof_facts::cause::{Cause, State, Why};
use pathproof_facts::names;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbePath;
use pathproof_judge::brake::Held;
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::verdict::LaneView;
use pathproof_report::Report;
use pathproof_wire::evidence::{DELAY_BUCKETS, Delays};
use pathproof_wire::service::{FAMILIES, Family};
use pathproof_witness::conntrack::Conntrack;
use pathproof_witness::topology::Cilium;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::connections::{HANDSHAKE_BOUNDS, Handshakes};
use super::definitions::{self as define, Definition};
use super::series::{self, ServiceMetrics};
use super::{Current, Shared, Snapshot};

#[derive(Debug)]
pub(super) struct Exposition(pub(super) Arc<Shared>);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(&mut encoder);
        page.process()?;
        let current = self.0.current();
        if let Some(snapshot) = &current.snapshot {
            page.verdict(&snapshot.report)?;
            page.families(&snapshot.report)?;
            page.observer(snapshot)?;
            page.conntrack(&snapshot.report.verdict.conntrack)?;
        }
        page.connections(&current)
    }
}

struct Page<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Page<'_, '_> {
    /// Writes series: label values in the order of the definition, and the value.
    fn series<'v, const N: usize>(
        &mut self,
        definition: &'static Definition,
        series: impl IntoIterator<Item = ([&'v str; N], f64)>,
    ) -> fmt::Result {
        self.encode(definition, series, |encoder, value| match definition.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => encoder.encode_gauge(&value),
        })
    }

    fn encode<'v, const N: usize, V>(
        &mut self,
        definition: &'static Definition,
        series: impl IntoIterator<Item = ([&'v str; N], V)>,
        encode: impl Fn(&mut MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        debug_assert_eq!(definition.labels.len(), N, "{}", definition.name);
        let (name, help) = (definition.name, definition.help);
        let mut encoder = self
            .0
            .encode_descriptor(name, help, definition.unit, definition.kind)?;
        for (values, value) in series {
            let labels: Vec<(&str, &str)> = definition.labels.iter().copied().zip(values).collect();
            match labels.is_empty() {
                true => encode(&mut encoder, value)?,
                false => encode(&mut encoder.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }

    fn connections(&mut self, current: &Current) -> fmt::Result {
        let (connections, datagrams) = (&current.connections, &current.datagrams.counted);
        let verdict = current.verdict();
        let named = verdict.map_or(&[][..], |verdict| &verdict.services);
        let now = verdict.map_or(Mono(0), |verdict| verdict.at);
        self.series(define::CONNECTIONS, connections.node_series())?;
        let services = connections.shown(current.which, series::TCP, named, now);
        self.series(define::SERVICE_CONNECTIONS, services.series())?;
        self.encode(define::HANDSHAKE, services.handshakes(), of_handshakes)?;
        // Refused datagrams, and answers that do not arrive, cannot be observed.
        let is_known = |outcome: &str| !matches!(outcome, "refused" | "unheard");
        self.series(define::DATAGRAMS, datagrams.family_series(is_known))?;
        // The verdict covers only connections.
        let udp = datagrams.shown(current.which, series::UDP, &[], now);
        let shown = udp.series().filter(|([.., outcome], _)| is_known(outcome));
        self.series(define::SERVICE_DATAGRAMS, shown)?;
        let omitted = (current.which == ServiceMetrics::Trouble)
            .then(|| ([], (services.omitted + udp.omitted) as f64));
        self.series(define::SERVICES_OMITTED, omitted)
    }

    fn process(&mut self) -> fmt::Result {
        self.series(define::CPU, cpu_seconds().map(|seconds| ([], seconds)))?;
        self.series(define::MEMORY, resident_bytes().map(|bytes| ([], bytes)))
    }

    fn verdict(&mut self, report: &Report) -> fmt::Result {
        let verdict = &report.verdict;
        let (coverage, agent) = (&verdict.coverage, &report.agent);
        let (view, expected) = (&report.cluster, &report.expectations);
        for (definition, value) in [
            (define::SINCE, unix(report, verdict.since)),
            (define::VERDICT_AT, unix(report, verdict.at)),
            (
                define::ENFORCING,
                flag(agent.enforcement == Enforcement::Enforce),
            ),
            (define::DEVICES_WANTED, coverage.wanted.into()),
            (define::DEVICES_ATTACHED, coverage.attached.into()),
            (define::VIEW_SYNCED, flag(view.synced)),
            (define::VIEW_PROBLEMS, view.problems.len() as f64),
            (define::EXPECTED_SERVICES, expected.services as f64),
            (define::EXPECTED_MISSING, expected.missing as f64),
            (define::START, agent.started.as_nanosecond() as f64 / 1e9),
        ] {
            self.series(definition, [([], value)])?;
        }
        let conflicts = &report.conflicts;
        let by_owner = [
            (["service"], conflicts.services as f64),
            (["sentinel"], conflicts.sentinel as f64),
            (["node"], conflicts.node as f64),
        ];
        self.series(define::FRONTEND_CONFLICTS, by_owner)?;
        let unjudged = [
            (["service"], expected.unjudged.service as f64),
            (["namespace"], expected.unjudged.namespace as f64),
        ];
        self.series(define::EXPECTED_UNJUDGED, unjudged)?;
        let eligible = match verdict.eligibility {
            Eligibility::NeverSeen => None,
            Eligibility::Eligible => Some(1.0),
            Eligibility::Deleting | Eligibility::Tainted { .. } => Some(0.0),
        };
        self.series(define::ELIGIBLE, eligible.map(|value| ([], value)))?;
        let answers = [
            ("healthz", report.answers.healthz),
            ("livez", report.answers.livez),
        ];
        let given = answers.map(|(check, answer)| ([check], flag(answer.status == 200)));
        self.series(define::ANSWER, given)?;
        let would = answers.map(|(check, answer)| ([check], flag(answer.would_fail)));
        self.series(define::WOULD_FAIL, would)?;
        let held = report.answers.held.map(Held::name);
        let braked = Held::NAMES.map(|name| ([name], flag(held == Some(name))));
        self.series(define::BRAKED, braked)?;
        let all = &verdict.services;
        let confirmed = all.iter().filter(|service| service.confirmed).count();
        // The verdict lists the worst Services first, so those that it omits are not confirmed.
        let single = all.len() - confirmed + verdict.services_omitted as usize;
        let troubled = [(["true"], confirmed as f64), (["false"], single as f64)];
        self.series(define::TROUBLED, troubled)?;
        let build = [agent.version.as_str(), &agent.abi.to_string()];
        self.series(define::BUILD, [(build, 1.0)])
    }

    fn families(&mut self, report: &Report) -> fmt::Result {
        let all = &report.verdict.families;
        let families = || {
            all.iter()
                .map(|family| (names::of_family(family.family), family))
        };
        let states = families().flat_map(|(family, verdict)| {
            State::ALL.map(|state| ([family, state.name()], flag(state == verdict.state)))
        });
        self.series(define::STATE, states)?;
        let causes = families().filter_map(|(family, verdict)| {
            let cause = verdict
                .cause
                .map(Cause::name)
                .or(verdict.why.map(Why::name))?;
            Some(([family, verdict.state.name(), cause], 1.0))
        });
        self.series(define::CAUSE, causes)?;
        // A rule may find several things in a family, but a series must be unique.
        let found: BTreeSet<[&str; 2]> = families()
            .flat_map(|(family, verdict)| {
                verdict
                    .all_findings()
                    .map(move |found| [family, found.rule.name()])
            })
            .collect();
        self.series(
            define::FINDING,
            found.into_iter().map(|labels| (labels, 1.0)),
        )?;
        let proofs = families().flat_map(|(family, verdict)| {
            verdict.paths.iter().filter_map(move |path| {
                let at = unix(report, path.last_proof?);
                Some(([family, names::of_path(path.path)], at))
            })
        });
        self.series(define::LAST_PROOF, proofs)?;
        let lanes = || {
            families().flat_map(|(family, verdict)| {
                let labels =
                    move |lane: &LaneView| [family, lane.path.name(), lane.transport.name()];
                verdict.lanes.iter().map(move |lane| (labels(lane), lane))
            })
        };
        let armed = lanes().map(|(labels, lane)| (labels, flag(lane.armed)));
        self.series(define::PROBE_ARMED, armed)?;
        let failing = lanes().filter(|(_, lane)| lane.failures > 0);
        let failing = failing.map(|(labels, lane)| (labels, lane.failures.into()));
        self.series(define::PROBE_FAILURES, failing)?;
        // The lag of a path is that of its slower transport.
        let lags = families().flat_map(|(family, verdict)| {
            ProbePath::ALL.into_iter().filter_map(move |path| {
                let lanes = verdict.lanes.iter().filter(|lane| lane.path == path);
                let lag = lanes.filter_map(LaneView::programming_lag).max()?;
                Some(([family, path.name()], lag.as_secs_f64()))
            })
        });
        self.series(define::PROGRAMMING_LAG, lags)
    }

    fn conntrack(&mut self, conntrack: &Conntrack) -> fmt::Result {
        let (table, dropped) = (conntrack.table, conntrack.dropped);
        let entries = table.map(|table| ([], table.entries as f64));
        self.series(define::CONNTRACK_ENTRIES, entries)?;
        let limit = table.map(|table| ([], table.limit as f64));
        self.series(define::CONNTRACK_LIMIT, limit)?;
        let dropped = table.map(|_| ([], dropped as f64));
        self.series(define::CONNTRACK_FULL_DROPS, dropped)?;
        let events = table.into_iter().flat_map(|table| {
            let events = [
                ("drop", table.drop),
                ("insert_failed", table.insert_failed),
                ("early_drop", table.early_drop),
            ];
            events.map(|(event, count)| ([event], count as f64))
        });
        self.series(define::CONNTRACK_EVENTS, events)
    }

    fn observer(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let report = &snapshot.report;
        let families = || Family::ALL.map(names::of_family).into_iter();
        self.encode(
            define::FORWARDING_DELAY,
            [([], &snapshot.delays)],
            histogram,
        )?;
        let external = families().zip(report.drain.counted);
        let external = external.map(|(family, count)| ([family], count as f64));
        self.series(define::EXTERNAL, external)?;
        let reattached = [([], snapshot.reattached as f64)];
        self.series(define::REATTACHED, reattached)?;
        let losses = report.verdict.coverage.losses.iter();
        // Several devices may share a loss, but a series must be unique.
        let losses: BTreeSet<&str> = losses.map(|loss| loss.loss.name()).collect();
        let losses = losses.into_iter().map(|loss| ([loss], 1.0));
        self.series(define::COVERAGE_LOSS, losses)?;
        let unjudged = report.verdict.coverage.unjudged.iter();
        let unjudged = unjudged.map(|(failure, n)| ([Cause::of(*failure).name()], *n as f64));
        self.series(define::UNJUDGED, unjudged)?;
        let faults = report.faults.iter().filter(|(_, count)| **count > 0);
        let faults = faults.map(|(fault, count)| ([fault.as_ref()], *count as f64));
        self.series(define::FAULTS, faults)?;
        let topology = &report.datapath;
        let cilium = |name: fn(Cilium) -> &'static str| topology.cilium.map_or("none", name);
        let yes = |is: bool| if is { "yes" } else { "no" };
        let labels = [
            yes(topology.cilium.is_some()),
            cilium(|cilium| cilium.replacement.name()),
            cilium(|cilium| cilium.socket_lb.name()),
            cilium(|cilium| cilium.routing.name()),
            yes(!topology.accelerated.is_empty()),
            yes(topology.netkit > 0),
            topology.sentinel_managed.name(),
        ];
        self.series(define::DATAPATH, [(labels, 1.0)])?;
        let paths = topology.paths.iter().map(|path| {
            let (family, way) = (names::of_family(path.family), names::of_path(path.path));
            ([family, way, path.seen.name()], 1.0)
        });
        self.series(define::PATH, paths)
    }
}

/// Upper bounds of the buckets that are shown, as powers of two of nanoseconds: 16 us, 66 us, 262 us,
/// 1 ms, 8 ms, 134 ms and 1.1 s.
const BOUNDS: [usize; 7] = [14, 16, 18, 20, 23, 27, 30];

/// Merges both families into fewer buckets than the kernel has.
fn histogram(encoder: &mut MetricEncoder<'_>, families: &[Delays; FAMILIES]) -> fmt::Result {
    let between = |from: usize, to: usize| -> u64 {
        let counts = families.iter().flat_map(|delays| &delays.buckets[from..to]);
        counts.sum()
    };
    // Bucket n of the kernel ends at 2^(n+1) ns; its last one has no bound.
    let bounds = BOUNDS.map(|power| ((1u64 << power) as f64 / 1e9, power));
    let mut from = 0;
    let buckets: Vec<(f64, u64)> = bounds
        .into_iter()
        .chain([(f64::INFINITY, DELAY_BUCKETS)])
        .map(|(bound, to)| (bound, between(std::mem::replace(&mut from, to), to)))
        .collect();
    let sum: u64 = families.iter().map(|delays| delays.sum_ns).sum();
    let count = between(0, DELAY_BUCKETS);
    encoder.encode_histogram::<NoLabelSet>(sum as f64 / 1e9, count, &buckets, None)
}

fn of_handshakes(encoder: &mut MetricEncoder<'_>, handshakes: &Handshakes) -> fmt::Result {
    let bounds = HANDSHAKE_BOUNDS.map(|ns| ns as f64 / 1e9);
    let bounds = bounds.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(handshakes.buckets).collect();
    encoder.encode_histogram::<NoLabelSet>(
        handshakes.sum_ns as f64 / 1e9,
        handshakes.count(),
        &buckets,
        None,
    )
}

fn flag(set: bool) -> f64 {
    if set { 1.0 } else { 0.0 }
}

/// Converts a monotonic time of a report to Unix seconds.
fn unix(report: &Report, at: Mono) -> f64 {
    let ahead = i128::from(at.0) - i128::from(report.verdict.at.0);
    (report.written.as_nanosecond() + ahead) as f64 / 1e9
}

/// Clock ticks a second in /proc/self/stat: USER_HZ, 100 on every architecture that Linux has.
const TICKS: f64 = 100.0;

/// Fields 14 and 15 of proc_pid_stat(5). Field 2, the command's name, may contain anything and ends
/// with the last parenthesis.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS)
}

/// `VmRSS:  1234 kB` of proc_pid_status(5).
fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}
