//! Taints that say a node is being removed: the domain's rule, and an eye for misspelt presets.

use super::{ConfigError, parse};
use agent_core::eligibility::{PRESETS, TerminatingTaints};

/// The keys that the default set and what was said stand for.
pub(super) fn resolve(said: &[String]) -> Result<TerminatingTaints, ConfigError> {
    for value in parse::entries(said) {
        if let Some(preset) = misspelt(value) {
            return Err(ConfigError::Misspelt {
                value: value.to_owned(),
                preset,
            });
        }
    }
    TerminatingTaints::parse(parse::entries(said)).map_err(ConfigError::Taint)
}

/// The preset that a word is nearly. As a key it would match nothing, silently.
fn misspelt(value: &str) -> Option<&'static str> {
    PRESETS
        .iter()
        .map(|preset| preset.name)
        .find(|name| (1..=2).contains(&distance(name, value)))
}

/// Levenshtein distance: insertions, deletions and replacements from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn said(values: &[&str]) -> Result<TerminatingTaints, ConfigError> {
        resolve(
            &values
                .iter()
                .map(|value| (*value).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_autoscalers_taint_is_always_there() {
        assert!(
            said(&[])
                .unwrap()
                .contains("ToBeDeletedByClusterAutoscaler")
        );
    }

    #[test]
    fn presets_and_keys_add_up() {
        let taints = said(&["karpenter", "leaving", "", "a.io/b"]).unwrap();
        for key in [
            "ToBeDeletedByClusterAutoscaler",
            "karpenter.sh/disrupted",
            "leaving",
            "a.io/b",
        ] {
            assert!(taints.contains(key), "{key}");
        }
    }

    #[rstest]
    #[case("karpentre")]
    #[case("two words")]
    #[case("/name")]
    #[case("prefix/")]
    fn neither_preset_nor_key(#[case] value: &str) {
        let error = said(&[value]).unwrap_err().to_string();
        assert!(
            error.contains(value) && error.contains("karpenter"),
            "{error}"
        );
    }
}
