//! `pathproof status`: shows a running agent's report on one page: what is wrong, and where to
//! continue. It can also print the report as JSON.

use std::io::{self, IsTerminal, Write as _};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use pathproof_facts::cause::State;
use pathproof_facts::fleet_report::Count;
use pathproof_facts::names;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::text::{json, styled};
use pathproof_facts::time::HumanDuration;
use pathproof_judge::verdict::{FamilyVerdict, PathState, Verdict};
use pathproof_report::{
    KeptConnections, PortReport, PortWay, Report, SentinelCondition, SentinelReport,
};
use pathproof_shared::causes::chain;
use pathproof_shared::docs::address;
use pathproof_wire::service::SourceClass;
use pathproof_witness::topology::{DatapathTopology, Seen};

use super::page::{Style, Text, counted, grouped, sentence};
use super::{Exit, FetchError, colours, fetch, parts};
use crate::args::{Output, StatusArgs};

const REDRAW: Duration = Duration::from_secs(1);
/// Age from which a report is outdated: the agent writes at least two a second.
const OLD_AFTER: Duration = Duration::from_secs(3);

/// Runs the command: once, or until interrupted or the output is closed. `now` reads the wall clock.
pub fn run(args: &StatusArgs, now: fn() -> Timestamp) -> Exit {
    if !args.watch {
        return super::end(page(args, now).map(|page| super::write_out(&page)));
    }
    let redraw = io::stdout().is_terminal() && args.output == Output::Text;
    loop {
        // Continue after an error, because the agent may come back.
        let page = page(args, now).unwrap_or_else(|error| super::complaint(&chain(&error)));
        if put(&page, redraw).is_err() {
            return Exit::Success;
        }
        thread::sleep(REDRAW);
    }
}

fn page(args: &StatusArgs, now: fn() -> Timestamp) -> Result<String, FetchError> {
    let (report, body) = fetch::report(&args.admin.address)?;
    Ok(match args.output {
        Output::Json => json(&body).into_owned(),
        Output::Text => styled(&render(&report, now(), colours()), colours()),
    })
}

/// Prints the page. With `redraw`, it overwrites the last page line by line, so that nothing flickers.
fn put(page: &str, redraw: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if redraw {
        let over = page.replace('\n', "\x1b[K\n");
        write!(out, "\x1b[H{over}\x1b[J")?;
    } else {
        out.write_all(page.as_bytes())?;
    }
    out.flush()
}

/// Renders the page, with the most important part first.
pub fn render(report: &Report, now: Timestamp, colour: bool) -> String {
    let verdict = &report.verdict;
    let mut out = Text::new(colour);
    out.verdict(report);
    out.wrapped(Style::Plain, 0, &sentence(&verdict.reason()));
    let also = verdict.also();
    out.list("also", Style::Plain, &also);
    if let Ok(age) = Duration::try_from(now.duration_since(report.written))
        && age > OLD_AFTER
    {
        let text = format!(
            "This report is {} old: the agent no longer updates it; see its log and /agent/livez.",
            HumanDuration(age)
        );
        out.wrapped(Style::Bad, 0, &text);
    }
    out.answers(report);
    for family in &verdict.families {
        traffic(&mut out, family, verdict, &also);
    }
    sentinel(&mut out, &report.sentinel);
    out.gap();
    out.lanes(verdict);
    out.services(verdict);
    out.list("udp", Style::Warn, &udp_troubles(report));
    out.conntrack(verdict);
    out.unseen(verdict);
    out.list("datapath", Style::Plain, &datapath(&report.datapath));
    if report.datapath.cilium.is_some() {
        out.more(Style::Faint, &address("docs/cilium.md"));
    }
    let conflict = report.conflicts.sentence();
    out.list("contested", Style::Warn, &Vec::from_iter(conflict));
    out.list("problems", Style::Warn, &problems(report));
    out.section("port", Style::Faint, port(&report.port));
    if let Some(bypassed) = bypassed(&report.port.kept) {
        out.more(Style::Warn, &bypassed);
    }
    peers(&mut out, report);
    fleet(&mut out, report);
    agent(&mut out, report);
    if verdict.state != State::Proven {
        out.gap();
        let next = "pathproof why explains this verdict and what to do.";
        out.section("next", Style::Plain, next);
    }
    out.finish()
}

/// Real connections of a family, by origin.
fn traffic(out: &mut Text, family: &FamilyVerdict, verdict: &Verdict, also: &[String]) {
    let paths = family.paths.iter().map(|path| {
        let name = names::of_path(path.path);
        let proven = parts::ago(path.last_proof, verdict.at);
        match path.state {
            PathState::Proven => format!("{name} proven {proven}"),
            PathState::Failing => format!("{name} FAILING, proven {proven}"),
            PathState::Quiet => format!("{name} none recently"),
        }
    });
    let text = format!("connections: {}", paths.collect::<Vec<_>>().join("; "));
    let title = names::of_family(family.family);
    out.put(Style::Heading, title).put(Style::Plain, " ");
    out.put(Style::of(family.state), family.state.name());
    out.more(Style::Plain, &text);
    // Omit a reason that the top of the page already shows: that of the worst family, or one of the other
    // findings.
    let reason = verdict.reason_of(family);
    let is_above = family.finding == verdict.finding || also.contains(&reason);
    if family.state != State::Proven && !is_above {
        out.more(Style::Plain, &sentence(&reason));
    }
}

fn sentinel(out: &mut Text, sentinel: &SentinelReport) {
    let state = sentinel.state.name();
    let text = match (sentinel.state, &sentinel.service) {
        (SentinelCondition::Probing, Some(service)) => format!("{state} {service}"),
        _ => format!("{state}: {}", sentinel.sentence),
    };
    out.section("sentinel", Style::of_sentinel(sentinel.state), &text);
}

/// UDP Services whose datagrams fail. They do not affect the verdict.
fn udp_troubles(report: &Report) -> Vec<String> {
    let services = report.udp.services.iter().map(|service| &service.counted);
    let trouble = services.filter_map(|service| {
        let failures = service.outcomes.failures().into_iter();
        let failures = failures.filter(|(_, count)| *count > 0).collect();
        let (counts, all) = (parts::counts(&failures), grouped(service.outcomes.arrived));
        let family = names::of_family(service.family);
        let text = format!(
            "{} on {family}: {counts} of {all} datagrams; they do not affect the verdict ({})",
            service.service,
            address("docs/operations.md#udp")
        );
        (!failures.is_empty()).then_some(text)
    });
    trouble.collect()
}

/// The program that translates each path, unless the path is fully observed; and other notes.
fn datapath(topology: &DatapathTopology) -> Vec<String> {
    // Merge both families of a path, unless they differ: kube-proxy may serve only one of them.
    let mut known: Vec<(SourceClass, &str, String)> = Vec::new();
    for path in topology.paths.iter().filter(|path| path.seen != Seen::Full) {
        let family = names::of_family(path.family);
        let same = |known: &&mut (_, &str, _)| (known.0, known.1) == (path.path, &*path.sentence);
        match known.iter_mut().find(same) {
            Some((.., families)) => *families = format!("{families} and {family}"),
            None => known.push((path.path, &path.sentence, family.to_owned())),
        }
    }
    let mut lines = topology.notes.clone();
    lines.extend(known.into_iter().map(|(path, sentence, families)| {
        format!("{} ({families}): {sentence}", names::of_path(path))
    }));
    lines
}

fn problems(report: &Report) -> Vec<String> {
    let (port, cluster) = (report.port.problem.iter(), &report.cluster);
    let port = port.map(|problem| format!("the port is not steered: {problem}"));
    let publish = report.publish.problems().map(str::to_owned);
    let missing = cluster.missing_node.iter();
    let missing = missing.filter(|why| !cluster.problems.contains(why));
    let others = (report.hardening.missing.iter().chain(&cluster.problems)).chain(missing);
    port.chain(publish).chain(others.cloned()).collect()
}

/// How load balancers' health checks reach the agent.
fn port(port: &PortReport) -> &'static str {
    match (port.way, port.owner) {
        _ if port.succeeded => "another agent has taken over",
        _ if port.waits => {
            "the previous process still answers load balancers; the agent takes over soon"
        }
        (PortWay::Off, _) => {
            "the agent does not serve /healthz and /livez (--healthz-bind-address=none)"
        }
        (PortWay::Bound, _) => "the agent listens on the healthz port",
        (PortWay::Steered, Some(true)) => {
            "the agent answers requests from outside the node; requests from the node itself go to \
             the process that listens on the port"
        }
        (PortWay::Steered, Some(false)) => {
            "steered to the agent; no other process listens on the port"
        }
        (PortWay::Steered, None) => {
            "steered to the agent; it is unknown whether another process listens on the port"
        }
    }
}

/// Connections from before the agent answered, if any are open.
fn bypassed(kept: &KeptConnections) -> Option<String> {
    let open = counted(kept.open.filter(|open| *open > 0)?, "older connection");
    let next = match &kept.left {
        None => "the agent ends these within 30 s".to_owned(),
        Some(why) => format!("not ended ({why}): restart the load balancer's checks"),
    };
    Some(format!(
        "bypassed by {open} from outside, answered by the process that listens on the port; {next}"
    ))
}

/// Other nodes that do not answer.
fn peers(out: &mut Text, report: &Report) {
    let silent = &report.peers.silent;
    let nodes = counted(report.peers.dialled as u64, "other node");
    let names = match &**silent {
        [] => return,
        [a, b, c, _, ..] => format!("{a}, {b}, {c}, ..."),
        few => few.join(", "),
    };
    let text = format!("{} of {nodes} do not answer: {names}", silent.len());
    out.section("nodes", Style::Warn, &text);
}

/// The fleet brake: the number of failing nodes, and the limit on nodes that answer 503.
fn fleet(out: &mut Text, report: &Report) {
    let fleet = &report.fleet;
    if let Some(Count { unsound, nodes }) = fleet.count {
        let limit = fleet.limit.map(|limit| format!("limit {limit} %"));
        let brake = limit.unwrap_or_else(|| "off".to_owned());
        let ago = fleet.counted.map(|at| age(report, at).to_string());
        let ago = ago.unwrap_or_else(|| "long".to_owned());
        let text = format!("{unsound} of {nodes} nodes failing, counted {ago} ago; brake {brake}");
        out.section("fleet", Style::Faint, &text);
    }
    for ignored in &fleet.ignored {
        out.section("ignored", Style::Warn, &sentence(ignored));
    }
}

fn agent(out: &mut Text, report: &Report) {
    let (expected, view) = (&report.expectations, &report.cluster);
    let changed = match (view.synced, view.changed) {
        (false, _) => ", not complete yet".to_owned(),
        (true, None) => String::new(),
        (true, at) => format!(", changed {}", parts::ago(at, report.verdict.at)),
    };
    let text = format!(
        "{}, {}, {} from {}{changed}",
        counted(expected.services, "Service"),
        counted(expected.frontends, "frontend"),
        counted(expected.endpoints, "endpoint"),
        view.source,
    );
    out.section("view", Style::Faint, &text);
    let agent = &report.agent;
    let audit = match agent.enforcement {
        Enforcement::Enforce => "",
        Enforcement::Audit => ", audit only",
    };
    let (version, up) = (&agent.version, age(report, agent.started));
    let text = format!("pathproof {version}, running for {up}{audit}");
    out.section("agent", Style::Faint, &text);
}

/// Time from `at` to the report.
fn age(report: &Report, at: Timestamp) -> HumanDuration {
    HumanDuration(report.written.duration_since(at).unsigned_abs())
}

#[cfg(test)]
mod tests;
