//! UDP Services: what became of their datagrams, those of DNS first.

use super::super::super::paper::{Ink, fitted, grouped};
use super::{Page, TEXT};
use agent_core::cause::Cause;
use agent_core::names;
use agent_core::report::udp::UdpServiceReport;

/// Services that are shown.
const SHOWN: usize = 6;
// Columns; those of numbers are where they end.
const NAME: usize = 4;
const FAMILY: usize = 38;
const NEW: usize = 52;
const FORWARDED: usize = 63;
const ANSWERED: usize = 73;
const FAILED: usize = 81;
const HALF: usize = 90;
const MOST: usize = 99;

impl Page<'_> {
    pub(super) fn udp(&mut self) {
        let udp = &self.report.udp;
        if udp.services.is_empty() {
            return;
        }
        self.paper.put(Ink::Heading, "udp").to(TEXT);
        self.paper.put(Ink::Faint, "judged apart");
        for (column, title) in [
            (NEW, "new"),
            (FORWARDED, "forwarded"),
            (ANSWERED, "answered"),
            (FAILED, "failed"),
            (HALF, "half in"),
            (MOST, "99 % in"),
        ] {
            self.paper.right(Ink::Faint, column, title);
        }
        self.paper.line();
        for service in udp.services.iter().take(SHOWN) {
            self.udp_service(service);
        }
        let hidden = udp.services.len().saturating_sub(SHOWN) as u64 + u64::from(udp.omitted);
        if hidden > 0 {
            let said = format!("and {} more", grouped(hidden));
            self.paper.to(NAME).put(Ink::Faint, &said).line();
        }
        self.paper.line();
    }

    fn udp_service(&mut self, of: &UdpServiceReport) {
        let failed = of.failed();
        let outcomes = &of.outcomes;
        let (mark, ink) = if failed > 0 {
            ("  !", Ink::Warn)
        } else if outcomes.answered > 0 {
            ("  ●", Ink::Good)
        } else {
            ("  ○", Ink::Faint)
        };
        self.paper.put(ink, mark).to(NAME);
        self.paper
            .put(Ink::Plain, &fitted(&of.service, FAMILY - NAME - 1))
            .to(FAMILY)
            .put(Ink::Faint, names::of_family(of.family));
        for (column, count) in [
            (NEW, outcomes.arrived),
            (FORWARDED, outcomes.forwarded),
            (ANSWERED, outcomes.answered),
        ] {
            self.paper.right(Ink::Plain, column, &grouped(count));
        }
        if failed > 0 {
            self.paper.right(ink, FAILED, &grouped(failed));
        }
        if let Some(times) = &of.answers {
            for (column, ns) in [(HALF, times.half_ns), (MOST, times.most_ns)] {
                self.paper.right(Ink::Faint, column, &milliseconds(ns));
            }
        }
        self.paper.line();
        let how = outcomes.failures().into_iter();
        let how: Vec<String> = how
            .filter(|(_, count)| *count > 0)
            .map(|(failure, count)| format!("{} {}", grouped(count), Cause::of(failure).name()))
            .collect();
        if !how.is_empty() {
            self.paper.to(NAME + 2).put(ink, &how.join(", ")).line();
        }
    }
}

/// A bound that is a power of two of nanoseconds, to two digits.
fn milliseconds(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        _ if ms < 1.0 => format!("{ms:.2} ms"),
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}
