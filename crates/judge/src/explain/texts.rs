//! Texts that need no code, by kind and name, from `texts.txt`.

use pathproof_facts::limits::Limits;
use pathproof_facts::time::HumanDuration;

const TEXTS: &str = include_str!("texts.txt");

/// The texts of this kind and name, in order.
pub(super) fn all(kind: &str, name: &str) -> impl Iterator<Item = &'static str> {
    let key = format!("{kind} {name}: ");
    TEXTS
        .lines()
        .filter_map(move |line| line.strip_prefix(key.as_str()))
}

/// The text of this kind and name; a test shows that there is one.
pub(super) fn one(kind: &str, name: &str) -> &'static str {
    all(kind, name).next().unwrap_or_default()
}

/// A text with the values of the limits that it names.
pub(super) fn with_limits(text: &str, limits: &Limits) -> String {
    if !text.contains('{') {
        return text.to_owned();
    }
    let times = [
        ("{proof_age}", limits.proof_age),
        ("{broken_after}", limits.broken_after),
        ("{boot_deadline}", limits.boot_deadline),
        ("{probe_gap}", limits.probe_gap),
        ("{service_spread}", limits.service_spread),
        ("{lag_after}", limits.lag_after),
        ("{stale_after}", limits.stale_after),
    ];
    let numbers = [
        ("{probe_failures}", limits.probe_failures as usize),
        ("{service_failures}", limits.service_failures as usize),
        ("{broken_endpoints}", limits.broken_endpoints as usize),
        ("{broken_services}", limits.broken_services),
        ("{broken_namespaces}", limits.broken_namespaces),
        ("{broken_sources}", limits.broken_sources),
    ];
    let times = times.map(|(name, time)| (name, HumanDuration(time).to_string()));
    let numbers = numbers.map(|(name, number)| (name, number.to_string()));
    let values = times.into_iter().chain(numbers);
    values.fold(text.to_owned(), |text, (name, value)| {
        text.replace(name, &value)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use pathproof_facts::cause::{Cause, ProbeCause, Why};
    use pathproof_facts::names;
    use pathproof_facts::trace::ProbePath;
    use pathproof_wire::service::SourceClass;
    use pathproof_witness::probes::VoidReason;

    use super::super::ShownStage;
    use super::*;
    use crate::verdict::finding::{MissingCriterion, Rule, Scope};

    /// The names of each kind in the file.
    fn found() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for line in TEXTS.lines() {
            if line.is_empty() || line.starts_with("# ") {
                continue;
            }
            let (key, text) = line.split_once(": ").expect("kind, name and text");
            let (kind, name) = key.split_once(' ').expect("kind and name");
            assert!(!text.is_empty() && !name.contains(' '), "{line}");
            found.entry(kind).or_default().insert(name);
        }
        found
    }

    #[test]
    fn every_name_has_a_text_and_every_text_a_name() {
        let causes = || Cause::ALL.map(Cause::name).to_vec();
        let probe_causes = || ProbeCause::ALL.map(ProbeCause::name).to_vec();
        let paths = || ProbePath::ALL.map(ProbePath::name).to_vec();
        let accusing = Rule::ALL.into_iter().filter(|rule| rule.state().fails());
        let accusing: Vec<&str> = accusing.map(Rule::name).collect();
        let with = |names: &[&'static str], more: &[&'static str]| [names, more].concat();
        let mut means = with(&probe_causes(), &["lost_from_host", "refused_by_node"]);
        // Its text depends on the family.
        means.retain(|name| *name != "forwarding_off");
        let expected = [
            ("cause", causes()),
            ("advice", causes()),
            ("why", Why::ALL.map(Why::name).to_vec()),
            ("void", VoidReason::ALL.map(VoidReason::name).to_vec()),
            ("happened", with(&probe_causes(), &["lost_from_host"])),
            ("means", means),
            ("rule", with(&accusing, &["table_full"])),
            ("eliminated", with(&accusing, &["table_full"])),
            ("client", SourceClass::ALL.map(names::of_path).to_vec()),
            ("path", paths()),
            ("dialled", paths()),
            (
                "others",
                vec!["filtered", "host", "misrouted", "node_port", "udp"],
            ),
            ("clients", Scope::ALL.map(Scope::name).to_vec()),
            ("policy", Scope::ALL.map(Scope::name).to_vec()),
            (
                "lacking",
                MissingCriterion::ALL.map(MissingCriterion::name).to_vec(),
            ),
        ];
        let mut found = found();
        for (kind, expected) in expected {
            let expected: BTreeSet<&str> = expected.into_iter().collect();
            assert_eq!(found.remove(kind), Some(expected), "{kind}");
        }
        // Some causes have no command.
        let commands = found.remove("command").expect("commands");
        assert!(commands.is_subset(&causes().into_iter().collect()));
        let missed = found.remove("missed").expect("missed stages");
        let stages = ShownStage::ALL.map(ShownStage::name).to_vec();
        assert!(missed.is_subset(&with(&probe_causes(), &stages).into_iter().collect()));
        // The others have evidence with a sentence.
        let unknown = found.remove("unknown").expect("reasons for Unknown");
        let reasons = Rule::ALL.into_iter().filter(|rule| rule.why().is_some());
        assert!(unknown.is_subset(&reasons.map(Rule::name).collect()));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn every_limit_in_a_text_has_a_value() {
        for line in TEXTS.lines().filter(|line| !line.starts_with("means ")) {
            let text = with_limits(line, &Limits::default());
            assert!(line.starts_with('#') || !text.contains('{'), "{text}");
        }
    }
}
