//! Next steps by cause, the same as in docs/operations.md, which has a heading for each.

use pathproof_facts::cause::{Cause, ProbeCause, State, Why};
use pathproof_wire::service::Family;
use serde::Serialize;

use super::{is_explained, texts};
use crate::verdict::{LaneState, Verdict};

/// Page with the full description.
const PAGE: &str = "docs/operations.md";

/// Next steps for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The cause, or the reason for Unknown.
    #[serde(rename = "of")]
    pub subject: String,
    /// Commands to run on the node, whose output shows the cause.
    pub commands: Vec<String>,
    /// Signs that confirm the cause, and the repair.
    pub advice: String,
    pub page: String,
}

/// Next steps for a verdict; causes that accuse the node come first.
pub fn next(verdict: &Verdict) -> Vec<Remedy> {
    let mut found: Vec<(Cause, Family)> = Vec::new();
    let mut states = vec![LaneState::Failing];
    if matches!(verdict.state, State::Unknown | State::Starting) {
        states.push(LaneState::NeverWorked);
    }
    for state in states {
        for family in &verdict.families {
            let lanes = family.lanes.iter().filter(|lane| lane.state == state);
            let unexplained = lanes.filter(|lane| !is_explained(lane, &family.lanes));
            found.extend(
                unexplained.filter_map(|lane| Some((looked_into(lane.cause?), family.family))),
            );
        }
    }
    let services = verdict.services.iter();
    found.extend(services.map(|service| (service.cause, service.family)));
    let families = verdict.families.iter();
    found.extend(families.filter_map(|family| Some((family.cause?, family.family))));
    let mut causes: Vec<(Cause, Vec<Family>)> = Vec::new();
    for (cause, family) in found {
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, families)) if families.contains(&family) => {}
            Some((_, families)) => families.push(family),
            None => causes.push((cause, vec![family])),
        }
    }
    let causes = causes.iter();
    let of_causes = causes.map(|(cause, families)| of_cause(*cause, families));
    let of_why = verdict.why.map(of_why);
    of_why.into_iter().chain(of_causes).collect()
}

/// The next steps for a cause in these families.
fn of_cause(cause: Cause, families: &[Family]) -> Remedy {
    let mut commands = Vec::new();
    for command in texts::all("command", cause.name()) {
        for family in families {
            let command = in_family(command, *family);
            if !commands.contains(&command) {
                commands.push(command);
            }
        }
    }
    let advice = texts::one("advice", cause.name());
    let advice = match families {
        [family] => in_family(advice, *family),
        _ => advice.to_owned(),
    };
    Remedy {
        subject: cause.name().to_owned(),
        commands,
        advice,
        page: format!("{PAGE}#{}", cause.name()),
    }
}

/// The cause whose next steps apply to a failed probe. ICMP errors come from filters.
fn looked_into(cause: ProbeCause) -> Cause {
    match cause {
        ProbeCause::Unreachable => Cause::Lost,
        cause => cause.cause(),
    }
}

/// A command or advice for IPv4, adapted to this family.
fn in_family(text: &str, family: Family) -> String {
    match family {
        Family::V4 => text.to_owned(),
        Family::V6 => text
            .replace("iptables -", "ip6tables -")
            .replace("chain ip kube-proxy", "chain ip6 kube-proxy")
            .replace("-w net.ipv4.ip_forward", "-w net.ipv6.conf.all.forwarding"),
    }
}

/// Next steps for an Unknown node.
pub fn of_why(why: Why) -> Remedy {
    Remedy {
        subject: why.name().to_owned(),
        commands: Vec::new(),
        advice: texts::one("why", why.name()).to_owned(),
        page: format!("{PAGE}#when-nothing-is-known"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OPERATIONS: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operations.md"
    ));

    #[test]
    fn the_page_has_a_heading_for_every_cause_and_its_commands() {
        let page = OPERATIONS;
        for cause in Cause::ALL {
            let heading = format!("### {}", cause.name());
            let section = page.split_once(&format!("{heading}\n"));
            assert!(section.is_some(), "docs/operations.md lacks {heading:?}");
            for command in texts::all("command", cause.name()) {
                assert!(
                    page.contains(command),
                    "docs/operations.md lacks {command:?}"
                );
            }
        }
        // Every cause of a probe leads to a heading.
        for cause in ProbeCause::ALL {
            assert!(Cause::ALL.contains(&looked_into(cause)));
        }
    }

    #[rstest]
    #[case(&[Family::V4], "iptables -L FORWARD -nv")]
    #[case(&[Family::V6], "ip6tables -L FORWARD -nv")]
    #[case(
        &[Family::V4, Family::V6],
        "iptables -L FORWARD -nv; ip6tables -L FORWARD -nv; nft list ruleset | grep -n drop"
    )]
    fn commands_are_those_of_the_family(#[case] families: &[Family], #[case] expected: &str) {
        let said = of_cause(Cause::Lost, families).commands.join("; ");
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn a_repair_is_that_of_the_family() {
        let v6 = of_cause(Cause::ForwardingOff, &[Family::V6]);
        assert!(
            v6.advice
                .contains("sysctl -w net.ipv6.conf.all.forwarding=1"),
            "{v6:?}"
        );
    }
}
