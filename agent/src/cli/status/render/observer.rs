//! How much is seen: interfaces, losses, what was passed unjudged.

use super::super::super::paper::{Ink, counted, grouped};
use super::{Page, TEXT};
use agent_core::report::{Attached, DeviceReport};

/// Interfaces named in a line.
const DEVICES_SHOWN: usize = 12;

impl Page<'_> {
    pub(super) fn observer(&mut self) {
        let report = self.report;
        let coverage = &report.verdict.coverage;
        let all = coverage.attached >= coverage.wanted && coverage.wanted > 0;
        let ink = if all { Ink::Plain } else { Ink::Warn };
        let watched = format!(
            "{} of {} watched in both directions",
            coverage.attached,
            counted(u64::from(coverage.wanted), "interface")
        );
        self.paper
            .put(Ink::Heading, "observer")
            .to(TEXT)
            .put(ink, &watched)
            .line();
        for (how, title) in [(Attached::Tcx, "tcx"), (Attached::Clsact, "clsact")] {
            self.attached(how, title);
        }
        // What a device lacks is said with the device.
        let losses: Vec<String> = coverage
            .losses
            .iter()
            .filter(|loss| !matches!(loss.loss.name(), "detached" | "not_first"))
            .map(|loss| loss.sentence.clone())
            .collect();
        self.list(Ink::Warn, &losses, "more losses");
        let unwatched: Vec<String> = report
            .devices
            .iter()
            .filter(|device| device.attached == Attached::None && device.problem.is_none())
            .map(device_name)
            .collect();
        self.devices(Ink::Warn, "! not watched:", &unwatched);
        let troubled: Vec<String> = report.devices.iter().filter_map(device_trouble).collect();
        self.list(Ink::Warn, &troubled, "more interfaces");
        let faults: Vec<String> = report
            .faults
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(fault, count)| format!("{} {}", fault.replace('_', " "), grouped(*count)))
            .collect();
        if !faults.is_empty() {
            self.paper.to(TEXT).put(Ink::Faint, "passed unjudged:");
            self.paper.wrapped(Ink::Faint, TEXT, &faults.join(", "));
        }
        self.paper.line();
    }

    fn attached(&mut self, how: Attached, title: &str) {
        let sound: Vec<String> = self
            .report
            .devices
            .iter()
            .filter(|device| device.attached == how && device_trouble(device).is_none())
            .map(device_name)
            .collect();
        self.devices(Ink::Plain, title, &sound);
    }

    fn devices(&mut self, ink: Ink, title: &str, devices: &[String]) {
        if devices.is_empty() {
            return;
        }
        let shown = devices
            .iter()
            .take(DEVICES_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let more = match devices.len().saturating_sub(DEVICES_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.paper
            .to(TEXT)
            .wrapped(ink, TEXT + 2, &format!("{title} {shown}{more}"));
    }
}

fn device_name(device: &DeviceReport) -> String {
    if device.uplink {
        format!("{} (uplink)", device.name)
    } else {
        device.name.clone()
    }
}

/// What is wrong with a device, unless it is that it is not watched for no reason that is known.
fn device_trouble(device: &DeviceReport) -> Option<String> {
    let behind = [
        (device.ingress_head, "ingress"),
        (device.egress_head, "egress"),
    ];
    let behind: Vec<&str> = behind
        .iter()
        .filter(|(head, _)| *head == Some(false))
        .map(|(_, way)| *way)
        .collect();
    let name = &device.name;
    match (&device.problem, device.attached) {
        (Some(problem), _) => Some(format!("{name}: {problem}")),
        (None, Attached::None) => None,
        (None, _) if !behind.is_empty() => Some(format!(
            "{name}: another program runs first at {}",
            behind.join(" and ")
        )),
        (None, _) => None,
    }
}
